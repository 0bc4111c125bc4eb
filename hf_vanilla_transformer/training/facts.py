"""What a run records about itself and keeps in its checkpoints, because it may be resumed."""

import json
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from .callbacks import add_to_saved_callbacks


class FactsOfTheRun(TrainerCallback, ExportableState):
    """What a model card tells of a whole run, kept in its checkpoints because it may be resumed.

    Args:
        base_model (`str`, *optional*): what is fine-tuned.
        optimizer (`str`, *optional*): optimizer and schedule in words, which a resumed run takes from its checkpoint.
        seconds (`float`, defaults to 0): that it was trained before.
        evaluation_seconds (`float`, defaults to 0): how many of these went into evaluations.
        settings (`dict`, *optional*): what it is trained with, by name.
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
        """What a checkpoint tells of the run that wrote it; nothing if that did not use this callback."""
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        return cls(**state.get("stateful_callbacks", {}).get(cls.__name__, {}).get("args", {}))

    def go_on_with(self, settings: dict[str, Any]) -> dict[str, str]:
        """Take new settings; returns in words, by name, which differ from those before, if these are known."""
        before, self.settings = self.settings, settings
        if before is None:
            return {}
        names = [name for name in {**before, **settings} if before.get(name) != settings.get(name)]
        return {name: f"{name} {_said(settings, name)}, not {_said(before, name)}" for name in names}

    @property
    def seconds(self) -> float:
        """That the run has trained, before and after it was resumed."""
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
        """Note the time in the log: `training_seconds`, and apart from them `evaluation_seconds`, since the start."""
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
        """What a checkpoint keeps, in the shape that the Trainer wants."""
        facts: dict[str, Any] = {"base_model": self.base_model, "optimizer": self.optimizer}
        facts |= {"seconds": self.seconds, "evaluation_seconds": self.evaluation_seconds, "settings": self.settings}
        return {"args": facts, "attributes": {}}


def _said(settings: dict[str, Any], name: str) -> Any:
    return settings.get(name, "as by default")
