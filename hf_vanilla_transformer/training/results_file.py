"""The results file of a run: its settings, scores, times and versions as JSON, for scripts that compare runs."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ..evaluation.curve_files import Curve
from ..hub.model_card import name_of_base
from ..support.atomic_files import write_text
from ..support.machine_and_versions import describe_environment
from .run_arguments import Settings


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunDescription:
    """A description of a run, recorded before the training, because the Trainer changes its arguments.

    Args:
        seed: the seed of the run.
        base_model: the fine-tuned model, or None.
        settings: the given arguments that change what the run computes.
        environment: the machine, the versions and the commit; empty if the run writes no results.
        distillation: rows of the card about a teacher; None without a teacher.
        started: the time by `time.monotonic()` when the run started, or None if the run resumes, because the duration
            of the run that wrote the checkpoint is unknown.
    """

    seed: int
    base_model: str | None
    settings: Mapping[str, object]
    environment: Mapping[str, object]
    distillation: Mapping[str, str] | None
    started: float | None


def describe_run(
    settings: Settings, distillation: Mapping[str, str] | None = None, started: float | None = None
) -> RunDescription:
    """Describe a run before its training; see [`RunDescription`] for the arguments."""
    environment = {}
    if settings.args.results is not None:
        environment = describe_environment(settings.args.device)
    return RunDescription(
        seed=settings.args.seed,
        base_model=name_of_base(settings.model.model_name_or_path),
        settings=settings.to_record(),
        environment=environment,
        distillation=distillation,
        started=started,
    )


@dataclass(frozen=True)
class Results:
    """The content of a results file; the names of the fields are the keys in the file.

    `distillation` and `weights` are left out of the file if they are None.

    Args:
        seed, base_model, settings, distillation: see [`RunDescription`].
        machine, versions, commit: the environment of the run.
        peak_memory_bytes: the peak memory of the training, if the system reports it.
        optimizer: the optimizer and the schedule in words.
        precision: the precision of matmuls in words.
        weights: which update the saved weights are of, if the run kept its best model.
        parameters: the number of parameters; shared ones count once.
        updates: the number of updates.
        training_seconds, evaluation_seconds: the duration of the training without evaluations, and of the evaluations.
        curve: the content of `curve.json`.
        data: the sentence pairs in words, by split.
        scores: the scores of the saved model by split, and those of the last checkpoint if the run averages.
        total_seconds: the duration of the run until the results are written; None if it resumed.
    """

    seed: int
    base_model: str | None
    settings: Mapping[str, object]
    machine: object
    versions: object
    commit: object
    distillation: Mapping[str, str] | None
    peak_memory_bytes: int | None
    optimizer: str | None
    precision: str
    weights: str | None
    parameters: int
    updates: int
    training_seconds: float
    evaluation_seconds: float
    curve: Curve | None
    data: Mapping[str, str]
    scores: Mapping[str, object]
    total_seconds: float | None


def write_results(path: str, results: Results) -> None:
    """Write a results file, and log where it is."""
    content = asdict(results)
    for name in ("distillation", "weights"):
        if content[name] is None:
            del content[name]
    write_text(path, json.dumps(content, indent=2) + "\n")
    logger.info("the results are in %s", path)
