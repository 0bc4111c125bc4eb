"""Draw and save figures in a common style: themes, font sizes and file formats.

Training curves and all other plots use this style. matplotlib's settings are changed only within [`styled`].
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from .atomic_files import whole_file
from .user_errors import InputError, needing


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


DOTS_PER_INCH = 150
# A figure that would have more pixels than this gets fewer dots per inch, because renderers use four bytes per pixel.
_MOST_PIXELS = 100_000_000
FONT_SIZE = 10
SMALL_FONT_SIZE = 8
_POINTS_PER_INCH = 72
# DejaVu comes with matplotlib. The other fonts support scripts that it lacks, and they are used if they are installed.
_FONTS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Devanagari", "Unifont")
# The settings of matplotlib that have the theme's text color.
_SETTINGS_OF_TEXT_COLOR = (
    "text.color",
    "axes.labelcolor",
    "axes.edgecolor",
    "axes.titlecolor",
    "xtick.color",
    "xtick.labelcolor",
    "ytick.color",
    "ytick.labelcolor",
)
# A table for str.translate() that replaces invisible characters in labels, because XML, and therefore SVG, cannot
# contain most of them.
VISIBLE = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), 0xFFFE, 0xFFFF], "\N{REPLACEMENT CHARACTER}")
VISIBLE[ord("\n")] = "\N{RETURN SYMBOL}"
VISIBLE[ord("\t")] = "\N{RIGHTWARDS ARROW TO BAR}"


# The matplotlib layout engines that figures use.
Layout = Literal["constrained", "compressed"]


class Theme(NamedTuple):
    """The colors of a figure.

    The colors differ in lightness or come from the palette of Okabe and Ito, so that readers with any type of color
    vision can distinguish them.

    Args:
        background (`str`): the background color of the figure.
        text (`str`): the text color.
        faint (`str`): the color of lines in the background, such as grid lines.
        sequential (`tuple[str, ...]`): the colors for values from 0, which has the background color, up to the highest
            value.
        diverging (`tuple[str, ...]`): the colors for values from the lowest to the highest. The color in the middle is
            the background color, and it stands for 0.
        lines (`tuple[str, ...]`): the colors for categories, such as the lines of a plot.
    """

    background: str
    text: str
    faint: str
    sequential: tuple[str, ...]
    diverging: tuple[str, ...]
    lines: tuple[str, ...]


THEMES = {
    "light": Theme(
        background="#FFFFFF",
        text="#1A1A1A",
        faint="#BBBBBB",
        sequential=("#FFFFFF", "#A6D3EF", "#0072B2", "#002A44"),
        diverging=("#00395A", "#0072B2", "#FFFFFF", "#D55E00", "#6B2F00"),
        lines=("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    ),
    "dark": Theme(
        background="#14181D",
        text="#E8E8E8",
        faint="#5A626B",
        sequential=("#14181D", "#0E5A8A", "#56B4E9", "#FFF6D6"),
        diverging=("#8CD3FF", "#2A86C4", "#14181D", "#C77A00", "#FFC247"),
        lines=("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00"),
    ),
}


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ValueError unless an argument is one of the allowed choices."""
    if value not in choices:
        raise InputError(f'{name} is "{value}"; choose one of {", ".join(choices)}.')


def check_matplotlib() -> None:
    """Raise ImportError if matplotlib is missing. The message names the extra to install."""
    with needing("plots", "plots need"):
        import matplotlib  # noqa: F401


@contextmanager
def styled(theme: str) -> Iterator[Theme]:
    """Use a theme's fonts and colors for the duration of the block, and then restore all of matplotlib's settings.

    Raises:
        ImportError: if matplotlib is missing. The message names the extra to install.
        ValueError: if there is no such theme.
    """
    check_choice("theme", theme, tuple(THEMES))
    # This comes before the import, because its error names the extra to install.
    check_matplotlib()
    import matplotlib

    colors = THEMES[theme]
    with matplotlib.rc_context(_make_settings(colors)):
        yield colors


def _make_settings(colors: Theme) -> Any:
    """Return matplotlib's settings for a theme, by their names."""
    from cycler import cycler

    settings = {
        "font.family": _find_installed_fonts(),
        "font.size": FONT_SIZE,
        "axes.titlesize": FONT_SIZE,
        "axes.labelsize": FONT_SIZE,
        "figure.titlesize": FONT_SIZE + 2,
        # If this were True, matplotlib would typeset text between two dollar signs as a formula.
        "text.parse_math": False,
        "axes.prop_cycle": cycler(color=colors.lines),
        "grid.color": colors.faint,
        "grid.alpha": 0.5,
        "axes.facecolor": colors.background,
        "figure.facecolor": colors.background,
        "legend.facecolor": colors.background,
    }
    for name in _SETTINGS_OF_TEXT_COLOR:
        settings[name] = colors.text
    return settings


def _find_installed_fonts() -> list[str]:
    """Return those fonts of `_FONTS` that are installed, in the same order."""
    from matplotlib import font_manager

    installed = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in _FONTS if name in installed]


def new_figure(
    width: float,
    height: float,
    title: str = "",
    layout: Layout = "constrained",
) -> "Figure":
    """Return a new figure that is not shown in a window. Call this function within [`styled`].

    Args:
        width, height: the size in inches. If the title is wider, the width is increased.
        title: the title above the figure.
        layout: matplotlib's layout engine.
    """
    from matplotlib.figure import Figure

    # `Figure` does not open a window, unlike pyplot. The title's font is 2 points larger than other text, as `styled`
    # sets it, and the title has a margin of 0.2 inches on both sides.
    title_width = width_of([title], FONT_SIZE + 2) + 0.4
    figure = Figure(figsize=(max(width, title_width), height), layout=layout)
    if title:
        figure.suptitle(title)
    return figure


def draw_matrix(
    axes: "Axes", values: np.ndarray, queries: Sequence[str], keys: Sequence[str], size: float, colors: Sequence[str]
) -> "AxesImage":
    """Draw a matrix of values from 0 to 1 as an image, and return the image.

    Args:
        axes: the axes to draw on.
        values: the values, for example attention weights, `(queries, keys)`.
        queries, keys: the labels of the rows and of the columns.
        size: the font size of the labels, in points.
        colors: the colors of values from 0 to 1. Values in between get interpolated colors.
    """
    axes.set_yticks(range(len(queries)), queries, size=size)
    axes.set_xticks(range(len(keys)), keys, size=size, rotation=90)
    axes.tick_params(length=0)
    return axes.imshow(values, cmap=color_map(colors), vmin=0, vmax=1, interpolation="nearest")


def color_map(colors: Sequence[str]) -> "Colormap":
    """Return a matplotlib color map that interpolates between the given colors."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("theme", list(colors))


def readable_on(fill: Any, theme: Theme) -> str:
    """Return a text color that is readable on a fill color: the theme's text color or its background color.

    The color whose luminance differs more from the luminance of `fill` is chosen. `fill` is a color in any form that
    matplotlib accepts.
    """
    from matplotlib.colors import to_rgb

    # The weights of red, green and blue in the luminance of an sRGB color (Rec. 709).
    luminance_weights = np.array([0.2126, 0.7152, 0.0722])
    fill_luminance = np.dot(to_rgb(fill), luminance_weights)
    text_luminance = np.dot(to_rgb(theme.text), luminance_weights)
    background_luminance = np.dot(to_rgb(theme.background), luminance_weights)
    contrast_of_text = abs(text_luminance - fill_luminance)
    contrast_of_background = abs(background_luminance - fill_luminance)
    if contrast_of_text >= contrast_of_background:
        return theme.text
    return theme.background


def width_of(texts: Sequence[str], size: float = FONT_SIZE) -> float:
    """Return the width in inches of the widest of several texts, drawn in the current fonts.

    Args:
        texts: texts without line breaks.
        size: the font size in points.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    widest = 0.0
    for text in texts:
        width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
        widest = max(widest, width)
    return widest / _POINTS_PER_INCH


def check_format(path: str | os.PathLike[str]) -> str:
    """Return the format of a figure from its file's suffix, such as "svg". Without a suffix, the format is "png".

    Raises:
        ImportError: if matplotlib is missing. The message names the extra to install.
        ValueError: if matplotlib does not know the format, or if it needs TeX to write it.
    """
    check_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    file_format = Path(path).suffix.removeprefix(".").lower() or "png"
    # matplotlib needs TeX to write "pgf".
    formats = [name for name in FigureCanvasBase.get_supported_filetypes() if name != "pgf"]
    if file_format not in formats:
        raise InputError(
            f"{path} ends in .{file_format}, which is no format of figures; choose one of {', '.join(formats)}."
        )
    return file_format


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> Path:
    """Save a figure to a file, and return the file's path.

    The file appears only when it is complete. In SVG and PDF files, text can be selected and searched.

    Args:
        figure (`matplotlib.figure.Figure`): the figure to save.
        path (`str` or `PathLike`): the file. Its suffix determines the format, such as `.png`, `.svg` or `.pdf`. A file
            without a suffix is a PNG file.

    Raises:
        ValueError: if matplotlib does not know the format.
    """
    import matplotlib

    file_format = check_format(path)
    resolution = _choose_resolution(figure)
    # By default, SVG files have letters as outlines. In PDF files, 42 embeds fonts whose text is selectable.
    fonts_as_text: Any = {"svg.fonttype": "none", "pdf.fonttype": 42}
    with matplotlib.rc_context(fonts_as_text), whole_file(path, binary=True) as file:
        # A tight bounding box includes text that extends beyond the figure.
        figure.savefig(file, format=file_format, dpi=resolution, bbox_inches="tight")
    return Path(path)


def _choose_resolution(figure: "Figure") -> int:
    """Return the resolution in dots per inch, which is lower if a figure would have more than `_MOST_PIXELS` pixels."""
    width, height = figure.get_size_inches()
    # The number of pixels is width * height * resolution^2.
    largest_resolution = int(math.sqrt(_MOST_PIXELS / (width * height)))
    return min(DOTS_PER_INCH, largest_resolution)
