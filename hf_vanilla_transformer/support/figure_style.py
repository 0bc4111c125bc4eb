"""Style of all figures, the curve of a run and the pictures: themes, sizes, fonts, files.

No global setting of matplotlib changes.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .atomic_files import whole_file
from .user_errors import InputError, needing


DOTS_PER_INCH = 150
# Larger PNGs get fewer dots per inch: renderers hold four bytes for each.
_MOST_PIXELS = 100_000_000
FONT_SIZE = 10
SMALL_FONT_SIZE = 8
_POINTS_PER_INCH = 72
# DejaVu comes with matplotlib; the others have scripts that it lacks, where they are installed.
_FONTS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans Devanagari", "Unifont")
# Replacements in labels: XML, and so SVG, cannot contain most of these characters.
VISIBLE = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0), 0xFFFE, 0xFFFF], "\N{REPLACEMENT CHARACTER}")
VISIBLE |= {ord("\n"): "\N{RETURN SYMBOL}", ord("\t"): "\N{RIGHTWARDS ARROW TO BAR}"}


class Theme(NamedTuple):
    """The colours of a picture.

    They differ in lightness, or are of the palette of Okabe and Ito, so that readers with any colour vision tell them
    apart.

    Args:
        background, text, faint (`str`): of the figure, of its words, and of lines that only help.
        sequential (`tuple[str, ...]`): from 0, which is the background, to the highest value.
        diverging (`tuple[str, ...]`): from the lowest value over 0, which is the background, to the highest.
        lines (`tuple[str, ...]`): of categories.
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


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise ValueError if an argument is none of the values that it may have."""
    if value not in choices:
        raise InputError(f'{name} is "{value}"; choose one of {", ".join(choices)}.')


def check_matplotlib() -> None:
    """Raise ImportError, which names the extra to install, if matplotlib is missing."""
    with needing("plots", "plots need"):
        import matplotlib  # noqa: F401


@contextmanager
def styled(theme: str) -> Iterator[Theme]:
    """Draw with the fonts and the colours of a theme; afterwards all settings of matplotlib are as before.

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        ValueError: if there is no such theme.
    """
    check_choice("theme", theme, tuple(THEMES))
    check_matplotlib()
    import matplotlib
    from cycler import cycler
    from matplotlib import font_manager

    colours = THEMES[theme]
    installed = {font.name for font in font_manager.fontManager.ttflist}
    settings: Any = {
        "font.family": [name for name in _FONTS if name in installed],
        "font.size": FONT_SIZE,
        "axes.titlesize": FONT_SIZE,
        "axes.labelsize": FONT_SIZE,
        "figure.titlesize": FONT_SIZE + 2,
        "text.parse_math": False,  # Between two dollar signs matplotlib would read a formula.
        "axes.prop_cycle": cycler(color=colours.lines),
        "grid.color": colours.faint,
        "grid.alpha": 0.5,
        "axes.facecolor": colours.background,
        "figure.facecolor": colours.background,
        "legend.facecolor": colours.background,
    }
    settings |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor"), colours.text)
    settings |= {f"{axis}tick.{part}": colours.text for axis in "xy" for part in ("color", "labelcolor")}
    with matplotlib.rc_context(settings):
        yield colours


def new_figure(width: float, height: float, title: str = "", layout: Any = "constrained") -> Any:
    """A figure of this size in inches, wider for a longer title, which belongs to no window; call it in [`styled`]."""
    from matplotlib.figure import Figure

    width = max(width, width_of([title], FONT_SIZE + 2) + 0.4)
    figure = Figure(figsize=(width, height), layout=layout)
    if title:
        figure.suptitle(title)
    return figure


def draw_matrix(
    axes: Any, values: np.ndarray, queries: Sequence[str], keys: Sequence[str], size: float, colours: Sequence[str]
) -> Any:
    """Draw values from 0 to 1 of queries (rows) and keys as an image with their names; returns the image."""
    axes.set_yticks(range(len(queries)), queries, size=size)
    axes.set_xticks(range(len(keys)), keys, size=size, rotation=90)
    axes.tick_params(length=0)
    return axes.imshow(values, cmap=colour_map(colours), vmin=0, vmax=1, interpolation="nearest")


def colour_map(colours: Sequence[str]) -> Any:
    """A continuous map from values to colours."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("theme", list(colours))


def readable_on(fill: Any, theme: Theme) -> str:
    """The theme's colour of text or of the background: the one that differs more in luminance from a colour."""
    from matplotlib.colors import to_rgb

    luminance = np.array([to_rgb(each) for each in (fill, theme.text, theme.background)]) @ (0.2126, 0.7152, 0.0722)
    return theme.text if np.argmax(np.abs(luminance[1:] - luminance[0])) == 0 else theme.background


def width_of(texts: Sequence[str], size: float = FONT_SIZE) -> float:
    """The width of the widest text, in inches, as the current fonts draw it."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size)
    widths = [text_to_path.get_text_width_height_descent(text, font, ismath=False)[0] for text in texts]
    return max(widths, default=0.0) / _POINTS_PER_INCH


def check_format(path: str | os.PathLike[str]) -> str:
    """The format of a file, which its suffix determines; PNG without one.

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        ValueError: if matplotlib does not know the format, or needs TeX for it.
    """
    check_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    name = Path(path).suffix.removeprefix(".").lower() or "png"
    formats = [each for each in FigureCanvasBase.get_supported_filetypes() if each != "pgf"]  # It needs TeX.
    if name not in formats:
        raise InputError(f"{path} ends in .{name}, which is no format of figures; choose one of {', '.join(formats)}.")
    return name


def save_figure(figure: Any, path: str | os.PathLike[str]) -> Path:
    """Write a figure as a whole file; in SVG and PDF text stays text.

    Args:
        figure (`matplotlib.figure.Figure`): what to write.
        path (`str` or `PathLike`): the file; its suffix determines the format: `.png`, `.svg`, `.pdf`, ...; PNG
            without one.

    Raises:
        ValueError: if matplotlib does not know the format.
    """
    import matplotlib

    target, kind, (width, height) = Path(path), check_format(path), figure.get_size_inches()
    dots = min(DOTS_PER_INCH, int(math.sqrt(_MOST_PIXELS / (width * height))))
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "pdf.fonttype": 42}),
        whole_file(target, binary=True) as file,
    ):
        # Tight, because text may be wider than its place.
        figure.savefig(file, format=kind, dpi=dots, bbox_inches="tight")
    return target
