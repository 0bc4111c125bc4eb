"""Run the inference engine CTranslate2 in a child process. It would be slower in a process that has loaded PyTorch.

This file is also the program that the child process runs. The child process reads jobs from stdin, one JSON object per
line, and writes the results to stdout. It imports neither PyTorch nor this package.
"""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple


# The interval at which a call's watch function is called, in seconds. It is so short that a user who interrupts the
# call does not notice the delay.
_SECONDS_BETWEEN_WATCHES = 0.05
# The value of `CTranslate2Process.call_started` while there is no call. It is later than every time.
_NO_CALL = math.inf
# glibc settings with which the child process keeps freed memory instead of returning it to the OS. The parent process
# makes the same settings in `hf_vanilla_transformer.support.memory_tuning.keep_freed_memory`.
KEEP_FREED_MEMORY = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=100000000000:glibc.malloc.top_pad=268435456"


class Setting(NamedTuple):
    """The CPU settings of a CTranslate2 process: its workers, their threads, and the instruction set.

    The number of `workers` is the number of batches that are translated in parallel. Each worker has its own `threads`.
    `instructions` is `"AVX512"`, or an empty string for CTranslate2's default instruction set.
    """

    workers: int
    threads: int
    instructions: str = ""


class Hypotheses(NamedTuple):
    """The hypotheses of one source sentence, best first.

    Scores and attention weights are empty unless they are requested. The attention weights of a hypothesis have the
    shape `(target, source)`.
    """

    tokens: list[list[str]]
    scores: list[float]
    attention: list[list[list[float]]]


class CTranslate2Process:
    """A CTranslate2 translator that runs in a child process.

    Args:
        folder: the folder of the CTranslate2 model.
        compute_type: the precision, such as `"float32"` or `"int8"`.
        setting: the workers, threads and instruction set of the process.
    """

    def __init__(self, folder: Path, compute_type: str, setting: Setting):
        # If the user has set GLIBC_TUNABLES, the value in `os.environ` replaces ours.
        environment = {"GLIBC_TUNABLES": KEEP_FREED_MEMORY, **os.environ}
        if setting.instructions:
            environment["CT2_FORCE_CPU_ISA"] = setting.instructions
        # By default, Python would search the script's own folder first, and import this package's ctranslate2.py
        # instead of the library. -P prevents it.
        command = [sys.executable, "-P", __file__]
        # `main`, which runs in the child process, reads these arguments in this order.
        command += [str(folder), compute_type, str(setting.workers), str(setting.threads)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
        )
        self._workers = setting.workers
        # A call holds this lock from its request to the answer, so that no other call reads that answer.
        self._call_lock = threading.Lock()
        # The time at which the current call began, in seconds of `time.monotonic()`, or `_NO_CALL`. `is_busy` reads it.
        self.call_started = _NO_CALL
        # While this thread waits for the answer of a call that has a watch function, the caller's thread can call it.
        self._reader_thread = ThreadPoolExecutor(1)

    def translate(
        self, sources: Sequence[Sequence[str]], watch: Callable[[], None] | None = None, **options: Any
    ) -> tuple[float, list[Hypotheses]]:
        """Translate tokenized sources with CTranslate2's `translate_batch`.

        Args:
            sources: the token texts of each source.
            watch: a function that is called several times per second during the translation. If it raises an error, the
                child process is killed, and the error is raised.
            **options: arguments of CTranslate2's `translate_batch`. With `max_batch_size=0`, the sources are split
                evenly among the workers.

        Returns:
            The time that the translation took in the child process, in seconds, and the hypotheses of each source.

        Raises:
            RuntimeError: if CTranslate2 raises an error, or if the child process has ended.
        """
        if options.get("max_batch_size") == 0:
            options["max_batch_size"] = self._sources_per_worker(sources)
        seconds, results = self._call("translate_batch", {"source": sources, **options}, watch)
        return seconds, [Hypotheses(*result) for result in results]

    def score(self, sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the log-probabilities of each target's tokens and of the `</s>` that CTranslate2 appends, in nats.

        Raises RuntimeError if CTranslate2 raises an error, or if the child process has ended.
        """
        options = {
            "source": sources,
            "target": targets,
            # 0 means that sources are not truncated.
            "max_input_length": 0,
            "max_batch_size": self._sources_per_worker(sources),
        }
        _, log_probs = self._call("score_batch", options)
        return log_probs

    def _sources_per_worker(self, sources: Sequence[Sequence[str]]) -> int:
        """Return the batch size with which the sources are split evenly among the workers."""
        return math.ceil(len(sources) / self._workers)

    def _call(
        self, method: str, options: Mapping[str, object], watch: Callable[[], None] | None = None
    ) -> tuple[float, list[Any]]:
        """Call a method of the translator in the child process.

        Returns the time that the call took, in seconds, and a list with one result for each source. If `watch` is
        given, it is called repeatedly until the answer arrives.

        Raises RuntimeError if CTranslate2 raises an error, or if the child process has ended.
        """
        request = json.dumps({"method": method, "options": options})
        answer = self._exchange(request, watch)
        if not answer:
            raise RuntimeError(f"CTranslate2's process ended with exit code {self._process.wait()}.")
        content = json.loads(answer)
        # `main` answers with {"error": message} if the job failed, and otherwise with [seconds, results].
        if isinstance(content, dict):
            raise RuntimeError(f"CTranslate2 says: {content['error']}")
        seconds, results = content
        return seconds, results

    def _exchange(self, request: str, watch: Callable[[], None] | None) -> str:
        """Send a request to the child process, and return its answer, which is one line.

        The answer is empty if the process has ended.
        """
        with self._call_lock:
            # From now on, the property `is_busy` is True, and other threads prefer a different process.
            self.call_started = time.monotonic()
            try:
                return self._send_and_read(request, watch)
            finally:
                # From now on, `is_busy` is False.
                self.call_started = _NO_CALL

    def _send_and_read(self, request: str, watch: Callable[[], None] | None) -> str:
        """Do the work of `_exchange` while the caller holds the lock.

        If it is interrupted, for example by an error in `watch`, the process is killed, because the next request would
        read the answer to this one.
        """
        try:
            self._send(request)
            return self._read_answer(watch)
        except BrokenPipeError:
            # The process has ended, so it does not read the request.
            self._kill_and_wait()
            return ""
        except BaseException:
            # Ctrl-C, for example, is no Exception.
            self._kill_and_wait()
            raise

    def _send(self, request: str) -> None:
        """Write one line to the child process."""
        to_child = self._process.stdin
        assert to_child is not None
        to_child.write(f"{request}\n")
        to_child.flush()

    def _read_answer(self, watch: Callable[[], None] | None) -> str:
        """Read one line from the child process. If `watch` is given, it is called repeatedly until the line arrives."""
        from_child = self._process.stdout
        assert from_child is not None
        if watch is None:
            return from_child.readline()
        # A separate thread reads the line, because Windows does not support a timeout for reading from a pipe.
        future_line = self._reader_thread.submit(from_child.readline)
        while True:
            try:
                return future_line.result(timeout=_SECONDS_BETWEEN_WATCHES)
            except TimeoutError:
                # The line has not arrived yet.
                watch()

    @property
    def is_busy(self) -> bool:
        """Whether a call is waiting for its answer."""
        return self.call_started != _NO_CALL

    @property
    def has_ended(self) -> bool:
        """Whether the child process has ended, for example because it was killed."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the child process immediately. A call that is waiting for its answer raises RuntimeError."""
        self._process.kill()

    def _kill_and_wait(self) -> None:
        """End the child process immediately, and wait until it has ended."""
        self.kill()
        self._process.wait()

    def close(self) -> None:
        """End the child process after it has finished its current job, and wait until it has ended."""
        # This closes stdin, which ends the loop in `main`, and waits for the process.
        self._process.communicate()
        self._reader_thread.shutdown()


def main() -> None:
    """Run the child process: execute the jobs from stdin until stdin is closed.

    A job is one line, such as `{"method": "score_batch", "options": {...}}`. Its answer is also one line: either
    `[seconds, results]`, as [`_run_job`] returns them, or `{"error": message}`.
    """
    # The parent process handles Ctrl-C. When it ends, stdin is closed, and this process ends as well.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    translator: Any = None
    for line in sys.stdin:
        job = json.loads(line)
        answer: object
        try:
            # The model that the command line names is loaded in the first job, so that an error is sent to the parent
            # as an answer.
            if translator is None:
                translator = _load_translator()
            answer = _run_job(translator, job["method"], job["options"])
        except Exception as error:  # CTranslate2 raises several exception types. The parent raises RuntimeError.
            answer = {"error": str(error)}
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()


def _load_translator() -> Any:
    """Load the model that the command line names, and return CTranslate2's `Translator`."""
    import ctranslate2

    # `CTranslate2Process.__init__` gives the arguments in this order.
    folder, compute_type, workers, threads = sys.argv[1:]
    return ctranslate2.Translator(
        folder, compute_type=compute_type, inter_threads=int(workers), intra_threads=int(threads)
    )


def _run_job(translator: Any, method: str, options: Mapping[str, Any]) -> tuple[float, list[Any]]:
    """Call a method of CTranslate2's `Translator`, and return its duration in seconds and one result for each source.

    A result of `score_batch` is a list of log-probabilities. A result of `translate_batch` is a tuple of the fields of
    [`Hypotheses`], in their order. The duration does not include the conversion of CTranslate2's results into lists.
    """
    start = time.perf_counter()
    if method == "score_batch":
        scores = translator.score_batch(**options)
        seconds = time.perf_counter() - start
        return seconds, [result.log_probs for result in scores]
    translations = translator.translate_batch(**options)
    seconds = time.perf_counter() - start
    return seconds, [(result.hypotheses, result.scores, result.attention) for result in translations]


if __name__ == "__main__":
    main()
