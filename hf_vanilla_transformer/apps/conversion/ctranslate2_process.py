"""CTranslate2 in a child process, because it is slower in a process that has loaded torch.

Run as a command, this file is the child: it reads jobs from stdin, one JSON object per line, and writes the results to
stdout. It imports neither torch nor this package.
"""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO


_SECONDS_BETWEEN_WATCHES = 0.05
# What `hf_vanilla_transformer.support.memory_tuning.keep_freed_memory` sets in the parent.
KEEP_FREED_MEMORY = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=100000000000:glibc.malloc.top_pad=268435456"


class Setting(NamedTuple):
    """Batches in parallel, threads for each, and CTranslate2's instruction set: `"AVX512"`; empty for its default."""

    workers: int
    threads: int
    instructions: str = ""


class CTranslate2Process:
    """A CTranslate2 translator in a child process, with a compute type such as `"float32"` or `"int8"`."""

    def __init__(self, folder: Path, compute_type: str, setting: Setting):
        # -P, because a script's folder would be searched first, and there is a module ctranslate2.py in it, too.
        command = [sys.executable, "-P", __file__]
        command += [str(folder), compute_type, str(setting.workers), str(setting.threads)]
        environment = {"GLIBC_TUNABLES": KEEP_FREED_MEMORY, **os.environ}
        if setting.instructions:
            environment["CT2_FORCE_CPU_ISA"] = setting.instructions
        self._workers = setting.workers
        # An answer belongs to the request before it.
        self._calling = threading.Lock()
        # When the current call began; infinite without one.
        self.called = math.inf
        # Reads the answers of calls that are watched.
        self._reader = ThreadPoolExecutor(1)
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
        )

    def translate(
        self, sources: Sequence[Sequence[str]], watch: Callable[[], None] | None = None, **options: Any
    ) -> tuple[float, list[tuple[list[list[str]], list[float], list[list[list[float]]]]]]:
        """Seconds in the child process, and the hypotheses of each source with their scores and attention.

        `watch` is called several times per second; if it raises an error, the child process is killed.

        Scores and attention, per hypothesis (target, source), are empty unless `options` request them. With
        `max_batch_size=0` the sources are one batch, split evenly among the workers. Raises RuntimeError if CTranslate2
        raises an error, or the process has ended.
        """
        if options.get("max_batch_size") == 0:
            options["max_batch_size"] = -(-len(sources) // self._workers)
        return self._call("translate_batch", watch, source=sources, **options)

    def score(self, sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> list[list[float]]:
        """Log-probabilities of the tokens of each target and of its end; raises RuntimeError as `translate` does."""
        size = -(-len(sources) // self._workers)
        return self._call("score_batch", source=sources, target=targets, max_input_length=0, max_batch_size=size)[1]

    def _call(self, method: str, watch: Callable[[], None] | None = None, **options: Any) -> Any:
        to_child: Any = self._process.stdin
        from_child: Any = self._process.stdout
        answer = ""
        with self._calling, suppress(BrokenPipeError):
            self.called = time.monotonic()
            try:
                to_child.write(json.dumps({"method": method, "options": options}) + "\n")
                to_child.flush()
                answer = from_child.readline() if watch is None else self._read_watched(from_child, watch)
            except BaseException:
                # The next request would read the answer to this one.
                self.kill()
                self._process.wait()
                raise
            finally:
                self.called = math.inf
        if not answer:
            raise RuntimeError(f"CTranslate2's process ended with exit code {self._process.wait()}.")
        result = json.loads(answer)
        if isinstance(result, dict):
            raise RuntimeError(f"CTranslate2 says: {result['error']}")
        return result

    def _read_watched(self, from_child: TextIO, watch: Callable[[], None]) -> str:
        """Call `watch` again and again while another thread reads a line.

        Waiting for the pipe itself for a limited time would not work on Windows.
        """
        line = self._reader.submit(from_child.readline)
        while True:
            try:
                return line.result(_SECONDS_BETWEEN_WATCHES)
            except TimeoutError:
                watch()

    @property
    def is_busy(self) -> bool:
        """Whether a call waits for an answer."""
        return self.called < math.inf

    @property
    def has_ended(self) -> bool:
        """Whether the process was killed, or has ended for another reason."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the process at once; what waits for its answer gets a RuntimeError."""
        self._process.kill()

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
        self._reader.shutdown()


def main() -> None:
    """Work on jobs from stdin until it ends."""
    # Ctrl-C is for the parent, whose end closes stdin.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder, compute_type, workers, threads = sys.argv[1:]
    translator = None
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if translator is None:
                import ctranslate2

                translator = ctranslate2.Translator(
                    folder, compute_type=compute_type, inter_threads=int(workers), intra_threads=int(threads)
                )
            start = time.perf_counter()
            results = getattr(translator, job["method"])(**job["options"])
            seconds, is_score = time.perf_counter() - start, job["method"] == "score_batch"
            parts = [each.log_probs if is_score else (each.hypotheses, each.scores, each.attention) for each in results]
            answer: Any = [seconds, parts]
        except Exception as error:  # CTranslate2 raises several kinds; the parent raises them again.
            answer = {"error": str(error)}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
