"""Translate sentences: the arguments, a file, or standard input, one sentence per line, in the same order."""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from .. import translate
from ..data.text import check_is_input, iterate_lines, lines_as_they_arrive
from ..memory import release_freed_memory
from .arguments import BatchArguments, DecodingArguments, EngineArguments, LoadingArguments
from .loading import load_given
from .parsing import parse, plain_errors
from .writing import check_can_write, one_line, open_output


# Sentences that are read, translated and written in one go: enough for batches of similar length, and few to lose.
CHUNK_SIZE = 2_000


@dataclass
class TranslationArguments:
    """Where sentences come from and translations go to."""

    input: str | None = field(default=None, metadata={"help": "A text file, one sentence per line; also .gz."})
    output: str | None = field(default=None, metadata={"help": "Write translations to this file, not to stdout."})


def main(arguments: Sequence[str] | None = None) -> None:
    """Translate as the command line says."""
    args, loading, engine, decoding, batches, given = parse(
        [TranslationArguments, LoadingArguments, EngineArguments, DecodingArguments, BatchArguments],
        __doc__,
        arguments,
        positional="sentences",
        verb="translate",
    )
    with plain_errors():
        check_can_write(args.output, inputs=[args.input, loading.model_name_or_path])
        chunks = read(args.input, given)
        tokenizer, model = load_given(loading, engine)
        count, started = 0, time.perf_counter()
        with open_output(args.output) as file:
            for chunk in chunks:
                translations = translate(
                    model,
                    tokenizer,
                    chunk,
                    batches.tokens_per_batch,
                    show_progress=sys.stderr.isatty(),
                    **decoding.generate_kwargs(),
                )
                file.writelines(f"{one_line(translation)}\n" for translation in translations)
                file.flush()
                release_freed_memory()
                count += len(chunk)
        if not given:
            seconds = time.perf_counter() - started
            print(f"{count:,} sentences in {seconds:.1f} s: {count / seconds:,.1f} sentences/s", file=sys.stderr)


def read(path: str | None, sentences: Sequence[str]) -> Iterator[list[str]]:
    """Chunks of sentences from the arguments, or from the file, or from standard input.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if sentences and a file are given, or while reading, if a line is not UTF-8 text.
    """
    if sentences and path:
        raise ValueError("sentences were given both as arguments and as a file; give one of the two.")
    if sentences:
        return iter([list(sentences)])
    if path is None:
        return _chunks_of_stdin()
    check_is_input(Path(path))
    return _chunks(iterate_lines(Path(path)))


def _chunks(lines: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(islice(lines, CHUNK_SIZE)):
        yield chunk


def _chunks_of_stdin() -> Iterator[list[str]]:
    for lines in lines_as_they_arrive(sys.stdin.buffer, "standard input"):  # type: ignore[arg-type]
        yield from _chunks(iter(lines))
