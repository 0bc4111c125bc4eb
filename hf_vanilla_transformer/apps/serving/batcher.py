"""Translate texts that arrive together in one batch, by token budget, and short requests apart from long ones."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from ...translation.translation_details import Translation


# Arguments of `translate()`, sorted by name; texts share a batch only if theirs are equal.
Options = tuple[tuple[str, object], ...]
# Translates some texts with some arguments of `translate()`. The function in the third argument returns True if nobody
# waits for the translations any more; it is called at each step of the search, in the thread of the search.
TranslateBatch = Callable[[list[str], dict[str, object], Callable[[], bool]], Sequence[Translation]]
_Result = TypeVar("_Result")


class Batch(NamedTuple):
    """The figures of a translated batch, for metrics.

    `tokens` includes padding, `waited` has the seconds that each text waited, and `seconds` is the time of the
    translation.
    """

    texts: int
    tokens: int
    waited: list[float]
    seconds: float


@dataclass(frozen=True, eq=False)
class _Item:
    """A text that waits or is translated, and the future of the request that waits for it."""

    text: str
    tokens: int
    options: Options
    arrived: float
    answer: "asyncio.Future[Translation]"


class Lane:
    """Collects texts into batches and translates one batch at a time, in a thread of its own.

    The first text of a batch is the one that has waited longest. Others follow in the order of arrival as long as the
    padded batch fits the budget. A batch that fails is translated again text by text, so that only the texts that fail
    alone get the error.

    Args:
        name (`str`): the name of the thread.
        translate (`Callable`): translates a batch, see `TranslateBatch`.
        tokens_per_batch (`int`): maximum number of source tokens per batch, padding included.
        max_wait (`float`): seconds that a text may wait for others while the worker is idle.
        observe (`Callable`, *optional*): called with each [`Batch`] that was translated.
    """

    def __init__(
        self,
        name: str,
        translate: TranslateBatch,
        tokens_per_batch: int,
        max_wait: float,
        observe: Callable[[Batch], None] | None = None,
    ):
        self._translate = translate
        self._tokens_per_batch = tokens_per_batch
        self._max_wait = max_wait
        self._observe = observe
        self._waiting: deque[_Item] = deque()
        self._arrived = asyncio.Event()
        # When the translation of the current batch began; None without a batch.
        self._batch_started: float | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def submit(
        self, texts: Sequence[str], tokens: Sequence[int], options: dict[str, object]
    ) -> list[Translation]:
        """Wait for the translations of some texts, in their order; `tokens` has the number of tokens of each text.

        If it is cancelled, texts that still wait are dropped, and a batch of which nobody waits for any text is
        abandoned. Raises what `translate` raised for one of the texts.
        """
        loop = asyncio.get_running_loop()
        sorted_options = tuple(sorted(options.items()))
        items = []
        for text, count in zip(texts, tokens, strict=True):
            items.append(_Item(text, count, sorted_options, time.monotonic(), loop.create_future()))
        self._waiting.extend(items)
        self._arrived.set()
        try:
            return await asyncio.gather(*(item.answer for item in items))
        finally:
            for item in items:
                item.answer.cancel()
            self._waiting = deque(item for item in self._waiting if not item.answer.done())

    async def call(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function in the worker thread, after the current batch."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)

    def seconds_of_batch(self) -> float:
        """Return how long the current batch has been translated; 0 without one."""
        started = self._batch_started
        if started is None:
            return 0.0
        return time.monotonic() - started

    async def run(self) -> None:
        """Translate the texts that arrive, until cancelled."""
        while True:
            self._arrived.clear()
            if not self._waiting:
                await self._arrived.wait()
            await self._wait_for_others()
            batch = self._take_batch()
            if batch:
                await self._translate_batch(batch)

    def close(self) -> None:
        """End the worker thread after its batch."""
        self._worker.shutdown()

    async def _wait_for_others(self) -> None:
        """Wait until no more texts fit into the next batch, or its first text has waited for `max_wait`."""
        while self._waiting and len(self._next_batch()) == len(self._waiting):
            seconds_left = self._waiting[0].arrived + self._max_wait - time.monotonic()
            if seconds_left <= 0:
                return
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), seconds_left)
            except TimeoutError:
                return

    def _take_batch(self) -> list[_Item]:
        """Remove the texts of the next batch from the queue and return them."""
        batch = self._next_batch()
        taken = set(batch)
        self._waiting = deque(item for item in self._waiting if item not in taken)
        return batch

    def _next_batch(self) -> list[_Item]:
        """Return the first text that waits, and those that share its batch."""
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

    async def _translate_batch(self, batch: list[_Item]) -> None:
        """Translate a batch in the worker thread, and answer the requests of its texts."""
        texts = [item.text for item in batch]
        options = dict(batch[0].options)

        def is_abandoned() -> bool:
            return all(item.answer.done() for item in batch)

        def translate() -> tuple[Sequence[Translation], float, float]:
            started = time.monotonic()
            self._batch_started = started
            try:
                translations = self._translate(texts, options, is_abandoned)
            finally:
                self._batch_started = None
            return translations, started, time.monotonic() - started

        try:
            translations, started, seconds = await self.call(translate)
        except asyncio.CancelledError:  # The server shuts down.
            raise
        # Libraries in Rust raise panics that are no Exception.
        except BaseException as error:
            failure = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            await self._fail(batch, failure)
            return
        if self._observe is not None:
            padded_tokens = len(batch) * max(item.tokens for item in batch)
            waited = [started - item.arrived for item in batch]
            self._observe(Batch(len(batch), padded_tokens, waited, seconds))
        for item, translation in zip(batch, translations, strict=True):
            if not item.answer.done():
                item.answer.set_result(translation)

    async def _fail(self, batch: list[_Item], error: Exception) -> None:
        """Translate the texts of a failed batch one by one; a text that fails alone gets the error."""
        waiting = [item for item in batch if not item.answer.done()]
        if len(batch) == 1:
            for item in waiting:
                item.answer.set_exception(error)
            return
        for item in waiting:
            # The client may disconnect while other texts of the batch are translated.
            if not item.answer.done():
                await self._translate_batch([item])


class Lanes:
    """Two lanes that work concurrently, so that short requests never wait for long ones.

    `short` also makes calls that take as little time as a short request. Arguments are those of [`Lane`].
    """

    def __init__(
        self,
        translate: TranslateBatch,
        tokens_per_batch: int,
        max_wait: float,
        observe: Callable[[Batch], None] | None = None,
    ):
        self.short = Lane("short-translations", translate, tokens_per_batch, max_wait, observe)
        self.long = Lane("long-translations", translate, tokens_per_batch, max_wait, observe)

    def seconds_of_batch(self) -> float:
        """Return how long the older one of the current batches has been translated; 0 without one."""
        return max(self.short.seconds_of_batch(), self.long.seconds_of_batch())

    async def run(self) -> None:
        """Translate the texts that arrive in both lanes, until cancelled or until a lane fails."""
        await asyncio.gather(self.short.run(), self.long.run())

    def close(self) -> None:
        """End the worker threads after their batches."""
        self.short.close()
        self.long.close()
