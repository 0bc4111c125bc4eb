"""Training steps with candidates, added one after the other, each next to the step that it should improve.

The first rung is the package's step. For each subject, such as the loss, every alternative is checked and measured on
top of the changes chosen so far, and the fastest that passes its check is chosen, if it is faster at all.
"""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.support.candidates_in_model import Change, using
from benchmarks.support.flops import batch_flops
from benchmarks.support.gpu_timing import Budget, launches_of, relative_error
from benchmarks.support.random_batches import padded_batch, target_tokens
from benchmarks.support.timing import synchronize
from benchmarks.support.training_implementations import MODELS, Batch, Implementation, Training
from hf_vanilla_transformer import VanillaTransformerConfig


# A candidate's error against float32 is at most this many times the error of the package's step in bfloat16.
TOLERANCE = 1.25
# Target tokens of the batch of a check, and the length of its longest sentence.
CHECKED_TOKENS, CHECKED_LENGTH = 2048, 32
# Times that each round of batches is measured, because the time to launch kernels varies.
REPEATS = 3
# A change moves into the package if it saves at least this share of a step.
WORTHWHILE = 0.03
TODAY = "today"


@dataclass
class Ladder:
    """A model, batches in rounds, and what was measured.

    Args:
        config: the model.
        rounds: batches of each round.
        device: where to train.
        peak_flops: of the device in bfloat16, if known.
    """

    config: VanillaTransformerConfig
    rounds: Sequence[Sequence[Batch]]
    device: torch.device
    peak_flops: float | None
    figures: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.implementation = Implementation("ours", "bf16")
        self.training = self.implementation.build(self.config, self.device)
        self.batches_on_device = []
        for batches in self.rounds:
            self.batches_on_device.append([_to_device(batch, self.device) for batch in batches])
        self.tokens = sum(target_tokens(batch) for batches in self.rounds for batch in batches)
        self.flops = sum(batch_flops(self.config, batch) for batches in self.rounds for batch in batches)
        self.steps = sum(map(len, self.rounds))

    def climb(self, changes: Sequence[Change], budget: Budget) -> Iterator[dict[str, Any]]:
        """Measure all changes that fit into the budget, and yield the figures after each.

        Args:
            changes: those of one subject next to each other.
            budget: no rung begins after it is spent.
        """
        self.check = StepCheck(self.config, self.device)
        rungs: list[dict[str, Any]] = []
        not_measured: list[dict[str, str]] = []
        chosen: list[Change] = []
        names_of_chosen: list[str] = []
        decided_subjects: list[str] = []
        self.figures = {
            "device": self.device.type,
            "config": self.config.to_diff_dict(),
            "tokens_per_update": self.tokens / self.steps,
            "rungs": rungs,
            "chosen": names_of_chosen,
            # Of these subjects, all changes were measured that fit into the budget.
            "decided": decided_subjects,
            "not_measured": not_measured,
        }
        rungs.append(self._measure(TODAY, [], []))
        yield self.figures
        for subject in dict.fromkeys(change.subject for change in changes):
            alternatives: list[tuple[float, Change]] = []
            for change in changes:
                if change.subject != subject:
                    continue
                if change.missing is not None:
                    not_measured.append({"name": change.name, "reason": change.missing})
                elif budget.is_spent():
                    not_measured.append({"name": change.name, "reason": "time"})
                else:
                    rung = self._measure_safely(change, chosen)
                    rungs.append({**rung, "subject": subject, "is_candidate": change.is_candidate})
                    if rung["passes"] and change.is_candidate:
                        alternatives.append((rung["speedup"], change))
                yield self.figures
            fastest = max(alternatives, key=lambda alternative: alternative[0], default=None)
            if fastest is not None and fastest[0] > 1:
                chosen.append(fastest[1])
                names_of_chosen.append(fastest[1].name)
            decided_subjects.append(subject)
            yield self.figures
        if chosen and not budget.is_spent():
            rungs.append(self._measure("all chosen, over today", chosen, []))
        yield self.figures

    def _measure_safely(self, change: Change, below: Sequence[Change]) -> dict[str, Any]:
        """Check and measure a change; an error is a figure, because the other changes can still be measured."""
        try:
            return self._measure(change.name, [*below, change], below)
        except Exception as error:
            # Raises if the GPU accepts no work any more, so that the next part gets a new process.
            synchronize(self.device)
            return {"name": change.name, "passes": False, "error": f"{type(error).__name__}: {error}"}

    def _measure(self, name: str, changes: Sequence[Change], below: Sequence[Change]) -> dict[str, Any]:
        """Return the figures of a step with changes, next to a step with those below."""
        with using(changes):
            check = self.check.compare()
            # The first step of a shape allocates memory, selects kernels, and compiles.
            self._take_all_steps()
            launches = launches_of(partial(self._step, self.batches_on_device[0][0]), self.device)
            peak = self._peak_megabytes()
        own: list[float] = []
        others: list[float] = []
        host: list[float] = []
        for batches in self.batches_on_device * REPEATS:
            with using(below):
                seconds, _ = self._seconds_of(batches)
                others.append(seconds)
            with using(changes):
                seconds, seconds_to_launch = self._seconds_of(batches)
                own.append(seconds)
                host.append(seconds_to_launch)
        ratios = [other / seconds for other, seconds in zip(others, own, strict=True)]
        steps = REPEATS * self.steps
        rate = REPEATS * self.flops / sum(own)
        return {
            "name": name,
            "over": [change.name for change in below],
            **check,
            "milliseconds": sum(own) / steps * 1e3,
            "milliseconds_to_launch": sum(host) / steps * 1e3,
            "speedup": median(ratios),
            "speedups": ratios,
            "saves_enough": 1 - 1 / median(ratios) >= WORTHWHILE,
            "tokens_per_second": REPEATS * self.tokens / sum(own),
            "utilization": None if self.peak_flops is None else rate / self.peak_flops,
            "launches": launches.count,
            "kernel_milliseconds": launches.milliseconds,
            "syncs": launches.syncs,
            "peak_megabytes": peak,
            "seconds": own,
        }

    def measure_marian(self) -> dict[str, Any]:
        """Return the seconds of transformers' Marian on the same batches."""
        training = Implementation("marian-sdpa", "bf16").build(self.config, self.device)
        self._take_all_steps(training)
        seconds = [self._seconds_of(batches, training)[0] for batches in self.batches_on_device]
        return {
            "name": "marian-sdpa",
            "milliseconds": sum(seconds) / self.steps * 1e3,
            "tokens_per_second": self.tokens / sum(seconds),
            "seconds": seconds,
        }

    def _step(self, batch: Batch, training: Training | None = None) -> None:
        self.implementation.step(training or self.training, batch)

    def _take_all_steps(self, training: Training | None = None) -> None:
        for batches in self.batches_on_device:
            for batch in batches:
                self._step(batch, training)

    def _seconds_of(self, batches: Sequence[Batch], training: Training | None = None) -> tuple[float, float]:
        """Return the seconds of steps, and the seconds until the CPU has launched them."""
        synchronize(self.device)
        start = time.perf_counter()
        for batch in batches:
            self._step(batch, training)
        launched = time.perf_counter()
        synchronize(self.device)
        return time.perf_counter() - start, launched - start

    def _peak_megabytes(self) -> float | None:
        if self.device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats()
        for batch in self.batches_on_device[0]:
            self._step(batch)
        synchronize(self.device)
        return torch.cuda.max_memory_allocated() / 1e6


class StepCheck:
    """Loss and gradients without dropout, compared with the package's in float32.

    Rounding alone makes them differ under autocast, so the package's own error is the measure.
    """

    def __init__(self, config: VanillaTransformerConfig, device: torch.device) -> None:
        config = copy.deepcopy(config)
        config.dropout = 0.0
        self.device = device
        torch.manual_seed(0)
        self.model = MODELS["ours"](config).to(device).train()
        tokens = min(CHECKED_TOKENS, 40 * config.vocab_size)
        self.batch = _to_device(padded_batch(CHECKED_LENGTH, tokens, config.vocab_size, seed=1), device)
        self.exact = self._loss_and_gradients(autocast=False)
        self.todays_errors = self._errors()

    def compare(self) -> dict[str, Any]:
        """Return the errors of the step as it is now, those that are allowed, and whether it passes."""
        loss_error, gradient_error = self._errors()
        # Rounding may favor the package's loss, a single number, so that its allowed error is not below one rounding.
        allowed_loss_error = max(TOLERANCE * self.todays_errors[0], torch.finfo(torch.bfloat16).eps / 4)
        allowed_gradient_error = TOLERANCE * self.todays_errors[1]
        return {
            "passes": loss_error <= allowed_loss_error and gradient_error <= allowed_gradient_error,
            "loss_error": loss_error,
            "allowed_loss_error": allowed_loss_error,
            "gradient_error": gradient_error,
            "allowed_gradient_error": allowed_gradient_error,
        }

    def _errors(self) -> tuple[float, float]:
        loss, gradients = self._loss_and_gradients(autocast=True)
        exact_loss, exact_gradients = self.exact
        return relative_error(loss, exact_loss), relative_error(gradients, exact_gradients)

    def _loss_and_gradients(self, *, autocast: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the loss, and the gradients of all weights in one vector."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=autocast):
            loss = self.model(**self.batch)
        parameters: list[nn.Parameter] = list(self.model.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        return loss.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def _to_device(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device) for name, tensor in batch.items()}
