"""Align the words of sentence pairs: find the target words that translate each source word. Each pair becomes one line
of links. For example, 1-2 links source word 1 with target word 2, both counted from 0.

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
from .shared_options import BatchArguments, EngineArguments, load_tokenizer_and_model


@dataclass
class AlignArguments:
    """Command-line arguments that name the pairs to align and the output file."""

    pairs: list[str] = option([], "Sentences, each source before its target.", positional=True)
    split: str | None = option(None, "The split to align; by default test.")
    output: str | None = option(None, "Write the alignments to this file, not to stdout.")


class Arguments(NamedTuple):
    """All argument groups of `align`, in the order in which `--help` lists them."""

    align: AlignArguments
    model: LoadingArguments
    engine: EngineArguments
    data: DataArguments
    batches: BatchArguments


@program
def main(arguments: list[str]) -> list[Links]:
    """Align the pairs that the command line names, write the links, and return them in the order of the pairs."""
    args = parse(Arguments, __doc__, arguments, "align")
    output = args.align.output
    # The output and the pairs come first, because loading the model takes longer and one of them may be invalid.
    check_can_write(output, inputs=[*args.data.paths(), Path(args.model.model_name_or_path)])
    sources, targets = _load_pairs(args.align, args.data)
    tokenizer, model = load_tokenizer_and_model(args.model, args.engine)
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
            # A link is a pair of word numbers, counted from 0. For example, the links [(0, 0), (1, 2)] become the line
            # "0-0 1-2".
            line = " ".join(f"{source}-{target}" for source, target in links)
            file.write(f"{line}\n")
    return alignments


def _load_pairs(align_args: AlignArguments, data_args: DataArguments) -> tuple[list[str], list[str]]:
    """Return the source and target sentences, which are on the command line itself or in the data that it names.

    Raises InputError if there are both sentences and data, or if a source has no target.
    """
    # The sentences on the command line, in which sources and targets alternate.
    sentences = align_args.pairs
    if not sentences:
        split = align_args.split or "test"
        pairs = data_args.load(split)[split]
        return list(pairs["source"]), list(pairs["target"])
    if data_args.paths() or data_args.dataset_name:
        raise InputError("pairs were given both as arguments and as data; give one of the two.")
    if align_args.split is not None:
        raise InputError(
            f"split is {align_args.split}, but has no effect on pairs that are given as arguments; leave it out."
        )
    lacks_target = len(sentences) % 2 == 1
    if lacks_target:
        raise InputError(f"there are {len(sentences)} sentences; give pairs, each source before its target.")
    sources = sentences[::2]
    targets = sentences[1::2]
    return sources, targets
