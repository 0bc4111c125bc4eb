"""Translate sentences: the arguments, a file, or standard input, one sentence per line, in the same order."""

import io
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from .. import translate
from ..memory import release_freed_memory
from .arguments import BatchArguments, DecodingArguments, LoadingArguments
from .loading import load_given
from .parsing import parse, plain_errors
from .writing import check_can_write, one_line, open_output


# Sentences that are read, translated and written in one go, so that memory does not grow with the input.
CHUNK_SIZE = 50_000


@dataclass
class TranslationArguments:
    """Where sentences come from and translations go to."""

    input: str | None = field(default=None, metadata={"help": "A text file, one sentence per line."})
    output: str | None = field(default=None, metadata={"help": "Write translations to this file, not to stdout."})


def main(arguments: Sequence[str] | None = None) -> None:
    """Translate as the command line says."""
    args, loading, decoding, batches, given = parse(
        [TranslationArguments, LoadingArguments, DecodingArguments, BatchArguments],
        __doc__,
        arguments,
        positional="sentences",
        verb="translate",
    )
    with plain_errors():
        check_can_write(args.output)
        if args.input and args.output and Path(args.input).resolve() == Path(args.output).resolve():
            raise ValueError(f"{args.output} is also the input; write the translations to another file.")
        sentences = read(args.input, given)
        tokenizer, model = load_given(loading)
        count, started = 0, time.perf_counter()
        with open_output(args.output) as file:
            while chunk := list(islice(sentences, CHUNK_SIZE)):
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


def read(path: str | None, sentences: Sequence[str]) -> Iterator[str]:
    """Sentences from the arguments, or from the file, or from standard input."""
    if sentences and path:
        raise ValueError("sentences were given both as arguments and as a file; give one of the two.")
    if sentences:
        return iter(sentences)
    if path is None:
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")
        return (line.rstrip("\r\n") for line in sys.stdin)
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist; check the path.")
    from ..data.sources import iterate_lines

    return iterate_lines(Path(path))
