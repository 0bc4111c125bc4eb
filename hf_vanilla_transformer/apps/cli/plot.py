"""Draw a figure to a file: `plot FIGURE ... --output FILE`. The suffix of FILE decides the format (.png, .svg, .pdf).

attention      attention weights for a sentence and its translation
positions      position encodings, and their dot products
schedule       learning rate schedule (Equation 3)
masks          padding and look-ahead masks of a batch
probabilities  log-probability of each token in a translation
curve          loss, perplexity, token accuracy and BLEU of training runs

hf-vanilla-transformer plot curve runs/mine
hf-vanilla-transformer plot attention --model_name_or_path runs/mine "two dogs"
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ...support.build_arguments import option
from ...support.output_files import check_can_write
from ...support.user_errors import InputError
from ...support.version import __version__
from ...translation.decoding_arguments import DecodingArguments
from ...translation.loading_arguments import LoadingArguments
from . import PROGRAM
from .parser import parse, program
from .shared_options import load_tokenizer_and_model


if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The default sentences, for the model that `demo` trains. There are two, because one alone would have no padding.
_DEFAULT_SENTENCES = ("seven", "forty-two")


@dataclass
class FileArguments:
    """Command-line arguments for the figure's file and its colors."""

    _argument_group_name = "file"

    output: str | None = option(None, "File to write; by default the figure's name and .png, in this folder.")
    theme: Literal["light", "dark"] = option("light", "Colors.")


@dataclass
class MaskArguments:
    """Draw the attention masks for a batch of sentences (by default "seven" and "forty-two") and their translations.

    hf-vanilla-transformer plot masks --model_name_or_path runs/mine "two dogs" "a cat"
    hf-vanilla-transformer plot masks --model_name_or_path runs/mine "two dogs" --target "zwei Hunde"
    """

    texts: list[str] = option([], "Sentences.", positional=True)
    target: list[str] | None = option(None, "Translations to draw instead of the model's own, one for each sentence.")

    def draw(self, theme: str, model_args: LoadingArguments, decoding: DecodingArguments) -> "Figure":
        """Load the model, and draw the figure for the model's own translations, or for the translations in `target`."""
        # The options that are given on the command line, such as the number of beams.
        decoding_options = decoding.generate_kwargs()
        # This raises InputError if decoding options are given together with translations in `target`.
        self._check_no_decoding_of_target(decoding_options)
        plot = self.import_plot_function()
        texts = self.choose_texts()
        # The options that only some figures have, such as `layer`.
        style_options = self._list_style_options()
        # The model is loaded after all checks, because loading takes longer.
        tokenizer, model = load_tokenizer_and_model(model_args)
        return plot(model, tokenizer, texts, self.target, theme=theme, **style_options, **decoding_options)

    def _check_no_decoding_of_target(self, decoding_options: Mapping[str, Any]) -> None:
        """Raise InputError if decoding options are given together with `target`, because nothing is decoded then."""
        if self.target is not None and decoding_options:
            first_option = next(iter(decoding_options))
            raise InputError(f"--{first_option} has no effect with --target; leave out one of the two.")

    def _list_style_options(self) -> dict[str, Any]:
        """Return the fields that subclasses add, such as `layer`. Each is an argument of the plot function."""
        style_options = asdict(self)
        style_options.pop("texts")
        style_options.pop("target")
        return style_options

    def import_plot_function(self) -> Callable[..., "Figure"]:
        """Import the function that draws the figure. It is not imported at the top, because --help does not need it."""
        from ..pictures import plot_masks

        return plot_masks

    def choose_texts(self) -> str | Sequence[str]:
        """Return the sentences to draw, or the default sentences if none are given."""
        return self.texts or _DEFAULT_SENTENCES


@dataclass
class ProbabilityArguments(MaskArguments):
    """Draw the log-probability of each token in the translation of a sentence (by default "forty-two").

    hf-vanilla-transformer plot probabilities --model_name_or_path runs/mine "two dogs"
    hf-vanilla-transformer plot probabilities --model_name_or_path runs/mine "two dogs" --target "zwei Hunde"
    """

    texts: list[str] = option([], "A sentence.", positional=True)
    target: str | None = option(  # type: ignore[assignment]
        None, "Its translation, to draw instead of the model's own."
    )

    def import_plot_function(self) -> Callable[..., "Figure"]:
        """Import the function that draws the figure."""
        from ..pictures import plot_token_probabilities

        return plot_token_probabilities

    def choose_texts(self) -> str:
        """Return the sentence to draw, or the default if none is given. Raises InputError if several are given."""
        if len(self.texts) > 1:
            raise InputError(
                f"{len(self.texts)} sentences are given; the figure shows one, so put it in quotation marks."
            )
        if self.texts:
            return self.texts[0]
        # The longer one of the default sentences gives the more interesting figure.
        return _DEFAULT_SENTENCES[-1]


@dataclass
class AttentionArguments(ProbabilityArguments):
    """Draw the attention weights for a sentence (by default "forty-two") and its translation.

    hf-vanilla-transformer plot attention --model_name_or_path runs/mine "two dogs"
    hf-vanilla-transformer plot attention --model_name_or_path runs/mine "two dogs" --style lines --layer 1 --head 2
    """

    kind: Literal["encoder", "decoder", "cross"] = option(
        "cross", "Self-attention of the encoder or of the decoder, or cross-attention."
    )
    style: Literal["lines", "matrix", "heads", "layers"] | None = option(
        None,
        "lines (between words) and matrix show one head, heads all heads of a layer, and layers all heads of all "
        "layers. By default heads, or matrix with --head.",
    )
    layer: int | None = option(None, "Counted from 0; by default the last.")
    head: int | None = option(None, "Counted from 0; by default the first.")

    def import_plot_function(self) -> Callable[..., "Figure"]:
        """Import the function that draws the figure."""
        from ..pictures import plot_attention

        return plot_attention


@dataclass
class PositionArguments(LoadingArguments):
    """Draw the position encodings (section 3.5), and the dot products between them.

    hf-vanilla-transformer plot positions --length 200 --d_model 64
    hf-vanilla-transformer plot positions --model_name_or_path runs/mine
    """

    _argument_group_name = "positions"

    model_name_or_path: str | None = option(  # type: ignore[assignment]
        None, "A model whose positions to draw, such as learned ones."
    )
    length: int = option(100, "Number of positions, at most 2,000.")
    d_model: int | None = option(None, "Width without a model; by default the paper's 512.")

    def draw(self, theme: str) -> "Figure":
        """Draw the positions of the model, or the paper's sinusoids if no model is given."""
        from ..pictures import plot_positions

        model = None
        if self.model_name_or_path is not None:
            _, model = load_tokenizer_and_model(self)
        else:
            # This raises InputError if an option about loading a model is given, such as its device.
            self._check_no_model_options()
        return plot_positions(model, length=self.length, d_model=self.d_model, theme=theme)

    def _check_no_model_options(self) -> None:
        """Raise InputError if an option about loading a model is given."""
        for name in ("revision", "token", "trust_remote_code", "device"):
            if getattr(self, name):
                raise InputError(f"--{name} has no effect without --model_name_or_path; give both, or leave it out.")


@dataclass
class ScheduleArguments:
    """Draw the learning rate schedule (Equation 3) for each combination of d_model and number of warm-up updates.

    hf-vanilla-transformer plot schedule
    hf-vanilla-transformer plot schedule --d_model 512 --warmup_steps 1000 4000
    """

    d_model: list[int] = option([256, 512, 1024], "Widths of models.")
    warmup_steps: list[int] = option([4000, 8000], "Warm-up updates.")
    updates: int = option(20_000, "Length of the axis.")

    def draw(self, theme: str) -> "Figure":
        """Draw the learning rate curves."""
        from ..pictures import plot_schedule

        return plot_schedule(**asdict(self), theme=theme)


@dataclass
class CurveArguments:
    """Draw the loss, perplexity, token accuracy and BLEU of training runs. Name their folders, curve.json files or
    result files.

    hf-vanilla-transformer plot curve runs/mine
    hf-vanilla-transformer plot curve runs/one runs/two --output curves.svg
    """

    runs: list[str] = option([], "Folders of runs, their curve.json files, or their result files.", positional=True)

    def draw(self, theme: str) -> "Figure":
        """Draw the curves of all runs. Raises InputError if no run is given, or if a run is given twice."""
        if not self.runs:
            raise InputError("no run is given; name the folder of at least one.")
        from ...evaluation.curve_files import read_curve
        from ...evaluation.plot_curve import plot_curve

        labels = label_runs(self.runs)
        curves = {label: read_curve(run) for label, run in zip(labels, self.runs, strict=True)}
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
    """Draw the figure that the first argument names, and return its path. Returns None for `--help` and `--version`."""
    figure = arguments[0] if arguments else "--help"
    if figure in FIGURES:
        return draw(figure, arguments[1:])
    if figure in ("-h", "--help"):
        print(f"usage: {PROGRAM} plot {{{','.join(FIGURES)}}} ... [--name value ...]\n\n{__doc__}")
        return None
    if figure == "--version":
        print(f"{PROGRAM} {__version__}")
        return None
    raise InputError(f'"{figure}" is not a figure; use one of {", ".join(FIGURES)}.')


def draw(figure: str, arguments: list[str]) -> Path:
    """Draw a figure with the settings of the command line, and return the path of its file.

    If the file cannot be written, an error is raised before the figure is drawn.
    """
    figure_class = FIGURES[figure]
    args = parse(_combine_argument_classes(figure_class), figure_class.__doc__, arguments, f"plot {figure}")
    output = _choose_output(args.file, figure)
    # `args` is a tuple of all argument objects.
    check_can_write(output, inputs=_list_inputs(args))
    # This is not imported at the top, because --help does not need it.
    from ...support.figure_style import check_format, save_figure

    check_format(output)
    # Only figures of translations have arguments for the model and for decoding.
    if _draws_translations(figure_class):
        drawing = args.figure.draw(args.file.theme, args.model, args.decoding)
    else:
        drawing = args.figure.draw(args.file.theme)
    path = save_figure(drawing, output)
    print(f"the plot is in {path}")
    return path


def _choose_output(file_args: FileArguments, figure: str) -> str:
    """Return the path of the file to write, by default the figure's name and .png."""
    if file_args.output is None:
        return f"{figure}.png"
    return file_args.output


def _list_inputs(all_arguments: Iterable[object]) -> list[str | Path]:
    """List the models and the files of training runs that a figure's arguments name.

    `all_arguments` contains an instance of each class of arguments that the figure has.
    """
    inputs: list[str | Path] = []
    for arguments in all_arguments:
        if isinstance(arguments, LoadingArguments) and arguments.model_name_or_path is not None:
            inputs.append(arguments.model_name_or_path)
        if isinstance(arguments, CurveArguments):
            inputs.extend(_find_file_of_run(run) for run in arguments.runs)
    return inputs


def _find_file_of_run(run: str) -> Path:
    """Return the file of a run, which is named either by the file itself or by its folder."""
    path = Path(run)
    if path.is_dir():
        return path / "curve.json"
    return path


def _combine_argument_classes(figure_class: type) -> Any:
    """Create a `NamedTuple` type that combines all classes of command-line arguments that a figure has.

    Only figures of translations have arguments for the model and for decoding.
    """
    fields: list[tuple[str, type]] = [("figure", figure_class), ("file", FileArguments)]
    if _draws_translations(figure_class):
        fields.append(("model", LoadingArguments))
        fields.append(("decoding", DecodingArguments))
    return NamedTuple("Arguments", fields)


def _draws_translations(figure_class: type) -> bool:
    """Return True if a figure shows translations, so that it needs a model and decoding settings."""
    # The classes of all figures of translations derive from this one.
    return issubclass(figure_class, MaskArguments)


def label_runs(runs: Sequence[str]) -> list[str]:
    """Return a legend label for each run: the name of its folder or file, or the whole path if two runs share a name.

    Raises InputError if a run is given twice.
    """
    if len(set(runs)) < len(runs):
        raise InputError(f"a run is given twice: {' '.join(runs)}; name each once.")
    # The paths are resolved so that a run such as "." has a name.
    names = [_name_run(Path(run).resolve()) for run in runs]
    labels = []
    for run, name in zip(runs, names, strict=True):
        has_unique_name = names.count(name) == 1
        labels.append(name if has_unique_name else run)
    return labels


def _name_run(path: Path) -> str:
    """Return the name of a run's folder, or the name of its result file without the suffix."""
    if path.name == "curve.json":
        # curve.json lies in the folder of its run, so the folder's name identifies the run.
        path = path.parent
    return path.stem if path.suffix == ".json" else path.name
