"""Texts that arrive together become one batch: by token budget, in one worker thread."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    arrived: float
    answer: "asyncio.Future[Any]"


class Batcher:
    """Collects texts into batches and translates one batch at a time, in a thread of its own.

    The first text of a batch is the one that has waited longest; others follow in the order of arrival as long as the
    padded batch fits the budget. A batch that fails is translated again text by text, so that only the texts that fail
    alone get the error.

    Args:
        translate (`Callable`): gets a list of texts and a dictionary of options, and returns a list of results.
        tokens_per_batch (`int`): maximum number of source tokens per batch, padding included.
        max_wait (`float`): seconds that a text may wait for others while the worker is idle.
        observe (`Callable`, *optional*): called with each [`Batch`] that was translated.
    """

    def __init__(
        self,
        translate: Callable[[list[str], dict[str, Any]], Sequence[Any]],
        tokens_per_batch: int,
        max_wait: float,
        observe: Callable[[Batch], None] | None = None,
    ):
        self._translate, self._tokens_per_batch, self._max_wait = translate, tokens_per_batch, max_wait
        self._observe = observe or (lambda batch: None)
        self._waiting: deque[_Item] = deque()
        self._arrived = asyncio.Event()
        # Called when nobody waits for the current batch any more.
        self.interrupt: Callable[[], None] = lambda: None
        self._current: list[_Item] = []
        self._started = 0.0
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="translation")

    async def submit(self, texts: Sequence[str], tokens: Sequence[int], options: dict[str, Any]) -> list[Any]:
        """Wait for the results of some texts, in their order; `tokens` are the number of tokens of each.

        When cancelled, texts that still wait are dropped. Raises what `translate` raised for one of the texts.
        """
        loop = asyncio.get_running_loop()
        key = tuple(sorted(options.items()))
        items = [
            _Item(text, count, key, loop.time(), loop.create_future())
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
            if self.is_abandoned():
                self.interrupt()

    def is_abandoned(self) -> bool:
        """Whether nobody waits for the batch that is being translated; may be called from any thread."""
        return bool(self._current) and all(item.answer.done() for item in self._current)

    def seconds_of_batch(self) -> float:
        """How long the current batch has been translated; 0 without one."""
        return time.monotonic() - self._started if self._current else 0.0

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the worker thread, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)

    async def run(self) -> None:
        """Translate what arrives, until cancelled."""
        while True:
            self._arrived.clear()
            if not self._waiting:
                await self._arrived.wait()
            await self._wait_for_others()
            if batch := self._next():
                taken = {id(item) for item in batch}
                self._waiting = deque(item for item in self._waiting if id(item) not in taken)
                await self._work(batch)

    def close(self) -> None:
        """End the worker thread after its current batch."""
        self._worker.shutdown()

    async def _wait_for_others(self) -> None:
        """Wait until no more texts fit, or the first has waited for `max_wait`."""
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._next()) == len(self._waiting):
            left = self._waiting[0].arrived + self._max_wait - loop.time()
            if left <= 0:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), left)
            except TimeoutError:
                return

    def _next(self) -> list[_Item]:
        """The texts of the next batch, which stay in the queue."""
        batch: list[_Item] = []
        longest = 0
        for item in self._waiting:
            if batch and item.options != batch[0].options:
                continue
            longest = max(longest, item.tokens)
            if batch and longest * (len(batch) + 1) > self._tokens_per_batch:
                break
            batch.append(item)
        return batch

    async def _work(self, batch: list[_Item]) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._current, self._started = batch, time.monotonic()
        try:
            results = await self.call(self._translate, [item.text for item in batch], dict(batch[0].options))
        except asyncio.CancelledError:  # The server shuts down.
            raise
        except BaseException as error:  # Models raise many kinds; libraries in Rust, some that are no Exception.
            self._current = []
            failure = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            await self._fail(batch, failure)
            return
        self._current = []
        waited = [started - item.arrived for item in batch]
        tokens = len(batch) * max(item.tokens for item in batch)
        self._observe(Batch(len(batch), tokens, waited, loop.time() - started))
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
