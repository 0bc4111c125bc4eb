"""Draw a figure into a file: `plot FIGURE ... --output FILE`; its suffix decides the format (.png, .svg, .pdf).

attention      attention weights of a sentence and its translation
positions      the table of positions, and their dot products
schedule       the learning rate of Equation 3
masks          the padding and look-ahead masks of a batch
probabilities  the log-probability of each token of a translation
curve          loss, perplexity, token accuracy and BLEU of runs
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..support.argument_checks import check_optional
from ..support.output_files import check_can_write
from ..support.version import __version__
from ..translation.decoding_arguments import DecodingArguments
from ..translation.loading_arguments import LoadingArguments
from . import PROGRAM
from .load_from_options import load_given
from .parser import parse, plain_errors


_THEMES = ("light", "dark")
# Of the model that `demo` trains; it has no padding in a batch of one sentence.
_SENTENCE, _BATCH = "forty-two", ("seven", "forty-two")
_TARGET = "Its translation, to draw instead of the model's own"


@dataclass
class PictureArguments:
    """Where to write the figure, and its colours."""

    output: str | None = field(
        default=None, metadata={"help": "File to write; by default the figure's name and .png, in this folder."}
    )
    theme: str = field(default="light", metadata={"help": '"light" or "dark".'})

    def __post_init__(self) -> None:
        if self.theme not in _THEMES:
            raise ValueError(f'theme is "{self.theme}"; choose one of {", ".join(_THEMES)}.')


@dataclass
class AttentionArguments:
    """Which attention to draw, and how."""

    target: str | None = field(default=None, metadata={"help": f"{_TARGET}."})
    kind: str = field(
        default="cross", metadata={"help": '"encoder" or "decoder" for self-attention, or "cross" for the other.'}
    )
    style: str | None = field(
        default=None,
        metadata={
            "help": '"lines" between words or a "matrix", of one head; all "heads" of a layer; all heads of all '
            '"layers". By default "heads", or "matrix" with --head.'
        },
    )
    layer: int | None = field(default=None, metadata={"help": "Counted from 0; by default the last."})
    head: int | None = field(default=None, metadata={"help": "Counted from 0; by default the first."})


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
class MaskArguments:
    """Translations of the batch."""

    target: list[str] | None = field(default=None, metadata={"help": f"{_TARGET}; one for each sentence."})


@dataclass
class ProbabilityArguments:
    """The translation to draw."""

    target: str | None = field(default=None, metadata={"help": f"{_TARGET}."})


def main(arguments: Sequence[str] | None = None) -> Path | None:
    """Draw the figure that the first argument names; returns its file."""
    figure, *rest = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if figure in FIGURES:
        return FIGURES[figure](rest)
    if figure in ("-h", "--help"):
        print(f"usage: {PROGRAM} plot {{{','.join(FIGURES)}}} ... [--name value ...]\n\n{__doc__}")
    elif figure == "--version":
        print(f"{PROGRAM} {__version__}")
    else:
        sys.exit(f'error: "{figure}" is not a figure; use one of {", ".join(FIGURES)}.')
    return None


def plot_attention(arguments: Sequence[str]) -> Path:
    """Draw the attention weights of a sentence ("forty-two" by default) and of its translation."""

    def draw(model: Any, tokenizer: Any, texts: Sequence[str], args: AttentionArguments, **options: Any) -> Any:
        from ..pictures import plot_attention

        return plot_attention(model, tokenizer, _one_sentence(texts), **vars(args), **options)

    return _draw_model("attention", plot_attention.__doc__, arguments, AttentionArguments, draw)


def plot_masks(arguments: Sequence[str]) -> Path:
    """Draw the masks of a batch of sentences ("seven" and "forty-two" by default) and of their translations."""

    def draw(model: Any, tokenizer: Any, texts: Sequence[str], args: MaskArguments, **options: Any) -> Any:
        from ..pictures import plot_masks

        return plot_masks(model, tokenizer, texts or _BATCH, args.target, **options)

    return _draw_model("masks", plot_masks.__doc__, arguments, MaskArguments, draw)


def plot_probabilities(arguments: Sequence[str]) -> Path:
    """Draw the log-probability of each token of the translation of a sentence ("forty-two" by default)."""

    def draw(model: Any, tokenizer: Any, texts: Sequence[str], args: ProbabilityArguments, **options: Any) -> Any:
        from ..pictures import plot_token_probabilities

        return plot_token_probabilities(model, tokenizer, _one_sentence(texts), args.target, **options)

    return _draw_model("probabilities", plot_probabilities.__doc__, arguments, ProbabilityArguments, draw)


def _draw_model(
    figure: str, description: str | None, arguments: Sequence[str], kind: type, draw: Callable[..., Any]
) -> Path:
    """Parse the arguments of a figure of a model and its sentences, load the model, and draw."""
    args, pictures, loading, decoding, texts = parse(
        [kind, PictureArguments, LoadingArguments, DecodingArguments],
        description,
        arguments,
        positional="TEXT",
        verb=f"plot {figure}",
    )
    with plain_errors():
        output = _output(pictures, figure, loading.model_name_or_path)
        options = decoding.generate_kwargs()
        if args.target is not None and options:
            raise ValueError(f"--{next(iter(options))} has no effect with --target; leave out one of the two.")
        tokenizer, model = load_given(loading)
        return _save(draw(model, tokenizer, texts, args, theme=pictures.theme, **options), output)


def plot_positions(arguments: Sequence[str]) -> Path:
    """Draw the table of positions (section 3.5), and the dot products of positions."""
    args, pictures = parse(
        [PositionArguments, PictureArguments], plot_positions.__doc__, arguments, verb="plot positions"
    )
    with plain_errors():
        output = _output(pictures, "positions", args.model_name_or_path)
        from ..pictures import plot_positions as draw

        given = [name for name in ("revision", "token", "trust_remote_code", "device") if getattr(args, name)]
        if given and args.model_name_or_path is None:
            raise ValueError(f"--{given[0]} has no effect without --model_name_or_path; give both, or leave it out.")
        model = None if args.model_name_or_path is None else load_given(args)[1]
        return _save(draw(model, length=args.length, d_model=args.d_model, theme=pictures.theme), output)


def plot_schedule(arguments: Sequence[str]) -> Path:
    """Draw Equation 3, the learning rate, for each d_model with each number of warm-up updates."""
    args, pictures = parse(
        [ScheduleArguments, PictureArguments], plot_schedule.__doc__, arguments, verb="plot schedule"
    )
    with plain_errors():
        output = _output(pictures, "schedule")
        from ..pictures import plot_schedule as draw

        return _save(draw(args.d_model, args.warmup_steps, updates=args.updates, theme=pictures.theme), output)


def plot_curve(arguments: Sequence[str]) -> Path:
    """Draw loss, perplexity, token accuracy and BLEU of runs: folders, their curve.json, or their files of results."""
    pictures, runs = parse(
        [PictureArguments],
        plot_curve.__doc__,
        arguments,
        positional="runs",
        verb="plot curve",
        takes_recipe_first=False,
    )
    with plain_errors():
        inputs = [Path(run, "curve.json") if Path(run).is_dir() else run for run in runs]
        output = _output(pictures, "curve", *inputs)
        if not runs:
            raise ValueError("no run is given; name the folder of at least one.")
        from ..evaluation.curve_files import read_curve
        from ..pictures import plot_curve as draw

        curves = {label: read_curve(run) for label, run in zip(labels_of(runs), runs, strict=True)}
        return _save(draw(curves, theme=pictures.theme), output)


FIGURES = {
    "attention": plot_attention,
    "positions": plot_positions,
    "schedule": plot_schedule,
    "masks": plot_masks,
    "probabilities": plot_probabilities,
    "curve": plot_curve,
}


def _output(pictures: PictureArguments, figure: str, *inputs: str | Path | None) -> str:
    """The file to write, checked before the work; so is matplotlib."""
    output = f"{figure}.png" if pictures.output is None else pictures.output
    check_can_write(output, inputs=inputs)
    from ..pictures.figure_style import check_format

    check_format(output)
    return output


def _one_sentence(texts: Sequence[str]) -> str:
    if len(texts) > 1:
        raise ValueError(f"{len(texts)} sentences are given; the figure shows one, so put it between quotation marks.")
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
        raise ValueError(f"a run is given twice: {' '.join(runs)}; name each once.")
    labels = [_label_of(run) for run in runs]
    return [run if labels.count(label) > 1 else label for run, label in zip(runs, labels, strict=True)]


def _label_of(run: str) -> str:
    path = Path(run).resolve()
    if path.is_dir():
        return path.name
    return path.parent.name if path.name == "curve.json" else path.stem
