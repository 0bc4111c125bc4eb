"""Translate sentences from the command line, from the lines of a file, or from the lines of standard input. The
translations have the same order as the sentences. The command also translates HTML and XML documents, and keeps their
markup.

hf-vanilla-transformer translate --model_name_or_path runs/mine "two dogs" "a cat"
hf-vanilla-transformer translate --model_name_or_path runs/mine --input input.en --output output.de
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tqdm import tqdm

from ...model.input_checks import copies_letterless
from ...support.argument_checks import check_optional
from ...support.build_arguments import option
from ...support.memory_tuning import release_freed_memory
from ...support.output_files import check_can_write
from ...support.user_errors import InputError
from ...translation.decoding_arguments import DecodingArguments
from ...translation.loading_arguments import EnsembleLoadingArguments
from ...translation.translate import translate
from ...translation.translation_details import FLAG_MEANINGS, DetailLevel, Translation
from ..documents.translate_documents import translate_documents
from ..terms.glossary import Glossary
from .documents import DocumentFile, find_documents, translate_files
from .merge_process_outputs import Processes
from .parser import parse, program
from .shared_options import BatchArguments, EngineArguments, load_terms, load_tokenizer_and_model
from .text_and_json_lines import DETAILS, JsonFields, Sentence, is_json, read_sentences, write_sentences


# The number of sentences that are read, translated and written together. It is large enough for batches of similar
# lengths, and small enough that an interruption loses little work.
CHUNK_SIZE = 2_000
# With several processes, chunks are smaller, so that each process gets a part of a short file.
CHUNK_SIZE_OF_SEVERAL = 500
STDIN = "/dev/stdin"
# Suffixes of subtitle files, whose lines with numbers and times must not change.
SUBTITLES = (".srt", ".sbv", ".vtt")
# What each flag of a translation means, and what the user can do about it. The flag "split" is left out, because
# --split_sentences sets it.
REMEDIES = {
    "longer_than_training": f"{FLAG_MEANINGS['longer_than_training']} (split them by --split_sentences)",
    "truncated": f"{FLAG_MEANINGS['truncated']} (raise --max_new_tokens)",
    "repetition": f"{FLAG_MEANINGS['repetition']} (write shorter sentences, or raise --num_beams)",
}


@dataclass
class TranslationArguments:
    """Command-line arguments that name the sentences to translate, the output file, and their formats."""

    sentences: list[str] = option([], "Sentences.", positional=True)
    input: str | None = option(
        None,
        "A file with a sentence per line, as text or JSON (.jsonl), also .gz; a document (.html, .xml); or a folder.",
    )
    output: str | None = option(
        None, "Write translations to this file, not to stdout, as text or JSON (.jsonl), also .gz."
    )
    json_lines: bool = option(False, "Read and write JSON lines on standard input and output; the output has scores.")
    source_column: str = option("text", "Field of JSON lines to translate.")
    target_column: str = option("translation", "Field of JSON lines for translations.")
    split_sentences: bool = option(
        False, "Split each line into sentences, translate them, and keep the white space between them."
    )
    source_lang: str | None = option(None, "Language code of the texts to split; by default the tokenizer's.")
    target_lang: str | None = option(
        None, "Language to translate into if the model has several, such as fr for OPUS-MT's >>fr<<."
    )
    markup: Literal["html", "xml"] | None = option(None, "Keep tags, and put them around the right words.")
    num_return_sequences: int | None = option(None, "Translations per sentence, best first; the output is JSON lines.")
    glossary: str | None = option(
        None, "A file of terms; each line has a term and its translations, with tabs in between."
    )

    def __post_init__(self) -> None:
        """Raise InputError if options contradict each other, or if an option would have no effect."""
        check_optional(self, "num_return_sequences")
        self._check_columns()
        self._check_json_options()
        if self.source_lang is not None and not self.split_sentences:
            raise InputError(f"source_lang is {self.source_lang}, but has no effect without --split_sentences.")
        if self.num_return_sequences is not None and not self._has_json_output():
            raise InputError("num_return_sequences needs JSON lines; give --json_lines, or an --output in .jsonl.")

    def _check_columns(self) -> None:
        """Raise InputError if two fields of the JSON output would have the same name."""
        if self.source_column == self.target_column:
            raise InputError(f'source_column and target_column are both "{self.source_column}"; give two names.')
        # JSON output has the details "score", "alternatives" and "flags".
        if self.target_column in DETAILS:
            raise InputError(f"target_column is {self.target_column}, another field of the output; give another name.")

    def _check_json_options(self) -> None:
        """Raise InputError if an option for JSON lines would have no effect."""
        uses_files_only = self.input is not None and self.output is not None
        if self.json_lines and uses_files_only:
            raise InputError("json_lines is for standard input and output, and has no effect on files; leave it out.")
        # These literals are the defaults of the two options.
        has_default_columns = self.source_column == "text" and self.target_column == "translation"
        has_json_lines = self._has_json_input() or self._has_json_output()
        if not has_default_columns and not has_json_lines:
            raise InputError("source_column and target_column have no effect on lines of text; leave them out.")

    def input_fields(self) -> JsonFields | None:
        """Return the JSON field names of the input, or None if the input is plain text."""
        if not self._has_json_input():
            return None
        # JSON output adds fields for details, so the input must not have fields of these names.
        details: tuple[str, ...] = ()
        if self._has_json_output():
            details = DETAILS
        return JsonFields(self.source_column, self.target_column, details)

    def output_fields(self) -> JsonFields | None:
        """Return the JSON field names of the output, or None if the output is plain text."""
        if not self._has_json_output():
            return None
        return JsonFields(self.source_column, self.target_column)

    def _has_json_input(self) -> bool:
        """Return True if the input, which is a file or standard input, has JSON lines."""
        if self.input is None:
            return self.json_lines
        return is_json(self.input)

    def _has_json_output(self) -> bool:
        """Return True if the output, which is a file or standard output, has JSON lines."""
        if self.output is None:
            return self.json_lines
        return is_json(self.output)

    def has_subtitles(self) -> bool:
        """Return True if the input file contains subtitles, according to its suffix, such as `.srt` or `.srt.gz`."""
        return self.input is not None and self.input.lower().removesuffix(".gz").endswith(SUBTITLES)

    def translate_kwargs(self) -> dict[str, Any]:
        """Return the arguments for `translate()` and `translate_documents()` that follow from these options."""
        arguments: dict[str, Any] = {"return_details": self._choose_detail_level()}
        if self.split_sentences:
            arguments["split_sentences"] = self._choose_language_of_splitter()
        if self.target_lang:
            arguments["target_lang"] = self.target_lang
        if self.num_return_sequences:
            arguments["num_return_sequences"] = self.num_return_sequences
        return arguments

    def _choose_detail_level(self) -> DetailLevel:
        """Return the details to compute. Plain text has room only for flags, which are always reported."""
        if self._has_json_output():
            return DetailLevel.ALL
        return DetailLevel.FLAGS

    def _choose_language_of_splitter(self) -> str | bool:
        """Return the language by whose rules texts are split. True stands for the language of the tokenizer."""
        if self.source_lang:
            return self.source_lang
        return True


class Arguments(NamedTuple):
    """All argument groups of `translate`, in the order in which `--help` lists them."""

    text: TranslationArguments
    model: EnsembleLoadingArguments
    engine: EngineArguments
    decoding: DecodingArguments
    batches: BatchArguments


def _separate_sentences(args: Arguments) -> Arguments:
    """Separate sentences from model names, because `--model_name_or_path` also takes the sentences that follow it.

    Returns the corrected arguments. For example, in `--model_name_or_path runs/mine "two dogs"`, the sentence is parsed
    as a second model, because the option accepts several models.

    The first value of the option is always a model. The other values are models up to the first value that is not a
    folder with a config.json, and the rest are sentences. Nothing changes if there are sentences elsewhere on the
    command line, or an input file.
    """
    if args.text.sentences or args.text.input is not None:
        return args
    models, sentences = _split_after_models(args.model.model_name_or_path)
    model_args = replace(args.model, model_name_or_path=models)
    text_args = replace(args.text, sentences=sentences)
    return args._replace(model=model_args, text=text_args)


def _split_after_models(names: list[str]) -> tuple[list[str], list[str]]:
    """Split the values of `--model_name_or_path` into models, and the sentences after them."""
    # The first value is a model even if it is not a folder, because it may be a name on the Hub.
    for index in range(1, len(names)):
        is_model_folder = Path(names[index], "config.json").is_file()
        if not is_model_folder:
            return names[:index], names[index:]
    return names, []


class _Translator:
    """A translator with the command line's model and settings, which also counts flagged translations.

    A flag marks a translation that may be wrong, for example because it is truncated.

    Args:
        args: the arguments of the verb.
        device: the device for the model if the command line does not name one.
    """

    def __init__(self, args: Arguments, device: str | None):
        self._text_args = args.text
        # The number of translations with each flag.
        self._flag_counts = Counter[str]()
        # The number of translations with at least one flag.
        self._flagged_count = 0
        # The glossary is read first, because loading a model takes longer and the file may be invalid.
        terms = load_terms(args.text.glossary, args.engine)
        # The option --device overrides `device`, the device of this process.
        model_args = args.model
        if not model_args.device:
            model_args = replace(model_args, device=device)
        self._tokenizer, self._model = load_tokenizer_and_model(model_args, args.engine)
        # The arguments for `translate()` and `translate_documents()`.
        self._options = self._collect_options(args, terms)

    def _collect_options(self, args: Arguments, terms: dict[str, list[str]] | None) -> dict[str, Any]:
        """Return the arguments for `translate()` and `translate_documents()` that the command line sets.

        Raises ValueError if the model cannot use the glossary, or does not translate into the target language.

        Args:
            terms: the terms of the glossary, with the translations of each one; None if there is no glossary.
        """
        options = args.text.translate_kwargs()
        options.update(args.decoding.generate_kwargs())
        if terms is not None:
            options["glossary"] = Glossary(terms, self._tokenizer)
        if terms is not None or args.text.target_lang is not None:
            # This call without sentences only checks the glossary and the language, before any input is read.
            translate(self._model, self._tokenizer, [], **options)
        options["tokens_per_batch"] = args.batches.tokens_per_batch
        if args.text.has_subtitles():
            # Lines with numbers and times have no letters. They are copied, unless the tokenizer says that the model
            # can translate such lines.
            options["copy_letterless"] = copies_letterless(self._tokenizer, otherwise=True)
        return options

    def translate_texts(self, texts: list[str], markup: str | None, **defaults: Any) -> list[Translation]:
        """Translate texts, and keep their HTML or XML tags if `markup` is given.

        Options on the command line override `defaults`.
        """
        # `self._options` contains the arguments of `translate()` that follow from the command line.
        settings = {**defaults, **self._options}
        if markup is None:
            translations = translate(self._model, self._tokenizer, texts, **settings)
        else:
            translations = translate_documents(self._model, self._tokenizer, texts, markup, **settings)
        # JSON output contains the flags, so they are not reported again.
        if self._text_args.output_fields() is None:
            for translation in translations:
                self._count_flags(translation)
        # The process may read many more texts, so it returns the memory of these to the operating system.
        release_freed_memory()
        return translations

    def translate_document(self, document: str, markup: str) -> str:
        """Translate a document, and keep its tags.

        `--markup` on the command line overrides `markup`, which follows from the file's suffix.
        """
        # A paragraph of a document may have several sentences.
        translations = self.translate_texts([document], self._text_args.markup or markup, split_sentences=True)
        return translations[0].text

    def _count_flags(self, translation: Translation) -> None:
        """Count those flags of a translation that `REMEDIES` explains, in `_flag_counts` and `_flagged_count`."""
        flags = translation.flags & REMEDIES.keys()
        self._flag_counts.update(flags)
        if flags:
            self._flagged_count += 1

    @contextmanager
    def reporting_flags(self) -> Iterator[None]:
        """Print the number of flagged translations to standard error when the block ends, even if it is interrupted."""
        try:
            yield
        finally:
            if self._flagged_count > 0:
                self._print_flags()

    def _print_flags(self) -> None:
        """Print the number of flagged translations, and the number of translations with each flag."""
        reports = []
        # A remedy is a text that says what the flag means, and what the user can do about it.
        for flag, remedy in REMEDIES.items():
            count = self._flag_counts[flag]
            if count:
                reports.append(f"{count:,} {remedy}")
        message = f"{self._flagged_count:,} of the translations may be wrong: {', '.join(reports)}."
        # print() would break a progress bar.
        tqdm.write(message, file=sys.stderr)


@program
def main(arguments: list[str]) -> None:
    """Translate the input that the command line names, and write the translations."""
    args = _separate_sentences(parse(Arguments, __doc__, arguments, "translate"))
    processes = Processes.launched()
    # This also checks the output for documents, as `_check_output` does for all other inputs.
    documents = find_documents(args.text.input, args.text.output)
    # `processes.check` raises InputError if several processes would share standard input or standard output.
    if documents:
        processes.check(args.text.input, args.text.output)
        _translate_documents(args, processes, documents)
    else:
        _check_output(args)
        processes.check(args.text.input, args.text.output)
        _translate_sentences(args, processes)


def _check_output(args: Arguments) -> None:
    """Raise an error if the output file of a sentence translation cannot be written, or would overwrite an input."""
    inputs: list[str | None] = [args.text.glossary, *args.model.model_name_or_path]
    if not args.text.sentences:
        # Without sentences on the command line, they are read from a file or from standard input.
        inputs.insert(0, args.text.input or STDIN)
    check_can_write(args.text.output, inputs=inputs)


def _translate_documents(args: Arguments, processes: Processes, documents: list[DocumentFile]) -> None:
    """Translate the documents of this process. Of N processes, each takes every N-th document."""
    translator = _Translator(args, processes.device())
    # For example, the second of 3 processes translates the documents 1, 4, 7, ...
    own_documents = documents[processes.index :: processes.count]
    with translator.reporting_flags():
        translate_files(own_documents, translator.translate_document)


def _translate_sentences(args: Arguments, processes: Processes) -> None:
    """Translate this process's share of the sentences from the command line, a file or standard input, in chunks."""
    text_args = args.text
    chunk_size = _choose_chunk_size(processes)
    # This call only checks the input, so it comes before the model is loaded. The sentences are read later.
    chunks = read_sentences(text_args.input, text_args.sentences, text_args.input_fields(), chunk_size)
    translator = _Translator(args, processes.device())

    start = time.perf_counter()
    num_sentences_of_all_processes = _translate_and_write_chunks(chunks, translator, processes, text_args)
    seconds = time.perf_counter() - start

    is_first_process = processes.index == 0
    # The speed is meaningless for the few sentences of a command line.
    if is_first_process and not text_args.sentences:
        _print_speed(num_sentences_of_all_processes, seconds)


def _choose_chunk_size(processes: Processes) -> int:
    """Return the maximum number of sentences in a chunk."""
    if processes.count > 1:
        return CHUNK_SIZE_OF_SEVERAL
    return CHUNK_SIZE


def _translate_and_write_chunks(
    chunks: Iterator[list[Sentence]],
    translator: _Translator,
    processes: Processes,
    text_args: TranslationArguments,
) -> int:
    """Translate this process's share of the chunks, and write the lines to the output file or to standard output.

    Returns the number of sentences in the chunks of all processes.
    """
    # The sizes of all processes' chunks. `share` fills this list, and `open` reads it at the end of the block.
    chunk_sizes: list[int] = []
    # Of several processes, each waits for the others at the end of this block, and the first merges all outputs.
    with processes.open(text_args.output, chunk_sizes) as file, translator.reporting_flags():
        for chunk in processes.share(chunks, chunk_sizes):
            file.writelines(_translate_chunk(chunk, translator, text_args))
            # Readers of a pipe get each chunk without delay.
            file.flush()
    return sum(chunk_sizes)


def _translate_chunk(
    chunk: Sequence[Sentence], translator: _Translator, text_args: TranslationArguments
) -> Iterator[str]:
    """Translate sentences, and return an iterator of their output lines."""
    texts = [sentence.text for sentence in chunk]
    translations = translator.translate_texts(texts, text_args.markup, show_progress=sys.stderr.isatty())
    # A sentence on the command line may contain line breaks, which --split_sentences keeps.
    are_on_command_line = len(text_args.sentences) > 0
    keeps_breaks = are_on_command_line and text_args.split_sentences
    return write_sentences(chunk, translations, text_args.output_fields(), keeps_breaks)


def _print_speed(count: int, seconds: float) -> None:
    """Print to standard error how many sentences were translated, and how fast."""
    speed = count / seconds
    print(f"{count:,} sentences in {seconds:.1f} s: {speed:,.1f} sentences/s", file=sys.stderr)
