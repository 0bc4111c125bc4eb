"""Translate the texts of many callers with one model, in batches."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from ..model.generation_limits import Interruption
from ..model.pipeline_vanilla_transformer import are_same_language, encode
from ..support.argument_checks import check_strings
from ..translation.engine import Engine
from ..translation.sentence_splitting import Piece, pieces_of
from ..translation.translate import translate
from ..translation.translation_details import Translation
from .batcher import Batch, Batcher
from .errors import OtherLanguageError, RequestError, UntranslatableError
from .limits import ServingSettings, TextLimits
from .model_card_facts import CardFacts
from .prometheus_metrics import Metrics


logger = logging.getLogger(__name__)

# A search ends at its next step when its requests have ended.
_GRACE_SECONDS = 30


class Service:
    """Translates the texts of many callers, in batches and within limits.

    The model may be an `Engine` as of `load_engine`. `generate_kwargs` are arguments of `translate()` and `generate()`
    for requests that do not give them.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        settings: ServingSettings,
        card: CardFacts,
        generate_kwargs: dict[str, Any] | None = None,
    ):
        self.model, self.tokenizer, self.settings, self.card = model, tokenizer, settings, card
        self.metrics = Metrics()
        self.is_failing = False
        self._generate_kwargs = generate_kwargs or {}
        self._batcher: Batcher | None = None
        self._limits = TextLimits(settings, self.metrics.in_flight.set)

    @property
    def batcher(self) -> Batcher:
        """The batcher; RuntimeError if the service does not run."""
        if self._batcher is None:
            raise RuntimeError("the service does not run; translate inside of running().")
        return self._batcher

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Translate requests; on leaving, finish the batch that is being translated."""
        seconds = self.settings.max_wait_ms / 1000
        self._batcher = Batcher(self._translate, self.settings.tokens_per_batch, seconds, self._observe)
        if isinstance(self.model, Engine):
            self._batcher.interrupt = getattr(self.model, "interrupt", self._batcher.interrupt)
        task = asyncio.create_task(self._batcher.run())
        task.add_done_callback(_end_the_process)
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self._batcher.close()

    @property
    def health(self) -> Literal["ok", "failing", "hanging"]:
        """`"ok"`; `"failing"` after a translation that failed; `"hanging"` if a batch goes on after its requests."""
        seconds = 0.0 if self._batcher is None else self._batcher.seconds_of_batch()
        if seconds > self.settings.request_seconds + _GRACE_SECONDS:
            return "hanging"
        return "failing" if self.is_failing else "ok"

    def check_languages(self, source: str | None, target: str | None) -> None:
        """Raise OtherLanguageError for a language that is not the model's, if its card names it; "auto" is any."""
        for given, own in ((source, self.card.source_language), (target, self.card.target_language)):
            if given and own and given != "auto" and not are_same_language(given, own):
                pair = f'"{self.card.source_language}" to "{self.card.target_language}"'
                raise OtherLanguageError(
                    f'the request names "{given[:100]}", but the model translates from {pair}; send these languages.'
                )

    @property
    def split_sentences(self) -> bool:
        """Whether texts of requests are split into sentences."""
        return bool(self._generate_kwargs.get("split_sentences"))

    @property
    def num_beams(self) -> int:
        """The beam size of requests that do not give one."""
        return self._generate_kwargs.get("num_beams") or self.model.generation_config.num_beams or 1

    async def translate(self, texts: Sequence[str], options: dict[str, Any]) -> list[Translation]:
        """Translate some texts of one caller; when cancelled, those that still wait are dropped.

        Translations have flags, and all details if the options, arguments of `translate()`, request them.

        Raises:
            TooMuchError: if there are too many texts, or one is too long, or they may take too much work.
            UntranslatableError: if the model cannot translate one, or an option is impossible.
            BusyError: if the server is full.
        """
        self._limits.check_number_of_texts(len(texts))
        with self._limits.admit(len(texts)), self._as_request_errors():
            tokens = await asyncio.to_thread(self._count, texts, "markup" in options)
            self._check_work(tokens, options)
            return await self.batcher.submit(texts, tokens, options)

    async def translate_sentences(
        self, text: str, options: dict[str, Any], split: bool
    ) -> tuple[list[Piece], list[Translation]]:
        """The sentences of a text of one caller, and their translations with details; arguments as in [`translate`].

        Without `split`, the text is one sentence.
        """
        options = {**options, "return_details": True, "split_sentences": False}
        with self._limits.admit(1), self._as_request_errors():
            await asyncio.to_thread(self._count, [text])
            pieces = [Piece(text, "")]
            if split:
                pieces = await asyncio.to_thread(pieces_of, self.tokenizer, text, self.card.source_language)
            texts = [piece.text for piece in pieces]
            tokens = await asyncio.to_thread(self._count, texts)
            self._check_work(tokens, options)
            return pieces, await self.batcher.submit(texts, tokens, options)

    def _check_work(self, tokens: Sequence[int], options: dict[str, Any]) -> None:
        given = {**self._generate_kwargs, **options}
        self._limits.check_work(tokens, given.get("num_beams") or self.num_beams, given.get("max_new_tokens"))

    @contextmanager
    def _as_request_errors(self) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError) as error:
            raise UntranslatableError(str(error)) from error
        except RequestError:
            raise
        except Exception:
            self.is_failing = True
            raise

    def _count(self, texts: Sequence[str], have_tags: bool = False) -> list[int]:
        """The number of tokens of each text."""
        checked = list(check_strings("the request", texts))
        if have_tags:
            self._limits.check_markup(checked)
        tokens = [len(ids) for ids in encode(self.tokenizer, checked).input_ids] if checked else []
        self._limits.check_tokens(tokens)
        return tokens

    def _translate(self, texts: list[str], options: dict[str, Any]) -> list[Translation]:
        kwargs = {"return_details": "flags", **self._generate_kwargs, **options}
        if not isinstance(self.model, Engine):
            kwargs["stopping_criteria"] = [Interruption(self.batcher.is_abandoned)]
        return translate(self.model, self.tokenizer, texts, self.settings.tokens_per_batch, **kwargs)

    def _observe(self, batch: Batch) -> None:
        self.is_failing = False
        self.metrics.count_batch(batch)


def _end_the_process(task: "asyncio.Task[None]") -> None:
    """End the server if the task that answers requests has failed; it would accept requests and answer none."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("the server ends, because its worker has ended", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
