"""Collect the texts of concurrent requests in batches, and translate the batches in worker threads.

There are two lanes: one for short requests and one for long requests. Each lane has its own queue and its own worker
thread, so that a short request never waits in the queue behind a long one. The lanes share the processor.

Threads: all methods of [`Lane`] run in the event loop's thread, and so does `observe`. The queue needs no lock, because
no other coroutine runs between two `await`s. The worker thread of a lane runs only `translate` and the functions that
are passed to `Lane.call`, one at a time. It shares two things with the event loop: it reads whether futures are done,
and it sets `_batch_started`. Both are single reads or writes, which are safe between threads.

Cancellation: if a client disconnects or its request times out, `Lane.submit` is cancelled, which cancels the futures of
the request's texts. Texts that are still waiting are removed from the queue. A batch that is being translated continues
as long as any request waits for one of its texts. After that, `is_abandoned` returns True, and the search ends at its
next step. When the server shuts down, it cancels `Lane.run`, and `Lane.close` waits until the worker thread has
finished its batch.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ...translation.translation_details import Translation


# Keyword arguments of `translate()` or, if they contain "format", of `translate_documents()`.
TranslateOptions = dict[str, Any]
_Result = TypeVar("_Result")


class TranslateBatch(Protocol):
    """The type of a function that translates a batch of texts. A [`Lane`] calls this function in its worker thread."""

    def __call__(
        self, texts: list[str], options: TranslateOptions, is_abandoned: Callable[[], bool]
    ) -> Sequence[Translation]:
        """Return the translation of each text.

        Args:
            texts (`list[str]`): the texts of the batch.
            options (`TranslateOptions`): the options, which are the same for all texts of the batch.
            is_abandoned (`Callable`): returns True if no request is waiting for the batch anymore. The function should
                call it at each decoding step, and raise an error to end the search if it returns True.
        """


@dataclass(frozen=True)
class BatchFigures:
    """Statistics about one translated batch, such as its size and duration. The server exports them as metrics.

    Args:
        texts (`int`): the number of texts.
        padded_tokens (`int`): the number of source tokens, including padding.
        waiting_seconds (`list[float]`): how long each text waited in the queue.
        seconds (`float`): how long the translation took.
    """

    texts: int
    padded_tokens: int
    waiting_seconds: list[float]
    seconds: float


@dataclass(frozen=True, eq=False)
class _QueuedText:
    """A text that is waiting in a lane's queue or being translated.

    Args:
        text (`str`): the text.
        tokens (`int`): the number of source tokens in the text.
        options: the names and values of the text's options, sorted by name. Texts share a batch only if their options
            are equal.
        arrival (`float`): the time at which the text arrived, from `time.monotonic()`.
        translation (`asyncio.Future`): receives the translation or an error. It is cancelled if the request has ended.
    """

    text: str
    tokens: int
    options: tuple[tuple[str, object], ...]
    arrival: float
    translation: "asyncio.Future[Translation]"


@dataclass(frozen=True)
class _TimedTranslations:
    """The translations of a batch, and how long they took.

    Args:
        translations (`Sequence[Translation]`): the translation of each text of the batch.
        started (`float`): the time at which the translation started, from `time.monotonic()`.
        seconds (`float`): the duration of the translation.
    """

    translations: Sequence[Translation]
    started: float
    seconds: float


class Lane:
    """A queue of texts, and a worker thread that translates one batch of these texts at a time.

    Each batch starts with the text that has waited longest. Further texts are added in order of arrival, as long as the
    padded batch stays within the token budget. If a batch fails, its texts are translated again one by one. An error is
    then reported only to the requests whose texts fail on their own.

    Args:
        name (`str`): the name of the worker thread.
        translate (`TranslateBatch`): the function that translates a batch.
        tokens_per_batch (`int`): the maximum number of source tokens per batch, including padding. A text with more
            tokens gets a separate batch.
        max_wait (`float`): how many seconds a text waits for other texts while the worker thread is idle.
        observe (`Callable`, *optional*): called with the statistics of each translated batch.
    """

    def __init__(
        self,
        name: str,
        translate: TranslateBatch,
        tokens_per_batch: int,
        max_wait: float,
        observe: Callable[[BatchFigures], None] | None = None,
    ):
        self._translate = translate
        # The maximum number of source tokens per batch, padding included.
        self._tokens_per_batch = tokens_per_batch
        # The number of seconds that a text waits for other texts.
        self._max_wait = max_wait
        # This function is called with the statistics of each batch. It may be None.
        self._observe = observe
        # The texts that no batch contains yet, in order of arrival.
        self._waiting: deque[_QueuedText] = deque()
        # `submit` sets this event when it adds texts to the queue, and `_wait_for_arrival` waits for it.
        self._arrived = asyncio.Event()
        # The time at which the translation of the current batch started; None if no batch is being translated. Only the
        # worker thread sets it.
        self._batch_started: float | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def submit(self, texts: Sequence[str], tokens: Sequence[int], options: TranslateOptions) -> list[Translation]:
        """Add a request's texts to the queue, wait until all of them are translated, and return the translations.

        If this coroutine is cancelled, texts that are still waiting are removed from the queue. A batch that is being
        translated is abandoned unless a different request is waiting for it.

        Args:
            texts (`Sequence[str]`): the texts.
            tokens (`Sequence[int]`): the number of source tokens in each text.
            options (`TranslateOptions`): the options, which apply to all of these texts.

        Raises:
            Exception: the error that `translate` raised for one of the texts.
        """
        queued_texts = _create_queued_texts(texts, tokens, options)
        self._waiting.extend(queued_texts)
        # This wakes `run`, which may be waiting for texts.
        self._arrived.set()
        # Each future receives the translation of its text.
        futures = [queued_text.translation for queued_text in queued_texts]
        try:
            return await asyncio.gather(*futures)
        finally:
            # After an error or a cancellation, the other translations of this request are not needed anymore.
            self._cancel_texts(queued_texts)

    async def call(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function in the worker thread as soon as this thread is free, and return the function's result."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)

    def current_batch_seconds(self) -> float:
        """Return the running time of the current batch in seconds; 0 if no batch is being translated."""
        # The attribute is read only once, because the worker thread may set it to None at any time.
        started = self._batch_started
        if started is None:
            return 0.0
        return time.monotonic() - started

    async def run(self) -> None:
        """Translate texts from the queue as they arrive, until this coroutine is cancelled."""
        while True:
            if not self._waiting:
                await self._wait_for_arrival()
            # During this wait, all texts stay in the queue, so that `submit` can remove those of a cancelled request.
            await self._wait_for_more_texts()
            batch = self._take_batch()
            # The batch is empty if all requests were cancelled in the meantime.
            if batch:
                await self._translate_batch(batch)

    def close(self) -> None:
        """Wait until the worker thread has finished its batch, and then end the thread."""
        self._worker.shutdown()

    def _cancel_texts(self, queued_texts: Sequence[_QueuedText]) -> None:
        """Remove texts from the queue, and cancel their futures. This has no effect on texts with a translation."""
        for queued_text in queued_texts:
            queued_text.translation.cancel()
        # Cancelled futures count as done, so this line must come after the loop. It keeps the texts of other requests.
        self._waiting = deque(waiting for waiting in self._waiting if not waiting.translation.done())

    async def _wait_for_arrival(self) -> None:
        """Wait until `submit` adds further texts to the queue."""
        # Earlier texts may have left the event set. No text is missed by clearing it, because `submit` cannot run
        # between the caller's look at the queue and the `await` below: all of them run in the same event loop.
        self._arrived.clear()
        await self._arrived.wait()

    async def _wait_for_more_texts(self) -> None:
        """Wait for more texts that can be translated in the same batch as the first text in the queue.

        The wait ends when the first text in the queue has waited for `max_wait` seconds since its arrival, or as soon
        as the queue contains a text that cannot be part of the next batch.
        """
        # Requests may be cancelled during the wait, so the queue may become empty.
        while self._waiting:
            # A text with different options, or one that does not fit into the next batch, needs a later batch. Waiting
            # longer would delay this text.
            has_text_for_later_batch = len(self._select_batch()) < len(self._waiting)
            if has_text_for_later_batch:
                return
            seconds_left = self._waiting[0].arrival + self._max_wait - time.monotonic()
            if seconds_left <= 0:
                return
            try:
                async with asyncio.timeout(seconds_left):
                    await self._wait_for_arrival()
            except TimeoutError:
                return

    def _take_batch(self) -> list[_QueuedText]:
        """Remove the texts of the next batch from the queue, and return them."""
        batch = self._select_batch()
        batch_members = set(batch)
        self._waiting = deque(waiting for waiting in self._waiting if waiting not in batch_members)
        return batch

    def _select_batch(self) -> list[_QueuedText]:
        """Return the next batch: the first text in the queue, and the texts that can be translated together with it.

        These are the texts with the same options as the first one, in order of arrival, as long as the padded batch has
        at most `tokens_per_batch` tokens. The batch ends before the first text that would exceed this limit, even if
        later texts are shorter, because these must not overtake it. Texts with different options are skipped.

        The queue is not changed; `_take_batch` removes the batch from it.
        """
        if not self._waiting:
            return []
        options = self._waiting[0].options
        # The first text in the queue is the first candidate.
        candidates = (queued_text for queued_text in self._waiting if queued_text.options == options)
        batch: list[_QueuedText] = []
        # The number of tokens in the longest text of the batch.
        most_tokens = 0
        for candidate in candidates:
            # All texts of a batch are padded to the length of its longest text. For example, texts of 10, 12 and 30
            # tokens become a batch of 3 * 30 tokens.
            most_tokens = max(most_tokens, candidate.tokens)
            padded_tokens = most_tokens * (len(batch) + 1)
            # The first text is always in the batch, even if it alone has too many tokens.
            if batch and padded_tokens > self._tokens_per_batch:
                break
            batch.append(candidate)
        return batch

    async def _translate_batch(self, batch: list[_QueuedText]) -> None:
        """Translate a batch in the worker thread, and pass the translations or an error to the waiting requests.

        `_take_batch` must have removed the batch from the queue. If a batch of several texts fails, [`_handle_failure`]
        calls this method again for each of its texts.
        """
        try:
            result = await self.call(self._translate_in_worker, batch)
        except asyncio.CancelledError:
            # The server is shutting down. This is not a failed batch, and the caller must be cancelled, too.
            raise
        except BaseException as error:
            # This includes panics of Rust libraries, such as tokenizers, which are not derived from Exception.
            await self._handle_failure(batch, error)
            return

        self._report_figures(batch, result)
        for queued_text, translation in zip(batch, result.translations, strict=True):
            # The future is done already if the request has been cancelled.
            if not queued_text.translation.done():
                queued_text.translation.set_result(translation)

    def _translate_in_worker(self, batch: list[_QueuedText]) -> _TimedTranslations:
        """Translate a batch, and measure the time. This runs in the worker thread."""
        texts = [queued_text.text for queued_text in batch]
        # All texts of a batch have the same options.
        options = dict(batch[0].options)

        def is_abandoned() -> bool:
            # The search calls this function repeatedly, in the worker thread. No future has a result yet, so those that
            # are done belong to requests that have been cancelled.
            return all(queued_text.translation.done() for queued_text in batch)

        started = time.monotonic()
        # The event loop's thread reads this attribute in `current_batch_seconds`.
        self._batch_started = started
        try:
            translations = self._translate(texts, options, is_abandoned)
        finally:
            self._batch_started = None
        return _TimedTranslations(translations, started, time.monotonic() - started)

    def _report_figures(self, batch: list[_QueuedText], result: _TimedTranslations) -> None:
        """Pass the statistics of a translated batch to the `observe` callback, if there is one."""
        if self._observe is None:
            return
        longest = max(queued_text.tokens for queued_text in batch)
        padded_tokens = len(batch) * longest
        waiting_seconds = [result.started - queued_text.arrival for queued_text in batch]
        self._observe(BatchFigures(len(batch), padded_tokens, waiting_seconds, result.seconds))

    async def _handle_failure(self, batch: list[_QueuedText], error: BaseException) -> None:
        """Translate the texts of a failed batch one by one, so that only requests whose texts fail receive an error.

        If the batch has only one text, the request of this text receives the error.
        """
        # `_translate_batch` calls this method again if a single text fails. This branch ends the recursion.
        if len(batch) == 1:
            # The future is done already if the request has been cancelled.
            if not batch[0].translation.done():
                batch[0].translation.set_exception(_as_exception(error))
            return
        for queued_text in batch:
            # Requests may be cancelled while earlier texts of the batch are being translated.
            if not queued_text.translation.done():
                await self._translate_batch([queued_text])


def _create_queued_texts(texts: Sequence[str], tokens: Sequence[int], options: TranslateOptions) -> list[_QueuedText]:
    """Convert the texts of a new request to entries for the queue. Their arrival time is the current time."""
    loop = asyncio.get_running_loop()
    # Sorted, because equal options must result in equal tuples, whatever the order in which they were set.
    sorted_options = tuple(sorted(options.items()))
    queued_texts: list[_QueuedText] = []
    for text, number_of_tokens in zip(texts, tokens, strict=True):
        future = loop.create_future()
        queued_texts.append(_QueuedText(text, number_of_tokens, sorted_options, time.monotonic(), future))
    return queued_texts


def _as_exception(error: BaseException) -> Exception:
    """Return an error that a future can pass on to a request: the error itself, or a RuntimeError with its message.

    If a future passed on an error that is not derived from Exception, such as a Rust panic, the event loop would end,
    and the server with it.
    """
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")


class Lanes:
    """Two lanes that run concurrently, so that short requests never wait for long ones.

    Both lanes are created with the given arguments; see [`Lane`].

    Attributes:
        short (`Lane`): translates short requests, and runs function calls that take no longer than such requests.
        long (`Lane`): translates all other requests.
    """

    def __init__(
        self,
        translate: TranslateBatch,
        tokens_per_batch: int,
        max_wait: float,
        observe: Callable[[BatchFigures], None] | None = None,
    ):
        self.short = Lane("short-translations", translate, tokens_per_batch, max_wait, observe)
        self.long = Lane("long-translations", translate, tokens_per_batch, max_wait, observe)

    def current_batch_seconds(self) -> float:
        """Return the longer running time of the two lanes' current batches in seconds; 0 if there is no such batch."""
        return max(self.short.current_batch_seconds(), self.long.current_batch_seconds())

    async def run(self) -> None:
        """Translate the texts of both lanes as they arrive, until this coroutine is cancelled or a lane fails."""
        await asyncio.gather(self.short.run(), self.long.run())

    def close(self) -> None:
        """Wait until both worker threads have finished their batches, and then end the threads."""
        self.short.close()
        self.long.close()
