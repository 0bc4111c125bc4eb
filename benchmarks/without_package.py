"""Time decoding of one sentence by a saved folder without the package, with it, and by transformers' MarianMTModel."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch

from benchmarks.support import report_parts
from benchmarks.support.measurement_conditions import describe_conditions
from benchmarks.support.timing import Clock, in_turns
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.apps.conversion.hf_marian import copy_to_marian, new_marian
from hf_vanilla_transformer.support.argument_checks import check_number


PROGRAM = Path(__file__).parent / "support" / "decoding_process.py"
PACKAGE, WITHOUT, MARIAN = "with the package", "without the package", "MarianMTModel"


@dataclass
class WithoutPackageArguments:
    """The model, the search, and how often to measure."""

    size: str = field(default="base", metadata={"help": "Row of Table 3."})
    vocab_size: int = field(default=10_000, metadata={"help": "Tokens of the vocabulary."})
    source_tokens: int = field(default=15, metadata={"help": "Tokens of the sentence."})
    beams: int = field(default=4, metadata={"help": "Beams."})
    new_tokens: int = field(default=32, metadata={"help": "Decoding steps of a call."})
    rounds: int = field(default=5, metadata={"help": "Rounds of measurements."})

    def __post_init__(self) -> None:
        for name in ("source_tokens", "beams", "new_tokens", "rounds"):
            check_number(name, getattr(self, name), 1)


class DecodingProcess:
    """A model that decodes in a process of its own, one call at a time."""

    def __init__(self, folder: Path, args: WithoutPackageArguments, cache: Path, forbid_package: bool) -> None:
        command = [sys.executable, str(PROGRAM), str(folder)]
        command += [str(args.source_tokens), str(args.beams), str(args.new_tokens)]
        if forbid_package:
            command.append("--forbid")
        # transformers copies the code of a folder there.
        environment = {**os.environ, "HF_MODULES_CACHE": str(cache)}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def milliseconds_per_step(self, steps: int) -> float:
        """Call generate() once; returns its time, with that of the encoder, divided by the decoding steps."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{PROGRAM.name} ended with exit status {self._process.wait()}; see its messages above.")
        return float(answer) * 1e3 / steps

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@contextmanager
def start_processes(args: WithoutPackageArguments) -> Iterator[dict[str, DecodingProcess]]:
    """Start a process for each implementation. All have the same random weights."""
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(
        VanillaTransformerConfig.from_paper(args.size, vocab_size=args.vocab_size)
    )
    marian = new_marian(model.config, "sdpa")
    copy_to_marian(model, marian)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        native_folder = Path(folder) / "native"
        marian_folder = Path(folder) / "marian"
        cache = Path(folder) / "modules"
        model.save_pretrained(native_folder)
        marian.save_pretrained(marian_folder)
        processes = {
            PACKAGE: DecodingProcess(native_folder, args, cache, forbid_package=False),
            WITHOUT: DecodingProcess(native_folder, args, cache, forbid_package=True),
            MARIAN: DecodingProcess(marian_folder, args, cache, forbid_package=True),
        }
        for process in processes.values():
            stack.callback(process.close)
        yield processes


@program
def main(arguments: list[str]) -> dict[str, list[float]]:
    """Print a table; returns the milliseconds per step of each round by implementation."""
    args = parse(WithoutPackageArguments, __doc__, arguments)
    device = torch.device("cpu")
    search = f"1 sentence of {args.source_tokens} tokens x {args.beams} beams, {args.new_tokens} steps"
    conditions = {"machine": describe_conditions(device), "corpus": f"{args.size}, {search}"}
    clock = Clock(device, repeats=1)
    with start_processes(args) as processes:
        runs = {}
        for name, process in processes.items():
            # The first calls load code and pack weights.
            for _ in range(2):
                process.milliseconds_per_step(args.new_tokens)
            runs[name] = lambda process=process: process.milliseconds_per_step(args.new_tokens)
        times = in_turns(runs, args.rounds, clock)

    rows = []
    for name, milliseconds in times.items():
        ratios = [marian / own for marian, own in zip(times[MARIAN], milliseconds, strict=True)]
        rows.append([name, f"{median(milliseconds):.1f}", f"{min(milliseconds):.1f}", report_parts.spread(ratios)])
    print(report_parts.describe(conditions))
    print(report_parts.describe_noise({"noise": clock.noise()}))
    print(report_parts.table(["", "ms per step, median", "fastest", f"speedup over {MARIAN}"], rows))
    return times


if __name__ == "__main__":
    main()
