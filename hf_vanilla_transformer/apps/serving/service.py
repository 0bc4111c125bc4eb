"""Translate the texts of many callers with one model, in batches."""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Literal, TypeVar

from transformers import PreTrainedTokenizerBase

from ...data.target_language import TargetCodes, are_same_language, find_code, short_name, tokenizer_language
from ...data.vocabularies import longest_training_source
from ...model.input_checks import copies_letterless, has_letters, is_blank
from ...support.argument_checks import check_strings
from ...support.language_codes import language_of
from ...translation.concurrent_use import encode
from ...translation.runtime import runtime_of
from ...translation.sentence_splitting import Piece, join_translations, split_into_pieces
from ...translation.translate import translate
from ...translation.translation_details import DetailLevel, Translation, untranslated
from ..documents.translate_documents import read_document, translate_documents
from ..terms.glossary import Glossary
from .batcher import Batch, Lane, Lanes
from .errors import OtherLanguageError, RequestError, UntranslatableError
from .interruption import Interruption
from .limits import ServingSettings, TextLimits, is_short
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
        self.runtime = runtime_of(model, tokenizer)
        self.metrics = Metrics()
        self.is_failing = False
        self._generate_kwargs = self._with_glossary(generate_kwargs or {})
        # Requests often hold numbers, such as the cells of a table, that a model of unknown training would change.
        self._copies_letterless = copies_letterless(tokenizer, otherwise=True)
        codes = TargetCodes(tokenizer, self._generate_kwargs.get("target_lang"))
        # The codes of a model of several target languages, or nothing; and the code for requests that name no language.
        self.target_codes = codes.codes
        self.default_target_code = codes.default
        self._lanes: Lanes | None = None
        self._limits = TextLimits(settings, self.metrics.in_flight.set)

    @property
    def lanes(self) -> Lanes:
        """The lanes of short and of long requests; RuntimeError if the service does not run."""
        if self._lanes is None:
            raise RuntimeError("the service does not run; translate inside of running().")
        return self._lanes

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Translate requests; on leaving, finish the batches that are being translated."""
        seconds = self.settings.max_wait_ms / 1000
        self._lanes = Lanes(self._translate, self.settings.tokens_per_batch, seconds, self._observe)
        task = asyncio.create_task(self._lanes.run())
        task.add_done_callback(_end_the_process)
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self._lanes.close()

    @property
    def health(self) -> Literal["ok", "failing", "hanging"]:
        """`"ok"`; `"failing"` after a translation that failed; `"hanging"` if a batch goes on after its requests."""
        seconds = 0.0 if self._lanes is None else self._lanes.seconds_of_batch()
        if seconds > self.settings.request_seconds + _GRACE_SECONDS:
            return "hanging"
        return "failing" if self.is_failing else "ok"

    @property
    def source_language(self) -> str | None:
        """The language of the sources; None if it is unknown."""
        if self.card.source_language is not None or not self.target_codes:
            return self.card.source_language
        # The card of a model of several target languages seldom names exactly two languages.
        return language_of(tokenizer_language(self.tokenizer, "src_lang"))

    def check_languages(self, source: str | None, target: str | None) -> None:
        """Raise OtherLanguageError for a language that is not the model's, if its card names it; "auto" is any.

        Of a model of several target languages, the codes in its vocabulary say which these are.
        """
        own_target = None if self.target_codes else self.card.target_language
        for given, own in ((source, self.source_language), (target, own_target)):
            if given and own and given != "auto" and not are_same_language(given, own):
                languages = f'"{self.source_language}"'
                if own_target is not None:
                    languages += f' to "{own_target}"'
                raise OtherLanguageError(
                    f'the request names "{given[:100]}", but the model translates from {languages}; send these '
                    "languages."
                )

    def languages(self) -> dict[str, list[str]]:
        """Return the languages that requests may name, each with those that it is translated into.

        The source language comes first; without one, as of a model of many source languages, there are only targets.
        """
        source, target = self.source_language, self.card.target_language
        if self.target_codes:
            targets = [short_name(self.target_codes, code) for code in self.target_codes]
        elif source is None or target is None:
            return {}
        else:
            targets = [target]
        languages: dict[str, list[str]] = {}
        if source is not None:
            languages[source] = targets
        for code in targets:
            languages.setdefault(code, [])
        return languages

    def target_options(self, target: str | None) -> dict[str, Any]:
        """Return the arguments of `translate()` for the target language of a request.

        Raises OtherLanguageError if the model has several target languages, and this is none of them.
        """
        if not self.target_codes or not target or target == "auto":
            return {}
        try:
            # The code, so that requests for one language share batches, however they spell it.
            return {"target_lang": find_code(self.target_codes, target[:100], "the target language of the request")}
        except ValueError as error:
            raise OtherLanguageError(str(error)) from error

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
        if "format" not in options:
            found = await self.translate_sentences(texts, options, self.split_sentences)
            return await asyncio.to_thread(lambda: [join_translations(*each) for each in found])
        with self._admitted(texts):
            options = await asyncio.to_thread(self._with_glossary, options)
            tokens, work = await asyncio.to_thread(self._measure_documents, texts, options)
            return await self._lane(work).submit(texts, tokens, options)

    async def translate_sentences(
        self, texts: Sequence[str], options: dict[str, Any], split: bool
    ) -> list[tuple[list[Piece], list[Translation]]]:
        """The sentences of each text of one caller, and their translations; arguments and errors as in [`translate`].

        Without `split`, each text is one sentence.
        """
        with self._admitted(texts):
            codes = self._codes(options)
            tokens = await asyncio.to_thread(self._count, texts, codes, split)
            pieces = [[Piece(self._coded(text, codes), "")] for text in texts]
            if split:
                # Splitting takes time, too.
                self._check_work(tokens, options)
                pieces = await asyncio.to_thread(self._split, texts, codes)
            sentences = [piece.text for each in pieces for piece in each if not is_blank(piece.text)]
            options = await asyncio.to_thread(self._with_glossary, {**options, "split_sentences": False})
            # Each sentence has its code now, so sentences of several target languages may share a batch.
            options.pop("target_lang", None)
            tokens, work = await asyncio.to_thread(self._measure, sentences, codes, options)
            found = iter(await self._lane(work).submit(sentences, tokens, options))
            return [
                (each, [untranslated(text) if is_blank(text) else next(found) for text, *_ in each]) for each in pieces
            ]

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that needs the model, such as one that draws attention; BusyError if the server is full."""
        with self._limits.admit(1), self._as_request_errors():
            return await self.lanes.short.call(function, *arguments)

    def _lane(self, work: int) -> Lane:
        """Return the lane of a request that may take so much work."""
        return self.lanes.short if is_short(work) else self.lanes.long

    def _measure_documents(self, documents: Sequence[str], options: dict[str, Any]) -> tuple[list[int], int]:
        """The number of tokens of each document, and the work of all of them."""
        self._limits.check_markup(documents)
        codes = self._codes(options)
        texts = []
        for document in check_strings("the request", documents):
            _, sources = read_document(options["format"], document, codes)
            texts.append([self._coded(source.written, codes, source.code) for source in sources])
        if self.split_sentences:
            # Splitting takes time, too.
            tokens_of_texts = [self._count(texts_of_document, codes, may_be_long=True) for texts_of_document in texts]
            self._check_work(_flatten(tokens_of_texts), options)
        sentences = [self._sentences(texts_of_document, codes) for texts_of_document in texts]
        tokens = [self._count(sentences_of_document, codes) for sentences_of_document in sentences]
        work = self._check_work(_flatten(tokens), options, _without_codes(_flatten(sentences), codes))
        return [sum(counts) for counts in tokens], work

    def _sentences(self, texts: Sequence[str], codes: TargetCodes) -> list[str]:
        """The sentences of some texts of a document that are translated."""
        if not self.split_sentences:
            return list(texts)
        pieces = _flatten([self._split_text(text, codes) for text in texts])
        return [piece.text for piece in pieces if not is_blank(piece.text)]

    def _measure(self, sentences: Sequence[str], codes: TargetCodes, options: dict[str, Any]) -> tuple[list[int], int]:
        """The number of tokens of each sentence, and the work of all of them."""
        tokens = self._count(sentences, codes)
        return tokens, self._check_work(tokens, options, _without_codes(sentences, codes))

    def _with_glossary(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options with a [`Glossary`] in the place of its terms, so that it is made once for a request."""
        terms = options.get("glossary")
        if terms is None or isinstance(terms, Glossary):
            return options
        return {**options, "glossary": Glossary(terms, self.tokenizer)}

    def _split(self, texts: Sequence[str], codes: TargetCodes) -> list[list[Piece]]:
        most = min(longest_training_source(self.tokenizer), self.settings.max_source_tokens)
        return [self._split_text(text, codes, most) for text in texts]

    def _split_text(self, text: str, codes: TargetCodes, most: int | None = None) -> list[Piece]:
        """The sentences of a text, each with the code of the text's target language if the model needs one."""
        code = codes.read(text).code
        pieces = split_into_pieces(self.tokenizer, text, self.card.source_language, most, code)
        return [piece._replace(text=self._coded(piece.text, codes, code)) for piece in pieces]

    def _codes(self, options: dict[str, Any]) -> TargetCodes:
        """Return what puts the codes of target languages before texts; the options are arguments of `translate()`."""
        target_lang = options.get("target_lang", self._generate_kwargs.get("target_lang"))
        # The names of the fields for clients of LibreTranslate and of the Hub.
        return TargetCodes(self.tokenizer, target_lang, "target or tgt_lang")

    def _coded(self, text: str, codes: TargetCodes, default: str = "") -> str:
        """Return a text with the code of its target language, see `TargetCodes.read`; a copied text needs none."""
        source = codes.read(text, default)
        is_copied = self._copies_letterless and not has_letters(source.text)
        if is_blank(source.text) or (is_copied and not source.code):
            return source.text
        return codes.join(source)

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

    def _count(self, texts: Sequence[str], codes: TargetCodes, may_be_long: bool = False) -> list[int]:
        """The number of tokens of each text."""
        checked = [self._coded(text, codes) for text in check_strings("the request", texts)]
        tokens = [len(ids) for ids in encode(self.tokenizer, checked).input_ids] if checked else []
        if not may_be_long:
            self._limits.check_tokens(tokens)
        return tokens

    def _translate(
        self, texts: list[str], options: dict[str, Any], is_abandoned: Callable[[], bool]
    ) -> list[Translation]:
        defaults = {"return_details": DetailLevel.FLAGS, "copy_letterless": self._copies_letterless}
        kwargs = {**defaults, **self._generate_kwargs, **options}
        kwargs["stopping_criteria"] = [Interruption(is_abandoned)]
        kwargs["tokens_per_batch"] = self.settings.tokens_per_batch
        if "format" in kwargs:
            return translate_documents(self.model, self.tokenizer, texts, **kwargs)
        return translate(self.model, self.tokenizer, texts, **kwargs)

    def _observe(self, batch: Batch) -> None:
        self.is_failing = False
        self.metrics.count_batch(batch)


def _flatten(lists: Sequence[Sequence[_Item]]) -> list[_Item]:
    return [item for items in lists for item in items]


def _without_codes(sentences: Sequence[str], codes: TargetCodes) -> list[str]:
    """Return the texts of sentences; in their codes there are no terms."""
    return [codes.read(sentence).text for sentence in sentences]


def _end_the_process(task: "asyncio.Task[None]") -> None:
    """End the server if the task that answers requests has failed; it would accept requests and answer none."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.critical("the server ends, because its worker has ended", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
