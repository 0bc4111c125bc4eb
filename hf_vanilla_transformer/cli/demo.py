"""Train on the built-in number corpus, score unseen numbers, and translate some: the whole way in one command."""

import argparse
from pathlib import Path

from .. import load_pairs, translate
from . import train
from .common import load


OUTPUT = "runs/numbers"
EXAMPLES = 4


def main() -> None:
    """Train and score, translate, and say how to go on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="42", help="of the training")
    parser.add_argument("--output_dir", default=OUTPUT, help="where the model goes; only the default is overwritten")
    args = parser.parse_args()
    settings = ["--seed", args.seed, "--output_dir", args.output_dir]
    settings += ["--overwrite"] if args.output_dir == OUTPUT else []
    folder = train.main([str(train.DEFAULT_RECIPE), *settings])
    print()
    show_translations(folder)
    print("\nin Python:\n")
    print("import hf_vanilla_transformer; from transformers import AutoModelForSeq2SeqLM, AutoTokenizer")
    print(f'tokenizer, model = (c.from_pretrained("{folder}") for c in (AutoTokenizer, AutoModelForSeq2SeqLM))')
    print('print(hf_vanilla_transformer.translate(model, tokenizer, ["forty-two"]))')


def show_translations(folder: Path) -> None:
    """Translate some of the test numbers, which are the same whatever the number of training pairs."""
    tokenizer, model = load(str(folder))
    test = load_pairs("numbers", train_size=9)["test"]
    sources = test.select(range(0, len(test), len(test) // EXAMPLES))["source"]
    for source, translation in zip(sources, translate(model, tokenizer, list(sources)), strict=True):
        print(f"{source}\n  -> {translation}")


if __name__ == "__main__":
    main()
