"""Translate sentences: the arguments, a file, or standard input, one sentence a line, order kept."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


# Run as a file, Python looks in the file's folder first, where evaluate.py hides the library of that name.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.data.sources import read_lines
from scripts.common import DecodingArguments, check_can_write, load, one_line, parse, plain_errors, write


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
        sentences = read(args.input, sentences)
        tokenizer, model = load(args.model)
        translations = translate(
            model,
            tokenizer,
            sentences,
            decoding.batch_tokens,
            show_progress=sys.stderr.isatty(),
            **decoding.generate_kwargs(),
        )
        text = "".join(f"{one_line(translation)}\n" for translation in translations)
        if args.output is None:
            sys.stdout.reconfigure(encoding="utf-8")
            sys.stdout.write(text)
        else:
            write(args.output, text)


def read(path: str | None, sentences: list[str]) -> list[str]:
    """Sentences from the arguments, else from the file, else from standard input."""
    if sentences and path:
        raise ValueError("sentences were given both as arguments and as a file; give one of the two.")
    if sentences:
        return sentences
    if path is None:
        sys.stdin.reconfigure(encoding="utf-8-sig", newline="\n")
        return [line.rstrip("\r\n") for line in sys.stdin]
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} is not there; check the path.")
    return read_lines(Path(path))


if __name__ == "__main__":
    main()
