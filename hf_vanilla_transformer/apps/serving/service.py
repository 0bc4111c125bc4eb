"""Translate the texts of many clients with one model: check requests, batch their texts, and return translations.

Three kinds of threads process a request:

- The event loop's thread runs the coroutines of this module and of the routes. It counts the texts in flight and owns
  the queues, so neither needs a lock. No long computation runs in it.
- Threads of `asyncio.to_thread` count tokens, split texts, and build glossaries. They use the tokenizer, which only one
  thread may use at a time: `translation/concurrent_use.py: encode` holds the lock for this.
- The worker threads of the two lanes run the model; see `batcher.py`.

If a client disconnects or its request times out, the request's coroutine is cancelled. Its texts are then removed from
the queue. A search that runs in a worker thread cannot be cancelled from outside. Instead, it checks at each step
whether any request is still waiting for its result, and stops if there is none (`interruption.py`).
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.target_language import Source, TargetCodes, are_same_language, find_code, short_name, tokenizer_language
from ...data.vocabularies import longest_training_source
from ...model.input_checks import copies_letterless, has_letters, is_blank
from ...support.argument_checks import check_strings
from ...support.language_codes import language_of
from ...translation.concurrent_use import encode
from ...translation.engine import Engine
from ...translation.runtime import runtime_of
from ...translation.sentence_splitting import Piece, join_translations, split_into_pieces
from ...translation.translate import translate
from ...translation.translation_details import DetailLevel, Translation, untranslated
from ..documents.translate_documents import read_document, translate_documents
from ..terms.glossary import Glossary
from .batcher import BatchFigures, Lane, Lanes, TranslateOptions
from .errors import OtherLanguageError, RequestError, UntranslatableError
from .interruption import Interruption
from .limits import ServingSettings, TextLimits, is_short
from .model_card_facts import CardFacts
from .prometheus_metrics import Metrics


logger = logging.getLogger(__name__)

# A batch counts as hanging if it is still being translated this many seconds after the time limit of its requests. The
# search should have stopped at its next step, and no step takes that long.
_GRACE_SECONDS = 30
# Language names from clients are truncated to this many characters for look-ups and error messages.
_MOST_CHARACTERS_OF_LANGUAGE = 100
_Result = TypeVar("_Result")
_Member = TypeVar("_Member")


@dataclass(frozen=True)
class SentenceTranslations:
    """The sentences of one text, and the translation of each sentence.

    Args:
        pieces (`list[Piece]`): the sentences, each with the white space after it.
        translations (`list[Translation]`): the translation of each sentence. Blank sentences are copied.
    """

    pieces: list[Piece]
    translations: list[Translation]


class Service:
    """The translation service behind the HTTP routes and the web page.

    The service checks the texts of many concurrent requests against the limits, and translates them in shared batches.

    Args:
        model (`PreTrainedModel` or `Engine`): the model, or an inference engine from `load_engine`.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        settings (`ServingSettings`): the limits.
        card (`CardFacts`): the model's title, languages, and example sentences.
        generate_kwargs (`dict`, *optional*): default arguments for `translate()` and `generate()`, which requests may
            override.

    Attributes:
        runtime (`Runtime`): the features that the model supports.
        metrics (`Metrics`): the metrics of this service.
        is_failing (`bool`): True if the last translation failed.
        target_codes (`tuple[str, ...]`): the language codes of a model with several target languages; empty for other
            models.
        default_target_code (`str`): the code for requests that name no target language; empty if there is no default.
    """

    def __init__(
        self,
        model: PreTrainedModel | Engine,
        tokenizer: PreTrainedTokenizerBase,
        settings: ServingSettings,
        card: CardFacts,
        generate_kwargs: TranslateOptions | None = None,
    ):
        # The model and its properties.
        self.model = model
        self.tokenizer = tokenizer
        self.card = card
        self.runtime = runtime_of(model, tokenizer)
        # True if texts without letters, such as numbers in table cells, are copied instead of translated. The tokenizer
        # says whether the model can translate them. If it does not say so, they are copied, because the model might
        # change numbers.
        self._copies_letterless = copies_letterless(tokenizer, otherwise=True)

        # The default arguments. If they contain a glossary, it is built once for all requests.
        self._generate_kwargs = _with_glossary(generate_kwargs or {}, tokenizer)
        # This raises ValueError if the model does not translate into the default target language.
        codes = TargetCodes(tokenizer, self._generate_kwargs.get("target_lang"))
        self.target_codes = codes.codes
        self.default_target_code = codes.default

        # The limits, and the state of the running service. Whenever the number of texts in flight changes, the limits
        # update the metric.
        self.settings = settings
        self.metrics = Metrics()
        self._limits = TextLimits(settings, observe=self.metrics.in_flight.set)
        self.is_failing = False
        # `running` creates the lanes. Before that, no text can be translated.
        self._lanes: Lanes | None = None

    @property
    def lanes(self) -> Lanes:
        """The lanes for short and long requests. Accessing them raises RuntimeError if the service is not running."""
        if self._lanes is None:
            raise RuntimeError("the service does not run; translate inside of running().")
        return self._lanes

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the worker threads that translate requests while the `async with` block runs.

        At the end of the block, wait for the batches that are being translated.
        """
        max_wait = self.settings.max_wait_ms / 1000  # In seconds.
        self._lanes = Lanes(self._translate_batch, self.settings.tokens_per_batch, max_wait, self._observe)
        # The lanes, which are queues with worker threads, run next to the block. If they fail, the server must not
        # continue without them.
        task = asyncio.create_task(self._lanes.run())
        task.add_done_callback(_end_process_after_failure)
        try:
            yield
        finally:
            # No new batch starts after this. Closing the lanes then waits for the batches in the worker threads.
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self._lanes.close()

    @property
    def health(self) -> Literal["ok", "failing", "hanging"]:
        """The health of the service: `"ok"`, `"failing"`, or `"hanging"`.

        The service is `"hanging"` if a batch is still being translated long after the time limit of its requests.
        Otherwise, it is `"failing"` if the last translation failed.
        """
        batch_seconds = 0.0
        if self._lanes is not None:
            batch_seconds = self._lanes.current_batch_seconds()
        if batch_seconds > self.settings.request_seconds + _GRACE_SECONDS:
            return "hanging"
        return "failing" if self.is_failing else "ok"

    @property
    def source_language(self) -> str | None:
        """The code of the model's source language; None if it is unknown."""
        if self.card.source_language is not None or not self.target_codes:
            return self.card.source_language
        # The card of a model with several target languages seldom lists exactly two languages.
        return language_of(tokenizer_language(self.tokenizer, "src_lang"))

    def check_languages(self, source: str | None, target: str | None) -> None:
        """Raise OtherLanguageError if a request names a language that the model does not translate.

        The model's languages come from its card. If the card does not list them, any language is allowed. If the model
        has several target languages, this method does not check the target language; `target_options` does.
        """
        # None disables the check of the target language.
        target_language = None if self.target_codes else self.card.target_language
        source_language = self.source_language
        model_languages = f'"{source_language}"'
        if target_language is not None:
            model_languages += f' to "{target_language}"'
        _check_language(source, source_language, model_languages)
        _check_language(target, target_language, model_languages)

    def languages(self) -> dict[str, list[str]]:
        """Return the languages that requests may name, each with the languages into which it can be translated.

        The source language comes first. For example, an English-German model has {"en": ["de"], "de": []}. If a model
        with several target languages has no known source language, only the target languages are listed. The result is
        empty if the languages are unknown.
        """
        source_language = self.source_language
        target_language = self.card.target_language
        if self.target_codes:
            target_languages = [short_name(self.target_codes, code) for code in self.target_codes]
        elif source_language is not None and target_language is not None:
            target_languages = [target_language]
        else:
            return {}
        # Texts in a target language cannot be translated, unless it is the source language, too.
        languages: dict[str, list[str]] = {}
        if source_language is not None:
            languages[source_language] = target_languages
        for language in target_languages:
            languages.setdefault(language, [])
        return languages

    def target_options(self, target: str | None) -> TranslateOptions:
        """Return the `target_lang` argument of `translate()` for the target language that a request names.

        The result is empty if the request names no language or "auto", or if the model has only one target language.

        Raises:
            OtherLanguageError: if the model has several target languages, but not the requested one.
        """
        if not self.target_codes or not target or target == "auto":
            return {}
        name = target[:_MOST_CHARACTERS_OF_LANGUAGE]
        try:
            code = find_code(self.target_codes, name, "the target language of the request")
        except ValueError as error:
            raise OtherLanguageError(str(error)) from error
        # The option contains the code instead of the requested name, so that requests for the same language share
        # batches, whether they name it "fr" or "fra".
        return {"target_lang": code}

    @property
    def split_sentences(self) -> bool:
        """True if the service splits texts into sentences before it translates them."""
        return bool(self._generate_kwargs.get("split_sentences"))

    @property
    def num_beams(self) -> int:
        """The default beam size, which is used if a request does not set one."""
        return self._generate_kwargs.get("num_beams") or self.model.generation_config.num_beams or 1

    async def translate(self, texts: Sequence[str], options: TranslateOptions) -> list[Translation]:
        """Translate the texts of one request.

        If this coroutine is cancelled, texts that are still waiting in the queue are dropped.

        Args:
            texts (`Sequence[str]`): plain texts, or documents if the options contain `format`.
            options (`TranslateOptions`): the arguments of `translate()` that the request sets.

        Returns:
            `list[Translation]`: the translation of each text with its flags. If the options request details, all
            details are included.

        Raises:
            TooMuchError: if there are too many texts, if a text is too long, or if the texts may take too much work.
            UntranslatableError: if the model cannot translate a text, or does not support an option.
            BusyError: if the server is full.
        """
        if "format" in options:
            return await self._translate_documents(texts, options)
        results = await self.translate_sentences(texts, options, self.split_sentences)
        # Joining runs in a different thread, because combining the alternatives of many sentences takes time.
        return await asyncio.to_thread(_join_sentences, results)

    async def _translate_documents(self, documents: Sequence[str], options: TranslateOptions) -> list[Translation]:
        """Translate the HTML or XML documents of one request; see `translate`."""
        # The `with` statement counts the documents as in flight until they are translated. Errors are converted to
        # RequestError.
        with self._admitted(documents):
            options_with_glossary = await asyncio.to_thread(_with_glossary, options, self.tokenizer)
            tokens, work = await asyncio.to_thread(self._measure_documents, documents, options_with_glossary)
            return await self._choose_lane(work).submit(documents, tokens, options_with_glossary)

    async def translate_sentences(
        self, texts: Sequence[str], options: TranslateOptions, split: bool
    ) -> list[SentenceTranslations]:
        """Translate the texts of one request, and return the translation of each sentence separately.

        Args:
            texts, options: as in `translate`, except that the options must not contain `format`.
            split (`bool`): True to split texts into sentences; False to treat each text as one sentence.

        Returns:
            `list[SentenceTranslations]`: for each text, its sentences and their translations.

        Raises:
            RequestError: for the same reasons as `translate`.
        """
        # The `with` statement counts the texts as in flight until they are translated. Errors are converted to
        # RequestError.
        with self._admitted(texts):
            codes = self._codes(options)
            pieces_of_texts = await self._divide_texts(texts, options, codes, split)
            # The sentences of all texts are translated together, and `_assemble_texts` assigns the translations to the
            # texts again.
            sentences = _collect_sentences(pieces_of_texts)
            sentence_options = await asyncio.to_thread(self._options_of_sentences, options)
            # The number of tokens in each sentence, and the work of the whole request. The work decides between the two
            # lanes, which are queues with a worker thread: one for short requests, and one for long ones.
            tokens, work = await asyncio.to_thread(self._measure, sentences, codes, sentence_options)
            translations = await self._choose_lane(work).submit(sentences, tokens, sentence_options)
            return _assemble_texts(pieces_of_texts, translations)

    async def _divide_texts(
        self, texts: Sequence[str], options: TranslateOptions, codes: TargetCodes, split: bool
    ) -> list[list[Piece]]:
        """Split each text into sentences. If `split` is False, each text is returned as one sentence.

        Each sentence starts with the code of its target language if the model needs one.

        Raises:
            TooMuchError: if a text that is not split is too long, or if texts that are split may take too much work.
        """
        if not split:
            # This raises TooMuchError if a text is too long.
            await asyncio.to_thread(self._count_allowed_tokens, texts, codes)
            # No white space follows a text that is not split, so the second field is empty.
            return [[Piece(self._with_code(codes.read(text), codes), "")] for text in texts]
        # A text that is split may have any length. Its work is checked first, because splitting a long text takes time.
        tokens = await asyncio.to_thread(self._count_tokens, texts, codes)
        self._check_work(tokens, options)
        return await asyncio.to_thread(self._split_texts, texts, codes)

    def _options_of_sentences(self, options: TranslateOptions) -> TranslateOptions:
        """Return the options for translating the sentences of a request, whose texts have already been split."""
        # False overrides the service's default, so that the sentences are not split again.
        sentence_options = {**options, "split_sentences": False}
        # Each sentence already starts with its language code, so sentences with different target languages may share a
        # batch.
        sentence_options.pop("target_lang", None)
        return _with_glossary(sentence_options, self.tokenizer)

    async def call(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        """Call a function in the worker thread for short requests, and return the function's result.

        This is for functions that need the model, for example to draw attention weights. The call counts as one text in
        flight.

        Raises:
            BusyError: if the server is full.
            UntranslatableError: if the function raises a ValueError or TypeError.
        """
        with self._limits.admit(1), self._as_request_errors():
            return await self.lanes.short.call(function, *arguments)

    def _choose_lane(self, work: int) -> Lane:
        """Return the lane in which a request is translated. It depends on the request's work; see `is_short`."""
        return self.lanes.short if is_short(work) else self.lanes.long

    def _measure_documents(self, documents: Sequence[str], options: TranslateOptions) -> tuple[list[int], int]:
        """Return the number of tokens in each document, and the work of the request, and check them against the limits.

        Raises:
            TooMuchError: if a document has too many characters, if a sentence in it has too many tokens, or if the work
                exceeds the limit.
        """
        # The number of characters is checked first, because parsing a long document takes time.
        self._limits.check_markup(documents)
        codes = self._codes(options)
        sentences_of_documents = self._read_sentences(documents, options, codes)
        # The number of tokens in each document, and in each sentence of all documents.
        document_tokens: list[int] = []
        sentence_tokens: list[int] = []
        for sentences in sentences_of_documents:
            # This raises TooMuchError if a sentence is too long.
            tokens = self._count_allowed_tokens(sentences, codes)
            document_tokens.append(sum(tokens))
            sentence_tokens.extend(tokens)
        work = self._check_work_with_terms(sentence_tokens, options, _flatten(sentences_of_documents), codes)
        return document_tokens, work

    def _read_sentences(
        self, documents: Sequence[str], options: TranslateOptions, codes: TargetCodes
    ) -> list[list[str]]:
        """Return the sentences of each document. If the service does not split texts, each text is one sentence.

        Raises:
            TooMuchError: if the texts are to be split, but may take too much work.
        """
        texts_of_documents = self._read_texts(documents, options["format"], codes)
        if not self.split_sentences:
            return texts_of_documents
        # The work is checked before splitting, because splitting a long text takes time.
        tokens_of_texts = [self._count_tokens(texts, codes) for texts in texts_of_documents]
        self._check_work(_flatten(tokens_of_texts), options)
        return [self._split_into_sentences(texts, codes) for texts in texts_of_documents]

    def _read_texts(self, documents: Sequence[str], format: str, codes: TargetCodes) -> list[list[str]]:
        """Parse HTML or XML documents, and return the texts of each one, with the codes of their target languages."""
        texts_of_documents: list[list[str]] = []
        for markup in check_strings("the request", documents):
            # The parsed document is not needed, because `translate_documents` parses the markup again.
            _, sources = read_document(format, markup, codes)
            texts_of_documents.append([self._with_code(source, codes) for source in sources])
        return texts_of_documents

    def _split_into_sentences(self, texts: Sequence[str], codes: TargetCodes) -> list[str]:
        """Return the sentences of a document's texts, without blank ones."""
        return _collect_sentences([self._split_text(text, codes) for text in texts])

    def _measure(
        self, sentences: Sequence[str], codes: TargetCodes, options: TranslateOptions
    ) -> tuple[list[int], int]:
        """Return the number of tokens in each sentence, and the work of the request, and check them against the limits.

        Raises:
            TooMuchError: if a sentence has too many tokens, or if the work exceeds the limit.
        """
        tokens = self._count_allowed_tokens(sentences, codes)
        work = self._check_work_with_terms(tokens, options, sentences, codes)
        return tokens, work

    def _split_texts(self, texts: Sequence[str], codes: TargetCodes) -> list[list[Piece]]:
        """Split each text into sentences that exceed neither the model's training length nor the server's limit."""
        most_tokens = min(longest_training_source(self.tokenizer), self.settings.max_source_tokens)
        return [self._split_text(text, codes, most_tokens) for text in texts]

    def _split_text(self, text: str, codes: TargetCodes, most_tokens: int | None = None) -> list[Piece]:
        """Split a text into sentences, each of which starts with a language code if the model needs one.

        For example, ">>fr<< Yes. No." becomes ">>fr<< Yes." and ">>fr<< No.". A sentence with a code of its own keeps
        it.

        Args:
            text: the text, which may start with the code of its target language.
            codes: the codes of the request. They have the code for a text that starts with none.
            most_tokens: the maximum number of tokens in a sentence. By default, it is the model's training length.
        """
        # The code is empty if the model needs none, or if it is unknown.
        code = codes.read(text).code
        pieces = split_into_pieces(self.tokenizer, text, self.card.source_language, most_tokens, code)
        coded_pieces: list[Piece] = []
        for piece in pieces:
            # `read` separates a sentence from its own code, if it has one. Otherwise, it returns the code of the text.
            source = codes.read(piece.text, default=code)
            coded_pieces.append(piece._replace(text=self._with_code(source, codes)))
        return coded_pieces

    def _codes(self, options: TranslateOptions) -> TargetCodes:
        """Return the object that puts target-language codes before the texts of a request."""
        target_lang = options.get("target_lang", self._generate_kwargs.get("target_lang"))
        # Error messages name the fields with which LibreTranslate clients and Hub clients set the target language.
        argument = "target or tgt_lang"
        return TargetCodes(self.tokenizer, target_lang, argument, advised_argument=argument)

    def _with_code(self, source: Source, codes: TargetCodes) -> str:
        """Return a text, with the code of its target language before it if the model needs one, as in ">>fr<< Yes.".

        Args:
            source: the text, and its code, which is empty if it is unknown.
            codes: the codes of the request.

        Raises:
            ValueError: if the model needs a code to translate the text, but the code is unknown.
        """
        if is_blank(source.text):
            return source.text
        is_copied = self._copies_letterless and not has_letters(source.text)
        if is_copied and not source.code:
            # `join` would raise the error, although the model does not translate this text.
            return source.text
        return codes.join(source)

    def _check_work(self, tokens: Sequence[int], options: TranslateOptions) -> int:
        """Return the work of a request, without the work of glossary terms. Raise TooMuchError if it exceeds the limit.

        Args:
            tokens: the number of source tokens in each text.
            options: the arguments of `translate()` that the request sets.
        """
        settings = self._with_defaults(options)
        return self._limits.check_work(tokens, settings["num_beams"], settings.get("max_new_tokens"))

    def _check_work_with_terms(
        self, source_lengths: Sequence[int], options: TranslateOptions, sentences: Sequence[str], codes: TargetCodes
    ) -> int:
        """Return the work of a request, including the work of the glossary terms that occur in its sentences.

        The work measures how expensive a request is: the number of beams times the number of source tokens and possible
        target tokens. The search for translations with terms computes a table for each token. The more cells the table
        has, the more work the terms add.

        Args:
            source_lengths: the number of source tokens in each sentence.
            options: the arguments of `translate()` that the request sets.
            sentences: the sentences, which may start with language codes.
            codes: the target languages of the request.

        Raises:
            TooMuchError: if the work exceeds the limit.
        """
        work_without_terms = self._check_work(source_lengths, options)
        # The options of the request, with the service's defaults for those that it does not set.
        settings = self._with_defaults(options)
        glossary = settings.get("glossary")
        if glossary is None:
            return work_without_terms
        # For each sentence, the number of cells in the table.
        cells_of_sentences: list[int] = []
        for sentence in sentences:
            # Terms are searched only in the sentence itself, not in the code before it.
            sentence_without_code = codes.read(sentence).text
            sizes = glossary.sizes(sentence_without_code)
            cells_of_sentences.append(sizes.cells)
        return self._limits.check_terms(
            work_without_terms,
            cells_per_token=cells_of_sentences,
            source_lengths=source_lengths,
            num_beams=settings["num_beams"],
            max_new_tokens=settings.get("max_new_tokens"),
        )

    def _with_defaults(self, options: TranslateOptions) -> TranslateOptions:
        """Combine the service's default arguments of `translate()` with a request's options, which take precedence."""
        settings = {**self._generate_kwargs, **options}
        # If the beam size is missing or None, the default beam size is used.
        settings["num_beams"] = settings.get("num_beams") or self.num_beams
        return settings

    @contextmanager
    def _admitted(self, texts: Sequence[str]) -> Iterator[None]:
        """Count a request's texts as in flight, and convert errors to RequestError, while the `with` block runs.

        Raises:
            TooMuchError: if the request has too many texts.
            BusyError: if the server is full.
        """
        self._limits.check_number_of_texts(len(texts))
        with self._limits.admit(len(texts)), self._as_request_errors():
            yield

    @contextmanager
    def _as_request_errors(self) -> Iterator[None]:
        """Convert TypeError and ValueError to UntranslatableError while the `with` block runs.

        RequestError is raised again unchanged. Any other exception is recorded for `health` and raised again.
        """
        try:
            yield
        # The last clause catches all other exceptions, including RequestError, so it must stay behind the other two.
        except (TypeError, ValueError) as error:
            raise UntranslatableError(str(error)) from error
        except RequestError:
            # The request is at fault, not the service.
            raise
        except Exception:
            self.is_failing = True
            raise

    def _count_allowed_tokens(self, texts: Sequence[str], codes: TargetCodes) -> list[int]:
        """Return the number of tokens in each text. Raise TooMuchError if a text has more tokens than the limit."""
        tokens = self._count_tokens(texts, codes)
        self._limits.check_tokens(tokens)
        return tokens

    def _count_tokens(self, texts: Sequence[str], codes: TargetCodes) -> list[int]:
        """Return the number of tokens in each text, including the code of its target language."""
        coded_texts = [self._with_code(codes.read(text), codes) for text in check_strings("the request", texts)]
        if not coded_texts:
            # Tokenizers do not accept an empty list.
            return []
        return [len(ids) for ids in encode(self.tokenizer, coded_texts).input_ids]

    def _translate_batch(
        self, texts: list[str], options: TranslateOptions, is_abandoned: Callable[[], bool]
    ) -> Sequence[Translation]:
        """Translate a batch of texts or documents. A lane calls this in its worker thread; see `TranslateBatch`."""
        kwargs: TranslateOptions = {"return_details": DetailLevel.FLAGS, "copy_letterless": self._copies_letterless}
        # Later values replace earlier ones: the service's default arguments may replace these two, and the options of
        # the request may replace all. `stopping_criteria` and `tokens_per_batch` come last, so that nothing replaces
        # them.
        kwargs.update(self._generate_kwargs)
        kwargs.update(options)
        # This criterion never finishes a hypothesis. It raises an error if no request is waiting for the batch anymore.
        kwargs["stopping_criteria"] = [Interruption(is_abandoned)]
        kwargs["tokens_per_batch"] = self.settings.tokens_per_batch
        if "format" in kwargs:
            return translate_documents(self.model, self.tokenizer, texts, **kwargs)
        return translate(self.model, self.tokenizer, texts, **kwargs)

    def _observe(self, batch: BatchFigures) -> None:
        """Record a translated batch in `health` and in the metrics. This runs in the event loop's thread."""
        self.is_failing = False
        self.metrics.count_batch(batch)


def _check_language(requested: str | None, expected: str | None, model_languages: str) -> None:
    """Raise OtherLanguageError if the source or target language of a request is not the expected one.

    Args:
        requested: the language that the request names, if any; "auto" means any language.
        expected: the model's language; None if any language is allowed.
        model_languages: the model's languages in the error message, such as `"en" to "de"`, with quotation marks.
    """
    if not requested or not expected:
        return
    if requested == "auto" or are_same_language(requested, expected):
        return
    shortened_name = requested[:_MOST_CHARACTERS_OF_LANGUAGE]
    raise OtherLanguageError(
        f'the request names "{shortened_name}", but the model translates from {model_languages}; send these languages.'
    )


def _with_glossary(options: TranslateOptions, tokenizer: PreTrainedTokenizerBase) -> TranslateOptions:
    """Replace the glossary terms in the options with a [`Glossary`], and return the new options.

    The glossary is then built once per request instead of once per batch. Options without terms are returned unchanged.
    """
    terms = options.get("glossary")
    if terms is None or isinstance(terms, Glossary):
        return options
    return {**options, "glossary": Glossary(terms, tokenizer)}


def _join_sentences(results: Sequence[SentenceTranslations]) -> list[Translation]:
    """Join the translated sentences of each text into one translation per text."""
    return [join_translations(result.pieces, result.translations) for result in results]


def _flatten(lists: Sequence[Sequence[_Member]]) -> list[_Member]:
    """Concatenate lists into one list."""
    flat: list[_Member] = []
    for members in lists:
        flat.extend(members)
    return flat


def _collect_sentences(pieces_of_texts: Sequence[list[Piece]]) -> list[str]:
    """Return the sentences of all texts in one list, without blank ones, which are not translated.

    [`_assemble_texts`] must leave out the same sentences.
    """
    pieces = _flatten(pieces_of_texts)
    return [piece.text for piece in pieces if not is_blank(piece.text)]


def _assemble_texts(
    pieces_of_texts: Sequence[list[Piece]], translations: Sequence[Translation]
) -> list[SentenceTranslations]:
    """Assign the translations of sentences to the texts that the sentences come from.

    Args:
        pieces_of_texts: the sentences of each text. Blank sentences have not been translated, and are copied.
        translations: the translations of all other sentences, in the order of [`_collect_sentences`].
    """
    remaining_translations = iter(translations)
    results: list[SentenceTranslations] = []
    for pieces in pieces_of_texts:
        translations_of_text: list[Translation] = []
        for piece in pieces:
            if is_blank(piece.text):
                translations_of_text.append(untranslated(piece.text))
            else:
                translations_of_text.append(next(remaining_translations))
        results.append(SentenceTranslations(pieces, translations_of_text))
    return results


def _end_process_after_failure(task: "asyncio.Task[None]") -> None:
    """End the server process if the task that translates has failed.

    Otherwise, the server would continue to accept requests without ever answering them.
    """
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        # The signal lets uvicorn finish the remaining requests before the process ends; see `http/uvicorn_server.py`.
        logger.critical("the server ends, because its worker has ended", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
