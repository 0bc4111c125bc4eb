"""Align the words of sentence pairs: in 0-0 1-2, word 1 of the source (from 0) is linked with word 2 of the target."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.pair_arguments import DataArguments
from ..support.output_files import check_can_write, open_output
from ..translation.alignment import Links, align
from ..translation.alignment_error_rate import alignment_error_rate, read_gold
from ..translation.choose_alignment import AlignmentChoice, choose_alignment, save_choice
from ..translation.loading_arguments import LoadingArguments
from .load_from_options import load_given
from .parser import parse, plain_errors
from .shared_options import BatchArguments, EngineArguments


# Of the candidates, those that are printed.
_SHOWN = 5


@dataclass
class AlignArguments:
    """Which pairs to align, and what to do with the result."""

    split: str | None = field(default=None, metadata={"help": "The split to align; by default test."})
    output: str | None = field(default=None, metadata={"help": "Write the alignments to this file, not to stdout."})
    gold_file: str | None = field(
        default=None,
        metadata={
            "help": "True alignments, one line per pair, 1-2 for sure links and 1?2 or 1p2 for possible ones, to print "
            "the alignment error rate."
        },
    )
    choose: bool = field(
        default=False,
        metadata={
            "help": "Choose the attention heads by these pairs, held out from training, and save them in the model's "
            "config.json; by --gold_file if it is given."
        },
    )


def main(arguments: Sequence[str] | None = None) -> list[Links]:
    """Align as the command line says; returns the alignments in the order of the pairs."""
    args, loading, engine, data_args, batches, given = parse(
        [AlignArguments, LoadingArguments, EngineArguments, DataArguments, BatchArguments],
        __doc__,
        arguments,
        positional="pairs",
        verb="align",
    )
    with plain_errors():
        check_can_write(args.output, inputs=[*data_args.paths(), args.gold_file, loading.model_name_or_path])
        if args.choose and not (Path(loading.model_name_or_path) / "config.json").is_file():
            raise ValueError(
                f"choose writes config.json, but {loading.model_name_or_path} is no local folder; copy it."
            )
        sources, targets = _pairs(given, data_args, args.split)
        gold = None if args.gold_file is None else read_gold(Path(args.gold_file), sources, targets)
        tokenizer, model = load_given(loading, engine)
        options: Any = {"tokens_per_batch": batches.tokens_per_batch, "show_progress": sys.stderr.isatty()}
        if args.choose:
            choices = choose_alignment(model, tokenizer, sources, targets, gold, **options)
            save_choice(Path(loading.model_name_or_path), choices[0])
            model.config.update(choices[0].fields())
            _report(choices, "cross-entropy" if gold is None else "alignment error rate")
        found = align(model, tokenizer, sources, targets, **options)
        with open_output(args.output) as file:
            file.writelines(f"{' '.join(f'{source}-{target}' for source, target in links)}\n" for links in found)
        if gold is not None:
            print(f"alignment error rate: {100 * alignment_error_rate(found, gold):.1f} %", file=sys.stderr)
    return found


def _pairs(given: Sequence[str], data: DataArguments, split: str | None) -> tuple[list[str], list[str]]:
    if not given:
        pairs = data.load(split or "test")[split or "test"]
        return list(pairs["source"]), list(pairs["target"])
    if data.paths() or data.dataset_name:
        raise ValueError("pairs were given both as arguments and as data; give one of the two.")
    if split is not None:
        raise ValueError(f"split is {split}, but has no effect on pairs that are given as arguments; leave it out.")
    if len(given) % 2:
        raise ValueError(f"there are {len(given)} sentences; give pairs, each source before its target.")
    return list(given[::2]), list(given[1::2])


def _report(choices: list[AlignmentChoice], measure: str) -> None:
    print(f"{measure}  layer.head, from 0", file=sys.stderr)
    for choice in choices[:_SHOWN]:
        heads = " ".join(f"{layer}.{head}" for layer, head in choice.heads)
        step = ", of the step that reads the token" if choice.shift else ""
        print(f"{choice.cost:{len(measure)}.3f}  {heads}{step}", file=sys.stderr)
