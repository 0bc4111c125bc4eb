"""Translate sentences: the arguments, a file, or standard input, one sentence a line, order kept."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TextIO

from .. import translate
from ..data.sources import iterate_lines
from ..memory import release_freed_memory
from .arguments import DecodingArguments
from .common import check_can_write, load, one_line, parse, plain_errors, whole_file


# Read, translated and written at a time, so that the memory does not grow with the input.
SENTENCES_AT_ONCE = 50_000


@dataclass
class TranslationArguments:
    """The model, and where sentences come from and go to."""

    model: str = field(metadata={"help": "A folder or a name on the Hub."})
    input: str | None = field(default=None, metadata={"help": "A text file, one sentence a line."})
    output: str | None = field(default=None, metadata={"help": "Write translations here instead of printing them."})


def main(arguments: Sequence[str] | None = None) -> None:
    """Translate as the command line says."""
    args, decoding, sentences = parse(
        [TranslationArguments, DecodingArguments], __doc__, arguments, positional="sentences"
    )
    with plain_errors():
        check_can_write(args.output)
        if args.input and args.output and Path(args.input).resolve() == Path(args.output).resolve():
            raise ValueError(f"{args.output} is the input as well; write the translations into another file.")
        is_many = not sentences  # A file's, or those of standard input.
        sentences = read(args.input, sentences)
        tokenizer, model = load(args.model)
        count, begin = 0, time.perf_counter()
        with writing(args.output) as file:
            while some := list(islice(sentences, SENTENCES_AT_ONCE)):
                translations = translate(
                    model,
                    tokenizer,
                    some,
                    decoding.batch_tokens,
                    show_progress=sys.stderr.isatty(),
                    **decoding.generate_kwargs(),
                )
                file.writelines(f"{one_line(translation)}\n" for translation in translations)
                file.flush()
                release_freed_memory()
                count += len(some)
        if is_many:
            seconds = time.perf_counter() - begin
            print(f"{count:,} sentences in {seconds:.1f} s: {count / seconds:,.1f} sentences/s", file=sys.stderr)


@contextmanager
def writing(path: str | None) -> Iterator[TextIO]:
    """A file that is there when all is written, or standard output."""
    if path is not None:
        with whole_file(path, keeps_part=True) as file:
            yield file
        return
    sys.stdout.reconfigure(encoding="utf-8")
    yield sys.stdout


def read(path: str | None, sentences: Sequence[str]) -> Iterator[str]:
    """Sentences from the arguments, else from the file, else from standard input."""
    if sentences and path:
        raise ValueError("sentences were given both as arguments and as a file; give one of the two.")
    if sentences:
        return iter(sentences)
    if path is None:
        sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")
        return (line.rstrip("\r\n") for line in sys.stdin)
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not there; check the path.")
    return iterate_lines(Path(path))


if __name__ == "__main__":
    main()
