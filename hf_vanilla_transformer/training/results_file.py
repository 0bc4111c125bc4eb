"""Write the results file of a run: its settings, scores, times and versions in JSON, for scripts that compare runs."""

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
    """Facts about a run that are recorded before training, because the Trainer changes its arguments later.

    Args:
        seed: the run's seed.
        base_model: the model that is fine-tuned, or None.
        settings: the given arguments that affect what the run computes.
        environment: the machine, the versions and the commit; empty if the run writes no results file.
        distillation: rows about the teacher for the model card, or None without a teacher.
        started: the value of `time.monotonic()` at the start of the run. It is None if the run resumes, because the
            duration of the run that wrote the checkpoint is unknown.
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
    """Record facts about a run before its training. [`RunDescription`] explains the arguments."""
    environment = {}
    if settings.args.results is not None:
        environment = describe_environment(settings.args.device)
    return RunDescription(
        seed=settings.args.seed,
        base_model=name_of_base(settings.model.model_name_or_path),
        settings=settings.recorded_arguments(),
        environment=environment,
        distillation=distillation,
        started=started,
    )


@dataclass(frozen=True)
class Results:
    """The content of a results file. The field names are the keys in the file.

    `distillation` and `weights` are left out of the file if they are None.

    Args:
        seed, base_model, settings, distillation: see [`RunDescription`].
        machine, versions, commit: the run's environment.
        peak_memory_bytes: the peak memory of the training, or None if the system does not report it.
        optimizer: a text about the optimizer and the schedule.
        precision: a text about the precision of matmuls.
        weights: a text that names the update of the saved weights if the run kept its best model, and otherwise None.
        parameters: the number of parameters; shared parameters count once.
        updates: the number of updates.
        training_seconds, evaluation_seconds: the duration of the training without evaluations, and of the evaluations.
        curve: the content of `curve.json`, or None if the run had no evaluations.
        data: a text about the sentence pairs of each split.
        scores: the saved model's scores on each split. If the run compared an average of checkpoints with the last
            checkpoint, the last checkpoint's scores are included.
        total_seconds: the duration of the run until the results are written, or None if the run resumed.
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
    """Write the results file of a run as JSON, and log its path."""
    content = asdict(results)
    # These keys are in the file only if they have a value. Other keys may have the value null.
    for name in ("distillation", "weights"):
        if content[name] is None:
            del content[name]
    write_text(path, json.dumps(content, indent=2) + "\n")
    logger.info("the results are in %s", path)
