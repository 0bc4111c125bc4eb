"""Draw a figure into a file: `plot FIGURE ... --output FILE`; its suffix decides the format (.png, .svg, .pdf).

attention      attention weights of a sentence and its translation
positions      the table of positions, and their dot products
schedule       the learning rate of Equation 3
masks          the padding and look-ahead masks of a batch
probabilities  the log-probability of each token of a translation
curve          loss, perplexity, token accuracy and BLEU of runs

hf-vanilla-transformer plot curve runs/mine
hf-vanilla-transformer plot attention --model_name_or_path runs/mine "two dogs"
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..support.argument_checks import check_optional
from ..support.output_files import check_can_write
from ..support.user_errors import InputError
from ..support.version import __version__
from ..translation.decoding_arguments import DecodingArguments
from ..translation.loading_arguments import LoadingArguments
from . import PROGRAM
from .parser import parse, program
from .shared_options import load_given


# Of the model that `demo` trains; it has no padding in a batch of one sentence.
_SENTENCE, _BATCH = "forty-two", ("seven", "forty-two")
_TARGET = "Its translation, to draw instead of the model's own"


@dataclass
class FileArguments:
    """Where to write the figure, and its colours."""

    _argument_group_name = "file"

    output: str | None = field(
        default=None, metadata={"help": "File to write; by default the figure's name and .png, in this folder."}
    )
    theme: Literal["light", "dark"] = field(default="light", metadata={"help": "Colours."})


@dataclass
class SentenceArguments:
    """The sentence to draw."""

    texts: list[str] = field(default_factory=list, metadata={"help": "A sentence.", "positional": True})
    target: str | None = field(default=None, metadata={"help": f"{_TARGET}."})


@dataclass
class AttentionArguments(SentenceArguments):
    """Which attention to draw, and how."""

    kind: Literal["encoder", "decoder", "cross"] = field(
        default="cross", metadata={"help": "Self-attention of the encoder or of the decoder, or cross-attention."}
    )
    style: Literal["lines", "matrix", "heads", "layers"] | None = field(
        default=None,
        metadata={
            "help": "Lines between words or a matrix, of one head; all heads of a layer; all heads of all layers. By "
            "default heads, or matrix with --head."
        },
    )
    layer: int | None = field(default=None, metadata={"help": "Counted from 0; by default the last."})
    head: int | None = field(default=None, metadata={"help": "Counted from 0; by default the first."})


@dataclass
class MaskArguments:
    """The batch to draw."""

    texts: list[str] = field(default_factory=list, metadata={"help": "Sentences.", "positional": True})
    target: list[str] | None = field(default=None, metadata={"help": f"{_TARGET}; one for each sentence."})


@dataclass
class PositionArguments(LoadingArguments):
    """The positions to draw: the paper's, or those of a model."""

    _argument_group_name = "positions"

    model_name_or_path: str | None = field(  # type: ignore[assignment]
        default=None, metadata={"help": "A model whose positions to draw, such as learned ones."}
    )
    length: int = field(default=100, metadata={"help": "Number of positions, at most 2,000."})
    d_model: int | None = field(default=None, metadata={"help": "Width without a model; by default the paper's 512."})


@dataclass
class ScheduleArguments:
    """The curves to draw: each d_model with each number of warm-up updates."""

    d_model: list[int] = field(default_factory=lambda: [256, 512, 1024], metadata={"help": "Widths of models."})
    warmup_steps: list[int] = field(default_factory=lambda: [4000, 8000], metadata={"help": "Warm-up updates."})
    updates: int = field(default=20_000, metadata={"help": "Length of the axis."})

    def __post_init__(self) -> None:
        check_optional(self, "updates")


@dataclass
class CurveArguments:
    """The runs to draw."""

    runs: list[str] = field(
        default_factory=list,
        metadata={"help": "Folders of runs, their curve.json, or their files of results.", "positional": True},
    )


@program
def main(arguments: list[str]) -> Path | None:
    """Draw the figure that the first argument names; returns its file."""
    figure, *rest = arguments or ["--help"]
    if figure in FIGURES:
        return FIGURES[figure](rest)
    if figure in ("-h", "--help"):
        print(f"usage: {PROGRAM} plot {{{','.join(FIGURES)}}} ... [--name value ...]\n\n{__doc__}")
    elif figure == "--version":
        print(f"{PROGRAM} {__version__}")
    else:
        raise InputError(f'"{figure}" is not a figure; use one of {", ".join(FIGURES)}.')
    return None


def plot_attention(arguments: list[str]) -> Path:
    """Draw the attention weights of a sentence ("forty-two" by default) and of its translation.

    hf-vanilla-transformer plot attention --model_name_or_path runs/mine "two dogs"
    hf-vanilla-transformer plot attention --model_name_or_path runs/mine "two dogs" --style lines --layer 1 --head 2
    """

    def draw(model: Any, tokenizer: Any, args: AttentionArguments, **options: Any) -> Any:
        from ..pictures import plot_attention

        shown = {name: getattr(args, name) for name in ("target", "kind", "style", "layer", "head")}
        return plot_attention(model, tokenizer, _one_sentence(args.texts), **shown, **options)

    return _draw_model("attention", plot_attention.__doc__, arguments, AttentionArguments, draw)


def plot_masks(arguments: list[str]) -> Path:
    """Draw the masks of a batch of sentences ("seven" and "forty-two" by default) and of their translations.

    hf-vanilla-transformer plot masks --model_name_or_path runs/mine "two dogs" "a cat"
    hf-vanilla-transformer plot masks --model_name_or_path runs/mine "two dogs" --target "zwei Hunde"
    """

    def draw(model: Any, tokenizer: Any, args: MaskArguments, **options: Any) -> Any:
        from ..pictures import plot_masks

        return plot_masks(model, tokenizer, args.texts or _BATCH, args.target, **options)

    return _draw_model("masks", plot_masks.__doc__, arguments, MaskArguments, draw)


def plot_probabilities(arguments: list[str]) -> Path:
    """Draw the log-probability of each token of the translation of a sentence ("forty-two" by default).

    hf-vanilla-transformer plot probabilities --model_name_or_path runs/mine "two dogs"
    hf-vanilla-transformer plot probabilities --model_name_or_path runs/mine "two dogs" --target "zwei Hunde"
    """

    def draw(model: Any, tokenizer: Any, args: SentenceArguments, **options: Any) -> Any:
        from ..pictures import plot_token_probabilities

        return plot_token_probabilities(model, tokenizer, _one_sentence(args.texts), args.target, **options)

    return _draw_model("probabilities", plot_probabilities.__doc__, arguments, SentenceArguments, draw)


def _draw_model(
    figure: str, description: str | None, arguments: list[str], kind: type, draw: Callable[..., Any]
) -> Path:
    """Parse the arguments of a figure of a model and its sentences, load the model, and draw."""
    kinds = _with_file(kind, LoadingArguments, DecodingArguments)
    args, file, model_args, decoding = parse(kinds, description, arguments, f"plot {figure}")
    output = _output(file, figure, model_args.model_name_or_path)
    options = decoding.generate_kwargs()
    if args.target is not None and options:
        raise InputError(f"--{next(iter(options))} has no effect with --target; leave out one of the two.")
    tokenizer, model = load_given(model_args)
    return _save(draw(model, tokenizer, args, theme=file.theme, **options), output)


def _with_file(kind: type, *others: type) -> Any:
    """The type of all arguments of a figure."""
    return NamedTuple("Arguments", [(each.__name__, each) for each in (kind, FileArguments, *others)])


def plot_positions(arguments: list[str]) -> Path:
    """Draw the table of positions (section 3.5), and the dot products of positions.

    hf-vanilla-transformer plot positions --length 200 --d_model 64
    hf-vanilla-transformer plot positions --model_name_or_path runs/mine
    """
    args, file = parse(_with_file(PositionArguments), plot_positions.__doc__, arguments, "plot positions")
    output = _output(file, "positions", args.model_name_or_path)
    from ..pictures import plot_positions as draw

    given = [name for name in ("revision", "token", "trust_remote_code", "device") if getattr(args, name)]
    if given and args.model_name_or_path is None:
        raise InputError(f"--{given[0]} has no effect without --model_name_or_path; give both, or leave it out.")
    model = None if args.model_name_or_path is None else load_given(args)[1]
    return _save(draw(model, length=args.length, d_model=args.d_model, theme=file.theme), output)


def plot_schedule(arguments: list[str]) -> Path:
    """Draw Equation 3, the learning rate, for each d_model with each number of warm-up updates.

    hf-vanilla-transformer plot schedule
    hf-vanilla-transformer plot schedule --d_model 512 --warmup_steps 1000 4000
    """
    args, file = parse(_with_file(ScheduleArguments), plot_schedule.__doc__, arguments, "plot schedule")
    output = _output(file, "schedule")
    from ..pictures import plot_schedule as draw

    return _save(draw(args.d_model, args.warmup_steps, updates=args.updates, theme=file.theme), output)


def plot_curve(arguments: list[str]) -> Path:
    """Draw loss, perplexity, token accuracy and BLEU of runs: folders, their curve.json, or their files of results.

    hf-vanilla-transformer plot curve runs/mine
    hf-vanilla-transformer plot curve runs/one runs/two --output curves.svg
    """
    args, file = parse(_with_file(CurveArguments), plot_curve.__doc__, arguments, "plot curve")
    inputs = [Path(run, "curve.json") if Path(run).is_dir() else run for run in args.runs]
    output = _output(file, "curve", *inputs)
    if not args.runs:
        raise InputError("no run is given; name the folder of at least one.")
    from ..evaluation.curve_files import read_curve
    from ..pictures import plot_curve as draw

    curves = {label: read_curve(run) for label, run in zip(labels_of(args.runs), args.runs, strict=True)}
    return _save(draw(curves, theme=file.theme), output)


FIGURES = {
    "attention": plot_attention,
    "positions": plot_positions,
    "schedule": plot_schedule,
    "masks": plot_masks,
    "probabilities": plot_probabilities,
    "curve": plot_curve,
}


def _output(file: FileArguments, figure: str, *inputs: str | Path | None) -> str:
    """The file to write, checked before the work; so is matplotlib."""
    output = f"{figure}.png" if file.output is None else file.output
    check_can_write(output, inputs=inputs)
    from ..pictures.figure_style import check_format

    check_format(output)
    return output


def _one_sentence(texts: Sequence[str]) -> str:
    if len(texts) > 1:
        raise InputError(f"{len(texts)} sentences are given; the figure shows one, so put it between quotation marks.")
    return texts[0] if texts else _SENTENCE


def _save(figure: Any, output: str) -> Path:
    from ..pictures import save_figure

    path = save_figure(figure, output)
    print(f"the plot is in {path}")
    return path


def labels_of(runs: Sequence[str]) -> list[str]:
    """Labels for the legend: the name of each run's folder or file, or its path if two runs share a name.

    Raises:
        ValueError: if a run is given twice.
    """
    if len(set(runs)) < len(runs):
        raise InputError(f"a run is given twice: {' '.join(runs)}; name each once.")
    labels = [_label_of(run) for run in runs]
    return [run if labels.count(label) > 1 else label for run, label in zip(runs, labels, strict=True)]


def _label_of(run: str) -> str:
    path = Path(run).resolve()
    if path.is_dir():
        return path.name
    return path.parent.name if path.name == "curve.json" else path.stem
