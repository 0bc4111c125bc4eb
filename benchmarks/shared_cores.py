"""Measure the demo's training step while other processes use its cores, with and without the command line's setting.

OpenMP's threads spin at barriers. If another process has the core of one thread, the other threads spin until that
thread gets it again; `GOMP_SPINCOUNT` limits the spinning. libgomp reads it when torch is imported, so every setting
has a child process. The settings take turns in each round. The busy processes run an endless loop in Python.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil
import torch
from tqdm import tqdm
from transformers import DataCollatorForSeq2Seq

from benchmarks.support.measurement_conditions import describe_conditions
from benchmarks.support.report_parts import describe, describe_noise, table
from benchmarks.support.training_implementations import Implementation
from hf_vanilla_transformer import VanillaTransformerConfig, load_pairs, tokenize_pairs, train_tokenizer
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.memory_tuning import keep_freed_memory
from hf_vanilla_transformer.support.recipes import read_recipe
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer_launcher import VALUE, VARIABLE, is_about_waiting


DEFAULT, CHILD = "default", "child"
WARM_UP_STEPS = 5
# Every eighth pair of the corpus is in the batch, so that the tokenizer has enough pairs to train on.
STRIDE = 8
# A measurement is repeated if other processes used more than this share of a core.
MOST_DISTURBANCE = 0.07
Seconds = dict[str, dict[int, list[list[float]]]]


@dataclass
class SharedCoresArguments:
    """Settings, load and repetitions."""

    mode: list[str] = field(default_factory=list, metadata={"help": "The mode of a child process.", "positional": True})
    spin_counts: list[int] = field(
        default_factory=lambda: [int(VALUE)], metadata={"help": f"Values of {VARIABLE} to compare with the default."}
    )
    busy: list[int] = field(default_factory=lambda: [0, 1, 3], metadata={"help": "Numbers of busy processes."})
    threads: int = field(default=2, metadata={"help": "Threads of torch."})
    rounds: int = field(default=15, metadata={"help": "Rounds; each measures every setting with every load."})
    steps: int = field(default=4, metadata={"help": "Training steps per measurement."})
    repeats: int = field(default=5, metadata={"help": "Repetitions at most, while the machine does other work."})

    def __post_init__(self) -> None:
        for name, lowest in (("threads", 1), ("rounds", 1), ("steps", 1), ("repeats", 0)):
            check_number(name, getattr(self, name), lowest)


class Child:
    """A process with a setting; it takes training steps on request."""

    def __init__(self, spin_count: int | None, threads: int) -> None:
        environment = {name: value for name, value in os.environ.items() if not is_about_waiting(name)}
        environment |= {} if spin_count is None else {VARIABLE: str(spin_count)}
        self._process: Any = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.shared_cores", CHILD],
            env={**environment, "OMP_NUM_THREADS": str(threads), "TQDM_DISABLE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def take_steps(self, steps: int) -> list[float]:
        """Seconds of each step."""
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def answer_requests() -> None:
    """Work in a child: for each line of stdin, a number of steps, print their seconds."""
    keep_freed_memory()
    recipe = read_recipe("numbers", Settings)
    pairs = load_pairs("numbers", train_size=STRIDE * recipe["per_device_train_batch_size"])["train"]
    texts = pairs["source"][:] + pairs["target"][:]
    tokenizer = train_tokenizer(texts, vocab_size=recipe["vocab_size"], show_progress=False)
    rows = tokenize_pairs(pairs, tokenizer).select(range(0, len(pairs), STRIDE))
    collated = DataCollatorForSeq2Seq(tokenizer)(list(rows))
    batch = {name: torch.as_tensor(collated[name]) for name in ("input_ids", "attention_mask", "labels")}
    sizes = {name: recipe[name] for name in ("d_model", "d_ff", "num_heads", "dropout")}
    sizes |= {f"{stack}_layers": recipe["num_layers"] for stack in ("encoder", "decoder")}
    implementation = Implementation("ours", "fp32")
    config = VanillaTransformerConfig(vocab_size=len(tokenizer), **sizes)
    training = implementation.build(config, torch.device("cpu"))

    def step() -> float:
        start = time.perf_counter()
        implementation.step(training, batch)
        return time.perf_counter() - start

    for line in sys.stdin:
        print(json.dumps([step() for _ in range(int(line))]), flush=True)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run endless loops in Python."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.2 * bool(count))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def seconds_of_others() -> float:
    """CPU seconds of the machine, without this process and its descendants."""
    times, own = psutil.cpu_times(), psutil.Process()
    ours = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return times.user + times.nice + times.system - sum(each.user + each.system for each in ours)


def undisturbed(child: Child, args: SharedCoresArguments, noise: dict[str, int]) -> list[float]:
    """Seconds of each step, in the first attempt during which the machine did nothing else, or in the last one."""
    noise["measurements"] += 1
    for attempt in range(args.repeats + 1):
        before, start = seconds_of_others(), time.perf_counter()
        found = child.take_steps(args.steps)
        if seconds_of_others() - before <= MOST_DISTURBANCE * (time.perf_counter() - start):
            return found
        noise["made_again"] += attempt == 0 and args.repeats > 0
    noise["slow"] += 1
    return found


def measure(args: SharedCoresArguments) -> tuple[Seconds, dict[str, int]]:
    """Seconds of each step, by setting, busy processes and round; and how many measurements were repeated."""
    settings = {DEFAULT: None, **{f"{VARIABLE}={count}": count for count in args.spin_counts}}
    seconds: Seconds = {name: {busy: [] for busy in args.busy} for name in settings}
    noise = {"measurements": 0, "made_again": 0, "slow": 0}
    with ExitStack() as stack:
        children = {}
        for name, spin_count in settings.items():
            children[name] = Child(spin_count, args.threads)
            stack.callback(children[name].close)
            children[name].take_steps(WARM_UP_STEPS)
        names = list(children)
        for number in tqdm(range(args.rounds), desc="rounds", leave=False):
            first = number % len(names)
            for busy in args.busy:
                with busy_processes(busy):
                    for name in names[first:] + names[:first]:
                        seconds[name][busy].append(undisturbed(children[name], args, noise))
    return seconds, noise


def as_table(seconds: Seconds) -> str:
    """Milliseconds of a step; medians versus those with the fewest busy processes; ratios to the default by round."""

    def middle(name: str, busy: int) -> float:
        return median(second for steps in seconds[name][busy] for second in steps)

    rows = []
    for busy, defaults in seconds[DEFAULT].items():
        for name in seconds:
            rounds = seconds[name][busy]
            ratios = [median(steps) / median(others) for steps, others in zip(rounds, defaults, strict=True)]
            figures = [1000 * middle(name, busy), 1000 * max(map(max, rounds))]
            ratio_to_alone = middle(name, busy) / middle(name, min(seconds[name]))
            rows.append(
                [
                    str(busy),
                    name,
                    *(f"{each:,.0f}" for each in figures),
                    f"{ratio_to_alone:.2f}",
                    f"{median(ratios):.2f}",
                ]
            )
    columns = ["busy processes", "setting", "median, ms", "highest, ms", "versus alone", "versus the default"]
    return table(columns, rows)


@program
def main(arguments: list[str]) -> Seconds | None:
    """Print the table; returns the seconds."""
    args = parse(SharedCoresArguments, __doc__, arguments)
    if args.mode == [CHILD]:
        answer_requests()
        return None
    conditions = {**describe_conditions(torch.device("cpu")), "threads": args.threads}
    seconds, noise = measure(args)
    section = {"machine": conditions, "corpus": "number corpus", "noise": noise}
    print(f"{as_table(seconds)}\n\n{describe(section)} {describe_noise(section)}")
    return seconds


if __name__ == "__main__":
    main()
