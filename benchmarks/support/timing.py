"""Time on a machine that is not always equally fast, the memory of a process, and the work of a model."""

import ctypes
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import transformers
from tqdm import tqdm

from benchmarks.support.batches import target_tokens
from benchmarks.support.entries import Batch, Entry, Training, matmul_precision
from hf_vanilla_transformer import VanillaTransformerConfig


# Freed memory stays in the process: fresh pages are slow to get, above all on virtual machines.
MALLOC = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=100000000000:glibc.malloc.top_pad=268435456"
SLOWER = 1.15
# On a GPU a small product takes as long as starting it.
PROBE_WIDTHS = {"cpu": 1024, "cuda": 8192}
# Dense bfloat16 products, in FLOP/s, as the vendor states them; the first whose words are in a GPU's name counts.
GPU_PEAKS = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
}


def keep_freed_memory() -> None:
    """Start this command anew with the allocator's setting that every entry gets, unless it is in force already."""
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = MALLOC
        os.execv(sys.executable, [sys.executable, *sys.argv])


def describe_machine(device: torch.device) -> dict[str, Any]:
    """What the figures depend on besides the code."""
    return {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "malloc": os.environ.get("GLIBC_TUNABLES"),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _processor() -> str:
    """Its name, and the most recent instructions that torch uses of it."""
    return f"{_model_name()} with {torch.backends.cpu.get_cpu_capability()}"


def _model_name() -> str:
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def synchronise(device: torch.device) -> None:
    """Wait until the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def let_mkl_choose_threads() -> None:
    """Have MKL choose anew how many threads take part in a product, as where nobody has set a number of threads.

    `torch.set_num_threads`, which `translate()` calls, has it take all of them even where threads call it side by side,
    as in torch's fused attention, which then takes longer: whatever is timed later in the process would pay for that.
    """
    set_dynamic = getattr(ctypes.CDLL(torch._C.__file__), "MKL_Set_Dynamic", None)
    if set_dynamic is not None:
        set_dynamic(1)


class Clock:
    """Times work, and repeats what was timed while the machine was slow.

    Before and after each measurement a fixed matrix product is timed. Where either takes more than 1.15 times the
    best one so far, the measurement is made again, at most `repeats` times; the one with the fastest probe counts.
    """

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats
        self.best = float("inf")
        self.measurements = self.made_again = self.slow = 0
        width = PROBE_WIDTHS[device.type]
        self._matrix = torch.randn(width, width, device=device)
        for _ in range(3):
            self.probe()

    def probe(self) -> float:
        """Seconds of the fixed product, the best of three."""
        with matmul_precision("highest"):
            seconds = min(self.time(lambda: self._matrix @ self._matrix) for _ in range(3))
        self.best = min(self.best, seconds)
        return seconds

    def measure(self, timed: Callable[[], Any]) -> Any:
        """The seconds that `timed` returns while the machine is at its usual speed, as far as it gets there."""
        attempts = []
        self.measurements += 1
        for attempt in range(self.repeats + 1):
            self.made_again += attempt == 1
            let_mkl_choose_threads()
            before = self.probe()
            seconds = timed()
            slowest = max(before, self.probe())
            attempts.append((slowest, seconds))
            if slowest <= SLOWER * self.best:
                return seconds
        self.slow += 1
        return min(attempts)[1]

    def noise(self) -> dict[str, int]:
        """How many measurements there were, how many of them were made again, and how many were slow every time."""
        return {"measurements": self.measurements, "made_again": self.made_again, "slow": self.slow}

    def time(self, work: Callable[[], Any]) -> float:
        """Seconds that `work` takes, all of it done on the device too."""
        synchronise(self.device)
        start = time.perf_counter()
        work()
        synchronise(self.device)
        return time.perf_counter() - start


def in_turns(runs: dict[str, Callable[[], Any]], rounds: int, clock: Clock) -> dict[str, list[Any]]:
    """The seconds that each run returns, one or several numbers a round; the order changes from round to round."""
    seconds: dict[str, list[Any]] = {name: [] for name in runs}
    names = list(runs)
    for number in tqdm(range(rounds), desc="rounds", leave=False):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            seconds[name].append(clock.measure(runs[name]))
    return seconds


@dataclass
class Timing:
    """Seconds, tokens and operations of an entry, one of each a round, and the loss of its first step."""

    entry: Entry
    first_loss: float
    seconds: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)

    def tokens_per_second(self) -> float:
        """Target tokens that are not padding; the median over the rounds."""
        return median(tokens / seconds for tokens, seconds in zip(self.tokens, self.seconds, strict=True))

    def flops_per_second(self) -> float:
        """See `model_flops`; the median over the rounds."""
        return median(flops / seconds for flops, seconds in zip(self.flops, self.seconds, strict=True))

    def speed_up(self, reference: "Timing") -> list[float]:
        """How many times as fast as another entry this one was in each round."""
        return [theirs / ours for ours, theirs in zip(self.seconds, reference.seconds, strict=True)]


@contextmanager
def leaving_out(name: str, left_out: dict[str, str]) -> Iterator[None]:
    """Where the work on an entry needs more memory than there is, note that by its name, and let others go on."""
    try:
        yield
    except (ChildProcessError, torch.OutOfMemoryError) as error:
        left_out[name] = str(error).partition("\n")[0]


def time_steps(
    entries: Sequence[Entry],
    config: VanillaTransformerConfig,
    rounds: Sequence[Sequence[Batch]],
    clock: Clock,
    progress: Callable[[str], None],
    left_out: dict[str, str],
) -> list[Timing]:
    """Time training steps of several entries in turns.

    In each round every entry takes a step on each of the round's batches; the order of the entries changes from round
    to round. Before the first, each takes a step on the first batch, and on GPUs, where that is quickly done, on all of
    them. Entries of one implementation share a model.

    Args:
        rounds: a list of batches for each round, at least one.
        progress: called with an entry's name before each of its measurements.
        left_out: gets the reason, by name, of each entry that runs out of memory; it has no timing.
    """
    device = clock.device
    rounds = [[_on(device, batch) for batch in batches] for batches in rounds]
    trainings: dict[str, Training] = {}
    timings = []
    for entry in entries:
        progress(f"{entry.name}, first step")
        with leaving_out(entry.name, left_out):
            training = trainings.get(entry.implementation) or entry.build(config, device)
            trainings[entry.implementation] = training
            torch.manual_seed(0)
            timings.append(Timing(entry, first_loss=float(entry.step(training, rounds[0][0]))))
            if device.type == "cuda":
                # The first step of a shape also asks for memory, which all entries share, and looks for fast products.
                for batches in rounds:
                    _take_steps(entry, training, batches)
    for number, batches in enumerate(rounds):
        first = number * len(timings) // len(rounds)
        for timing in timings[first:] + timings[:first]:
            if timing.entry.name in left_out:
                continue
            progress(f"{timing.entry.name}, round {number + 1}")
            training = trainings[timing.entry.implementation]
            take_steps = partial(_take_steps, timing.entry, training, batches)
            with leaving_out(timing.entry.name, left_out):
                timing.seconds.append(clock.measure(partial(clock.time, take_steps)))
            timing.tokens.append(sum(target_tokens(batch) for batch in batches))
            timing.flops.append(sum(batch_flops(config, batch) for batch in batches))
    return [timing for timing in timings if timing.entry.name not in left_out]


def _take_steps(entry: Entry, training: Training, batches: Sequence[Batch]) -> None:
    for batch in batches:
        entry.step(training, batch)


def _on(device: torch.device, batch: Batch) -> Batch:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def peak_memory(
    entry: Entry, config: VanillaTransformerConfig, batches: Sequence[Batch], device: torch.device
) -> list[float]:
    """The most memory an entry has had after each of some training steps, in units of 1,000,000 bytes.

    Of a process of its own: its resident memory with Python and the libraries, or on a GPU what torch has reserved.

    Raises:
        ChildProcessError: if that process ends before, as the system ends one for which there is no memory.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # What this process keeps, the other cannot have.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.support.measuring"])
    receiver, sender = context.Pipe(duplex=False)
    # Lists, because a tensor would be sent by way of shared memory.
    plain = [{name: tensor.tolist() for name, tensor in batch.items()} for batch in batches]
    arguments = (sender, entry, config.to_dict(), plain, device.type, torch.get_num_threads())
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
    sender: Any, entry: Entry, config: dict[str, Any], batches: list[dict[str, list]], device: str, threads: int
) -> None:
    torch.set_num_threads(threads)
    place = torch.device(device)
    training = entry.build(VanillaTransformerConfig.from_dict(config), place)
    peaks = []
    for batch in batches:
        entry.step(training, {name: torch.tensor(values, device=place) for name, values in batch.items()})
        peaks.append(_peak_so_far(place))
    sender.send(peaks)


def _peak_so_far(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved() / 1e6
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes * (1 if sys.platform == "darwin" else 1024) / 1e6


def model_flops(config: VanillaTransformerConfig, source: int, target: int) -> int:
    """Floating-point operations of a training step on one pair: the matrix products of the model, three times.

    Once forward and twice backward; a product of (m, n) and (n, k) is 2 m n k. Causal attention counts as full.

    Args:
        config: with d_k = d_v = d_model / num_heads.
        source, target: lengths in tokens, without padding.
    """
    d_model, d_ff = config.d_model, config.d_ff
    projection, feed_forward = 2 * d_model**2, 4 * d_model * d_ff
    encoder_layer = source * (4 * projection + feed_forward) + 4 * d_model * source**2
    self_attention = target * 4 * projection + 4 * d_model * target**2
    cross_attention = (target + source) * 2 * projection + 4 * d_model * source * target
    decoder_layer = self_attention + cross_attention + target * feed_forward
    softmax = 2 * target * d_model * config.vocab_size
    return 3 * (config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + softmax)


def batch_flops(config: VanillaTransformerConfig, batch: Batch) -> int:
    """`model_flops` of all pairs of a batch."""
    sources, targets = batch["attention_mask"].sum(1).tolist(), (batch["labels"] != -100).sum(1).tolist()
    return sum(model_flops(config, source, target) for source, target in zip(sources, targets, strict=True))


def peak_flops(device: torch.device, given: float | None) -> float | None:
    """What the device could compute in a second at most: as given, or as known of a GPU; None otherwise."""
    if given is not None:
        return given * 1e12
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name()
    return next((peak for known, peak in GPU_PEAKS.items() if known in name), None)
