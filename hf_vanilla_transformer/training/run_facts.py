"""What a run records about itself for its model card; checkpoints keep it across a resume."""

import json
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from .trainer_callbacks import add_to_saved_callbacks


class FactsOfTheRun(TrainerCallback, ExportableState):
    """Facts for the model card that cover a whole run, resumed or not; the Trainer saves them in checkpoints.

    Args:
        base_model (`str`, *optional*): the model that is fine-tuned.
        optimizer (`str`, *optional*): optimizer and schedule in words; a resumed run takes them from its checkpoint.
        seconds (`float`, defaults to 0): training time before the resume.
        evaluation_seconds (`float`, defaults to 0): the part of it that evaluations took.
        settings (`dict`, *optional*): arguments of the run by name.
    """

    def __init__(
        self,
        base_model: str | None = None,
        optimizer: str | None = None,
        seconds: float = 0,
        evaluation_seconds: float = 0,
        settings: dict[str, Any] | None = None,
    ):
        self.base_model = base_model
        self.optimizer = optimizer
        self.evaluation_seconds = evaluation_seconds
        self.settings = settings
        self._seconds_before = seconds
        self._started: float | None = None

    @classmethod
    def of_checkpoint(cls, checkpoint: Path) -> "FactsOfTheRun":
        """Read the facts from a checkpoint; all are empty if its run did not use this callback."""
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        return cls(**state.get("stateful_callbacks", {}).get(cls.__name__, {}).get("args", {}))

    def replace_settings(self, settings: dict[str, Any]) -> dict[str, str]:
        """Replace the settings; returns the changes in words, by name; none if the checkpoint has no settings."""
        before, self.settings = self.settings, settings
        if before is None:
            return {}
        names = [name for name in {**before, **settings} if before.get(name) != settings.get(name)]
        return {name: f"{name} {_value(settings, name)}, not {_value(before, name)}" for name in names}

    @property
    def seconds(self) -> float:
        """Training time in seconds, before and after the resume."""
        return self._seconds_before + (0 if self._started is None else time.monotonic() - self._started)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._started = time.monotonic()
        add_to_saved_callbacks(self, state)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add to the log `training_seconds`, without evaluations, and `evaluation_seconds`, since the start."""
        if self._started is None:
            return
        self.evaluation_seconds += (logs or {}).get("eval_runtime", 0)
        times = {"training_seconds": self.seconds - self.evaluation_seconds}
        state.log_history[-1] |= times | {"evaluation_seconds": self.evaluation_seconds}

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._seconds_before, self._started = self.seconds, None

    def state(self) -> dict[str, Any]:
        """The content that the Trainer saves in a checkpoint."""
        facts: dict[str, Any] = {"base_model": self.base_model, "optimizer": self.optimizer}
        facts |= {"seconds": self.seconds, "evaluation_seconds": self.evaluation_seconds, "settings": self.settings}
        return {"args": facts, "attributes": {}}


def _value(settings: dict[str, Any], name: str) -> Any:
    return settings.get(name, "by default")
