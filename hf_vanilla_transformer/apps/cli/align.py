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
            file.write(f"{_format_links(links)}\n")
    return alignments


def _format_links(links: Links) -> str:
    """Return the links of a sentence pair as text. For example, the links [(0, 0), (1, 2)] become "0-0 1-2"."""
    return " ".join(f"{source}-{target}" for source, target in links)


def _load_pairs(align_args: AlignArguments, data_args: DataArguments) -> tuple[list[str], list[str]]:
    """Return the source and target sentences, which are on the command line itself or in the data that it names.

    Raises InputError if there are both sentences and data, or if a source has no target.
    """
    if not align_args.pairs:
        return _load_pairs_from_data(align_args, data_args)
    _check_names_no_data(align_args, data_args)
    return _split_sides(align_args.pairs)


def _load_pairs_from_data(align_args: AlignArguments, data_args: DataArguments) -> tuple[list[str], list[str]]:
    """Return the sources and targets of the split, by default the test split."""
    split = align_args.split if align_args.split else "test"
    pairs = data_args.load(split)[split]
    return list(pairs["source"]), list(pairs["target"])


def _check_names_no_data(align_args: AlignArguments, data_args: DataArguments) -> None:
    """Raise InputError if the command line, which has pairs, also names data or a split of data."""
    if data_args.paths() or data_args.dataset_name:
        raise InputError("pairs were given both as arguments and as data; give one of the two.")
    if align_args.split is not None:
        raise InputError(
            f"split is {align_args.split}, but has no effect on pairs that are given as arguments; leave it out."
        )


def _split_sides(sentences: list[str]) -> tuple[list[str], list[str]]:
    """Split sentences, in which each source is followed by its target, into sources and targets."""
    lacks_target = len(sentences) % 2 == 1
    if lacks_target:
        raise InputError(f"there are {len(sentences)} sentences; give pairs, each source before its target.")
    sources = sentences[::2]
    targets = sentences[1::2]
    return sources, targets
