"""Align the words of sentence pairs: in 0-0 1-2, word 1 of the source (from 0) is linked with word 2 of the target.

hf-vanilla-transformer align --model_name_or_path runs/mine "two dogs" "zwei Hunde"
hf-vanilla-transformer align --model_name_or_path runs/mine --test_file test.en test.de --output test.align
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...data.pair_arguments import DataArguments
from ...support.build_arguments import option
from ...support.output_files import check_can_write, open_output
from ...support.user_errors import InputError
from ...translation.alignment import Links, align, alignment_error_rate, read_gold
from ...translation.choose_alignment import AlignmentChoice, choose_alignment, save_choice
from ...translation.loading_arguments import LoadingArguments
from .parser import parse, program
from .shared_options import BatchArguments, EngineArguments, load_given


# Of the candidates, those that are printed.
_SHOWN = 5


@dataclass
class AlignArguments:
    """Which pairs to align, and what to do with the result."""

    pairs: list[str] = option([], "Sentences, each source before its target.", positional=True)
    split: str | None = option(None, "The split to align; by default test.")
    output: str | None = option(None, "Write the alignments to this file, not to stdout.")
    gold_file: str | None = option(
        None,
        "True alignments, one line per pair, 1-2 for sure links and 1?2 or 1p2 for possible ones, to print "
        "the alignment error rate.",
    )
    choose: bool = option(
        False,
        "Choose the attention heads by these pairs, held out from training, and save them in the model's "
        "config.json; by --gold_file if it is given.",
    )


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
    asked, folder = args.align, Path(args.model.model_name_or_path)
    check_can_write(asked.output, inputs=[*args.data.paths(), asked.gold_file, folder])
    if asked.choose and not (folder / "config.json").is_file():
        raise InputError(f"choose writes config.json, but {folder} is no local folder; copy it.")
    sources, targets = _pairs(asked, args.data)
    gold = None if asked.gold_file is None else read_gold(Path(asked.gold_file), sources, targets)
    tokenizer, model = load_given(args.model, args.engine)
    options: Any = {"tokens_per_batch": args.batches.tokens_per_batch, "show_progress": sys.stderr.isatty()}
    options["target_lang"] = args.data.target_language_for(tokenizer)
    if asked.choose:
        choices = choose_alignment(model, tokenizer, sources, targets, gold, **options)
        save_choice(folder, choices[0])
        model.config.update(choices[0].fields())
        _report(choices, "cross-entropy" if gold is None else "alignment error rate")
    found = align(model, tokenizer, sources, targets, **options)
    with open_output(asked.output) as file:
        file.writelines(f"{' '.join(f'{source}-{target}' for source, target in links)}\n" for links in found)
    if gold is not None:
        print(f"alignment error rate: {100 * alignment_error_rate(found, gold):.1f} %", file=sys.stderr)
    return found


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


def _report(choices: list[AlignmentChoice], measure: str) -> None:
    print(f"{measure}  layer.head, from 0", file=sys.stderr)
    for choice in choices[:_SHOWN]:
        heads = " ".join(f"{layer}.{head}" for layer, head in choice.heads)
        step = ", of the step that reads the token" if choice.shift else ""
        print(f"{choice.cost:{len(measure)}.3f}  {heads}{step}", file=sys.stderr)
