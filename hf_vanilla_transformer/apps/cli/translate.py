"""Translate sentences: the arguments, a file, or standard input, one sentence per line, in the same order; or
documents of HTML and XML.

hf-vanilla-transformer translate --model_name_or_path runs/mine "two dogs" "a cat"
hf-vanilla-transformer translate --model_name_or_path runs/mine --input input.en --output output.de
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
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
from .documents import document_files, translate_files
from .merge_process_outputs import Processes
from .parser import parse, program
from .shared_options import BatchArguments, EngineArguments, load_given, load_terms
from .text_and_json_lines import DETAILS, JsonFields, is_json, read_sentences, write_sentences


# Sentences that are read, translated and written in one go: enough for batches of similar length, and few to lose.
CHUNK_SIZE = 2_000
# Of several processes, so that they all get some of a short file.
CHUNK_SIZE_OF_SEVERAL = 500
STDIN = "/dev/stdin"
# Endings of subtitles, whose lines of numbers and times no model should change.
SUBTITLES = (".srt", ".sbv", ".vtt")
# What flags of translations mean, and what to do. "split" is what --split_sentences does.
REMEDIES = {
    "longer_than_training": f"{FLAG_MEANINGS['longer_than_training']} (split them by --split_sentences)",
    "truncated": f"{FLAG_MEANINGS['truncated']} (raise --max_new_tokens)",
    "repetition": f"{FLAG_MEANINGS['repetition']} (write shorter sentences, or raise --num_beams)",
}


@dataclass
class TranslationArguments:
    """Where sentences come from and translations go to."""

    sentences: list[str] = option([], "Sentences.", positional=True)
    input: str | None = option(
        None,
        "A file with a sentence per line, text or JSON (.jsonl), also .gz; or a document, .html or .xml, or a folder.",
    )
    output: str | None = option(None, "Write translations to this file, not to stdout: text, or .jsonl; also .gz.")
    json_lines: bool = option(False, "Standard input and output are JSON lines, with scores in the output.")
    source_column: str = option("text", "Field of JSON lines to translate.")
    target_column: str = option("translation", "Field of JSON lines for translations.")
    split_sentences: bool = option(
        False, "Lines are texts: translate each of their sentences, and keep the white space between them."
    )
    source_lang: str | None = option(None, "Language code of the texts to split; by default that of the tokenizer.")
    target_lang: str | None = option(
        None, "Language to translate into, for a model of several target languages: fr for OPUS-MT's >>fr<<."
    )
    markup: Literal["html", "xml"] | None = option(None, "Keep tags, and put them around the right words.")
    num_return_sequences: int | None = option(None, "Translations per sentence, best first; the output is JSON lines.")
    glossary: str | None = option(None, "A file of terms: in each line a term, a tab, and its translation.")

    def __post_init__(self) -> None:
        check_optional(self, "num_return_sequences")
        if self.source_column == self.target_column:
            raise InputError(f'source_column and target_column are both "{self.source_column}"; give two names.')
        if self.target_column in DETAILS:
            raise InputError(f"target_column is {self.target_column}, another field of the output; give another name.")
        if self.json_lines and self.input is not None and self.output is not None:
            raise InputError("json_lines is for standard input and output, and has no effect on files; leave it out.")
        columns, is_json_used = (self.source_column, self.target_column), self.input_fields() or self.output_fields()
        if columns != ("text", "translation") and not is_json_used:
            raise InputError("source_column and target_column have no effect on lines of text; leave them out.")
        if self.source_lang is not None and not self.split_sentences:
            raise InputError(f"source_lang is {self.source_lang}, but has no effect without --split_sentences.")
        if self.num_return_sequences is not None and self.output_fields() is None:
            raise InputError("num_return_sequences needs JSON lines; give --json_lines, or an --output in .jsonl.")

    def input_fields(self) -> JsonFields | None:
        """The fields of the input, or None if it is text."""
        is_object = is_json(self.input) if self.input is not None else self.json_lines
        details = DETAILS if self.output_fields() else ()
        return JsonFields(self.source_column, self.target_column, details) if is_object else None

    def output_fields(self) -> JsonFields | None:
        """The fields of the output, or None if it is text."""
        is_object = is_json(self.output) if self.output is not None else self.json_lines
        return JsonFields(self.source_column, self.target_column) if is_object else None

    def has_subtitles(self) -> bool:
        """Return True if the name of the input says that it holds subtitles, compressed or not."""
        return self.input is not None and self.input.lower().removesuffix(".gz").endswith(SUBTITLES)

    def translate_kwargs(self) -> dict[str, Any]:
        """Arguments of `translate()` and of `translate_documents()`."""
        values = {
            "return_details": DetailLevel.FLAGS if self.output_fields() is None else DetailLevel.ALL,
            "split_sentences": (self.source_lang or True) if self.split_sentences else False,
            "target_lang": self.target_lang,
            "num_return_sequences": self.num_return_sequences,
        }
        return {name: value for name, value in values.items() if value}


class Arguments(NamedTuple):
    text: TranslationArguments
    model: EnsembleLoadingArguments
    engine: EngineArguments
    decoding: DecodingArguments
    batches: BatchArguments


def _with_sentences(args: Arguments) -> Arguments:
    """Read the values of `--model_name_or_path` as models, then sentences, if no sentence and no input is given.

    A value after the first model is another model if it is a folder with a config.json.
    """
    names = args.model.model_name_or_path
    if args.text.sentences or args.text.input is not None:
        return args
    others = list(takewhile(lambda name: (Path(name) / "config.json").is_file(), names[1:]))
    model, count = replace(args.model, model_name_or_path=[names[0], *others]), 1 + len(others)
    return args._replace(model=model, text=replace(args.text, sentences=names[count:]))


@contextmanager
def _reporting(flags: Counter[str]) -> Iterator[None]:
    """Count flagged translations on standard error at the end, also if the work is interrupted."""
    try:
        yield
    finally:
        _report(flags)


def _report(flags: Counter[str]) -> None:
    if flags:
        kinds = ", ".join(f"{flags[flag]:,} {meaning}" for flag, meaning in REMEDIES.items() if flags[flag])
        tqdm.write(f"{flags['any']:,} of the translations may be wrong: {kinds}.", file=sys.stderr)


@program
def main(arguments: list[str]) -> None:
    """Translate as the command line says."""
    args = _with_sentences(parse(Arguments, __doc__, arguments, "translate"))
    text, given = args.text, args.text.sentences
    inputs = [] if given else [text.input or STDIN]
    processes, flags = Processes.launched(), Counter[str]()
    documents = document_files(text.input, text.output)
    if not documents:
        check_can_write(text.output, inputs=[*inputs, text.glossary, *args.model.model_name_or_path])
    processes.check(text.input, text.output)
    size = CHUNK_SIZE if processes.count == 1 else CHUNK_SIZE_OF_SEVERAL
    chunks = None if documents else read_sentences(text.input, given, text.input_fields(), size)
    terms = load_terms(text.glossary, args.engine)
    tokenizer, model = load_given(replace(args.model, device=args.model.device or processes.device()), args.engine)
    options = {**text.translate_kwargs(), **args.decoding.generate_kwargs()}
    if terms is not None:
        options["glossary"] = Glossary(terms, tokenizer)
    if terms is not None or text.target_lang is not None:
        translate(model, tokenizer, [], **options)  # Checks settings before the work.
    options |= {"tokens_per_batch": args.batches.tokens_per_batch}
    if text.has_subtitles():
        options["copy_letterless"] = copies_letterless(tokenizer, otherwise=True)

    def translated(texts: list[str], markup: str | None, **defaults: Any) -> list[Translation]:
        settings = {**defaults, **options}
        if markup is None:
            translations = translate(model, tokenizer, texts, **settings)
        else:
            translations = translate_documents(model, tokenizer, texts, markup, **settings)
        for translation in translations if text.output_fields() is None else []:
            raised = translation.flags & REMEDIES.keys()
            flags.update([*raised, "any"] if raised else [])
        release_freed_memory()
        return translations

    def translated_document(document: str, kind: str) -> str:
        # A paragraph has several sentences.
        return translated([document], text.markup or kind, split_sentences=True)[0].text

    if chunks is None:
        with _reporting(flags):
            translate_files(documents[processes.index :: processes.count], translated_document)
        return
    counted, started = list[int](), time.perf_counter()
    with processes.open(text.output, counted) as file, _reporting(flags):
        for chunk in processes.share(chunks, counted):
            texts = [sentence.text for sentence in chunk]
            translations = translated(texts, text.markup, show_progress=sys.stderr.isatty())
            keeps_breaks = bool(given) and text.split_sentences
            file.writelines(write_sentences(chunk, translations, text.output_fields(), keeps_breaks))
            file.flush()
    if not given and processes.index == 0:
        seconds, count = time.perf_counter() - started, sum(counted)
        print(f"{count:,} sentences in {seconds:.1f} s: {count / seconds:,.1f} sentences/s", file=sys.stderr)
