"""Decode in a process of its own, with or without the package; benchmarks/without_package.py runs this file.

Usage: python decoding_process.py FOLDER SOURCE_TOKENS BEAMS NEW_TOKENS [--forbid]

The process loads the model of a folder, and with `--forbid` it cannot import the package. For each line that it reads,
it calls generate() once and prints the seconds. This file must not import the package or other files of benchmarks/.
"""

import argparse
import importlib.abc
import sys
import time

import torch
from transformers import AutoModelForSeq2SeqLM


PACKAGE = "hf_vanilla_transformer"
FIRST_TOKEN_ID = 3


class NoPackage(importlib.abc.MetaPathFinder):
    """Raises ModuleNotFoundError for the package."""

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Refuse to find the package, and leave other modules to other finders."""
        if name.partition(".")[0] == PACKAGE:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main() -> None:
    """Generate once for each line of the standard input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("source_tokens", type=int)
    parser.add_argument("beams", type=int)
    parser.add_argument("new_tokens", type=int)
    parser.add_argument("--forbid", action="store_true")
    args = parser.parse_args()

    if args.forbid:
        sys.meta_path.insert(0, NoPackage())
    else:
        __import__(PACKAGE)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.folder, trust_remote_code=args.forbid).eval()
    # No sentence ends before the last token.
    model.generation_config.eos_token_id = None
    model.generation_config.early_stopping = False
    model.generation_config.max_length_offset = None

    generator = torch.Generator().manual_seed(0)
    source = torch.randint(FIRST_TOKEN_ID, model.config.vocab_size, (1, args.source_tokens), generator=generator)
    for _ in sys.stdin:
        start = time.perf_counter()
        tokens = model.generate(
            source,
            attention_mask=torch.ones_like(source),
            num_beams=args.beams,
            max_new_tokens=args.new_tokens,
            do_sample=False,
        )
        seconds = time.perf_counter() - start
        assert tokens.shape == (1, 1 + args.new_tokens)
        print(seconds, flush=True)


if __name__ == "__main__":
    main()
