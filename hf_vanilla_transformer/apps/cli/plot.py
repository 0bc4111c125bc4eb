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

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from ...support.build_arguments import option
from ...support.output_files import check_can_write
from ...support.user_errors import InputError
from ...support.version import __version__
from ...translation.decoding_arguments import DecodingArguments
from ...translation.loading_arguments import LoadingArguments
from . import PROGRAM
from .parser import parse, program
from .shared_options import load_given


# Of the model that `demo` trains; it has no padding in a batch of one sentence.
_BATCH = ("seven", "forty-two")


@dataclass
class FileArguments:
    """Where to write the figure, and its colours."""

    _argument_group_name = "file"

    output: str | None = option(None, "File to write; by default the figure's name and .png, in this folder.")
    theme: Literal["light", "dark"] = option("light", "Colours.")


@dataclass
class MaskArguments:
    """Draw the masks of a batch of sentences ("seven" and "forty-two" by default) and of their translations.

    hf-vanilla-transformer plot masks --model_name_or_path runs/mine "two dogs" "a cat"
    hf-vanilla-transformer plot masks --model_name_or_path runs/mine "two dogs" --target "zwei Hunde"
    """

    function: ClassVar[str] = "plot_masks"
    texts: list[str] = option([], "Sentences.", positional=True)
    target: list[str] | None = option(None, "Translations to draw instead of the model's own, one for each sentence.")

    def draw(self, theme: str, model_args: LoadingArguments, decoding: DecodingArguments) -> Any:
        from .. import pictures

        options, given = decoding.generate_kwargs(), asdict(self)
        if self.target is not None and options:
            raise InputError(f"--{next(iter(options))} has no effect with --target; leave out one of the two.")
        texts, target = self.shown(given.pop("texts")), given.pop("target")
        tokenizer, model = load_given(model_args)
        return getattr(pictures, self.function)(model, tokenizer, texts, target, theme=theme, **given, **options)

    def shown(self, texts: list[str]) -> Any:
        return texts or _BATCH


@dataclass
class ProbabilityArguments(MaskArguments):
    """Draw the log-probability of each token of the translation of a sentence ("forty-two" by default).

    hf-vanilla-transformer plot probabilities --model_name_or_path runs/mine "two dogs"
    hf-vanilla-transformer plot probabilities --model_name_or_path runs/mine "two dogs" --target "zwei Hunde"
    """

    function: ClassVar[str] = "plot_token_probabilities"
    texts: list[str] = option([], "A sentence.", positional=True)
    target: str | None = option(  # type: ignore[assignment]
        None, "Its translation, to draw instead of the model's own."
    )

    def shown(self, texts: list[str]) -> Any:
        if len(texts) > 1:
            raise InputError(f"{len(texts)} sentences are given; the figure shows one, so put it in quotation marks.")
        return texts[0] if texts else _BATCH[-1]


@dataclass
class AttentionArguments(ProbabilityArguments):
    """Draw the attention weights of a sentence ("forty-two" by default) and of its translation.

    hf-vanilla-transformer plot attention --model_name_or_path runs/mine "two dogs"
    hf-vanilla-transformer plot attention --model_name_or_path runs/mine "two dogs" --style lines --layer 1 --head 2
    """

    function: ClassVar[str] = "plot_attention"
    kind: Literal["encoder", "decoder", "cross"] = option(
        "cross", "Self-attention of the encoder or of the decoder, or cross-attention."
    )
    style: Literal["lines", "matrix", "heads", "layers"] | None = option(
        None,
        "Lines between words or a matrix, of one head; all heads of a layer; all heads of all layers. By "
        "default heads, or matrix with --head.",
    )
    layer: int | None = option(None, "Counted from 0; by default the last.")
    head: int | None = option(None, "Counted from 0; by default the first.")


@dataclass
class PositionArguments(LoadingArguments):
    """Draw the table of positions (section 3.5), and the dot products of positions.

    hf-vanilla-transformer plot positions --length 200 --d_model 64
    hf-vanilla-transformer plot positions --model_name_or_path runs/mine
    """

    _argument_group_name = "positions"

    model_name_or_path: str | None = option(  # type: ignore[assignment]
        None, "A model whose positions to draw, such as learned ones."
    )
    length: int = option(100, "Number of positions, at most 2,000.")
    d_model: int | None = option(None, "Width without a model; by default the paper's 512.")

    def draw(self, theme: str) -> Any:
        from ..pictures import plot_positions

        given = [name for name in ("revision", "token", "trust_remote_code", "device") if getattr(self, name)]
        if given and self.model_name_or_path is None:
            raise InputError(f"--{given[0]} has no effect without --model_name_or_path; give both, or leave it out.")
        model = None if self.model_name_or_path is None else load_given(self)[1]
        return plot_positions(model, length=self.length, d_model=self.d_model, theme=theme)


@dataclass
class ScheduleArguments:
    """Draw Equation 3, the learning rate, for each d_model with each number of warm-up updates.

    hf-vanilla-transformer plot schedule
    hf-vanilla-transformer plot schedule --d_model 512 --warmup_steps 1000 4000
    """

    d_model: list[int] = option([256, 512, 1024], "Widths of models.")
    warmup_steps: list[int] = option([4000, 8000], "Warm-up updates.")
    updates: int = option(20_000, "Length of the axis.")

    def draw(self, theme: str) -> Any:
        from ..pictures import plot_schedule

        return plot_schedule(**asdict(self), theme=theme)


@dataclass
class CurveArguments:
    """Draw loss, perplexity, token accuracy and BLEU of runs: folders, their curve.json, or their files of results.

    hf-vanilla-transformer plot curve runs/mine
    hf-vanilla-transformer plot curve runs/one runs/two --output curves.svg
    """

    runs: list[str] = option([], "Folders of runs, their curve.json, or their files of results.", positional=True)

    def draw(self, theme: str) -> Any:
        if not self.runs:
            raise InputError("no run is given; name the folder of at least one.")
        from ...evaluation.curve_files import read_curve
        from ...evaluation.plot_curve import plot_curve

        curves = {label: read_curve(run) for label, run in zip(labels_of(self.runs), self.runs, strict=True)}
        return plot_curve(curves, theme=theme)


FIGURES: dict[str, Any] = {
    "attention": AttentionArguments,
    "positions": PositionArguments,
    "schedule": ScheduleArguments,
    "masks": MaskArguments,
    "probabilities": ProbabilityArguments,
    "curve": CurveArguments,
}


@program
def main(arguments: list[str]) -> Path | None:
    """Draw the figure that the first argument names; returns its file."""
    figure, *rest = arguments or ["--help"]
    if figure in FIGURES:
        return draw(figure, rest)
    if figure in ("-h", "--help"):
        print(f"usage: {PROGRAM} plot {{{','.join(FIGURES)}}} ... [--name value ...]\n\n{__doc__}")
    elif figure == "--version":
        print(f"{PROGRAM} {__version__}")
    else:
        raise InputError(f'"{figure}" is not a figure; use one of {", ".join(FIGURES)}.')
    return None


def draw(figure: str, arguments: list[str]) -> Path:
    """Draw a figure as the command line says, and check first that it can be written; returns its file."""
    kind = FIGURES[figure]
    args, file, *of_model = parse(all_arguments(kind), kind.__doc__, arguments, f"plot {figure}")
    output = f"{figure}.png" if file.output is None else file.output
    models = [getattr(each, "model_name_or_path", None) for each in (args, *of_model)]
    runs = [Path(run, "curve.json") if Path(run).is_dir() else run for run in getattr(args, "runs", [])]
    check_can_write(output, inputs=[*models, *runs])
    from ...support.figure_style import check_format, save_figure

    check_format(output)
    path = save_figure(args.draw(file.theme, *of_model), output)
    print(f"the plot is in {path}")
    return path


def all_arguments(kind: type) -> Any:
    """The type of the arguments of a figure; those that translate need the arguments of models and of the search."""
    kinds = [kind, FileArguments, *((LoadingArguments, DecodingArguments) if issubclass(kind, MaskArguments) else ())]
    return NamedTuple("Arguments", [(each.__name__, each) for each in kinds])


def labels_of(runs: Sequence[str]) -> list[str]:
    """Labels for the legend: the name of each run's folder or file, or its path if two runs share a name."""
    if len(set(runs)) < len(runs):
        raise InputError(f"a run is given twice: {' '.join(runs)}; name each once.")
    paths = [Path(run).resolve() for run in runs]
    paths = [path.parent if path.name == "curve.json" else path for path in paths]
    labels = [path.stem if path.suffix == ".json" else path.name for path in paths]
    return [run if labels.count(label) > 1 else label for run, label in zip(runs, labels, strict=True)]
