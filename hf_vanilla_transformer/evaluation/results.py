"""A table of several runs' results."""

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


# What the Trainer makes of None by itself.
_EMPTY: tuple[list, dict] = ([], {})
_SECONDS_IN_A_MINUTE = 60
_BYTES_IN_A_GIGABYTE = 10**9


def table_of_results(paths: Sequence[str | os.PathLike[str]]) -> str:
    """A Markdown table of files of results, with mean and sample standard deviation over the seeds of each recipe.

    Args:
        paths (`list` of `str` or `PathLike`): files that scripts/train.py wrote with `--results`. Files whose names
            differ in `_seedN` alone are one recipe.

    Raises:
        FileNotFoundError: if a file is not there.
        ValueError: if none is given, or one holds no results, or those of one recipe have the same seed or were made
            with other settings.
    """
    if not paths:
        raise ValueError("no files of results are given; name at least one.")
    groups: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(map(Path, paths)):
        result = _read(path)
        groups.setdefault(path.stem.removesuffix(f"_seed{result['seed']}"), []).append(result)
    for name, group in groups.items():
        _check_settings(name, group)
    results = [result for group in groups.values() for result in group]
    targets = list(dict.fromkeys(target for result in results for target in _reached(result)))
    columns = ["validation BLEU", "test BLEU", "training, minutes", "evaluation, minutes", "in all, minutes"]
    columns += [f"minutes to {target}" for target in targets] + ["minutes to the best", "most memory, GB"]
    lines = [_row(["recipe", "seed", *columns]), _row(["---"] * (len(columns) + 2))]
    for name, group in groups.items():
        figures = [_figures(result, targets) for result in group]
        rows = [[name, str(result["seed"]), *map(_format, row)] for result, row in zip(group, figures, strict=True)]
        if len(group) > 1:
            rows.append([name, "mean ± s.d.", *(_mean_and_deviation(column) for column in zip(*figures, strict=True))])
        lines += map(_row, rows)
    return "\n".join(lines) + "\n"


def _check_settings(name: str, group: Sequence[Mapping[str, Any]]) -> None:
    """Runs are seeds of one recipe where nothing else differs."""
    seeds = [result["seed"] for result in group]
    for seed in seeds:
        if seeds.count(seed) > 1:
            raise ValueError(
                f"{name} with seed {seed} is given {seeds.count(seed)} times, so it would count too much in the mean; "
                "give it once."
            )
    about = [{name: result[name] for name in ("base_model", "data") if name in result} for result in group]
    settings = [{**result.get("settings", {}), **told, "seed": None} for result, told in zip(group, about, strict=True)]
    first, *others = [{key: value for key, value in each.items() if value not in _EMPTY} for each in settings]
    for other, result in zip(others, group[1:], strict=True):
        differing = [key for key in {**first, **other} if first.get(key) != other.get(key)]
        if differing:
            raise ValueError(
                f"{name} with seeds {group[0]['seed']} and {result['seed']} differ in {', '.join(differing)}, so they "
                "have no mean; give the files other names than one recipe's."
            )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; name files that scripts/train.py wrote with --results.")
    try:
        result = dict(json.loads(path.read_text(encoding="utf-8")))
        result["seed"], result["scores"], result["training_seconds"], result["evaluation_seconds"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no results; name files that scripts/train.py wrote with --results.") from error
    return result


def _reached(result: Mapping[str, Any]) -> Mapping[str, Any]:
    return (result.get("curve") or {}).get("reached", {})


def _figures(result: Mapping[str, Any], targets: Sequence[str]) -> list[float | None]:
    """What a row of the table tells, in the order of its columns."""
    best = (result.get("curve") or {}).get("best")
    bleu = [(result["scores"].get(split) or {}).get("bleu") for split in ("validation", "test")]
    seconds = [result.get(name) for name in ("training_seconds", "evaluation_seconds", "total_seconds")]
    spent = [value and value / _SECONDS_IN_A_MINUTE for value in seconds]
    points = [*(_reached(result).get(target) for target in targets), best]
    reached = [point and point["training_seconds"] / _SECONDS_IN_A_MINUTE for point in points]
    memory = result.get("peak_memory_bytes")
    return [*bleu, *spent, *reached, memory and memory / _BYTES_IN_A_GIGABYTE]


def _mean_and_deviation(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):  # A mean over the seeds that got there would flatter.
        return "-"
    return f"{statistics.mean(known):.2f} ± {statistics.stdev(known):.2f}"


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
