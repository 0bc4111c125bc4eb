"""Align the words of sentence pairs: in 0-0 1-2, word 1 of the source (from 0) is linked with word 2 of the target.

hf-vanilla-transformer align --model_name_or_path runs/mine "two dogs" "zwei Hunde"
hf-vanilla-transformer align --model_name_or_path runs/mine --test_file test.en test.de --output test.align
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...data.pair_arguments import DataArguments
from ...support.build_arguments import option
from ...support.output_files import check_can_write, open_output
from ...support.user_errors import InputError
from ...translation.alignment import Links, align
from ...translation.loading_arguments import LoadingArguments
from .parser import parse, program
from .shared_options import BatchArguments, EngineArguments, load_given


@dataclass
class AlignArguments:
    """Which pairs to align, and where to write their links."""

    pairs: list[str] = option([], "Sentences, each source before its target.", positional=True)
    split: str | None = option(None, "The split to align; by default test.")
    output: str | None = option(None, "Write the alignments to this file, not to stdout.")


class Arguments(NamedTuple):
    align: AlignArguments
    model: LoadingArguments
    engine: EngineArguments
    data: DataArguments
    batches: BatchArguments


@program
def main(arguments: list[str]) -> list[Links]:
    """Align as the command line says; returns the alignments in the order of the pairs."""
    args = parse(Arguments, __doc__, arguments, "align")
    output = args.align.output
    check_can_write(output, inputs=[*args.data.paths(), Path(args.model.model_name_or_path)])
    sources, targets = _pairs(args.align, args.data)
    tokenizer, model = load_given(args.model, args.engine)
    alignments = align(
        model,
        tokenizer,
        sources,
        targets,
        tokens_per_batch=args.batches.tokens_per_batch,
        show_progress=sys.stderr.isatty(),
        target_lang=args.data.target_language_for(tokenizer),
    )
    with open_output(output) as file:
        for links in alignments:
            line = " ".join(f"{source}-{target}" for source, target in links)
            file.write(f"{line}\n")
    return alignments


def _pairs(asked: AlignArguments, data: DataArguments) -> tuple[list[str], list[str]]:
    given, split = asked.pairs, asked.split
    if not given:
        pairs = data.load(split or "test")[split or "test"]
        return list(pairs["source"]), list(pairs["target"])
    if data.paths() or data.dataset_name:
        raise InputError("pairs were given both as arguments and as data; give one of the two.")
    if split is not None:
        raise InputError(f"split is {split}, but has no effect on pairs that are given as arguments; leave it out.")
    if len(given) % 2:
        raise InputError(f"there are {len(given)} sentences; give pairs, each source before its target.")
    return given[::2], given[1::2]
