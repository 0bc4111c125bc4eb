"""Print a Markdown table of result files of training runs, with mean and standard deviation over seeds."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.support.report_parts import table
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.output_files import check_can_write
from hf_vanilla_transformer.support.user_errors import InputError


# Some files store absent settings as empty lists or dictionaries, others do not store them.
_EMPTY: tuple[list, dict] = ([], {})
_SECONDS_PER_MINUTE = 60
_BYTES_PER_GIGABYTE = 10**9


@dataclass
class TableArguments:
    """Which results to tabulate, and where to write the table."""

    files: list[str] = field(default_factory=list, metadata={"help": "Files of results.", "positional": True})
    output: str | None = field(default=None, metadata={"help": "Also write the table into this file."})
    targets: list[float] = field(
        default_factory=list, metadata={"help": "Add the minutes of training to these validation BLEU: 35 38 40."}
    )


@program
def main(arguments: list[str]) -> str:
    """Run the command line; returns the table."""
    args = parse(TableArguments, __doc__, arguments)
    check_can_write(args.output)
    text = table_of_results(args.files, args.targets)
    print(text, end="")
    if args.output is not None:
        write_text(args.output, text)
    return text


def table_of_results(paths: Sequence[str | os.PathLike[str]], targets: Sequence[float] = ()) -> str:
    """A Markdown table of result files, with mean and sample standard deviation over the seeds of each recipe.

    Args:
        paths (`list` of `str` or `PathLike`): files that `train --results` wrote. Files whose names differ only in
            `_seedN` belong to one recipe.
        targets (`list` of `float`): values of validation BLEU.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: if `paths` is empty, if a file holds no results, or if files of one recipe have the same seed or
            different settings.
    """
    if not paths:
        raise InputError("no result files are given; name at least one.")
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(map(Path, paths)):
        result = _read(path)
        groups.setdefault(path.stem.removesuffix(f"_seed{result['seed']}"), []).append(result)
    for name, group in groups.items():
        _check_settings(name, group)
    columns = ["validation BLEU", "test BLEU", "training, minutes", "evaluation, minutes", "total, minutes"]
    columns += [f"minutes to BLEU {target:g}" for target in targets] + ["minutes to best BLEU", "peak memory, GB"]
    rows = []
    for name, group in groups.items():
        figures = [_figures(result, targets) for result in group]
        rows += [[name, str(result["seed"]), *map(_format, row)] for result, row in zip(group, figures, strict=True)]
        if len(group) > 1:
            rows.append([name, "mean ± s.d.", *(_mean_and_deviation(column) for column in zip(*figures, strict=True))])
    return table(["recipe", "seed", *columns], rows) + "\n"


def _check_settings(name: str, group: Sequence[Mapping[str, Any]]) -> None:
    """Check that the runs of a recipe differ in their seeds and in nothing else."""
    seeds = [result["seed"] for result in group]
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise InputError(
                f"{name} with seed {seed} is given {seeds.count(seed)} times, which would distort the mean; give it "
                "once."
            )
    about = [{name: result[name] for name in ("base_model", "data") if name in result} for result in group]
    settings = [
        {**result.get("settings", {}), **of_run, "seed": None} for result, of_run in zip(group, about, strict=True)
    ]
    first, *others = [{key: value for key, value in each.items() if value not in _EMPTY} for each in settings]
    for other, result in zip(others, group[1:], strict=True):
        differing = [key for key in {**first, **other} if first.get(key) != other.get(key)]
        if differing:
            raise InputError(
                f"{name} with seeds {group[0]['seed']} and {result['seed']} differ in {', '.join(differing)}, so their "
                "mean is meaningless; name the files as two recipes."
            )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; name files that train --results wrote.")
    try:
        result = dict(json.loads(path.read_text(encoding="utf-8")))
        result["seed"], result["scores"], result["training_seconds"], result["evaluation_seconds"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} holds no results; name files that train --results wrote.") from error
    return result


def _figures(result: Mapping[str, Any], targets: Sequence[float]) -> list[float | None]:
    """The figures of a row, in the order of the columns."""
    curve = result.get("curve") or {"best": None, "points": []}
    first = [next((point for point in curve["points"] if point.get("bleu", 0) >= target), None) for target in targets]
    bleu = [(result["scores"].get(split) or {}).get("bleu") for split in ("validation", "test")]
    seconds = [result.get(name) for name in ("training_seconds", "evaluation_seconds", "total_seconds")]
    minutes = [value and value / _SECONDS_PER_MINUTE for value in seconds]
    reached = [point and point["training_seconds"] / _SECONDS_PER_MINUTE for point in (*first, curve["best"])]
    memory = result.get("peak_memory_bytes")
    return [*bleu, *minutes, *reached, memory and memory / _BYTES_PER_GIGABYTE]


def _mean_and_deviation(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):  # A mean over only those seeds that reached a target would be too good.
        return "-"
    return f"{statistics.mean(known):.2f} ± {statistics.stdev(known):.2f}"


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
