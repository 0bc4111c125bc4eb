"""Time and peak memory of training steps of several implementations."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.support.flops import batch_flops
from benchmarks.support.random_batches import target_tokens
from benchmarks.support.timing import Clock
from benchmarks.support.training_implementations import Batch, Implementation, Training
from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.support.memory_tuning import keep_freed_memory
from hf_vanilla_transformer.support.peak_memory import peak_memory


@dataclass
class StepTimes:
    """Seconds, tokens and FLOPs of an implementation in each round, and the loss of its first step."""

    implementation: Implementation
    first_loss: float
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)

    def tokens_per_second(self) -> float:
        """Target tokens without padding; the median over the rounds."""
        return median(tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True))

    def flops_per_second(self) -> float:
        """The rate of `model_flops`; the median over the rounds."""
        return median(flops / seconds for flops, seconds in zip(self.flops, self.seconds, strict=True))

    def speedup_over(self, baseline: "StepTimes") -> list[float]:
        """Seconds of a baseline divided by own seconds, in each round."""
        return [theirs / own for own, theirs in zip(self.seconds, baseline.seconds, strict=True)]


@contextmanager
def leaving_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """If an implementation runs out of memory, store the reason in `left_out` under its name and continue."""
    try:
        yield
    except (ChildProcessError, torch.OutOfMemoryError) as error:
        left_out[name] = str(error).partition("\n")[0]


def time_steps(
    implementations: Sequence[Implementation],
    config: VanillaTransformerConfig,
    rounds: Sequence[Sequence[Batch]],
    clock: Clock,
    progress: Callable[[str], None],
    left_out: dict[str, str],
) -> list[StepTimes]:
    """Time training steps of several implementations in turns.

    In each round every implementation takes a step on each of the round's batches; the order of the implementations
    rotates. Before the first round, each takes a step on the first batch, or on GPUs on all batches, where that is
    quick. Implementations that differ in precision only share one model.

    Args:
        rounds: at least one list of batches per round.
        progress: called with a description before each measurement.
        left_out: receives the reason for each implementation that runs out of memory, by name.

    Returns:
        The times of the implementations that did not run out of memory.
    """
    device = clock.device
    rounds = [[_on(device, batch) for batch in batches] for batches in rounds]
    trainings: dict[str, Training] = {}
    found = []
    for implementation in implementations:
        progress(f"{implementation.name}, first step")
        with leaving_out(implementation.name, left_out):
            training = trainings.get(implementation.model) or implementation.build(config, device)
            trainings[implementation.model] = training
            torch.manual_seed(0)
            found.append(StepTimes(implementation, float(implementation.step(training, rounds[0][0]))))
            if device.type == "cuda":
                # The first step of a shape allocates memory, which all share, and selects kernels.
                for batches in rounds:
                    _take_steps(implementation, training, batches)
    for number, batches in enumerate(rounds):
        first = number * len(found) // len(rounds)
        for times in found[first:] + found[:first]:
            implementation = times.implementation
            if implementation.name in left_out:
                continue
            progress(f"{implementation.name}, round {number + 1}")
            take_steps = partial(_take_steps, implementation, trainings[implementation.model], batches)
            with leaving_out(implementation.name, left_out):
                times.seconds.append(clock.measure(partial(clock.time, take_steps)))
            times.tokens.append(sum(target_tokens(batch) for batch in batches))
            times.flops.append(sum(batch_flops(config, batch) for batch in batches))
    return [times for times in found if times.implementation.name not in left_out]


def _take_steps(implementation: Implementation, training: Training, batches: Sequence[Batch]) -> None:
    for batch in batches:
        implementation.step(training, batch)


def _on(device: torch.device, batch: Batch) -> Batch:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def compare(
    measured: Sequence[StepTimes], peaks: dict[str, list[float]], baselines: Sequence[str], peak: float | None
) -> list[dict[str, Any]]:
    """Figures of each implementation: throughput, speedups in each round, peak memory, utilization.

    Args:
        measured: times of each implementation.
        peaks: peak memory in MB after each of some steps, by name.
        baselines: names of the implementations to compute the speedup over.
        peak: peak FLOP/s of the device, if known.
    """
    by_name = {times.implementation.name: times for times in measured}
    figures = []
    for times in measured:
        speedups = {name: times.speedup_over(by_name[name]) for name in baselines if name in by_name}
        rate = times.flops_per_second()
        figures.append(
            {
                "name": times.implementation.name,
                "arithmetic": times.implementation.precision,
                "tokens_per_second": times.tokens_per_second(),
                "times": {name: {"median": median(ratios), "rounds": ratios} for name, ratios in speedups.items()},
                "peak_megabytes": peaks[times.implementation.name][-1],
                "tflops_per_second": rate / 1e12,
                "utilisation": None if peak is None else rate / peak,
                "first_loss": times.first_loss,
                "seconds": times.seconds,
                "tokens": times.tokens,
            }
        )
    return figures


def peak_memory_of_steps(
    implementation: Implementation, config: VanillaTransformerConfig, batches: Sequence[Batch], device: torch.device
) -> list[float]:
    """Peak memory after each training step in a fresh process, in MB (1,000,000 bytes).

    On CPUs it is the process's peak resident memory, with Python and the libraries; on a GPU the memory that torch
    reserved there.

    Raises:
        ChildProcessError: if the process ends early, for example because the system is out of memory.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # The child cannot use what this process reserves.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    receiver, sender = context.Pipe(duplex=False)
    # Lists, because a tensor would travel through shared memory.
    plain = [{name: tensor.tolist() for name, tensor in batch.items()} for batch in batches]
    arguments = (sender, implementation, config.to_dict(), plain, device.type, torch.get_num_threads())
    process = context.Process(target=_send_peaks, args=arguments)
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        raise ChildProcessError("its process did not finish; perhaps memory ran out.") from None
    finally:
        process.join()


def _send_peaks(
    sender: Any,
    implementation: Implementation,
    config: dict[str, Any],
    batches: list[dict[str, list]],
    device_type: str,
    threads: int,
) -> None:
    torch.set_num_threads(threads)
    device = torch.device(device_type)
    if device.type == "cpu":
        keep_freed_memory()
    training = implementation.build(VanillaTransformerConfig.from_dict(config), device)
    peaks = []
    for batch in batches:
        implementation.step(training, {name: torch.tensor(values, device=device) for name, values in batch.items()})
        peaks.append(peak_memory(device) / 1e6)
    sender.send(peaks)
