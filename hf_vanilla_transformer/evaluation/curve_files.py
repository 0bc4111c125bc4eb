"""Write and read the curve of a training run: the training and validation metrics over the course of the run."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import NotRequired, TypedDict

from ..support.atomic_files import write_text
from ..support.figure_style import save_figure
from ..support.user_errors import InputError
from .plot_curve import plot_curve


logger = logging.getLogger(__name__)

CURVE = "curve.json"
PLOT = "curve.png"
# Token metrics, which are computed under teacher forcing and need no translations: the loss in nats per token, the
# perplexity, and the accuracy in percent.
_TOKEN_METRICS = ("loss", "perplexity", "token_accuracy")
_TIMES = ("training_seconds", "evaluation_seconds")

# One point of a curve, such as `{"updates": 100, "loss": 3.2}`.
Point = dict[str, float]


class Curve(TypedDict):
    """The content of `curve.json`, the curve of a training run. [`write_curve`] describes the keys."""

    best: NotRequired[Point]
    points: list[Point]
    training: list[Point]


def write_curve(folder: Path, log_history: Sequence[Mapping[str, float]]) -> Curve | None:
    """Write the curve of a training run to `curve.json` and, if matplotlib is installed, plot it to `curve.png`.

    Args:
        folder (`Path`): folder for `curve.json` and `curve.png`.
        log_history (`list` of `dict`): `trainer.state.log_history`. The callback
            [`~hf_vanilla_transformer.training.trainer_callbacks.RecordFacts`] adds times, including the time before a
            resume. [`~hf_vanilla_transformer.TokenMetricsTrainer`] adds perplexity and token accuracy.

    Returns:
        `dict`: the curve, with three keys. If the run has no evaluations, the result is None, and nothing is written.

            - `best`: the evaluation with the highest BLEU, or with the lowest loss if the curve has no BLEU.
            - `points`: one item for each evaluation, in order. An item contains those of these keys that are in the
              log: `updates`, `epoch`, `loss`, `perplexity`, `token_accuracy`, `bleu` and `chrf` (percent),
              `training_seconds` (since the start, without evaluations), and `evaluation_seconds` (the total of all
              evaluations so far).
            - `training`: one item for each log entry about the training batches since the entry before, with the same
              keys.
    """
    # Imported here, because importing the metrics takes long and `read_curve` does not need them.
    from .metrics import METRICS

    points = _collect_points(log_history, "eval_", (*_TOKEN_METRICS, *METRICS))
    if not points:
        return None
    training = _collect_points(log_history, "", _TOKEN_METRICS)
    curve: Curve = {"best": _find_best_point(points), "points": points, "training": training}
    write_text(folder / CURVE, json.dumps(curve, indent=2) + "\n")
    _plot_if_possible(curve, folder / PLOT)
    return curve


def _plot_if_possible(curve: Curve, path: Path) -> None:
    """Plot a curve. Log a warning if matplotlib is missing or the curve cannot be plotted, because a plot is an extra.

    The plot has a single run, so it does not show the name "validation".
    """
    try:
        save_figure(plot_curve({"validation": curve}), path)
    except (ImportError, ValueError) as error:
        logger.warning("%s is not written: %s", PLOT, error)


def _find_best_point(points: Sequence[Point]) -> Point:
    """Return the point with the highest BLEU. If several points have the same BLEU or none, the lowest loss decides."""
    highest_bleu = max(point.get("bleu", -inf) for point in points)
    candidates = [point for point in points if point.get("bleu", -inf) == highest_bleu]
    return min(candidates, key=_get_loss)


def _get_loss(point: Point) -> float:
    """Return the loss of a point, or infinity if the point has no loss."""
    return point.get("loss", inf)


def _collect_points(log_history: Sequence[Mapping[str, float]], prefix: str, metrics: Sequence[str]) -> list[Point]:
    """Convert the log entries that contain at least one of the metrics into points of a curve.

    Args:
        prefix: what precedes each metric's name in the log: `"eval_"` for validation, or `""` for training.
        metrics: names of the metrics, without the prefix.
    """
    keys_by_log_name = _map_log_names_to_keys(prefix, metrics)
    points = []
    for entry in log_history:
        point = _rename_keys(entry, keys_by_log_name)
        has_metric = any(metric in point for metric in metrics)
        if has_metric:
            points.append(point)
    return points


def _map_log_names_to_keys(prefix: str, metrics: Sequence[str]) -> dict[str, str]:
    """Return the key in a point for each name in the log, such as "loss" for "eval_loss", in the order of the keys."""
    keys_by_log_name = {"step": "updates", "epoch": "epoch"}
    for metric in metrics:
        keys_by_log_name[f"{prefix}{metric}"] = metric
    # The times have the same names in the log and in a point.
    for time in _TIMES:
        keys_by_log_name[time] = time
    return keys_by_log_name


def _rename_keys(entry: Mapping[str, float], keys_by_log_name: Mapping[str, str]) -> Point:
    """Return the values of a log entry under the keys of a point. Other values are left out."""
    point = {}
    for log_name, key in keys_by_log_name.items():
        if log_name in entry:
            point[key] = entry[log_name]
    return point


def read_curve(path: str | os.PathLike[str]) -> Curve:
    """Read the curve of a run that `hf-vanilla-transformer train` wrote.

    Args:
        path (`str` or `PathLike`): folder of the run, its `curve.json`, or its results file.

    Returns:
        `dict`: `points` and `training`, as [`write_curve`] describes them; `training` is empty if the file has none.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if the file contains no curve.
    """
    file = _find_curve_file(Path(path))
    curve = _parse_curve(file)
    for point in (*curve["points"], *curve["training"]):
        if not _is_point(point):
            raise InputError(f"{file} has the point {repr(point)[:100]}, not an object of numbers; name a {CURVE}.")
    return curve


def _parse_curve(file: Path) -> Curve:
    """Read a curve from a file, without checking its points. Raise ValueError if the file contains no curve."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        # A results file contains the curve as one of its fields. Otherwise the curve is the whole content.
        stored_curve = content.get("curve", content)
        points = list(stored_curve["points"])
        training = list(stored_curve.get("training", []))
    # A ValueError means that the file is not JSON. The others mean that the JSON is structured differently.
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} holds no curve; name a {CURVE} or a file of results.") from error
    return {"points": points, "training": training}


def _find_curve_file(path: Path) -> Path:
    """Return `path` itself or, if it is a folder, the path of the file `curve.json` in it.

    Raise FileNotFoundError if this file does not exist.
    """
    file = path
    if path.is_dir():
        file = path / CURVE
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist; name a run with evaluations (--eval_strategy steps).")
    return file


def _is_point(value: object) -> bool:
    """Return True if a JSON value is an object whose values are all numbers."""
    if not isinstance(value, dict):
        return False
    return all(isinstance(number, (int, float)) for number in value.values())
