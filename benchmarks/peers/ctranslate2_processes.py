"""CTranslate2 in child processes, because it is slower in a process that has loaded torch.

Run as a command, this file is the child: it reads jobs from stdin, one JSON object per line, and writes the results to
stdout. A token's text is its id; see `hf_vanilla_transformer.conversion.ctranslate2`.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple


# What `hf_vanilla_transformer.memory.keep_freed_memory` sets in the parent.
KEEP_FREED_MEMORY = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=100000000000:glibc.malloc.top_pad=268435456"


class Setting(NamedTuple):
    """Parallelism and instruction set of CTranslate2.

    Attributes:
        workers: batches translated in parallel.
        threads: threads per worker.
        instructions: for example `"AVX512"`; empty for CTranslate2's default.
    """

    workers: int
    threads: int
    instructions: str


def settings(threads: int) -> list[Setting]:
    """The settings a user would try: one worker with all threads, or one worker per thread."""
    import torch

    # CTranslate2's default does not include AVX-512.
    instructions = ["", "AVX512"] if torch.backends.cpu.get_cpu_capability() == "AVX512" else [""]
    shapes = dict.fromkeys([(1, threads), (threads, 1)])
    return [Setting(*shape, kind) for shape in shapes for kind in instructions]


class CTranslate2Processes:
    """One CTranslate2 process per setting; each job runs in the fastest.

    Args:
        folder (`Path`): a model from `write_ctranslate2`.
        compute_type (`str`): `"float32"` or `"int8"`.
        threads (`int`): number of threads to use.
    """

    def __init__(self, folder: Path, compute_type: str, threads: int):
        self._processes = {each: CTranslate2Process(folder, compute_type, each) for each in settings(threads)}
        self._chosen: tuple[Setting, Mapping[str, Any]] | None = None
        self.described = ""

    def choose(self, sources: Sequence[Sequence[str]], *options: Mapping[str, Any]) -> None:
        """Choose the fastest setting and options for a job; each is timed as the best of four runs."""
        seconds = {}
        for setting, process in self._processes.items():
            for number, each in enumerate(options):
                seconds[setting, number] = min(process.translate(sources, **each)[0] for _ in range(4))
        setting, number = min(seconds, key=seconds.__getitem__)
        self._chosen = setting, options[number]
        self.described = f"{setting}, {dict(options[number])}"

    def translate(self, sources: Sequence[Sequence[str]]) -> tuple[float, list[list[str]]]:
        """Seconds in the child process, and the best translation of each source, with the chosen setting.

        Raises:
            ValueError: if `choose` was not called.
        """
        if self._chosen is None:
            raise ValueError("no setting is chosen; call choose() before translate().")
        setting, options = self._chosen
        return self._processes[setting].translate(sources, **options)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.close()


class CTranslate2Process:
    """A CTranslate2 translator in a child process.

    Args:
        folder (`Path`): a model from `write_ctranslate2`.
        compute_type (`str`): `"float32"` or `"int8"`.
        setting (`Setting`): parallelism and instruction set.
    """

    def __init__(self, folder: Path, compute_type: str, setting: Setting):
        command = [sys.executable, __file__, str(folder), compute_type, str(setting.workers), str(setting.threads)]
        environment = {"GLIBC_TUNABLES": KEEP_FREED_MEMORY, **os.environ}
        if setting.instructions:
            environment["CT2_FORCE_CPU_ISA"] = setting.instructions
        self._workers = setting.workers
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def translate(self, sources: Sequence[Sequence[str]], **options: Any) -> tuple[float, list[list[str]]]:
        """Seconds in the child process, and the best translation of each source.

        With `max_batch_size=0` the sources are one batch, split evenly among the workers.
        """
        if options.get("max_batch_size") == 0:
            options["max_batch_size"] = -(-len(sources) // self._workers)
        to_child: Any = self._process.stdin
        from_child: Any = self._process.stdout
        to_child.write(json.dumps({"sources": sources, "options": options}) + "\n")
        to_child.flush()
        answer = from_child.readline()
        if not answer:
            raise RuntimeError("CTranslate2's process ended; its error message is above.")
        return tuple(json.loads(answer))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Translate jobs from stdin until it ends."""
    import ctranslate2

    folder, compute_type, workers, threads = sys.argv[1:]
    translator = ctranslate2.Translator(
        folder, compute_type=compute_type, inter_threads=int(workers), intra_threads=int(threads)
    )
    for line in sys.stdin:
        job = json.loads(line)
        start = time.perf_counter()
        results = translator.translate_batch(job["sources"], **job["options"])
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, [result.hypotheses[0] for result in results]]), flush=True)


if __name__ == "__main__":
    main()
