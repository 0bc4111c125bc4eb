"""Texts that arrive together become one batch: by token budget, in one worker thread, where small work goes first."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple


# Arguments of `translate()`, sorted by name; texts share a batch only if theirs are equal.
Options = tuple[tuple[str, Any], ...]


class Batch(NamedTuple):
    """What a batch was, for metrics: tokens with padding, seconds that each text waited, and of the translation."""

    texts: int
    tokens: int
    waited: list[float]
    seconds: float


class _Item(NamedTuple):
    text: str
    tokens: int
    options: Options
    size: int
    arrived: float
    answer: "asyncio.Future[Any]"


class _Call(NamedTuple):
    size: int
    answer: "Future[Any]"
    function: Callable[[], Any]


class _Run:
    """A batch in work: when its translation began, 0 before, in which thread, and seconds of calls between steps."""

    def __init__(self, items: list[_Item]):
        self.items, self.started, self.interrupted, self.thread = items, 0.0, 0.0, 0

    def is_abandoned(self) -> bool:
        """Whether nobody waits for the texts any more; may be called from any thread."""
        return all(item.answer.done() for item in self.items)


# Works of the same size are within a factor of 16, and may share a batch. A picture is as small as a short request.
_BITS_OF_A_SIZE, _SMALL = 4, 2


class Batcher:
    """Collects texts into batches and translates one batch at a time, in a thread of its own.

    The first text of a batch is the one that has waited longest; others follow in the order of arrival as long as the
    padded batch fits the budget. A batch that fails is translated again text by text, so that only the texts that fail
    alone get the error. Requests of different sizes share no batch. Between two steps of the search of a batch, one of
    a smaller size is translated, so that nobody waits for the costliest requests of others; the batch keeps at least
    half of the time. With a second worker, for an engine whose steps make no calls, it is translated concurrently.

    Args:
        translate (`Callable`): gets a list of texts, a dictionary of options, and a function to call at each step of
            the search; returns a list of results. The function returns whether nobody waits for them any more.
        tokens_per_batch (`int`): maximum number of source tokens per batch, padding included.
        max_wait (`float`): seconds that a text may wait for others while the worker is idle.
        observe (`Callable`, *optional*): called with each [`Batch`] that was translated.
        workers (`int`): threads that call `translate`, 1 or 2.
    """

    def __init__(
        self,
        translate: Callable[[list[str], dict[str, Any], Callable[[], bool]], Sequence[Any]],
        tokens_per_batch: int,
        max_wait: float,
        observe: Callable[[Batch], None] | None = None,
        workers: int = 1,
    ):
        self._translate, self._tokens_per_batch, self._max_wait = translate, tokens_per_batch, max_wait
        self._observe = observe or (lambda batch: None)
        self._waiting: deque[_Item] = deque()
        self._arrived = asyncio.Event()
        # Called with the thread of a batch for which nobody waits any more.
        self.interrupt: Callable[[int], None] = lambda thread: None
        # The current batch, and the one that is translated between its steps.
        self._runs: list[_Run] = []
        self._calls: list[_Call] = []
        self._calls_lock = threading.Lock()
        # Held while the threads of batches are interrupted, and while a batch leaves its thread.
        self._threads_lock = threading.Lock()
        self._worker = ThreadPoolExecutor(workers, thread_name_prefix="translation")

    async def submit(
        self, texts: Sequence[str], tokens: Sequence[int], options: dict[str, Any], work: int = 1
    ) -> list[Any]:
        """Wait for the results of some texts, in their order; `tokens` are the number of tokens of each.

        `work` is that of all of them, in any unit. When cancelled, texts that still wait are dropped. Raises what
        `translate` raised for one of the texts.
        """
        loop = asyncio.get_running_loop()
        key, size = tuple(sorted(options.items())), work.bit_length() // _BITS_OF_A_SIZE
        items = [
            _Item(text, count, key, size, time.monotonic(), loop.create_future())
            for text, count in zip(texts, tokens, strict=True)
        ]
        self._waiting.extend(items)
        self._arrived.set()
        try:
            return await asyncio.gather(*(item.answer for item in items))
        finally:
            for item in items:
                item.answer.cancel()
            self._waiting = deque(item for item in self._waiting if not item.answer.done())
            # A thread keeps its batch meanwhile; otherwise the next one in it could be interrupted.
            with self._threads_lock:
                for run in self._runs:
                    if run.thread and run.is_abandoned():
                        self.interrupt(run.thread)

    def seconds_of_batch(self) -> float:
        """How long the current batch has been translated; 0 without one."""
        started = self._runs[0].started if self._runs else 0.0
        return time.monotonic() - started if started else 0.0

    async def call(self, function: Callable[..., Any], *arguments: Any, size: int = _SMALL) -> Any:
        """Call a function in a worker thread: between two steps of a batch of a larger size, or after it."""
        call = _Call(size, Future(), lambda: function(*arguments))
        with self._calls_lock:
            self._calls.append(call)
        self._worker.submit(self._make_call)
        return await asyncio.wrap_future(call.answer)

    def _make_call(self, below: int | None = None) -> None:
        """Make the first call that waits, of a size below this one, if any does."""
        with self._calls_lock:
            call = next((each for each in self._calls if below is None or each.size < below), None)
            if call is None:
                return
            self._calls.remove(call)
        if call.answer.set_running_or_notify_cancel():
            # Models raise many kinds; libraries in Rust, some that are no Exception.
            try:
                call.answer.set_result(call.function())
            except BaseException as error:
                call.answer.set_exception(error)

    async def run(self) -> None:
        """Translate what arrives, until cancelled."""
        while True:
            self._arrived.clear()
            if not self._waiting:
                await self._arrived.wait()
            await self._wait_for_others()
            if batch := self._take():
                await self._work_beside_smaller(batch)

    async def _work_beside_smaller(self, batch: list[_Item]) -> None:
        """Translate a batch, and those of less work that arrive meanwhile."""
        work = asyncio.create_task(self._work(batch))
        arrival: asyncio.Task[Any] = work
        try:
            while not work.done():
                self._arrived.clear()
                if smaller := self._take(batch[0].size):
                    await self._work(smaller)
                    continue
                arrival = asyncio.create_task(self._arrived.wait())
                await asyncio.wait({work, arrival}, return_when=asyncio.FIRST_COMPLETED)
                arrival.cancel()
        finally:
            work.cancel()
            arrival.cancel()
        await work

    def close(self) -> None:
        """End the worker threads after their batches."""
        self._worker.shutdown()

    async def _wait_for_others(self) -> None:
        """Wait until no more texts fit, or the first has waited for `max_wait`."""
        while self._waiting and len(self._next(self._waiting)) == len(self._waiting):
            left = self._waiting[0].arrived + self._max_wait - time.monotonic()
            if left <= 0:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return

    def _take(self, below: int | None = None) -> list[_Item]:
        """The texts of the next batch, of sizes below this one, which leave the queue."""
        batch = self._next([item for item in self._waiting if below is None or item.size < below])
        taken = {id(item) for item in batch}
        self._waiting = deque(item for item in self._waiting if id(item) not in taken)
        return batch

    def _next(self, waiting: Iterable[_Item]) -> list[_Item]:
        """The first of some texts that wait, and those that share its batch."""
        batch: list[_Item] = []
        longest = 0
        for item in waiting:
            if batch and (item.options, item.size) != (batch[0].options, batch[0].size):
                continue
            longest = max(longest, item.tokens)
            if batch and longest * (len(batch) + 1) > self._tokens_per_batch:
                break
            batch.append(item)
        return batch

    async def _work(self, batch: list[_Item]) -> None:
        run, size = _Run(batch), batch[0].size
        texts, options = [item.text for item in batch], dict(batch[0].options)
        self._runs.append(run)

        def step() -> bool:
            """Make one of the smaller calls that wait, unless they have had half of the time."""
            before = time.monotonic()
            if 2 * run.interrupted <= before - run.started:
                self._make_call(below=size)
                run.interrupted += time.monotonic() - before
            return run.is_abandoned()

        def translate() -> Sequence[Any] | None:
            run.started, run.thread = time.monotonic(), threading.get_ident()
            try:
                return None if run.is_abandoned() else self._translate(texts, options, step)
            finally:
                with self._threads_lock:
                    run.thread = 0

        try:
            results = await self.call(translate, size=size)
        except asyncio.CancelledError:  # The server shuts down.
            raise
        except BaseException as error:
            self._runs.remove(run)
            failure = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            await self._fail(batch, failure)
            return
        self._runs.remove(run)
        if results is None:
            return
        waited = [run.started - item.arrived for item in batch]
        tokens = len(batch) * max(item.tokens for item in batch)
        self._observe(Batch(len(batch), tokens, waited, time.monotonic() - run.started - run.interrupted))
        for item, result in zip(batch, results, strict=True):
            if not item.answer.done():
                item.answer.set_result(result)

    async def _fail(self, batch: list[_Item], error: Exception) -> None:
        waiting = [item for item in batch if not item.answer.done()]
        if len(batch) == 1:
            for item in waiting:
                item.answer.set_exception(error)
            return
        for item in waiting:
            await self._work([item])
