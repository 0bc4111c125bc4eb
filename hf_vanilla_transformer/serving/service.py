"""Translate the texts of many callers with one model, in batches."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Literal, TypeVar

from transformers import PreTrainedTokenizerBase

from ..model.generation_limits import Interruption
from ..model.pipeline_vanilla_transformer import are_same_language, copies_letterless, encode, is_blank
from ..model.tokenization_two_vocabularies import longest_training_source
from ..support.argument_checks import check_strings
from ..translation.engine import Engine
from ..translation.glossary import Glossary
from ..translation.markup_document import Document
from ..translation.sentence_splitting import Piece, join, pieces_of
from ..translation.translate import translate
from ..translation.translation_details import Translation, untranslated
from .batcher import Batch, Batcher
from .errors import OtherLanguageError, RequestError, UntranslatableError
from .limits import ServingSettings, TextLimits
from .model_card_facts import CardFacts
from .prometheus_metrics import Metrics


logger = logging.getLogger(__name__)

# A search ends at its next step when its requests have ended.
_GRACE_SECONDS = 30
_Item = TypeVar("_Item")


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
        workers = 2 if isinstance(self.model, Engine) else 1
        self._batcher = Batcher(self._translate, self.settings.tokens_per_batch, seconds, self._observe, workers)
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
        if "markup" not in options:
            found = await self.translate_sentences(texts, options, self.split_sentences)
            return await asyncio.to_thread(lambda: [join(*each) for each in found])
        with self._admitted(texts):
            options = await asyncio.to_thread(self._with_glossary, options)
            tokens, work = await asyncio.to_thread(self._measure_documents, texts, options)
            return await self.batcher.submit(texts, tokens, options, work)

    async def translate_sentences(
        self, texts: Sequence[str], options: dict[str, Any], split: bool
    ) -> list[tuple[list[Piece], list[Translation]]]:
        """The sentences of each text of one caller, and their translations; arguments and errors as in [`translate`].

        Without `split`, each text is one sentence.
        """
        with self._admitted(texts):
            tokens = await asyncio.to_thread(self._count, texts, split)
            pieces = [[Piece(text, "")] for text in texts]
            if split:
                # Splitting takes time, too.
                self._check_work(tokens, options)
                pieces = await asyncio.to_thread(self._split, texts)
            sentences = [piece.text for each in pieces for piece in each if not is_blank(piece.text)]
            options = await asyncio.to_thread(self._with_glossary, {**options, "split_sentences": False})
            tokens, work = await asyncio.to_thread(self._measure, sentences, options)
            found = iter(await self.batcher.submit(sentences, tokens, options, work))
            return [
                (each, [untranslated(text) if is_blank(text) else next(found) for text, *_ in each]) for each in pieces
            ]

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that needs the model, such as one that draws attention; BusyError if the server is full."""
        with self._limits.admit(1), self._as_request_errors():
            return await self.batcher.call(function, *arguments)

    def _measure_documents(self, documents: Sequence[str], options: dict[str, Any]) -> tuple[list[int], int]:
        """The number of tokens of each document, and the work of all of them."""
        self._limits.check_markup(documents)
        texts = [Document(options["markup"], document).texts for document in check_strings("the request", documents)]
        if self.split_sentences:
            # Splitting takes time, too.
            tokens_of_texts = [self._count(texts_of_document, may_be_long=True) for texts_of_document in texts]
            self._check_work(_flatten(tokens_of_texts), options)
        sentences = [self._sentences(texts_of_document) for texts_of_document in texts]
        tokens = [self._count(sentences_of_document) for sentences_of_document in sentences]
        work = self._check_work(_flatten(tokens), options, _flatten(sentences))
        return [sum(counts) for counts in tokens], work

    def _sentences(self, texts: Sequence[str]) -> list[str]:
        """The sentences of some texts of a document that are translated."""
        if not self.split_sentences:
            return list(texts)
        pieces = _flatten([pieces_of(self.tokenizer, text, self.card.source_language) for text in texts])
        return [piece.text for piece in pieces if not is_blank(piece.text)]

    def _measure(self, sentences: Sequence[str], options: dict[str, Any]) -> tuple[list[int], int]:
        """The number of tokens of each sentence, and the work of all of them."""
        tokens = self._count(sentences)
        return tokens, self._check_work(tokens, options, sentences)

    def _with_glossary(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options with a [`Glossary`] in the place of its terms, so that it is made once for a request."""
        terms = options.get("glossary")
        if terms is None:
            return options
        return {**options, "glossary": Glossary(terms, self.tokenizer)}

    def _split(self, texts: Sequence[str]) -> list[list[Piece]]:
        most = min(longest_training_source(self.tokenizer), self.settings.max_source_tokens)
        return [pieces_of(self.tokenizer, text, self.card.source_language, most) for text in texts]

    def _check_work(
        self, tokens: Sequence[int], options: dict[str, Any], sentences: Sequence[str] | None = None
    ) -> int:
        """The work of texts with so many tokens; with that of terms, if `sentences` are the texts themselves."""
        settings = {**self._generate_kwargs, **options}
        num_beams, max_new_tokens = settings.get("num_beams") or self.num_beams, settings.get("max_new_tokens")
        work = self._limits.check_work(tokens, num_beams, max_new_tokens)
        glossary = settings.get("glossary")
        if glossary is None or sentences is None:
            return work
        cells = [glossary.sizes(sentence).cells for sentence in sentences]
        return self._limits.check_terms(work, cells, tokens, num_beams, max_new_tokens)

    @contextmanager
    def _admitted(self, texts: Sequence[str]) -> Iterator[None]:
        self._limits.check_number_of_texts(len(texts))
        with self._limits.admit(len(texts)), self._as_request_errors():
            yield

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

    def _count(self, texts: Sequence[str], may_be_long: bool = False) -> list[int]:
        """The number of tokens of each text."""
        checked = list(check_strings("the request", texts))
        tokens = [len(ids) for ids in encode(self.tokenizer, checked).input_ids] if checked else []
        if not may_be_long:
            self._limits.check_tokens(tokens)
        return tokens

    def _translate(self, texts: list[str], options: dict[str, Any], step: Callable[[], bool]) -> list[Translation]:
        # Requests often hold numbers, such as the cells of a table, that a model of unknown training would change.
        copy_letterless = copies_letterless(self.tokenizer, otherwise=True)
        defaults = {"return_details": "flags", "copy_letterless": copy_letterless}
        kwargs = {**defaults, **self._generate_kwargs, **options}
        if not isinstance(self.model, Engine):
            kwargs["stopping_criteria"] = [Interruption(step)]
        return translate(self.model, self.tokenizer, texts, self.settings.tokens_per_batch, **kwargs)

    def _observe(self, batch: Batch) -> None:
        self.is_failing = False
        self.metrics.count_batch(batch)


def _flatten(lists: Sequence[Sequence[_Item]]) -> list[_Item]:
    return [item for items in lists for item in items]


def _end_the_process(task: "asyncio.Task[None]") -> None:
    """End the server if the task that answers requests has failed; it would accept requests and answer none."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("the server ends, because its worker has ended", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
