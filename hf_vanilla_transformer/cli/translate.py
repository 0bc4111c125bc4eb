"""Translate sentences: the arguments, a file, or standard input, one sentence per line, in the same order."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..support.argument_checks import check_optional
from ..support.output_files import check_can_write
from ..support.process_memory import release_freed_memory
from ..translation.decoding_arguments import DecodingArguments
from ..translation.glossary import Glossary
from ..translation.loading_arguments import LoadingArguments
from ..translation.markup_document import KINDS
from ..translation.translate import translate
from .load_from_options import load_given, load_terms
from .merge_process_outputs import Processes
from .parser import parse, plain_errors
from .shared_options import BatchArguments, EngineArguments
from .text_and_json_lines import DETAILS, JsonFields, is_json, read_sentences, write_sentences


# Sentences that are read, translated and written in one go: enough for batches of similar length, and few to lose.
CHUNK_SIZE = 2_000
# Of several processes, so that they all get some of a short file.
CHUNK_SIZE_OF_SEVERAL = 500
STDIN = "/dev/stdin"


@dataclass
class TranslationArguments:
    """Where sentences come from and translations go to."""

    input: str | None = field(
        default=None, metadata={"help": "A file with a sentence per line: text, or JSON (.jsonl); also .gz."}
    )
    output: str | None = field(
        default=None, metadata={"help": "Write translations to this file, not to stdout: text, or .jsonl; also .gz."}
    )
    json_lines: bool = field(
        default=False, metadata={"help": "Standard input and output are JSON lines, with scores in the output."}
    )
    source_column: str = field(default="text", metadata={"help": "Field of JSON lines to translate."})
    target_column: str = field(default="translation", metadata={"help": "Field of JSON lines for translations."})
    split_sentences: bool = field(
        default=False,
        metadata={"help": "Lines are texts: translate each sentence of theirs, and keep the white space between them."},
    )
    source_lang: str | None = field(
        default=None, metadata={"help": "Language code of the texts to split; by default that of the tokenizer."}
    )
    markup: str | None = field(
        default=None, metadata={"help": '"html" or "xml": keep tags, and put them around the right words.'}
    )
    num_return_sequences: int | None = field(
        default=None, metadata={"help": "Translations per sentence, best first; the output is JSON lines."}
    )

    glossary: str | None = field(
        default=None,
        metadata={"help": "A file of terms: in each line a term, a tab, and the translation that it must have."},
    )

    def __post_init__(self) -> None:
        check_optional(self, "num_return_sequences")
        if self.markup not in (None, *KINDS):
            raise ValueError(f'markup is "{self.markup}"; choose one of {", ".join(KINDS)}.')
        if self.source_column == self.target_column:
            raise ValueError(f'source_column and target_column are both "{self.source_column}"; give two names.')
        if self.target_column in DETAILS:
            raise ValueError(f"target_column is {self.target_column}, which the output has beside it; give another.")
        if self.json_lines and self.input is not None and self.output is not None:
            raise ValueError("json_lines is for standard input and output, and has no effect on files; leave it out.")
        columns, is_json_used = (self.source_column, self.target_column), self.input_fields() or self.output_fields()
        if columns != ("text", "translation") and not is_json_used:
            raise ValueError("source_column and target_column have no effect on lines of text; leave them out.")
        if self.source_lang is not None and not self.split_sentences:
            raise ValueError(f"source_lang is {self.source_lang}, but has no effect without --split_sentences.")
        if self.num_return_sequences is not None and self.output_fields() is None:
            raise ValueError("num_return_sequences needs JSON lines; give --json_lines, or an --output in .jsonl.")

    def input_fields(self) -> JsonFields | None:
        """The fields of the input, or None if it is text."""
        is_object = is_json(self.input) if self.input is not None else self.json_lines
        details = DETAILS if self.output_fields() else ()
        return JsonFields(self.source_column, self.target_column, details) if is_object else None

    def output_fields(self) -> JsonFields | None:
        """The fields of the output, or None if it is text."""
        is_object = is_json(self.output) if self.output is not None else self.json_lines
        return JsonFields(self.source_column, self.target_column) if is_object else None

    def translate_kwargs(self) -> dict[str, Any]:
        """Arguments of `translate()`."""
        values = {
            "return_details": self.output_fields() is not None,
            "split_sentences": (self.source_lang or True) if self.split_sentences else False,
            "markup": self.markup,
            "num_return_sequences": self.num_return_sequences,
        }
        return {name: value for name, value in values.items() if value}


def main(arguments: Sequence[str] | None = None) -> None:
    """Translate as the command line says."""
    args, loading, engine, decoding, batches, given = parse(
        [TranslationArguments, LoadingArguments, EngineArguments, DecodingArguments, BatchArguments],
        __doc__,
        arguments,
        positional="sentences",
        verb="translate",
    )
    inputs = [] if given else [args.input or STDIN]
    processes, counted = Processes.launched(), list[int]()
    with plain_errors():
        check_can_write(args.output, inputs=[*inputs, args.glossary, loading.model_name_or_path])
        processes.check(args.input, args.output)
        size = CHUNK_SIZE if processes.count == 1 else CHUNK_SIZE_OF_SEVERAL
        chunks = read_sentences(args.input, given, args.input_fields(), size)
        loading = replace(loading, device=loading.device or processes.device())
        terms = load_terms(args.glossary, engine)
        tokenizer, model = load_given(loading, engine)
        options = {**args.translate_kwargs(), **decoding.generate_kwargs()}
        if terms is not None:
            options["glossary"] = Glossary(terms, tokenizer)
            translate(model, tokenizer, [], **options)  # Checks settings before the work.
        started = time.perf_counter()
        with processes.open(args.output, counted) as file:
            for chunk in processes.share(chunks, counted):
                translations = translate(
                    model,
                    tokenizer,
                    [sentence.text for sentence in chunk],
                    batches.tokens_per_batch,
                    show_progress=sys.stderr.isatty(),
                    **options,
                )
                keeps_breaks = bool(given) and args.split_sentences
                file.writelines(write_sentences(chunk, translations, args.output_fields(), keeps_breaks))
                file.flush()
                release_freed_memory()
        if not given and processes.index == 0:
            seconds = time.perf_counter() - started
            count = sum(counted)
            print(f"{count:,} sentences in {seconds:.1f} s: {count / seconds:,.1f} sentences/s", file=sys.stderr)
