"""Draw attention weights, as lines between tokens as in the paper's Figures 3 to 5, or as a matrix for each head."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...support.argument_checks import check_number
from ...support.figure_style import (
    FONT_SIZE,
    SMALL_FONT_SIZE,
    Theme,
    check_choice,
    color_map,
    draw_matrix,
    new_figure,
    readable_on,
    styled,
    width_of,
)
from ...support.user_errors import InputError
from .forward_pass import KINDS, forward_pass


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

STYLES = ("lines", "matrix", "heads", "layers")
_STACKS = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}
_TITLES = {"encoder": "Encoder self-attention", "decoder": "Decoder self-attention", "cross": "Cross-attention"}
_QUERY_LABELS = {"encoder": "source (query)", "decoder": "written next (query)", "cross": "written next (query)"}
_KEY_LABELS = {"encoder": "source (key)", "decoder": "read so far (key)", "cross": "source (key)"}
# Sizes in inches. Cells with numbers are larger than cells without, and the cells of a sheet with many heads are the
# smallest.
_CELL = 0.24
_CELL_WITH_NUMBER = 0.42
_CELL_OF_SHEET = 0.14
_SMALLEST_PANEL = 0.9
_PANEL_GAP = 0.15
_PANEL_TITLE_HEIGHT = 0.3
_COLOR_BAR_WIDTH = 0.3
_LINE_HEIGHT = 0.26
_WIDTH_OF_LINES = 2.6
_MARGIN = 1.3
_WIDTH_OF_SHEET = 14.0
# The widths of the lines for the weights 0 and 1, in points. A weight of 0 still has a visible line.
_NARROWEST_LINE = 0.5
_WIDEST_LINE = 3.5
# A matrix of at most this many cells shows its numbers.
_MOST_NUMBERS = 200
_MOST_HEADS_IN_A_ROW = 4


@dataclass(frozen=True)
class _Drawing:
    """The content of a figure: attention weights, and the tokens and labels to show with them.

    Args:
        weights (`np.ndarray` of shape `(queries, keys)`, or `(layers, heads, queries, keys)` for a sheet): the weights.
        queries, keys (`Sequence[str]`): the tokens that label the rows and the columns.
        query_label, key_label (`str`): the labels of the axes.
        title (`str`): the title of the figure.
        theme (`Theme`): the colors.
    """

    weights: np.ndarray
    queries: Sequence[str]
    keys: Sequence[str]
    query_label: str
    key_label: str
    title: str
    theme: Theme


class _Size(NamedTuple):
    """The size of a figure in inches."""

    width: float
    height: float


class _Panel(NamedTuple):
    """One head in a sheet of many heads, with its title and its place."""

    layer: int
    head: int
    title: str
    is_first_in_row: bool
    is_last_in_column: bool


def plot_attention(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    *,
    kind: str = "cross",
    style: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    theme: str = "light",
    **generate_kwargs: Any,
) -> "Figure":
    """Draw the attention weights of a sentence pair, or of a sentence and the model's own translation.

    Queries are the rows of a matrix, or the tokens on the left side of the lines. In the decoder, a query is labeled
    with the token that the decoder generates at this position. A key of decoder self-attention is labeled with the
    token that the decoder reads at this position.

    Args:
        model (`PreTrainedModel`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        source (`str`): a sentence.
        target (`str`, *optional*): its translation; by default, the model's own.
        kind (`str`): `"encoder"` or `"decoder"` for self-attention, or `"cross"` for cross-attention (section 3.2.3).
        style (`str`, *optional*): `"lines"` draws one head as lines between two columns of tokens (Figures 3 to 5);
            `"matrix"` draws one head as a matrix; `"heads"` draws all heads of a layer; `"layers"` draws all heads of
            all layers. The default is `"heads"`, or `"matrix"` if a head is given.
        layer, head (`int`, *optional*): counted from 0. The defaults are the last layer and the first head.
        theme (`str`): `"light"` or `"dark"`.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Returns:
        `matplotlib.figure.Figure`: a figure whose size depends on the lengths of the sentences.

    Raises:
        ImportError: if matplotlib is missing.
        TypeError, ValueError: as `forward_pass` does; if `kind`, `style` or `theme` is unknown, the model has no such
            layer or head, or a layer or head is given although the style draws all of them.
    """
    chosen_style = _choose_style(style, head)
    # Wrong arguments are reported before the model runs.
    check_choice("kind", kind, KINDS)
    _check_style(chosen_style, layer, head)

    pair = forward_pass(model, tokenizer, source, target, **generate_kwargs)
    queries, keys = pair.query_and_key_tokens(kind)
    all_weights = pair.weights(kind)  # (layers, heads, queries, keys)
    num_layers, num_heads = all_weights.shape[:2]
    layer_index = _choose_index("layer", layer, num_layers, default=num_layers - 1)
    head_index = _choose_index("head", head, num_heads, default=0)
    with styled(theme) as colors:
        drawing = _Drawing(
            weights=_select_weights(all_weights, chosen_style, layer_index, head_index),
            queries=queries,
            keys=keys,
            query_label=_QUERY_LABELS[kind],
            key_label=_KEY_LABELS[kind],
            title=_write_title(kind, chosen_style, layer_index, head_index),
            theme=colors,
        )
        return _draw_in_style(drawing, chosen_style)


def _choose_style(style: str | None, head: int | None) -> str:
    """Return the given style; without one, the style for the given head or for all heads of a layer."""
    if style:
        return style
    if head is None:
        return "heads"
    return "matrix"


def _choose_index(name: str, index: int | None, count: int, default: int) -> int:
    """Return the index of a layer or head, or the default if it is None. Raise ValueError if it is out of range."""
    chosen_index = default if index is None else index
    check_number(name, chosen_index, 0, count - 1)
    return chosen_index


def _select_weights(all_weights: np.ndarray, style: str, layer: int, head: int) -> np.ndarray:
    """Return the weights that a style draws, from the weights `(layers, heads, queries, keys)` of all heads.

    They have the shape `(layers, heads, queries, keys)` for a sheet, and `(queries, keys)` for a single head.
    """
    if style == "layers":
        return all_weights
    if style == "heads":
        # The slice keeps the axis of layers.
        return all_weights[layer : layer + 1]
    return all_weights[layer, head]


def _write_title(kind: str, style: str, layer: int, head: int) -> str:
    """Return the title of a figure, such as "Cross-attention, decoder.layers[5], head 0"."""
    title = _TITLES[kind]
    if style == "layers":
        return title
    title_of_layer = f"{title}, {_STACKS[kind]}.layers[{layer}]"
    if style == "heads":
        return title_of_layer
    return f"{title_of_layer}, head {head}"


def _draw_in_style(drawing: _Drawing, style: str) -> "Figure":
    """Draw the figure of a style, for weights from `_select_weights`."""
    if style == "lines":
        return _draw_lines(drawing)
    if style == "matrix":
        return _draw_one_matrix(drawing)
    return _draw_sheet(drawing, has_layers=style == "layers")


def _check_style(style: str, layer: int | None, head: int | None) -> None:
    """Raise ValueError if a style is unknown, or if it draws all layers or heads although the caller chose one."""
    check_choice("style", style, STYLES)
    if style in ("heads", "layers") and head is not None:
        raise InputError(f'head is {head}, but the style "{style}" draws all heads; choose "lines" or "matrix".')
    if style == "layers" and layer is not None:
        raise InputError(f'layer is {layer}, but the style "layers" draws all layers; choose "heads" for one.')


def _draw_lines(drawing: _Drawing) -> "Figure":
    """Draw one head's weights as lines between two columns of tokens. The larger the weight, the wider the line.

    The weights have the shape `(queries, keys)`. The queries are on the left, and the keys on the right.
    """
    num_queries, num_keys = drawing.weights.shape
    num_rows = max(num_queries, num_keys)
    size = _measure_lines(drawing, num_rows)
    figure = new_figure(size.width, size.height, drawing.title)
    query_axes = figure.add_subplot()

    query_heights = _center_column(num_queries, num_rows)
    key_heights = _center_column(num_keys, num_rows)
    lines = _make_lines(drawing, query_heights, key_heights)
    query_axes.add_collection(lines)

    # A second axis on the right shows the tokens of the keys.
    key_axes = query_axes.twinx()
    _label_column(query_axes, num_rows, query_heights, drawing.queries, drawing.query_label)
    _label_column(key_axes, num_rows, key_heights, drawing.keys, drawing.key_label)
    _add_color_bar(figure, lines, [query_axes, key_axes])
    return figure


def _measure_lines(drawing: _Drawing, num_rows: int) -> _Size:
    """Return the size of a figure with lines between two columns of tokens, of which the longer has `num_rows`."""
    # The widest token of each column determines the width of its labels.
    label_width = width_of(drawing.queries) + width_of(drawing.keys)
    width = _WIDTH_OF_LINES + label_width + 2 * _MARGIN
    height = num_rows * _LINE_HEIGHT + _MARGIN
    return _Size(width, height)


def _center_column(num_tokens: int, num_rows: int) -> np.ndarray:
    """Return the vertical position of each token of a column, in rows, such that the column is centered."""
    return (num_rows - num_tokens) / 2 + np.arange(num_tokens)


def _make_lines(drawing: _Drawing, query_heights: np.ndarray, key_heights: np.ndarray) -> "LineCollection":
    """Return a line for each pair of a query and a key, whose width and color show the pair's weight.

    Args:
        drawing (`_Drawing`): the content, with weights of shape `(queries, keys)`.
        query_heights, key_heights (`np.ndarray`): the vertical position of each token, in rows.
    """
    from matplotlib.collections import LineCollection

    # The lines with the largest weights are drawn last, so that no other line covers them.
    order = np.argsort(drawing.weights, axis=None)
    queries, keys = np.unravel_index(order, drawing.weights.shape)
    sorted_weights = drawing.weights[queries, keys]
    end_points = []
    for query, key in zip(queries, keys, strict=True):
        # The column of queries has the horizontal position 0, and the column of keys has 1.
        left_end = (0, query_heights[query])
        right_end = (1, key_heights[key])
        end_points.append([left_end, right_end])
    return LineCollection(
        end_points,
        array=sorted_weights,
        cmap=color_map(drawing.theme.sequential),
        linewidths=_NARROWEST_LINE + (_WIDEST_LINE - _NARROWEST_LINE) * sorted_weights,
        capstyle="round",
        # The limits of the colors. Weights lie between 0 and 1.
        clim=(0, 1),
    )


def _label_column(axes: "Axes", num_rows: int, heights: np.ndarray, words: Sequence[str], label: str) -> None:
    """Write the tokens and the axis label of one column next to the lines."""
    # The larger vertical limit comes first, so the axis points down and the first row is at the top.
    axes.set(xlim=(-0.02, 1.02), ylim=(num_rows - 0.5, -0.5), xticks=[], ylabel=label)
    axes.set_yticks(heights, words)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_one_matrix(drawing: _Drawing) -> "Figure":
    """Draw one head's weights as a matrix. If the matrix is small, each cell also shows its number."""
    has_numbers = drawing.weights.size <= _MOST_NUMBERS
    size = _measure_matrix(drawing, has_numbers)
    figure = new_figure(size.width, size.height, drawing.title, layout="compressed")
    axes = figure.add_subplot()
    image = draw_matrix(axes, drawing.weights, drawing.queries, drawing.keys, FONT_SIZE, drawing.theme.sequential)
    axes.set(xlabel=drawing.key_label, ylabel=drawing.query_label)
    if has_numbers:
        _write_numbers(axes, image, drawing)
    _add_color_bar(figure, image, [axes])
    return figure


def _measure_matrix(drawing: _Drawing, has_numbers: bool) -> _Size:
    """Return the size of a figure with one matrix."""
    num_queries, num_keys = drawing.weights.shape
    cell_size = _CELL_WITH_NUMBER if has_numbers else _CELL
    width = num_keys * cell_size + width_of(drawing.queries) + 2 * _MARGIN
    # The labels of the keys are rotated, so the width of their text adds to the height.
    height = num_queries * cell_size + width_of(drawing.keys) + _MARGIN
    return _Size(width, height)


def _write_numbers(axes: "Axes", image: "ScalarMappable", drawing: _Drawing) -> None:
    """Write each weight into its cell of a matrix, whose colors are those of `image`."""
    for (query, key), weight in np.ndenumerate(drawing.weights):
        # `to_rgba` returns red, green, blue and opacity.
        cell_color = image.to_rgba(weight)[:3]
        text_color = readable_on(cell_color, drawing.theme)
        # The key is the column, x, and the query is the row, y. With 7 points, the number fits into the cell.
        axes.text(key, query, f"{weight:.2f}", size=7, color=text_color, ha="center", va="center")


def _draw_sheet(drawing: _Drawing, has_layers: bool) -> "Figure":
    """Draw a grid of small matrices, one for each head, with the query tokens to the left of each row.

    Args:
        drawing (`_Drawing`): the content, with weights of shape `(layers, heads, queries, keys)`.
        has_layers (`bool`): if True, each row of the sheet is a layer; if False, there is one layer, whose heads are
            divided among the rows.
    """
    num_layers, num_heads, _, num_keys = drawing.weights.shape
    num_columns = num_heads if has_layers else _choose_columns(num_heads, _side_of_panel(num_keys))
    panels = _list_panels(num_layers, num_heads, num_columns, has_layers)
    figure, grid = _new_sheet(drawing, len(panels), num_columns)
    # The places of the sheet, row by row. The last row may have empty places at its end.
    all_axes = list(grid.flat)
    for unused_axes in all_axes[len(panels) :]:
        unused_axes.set_axis_off()

    images = []
    for axes, panel in zip(all_axes, panels, strict=False):
        images.append(_draw_panel(axes, panel, drawing))
    figure.supylabel(drawing.query_label, size=SMALL_FONT_SIZE)
    # All panels have the same range of colors, so one image can stand for all of them.
    _add_color_bar(figure, images[-1], all_axes)
    return figure


def _list_panels(num_layers: int, num_heads: int, num_columns: int, has_layers: bool) -> list[_Panel]:
    """Return the panels of a sheet, row by row: all heads of the first layer, then all of the second, and so on."""
    num_panels = num_layers * num_heads
    panels = []
    for index, (layer, head) in enumerate(np.ndindex(num_layers, num_heads)):
        title = f"layers[{layer}], head {head}" if has_layers else f"head {head}"
        is_first_in_row = index % num_columns == 0
        is_last_in_column = index + num_columns >= num_panels
        panels.append(_Panel(layer, head, title, is_first_in_row, is_last_in_column))
    return panels


def _draw_panel(axes: "Axes", panel: _Panel, drawing: _Drawing) -> "ScalarMappable":
    """Draw the matrix of one head in a sheet, and return its image."""
    axes.set_title(panel.title, size=SMALL_FONT_SIZE)
    query_labels = drawing.queries if panel.is_first_in_row else []
    weights = drawing.weights[panel.layer, panel.head]  # (queries, keys)
    image = draw_matrix(axes, weights, query_labels, drawing.keys, SMALL_FONT_SIZE, drawing.theme.sequential)
    if panel.is_last_in_column:
        axes.set_xlabel(drawing.key_label, size=SMALL_FONT_SIZE)
    return image


def _new_sheet(drawing: _Drawing, num_panels: int, num_columns: int) -> "tuple[Figure, np.ndarray]":
    """Return a new figure for a sheet, and its grid of axes `(rows, columns)`, with one panel per axes."""
    num_rows = math.ceil(num_panels / num_columns)
    size = _measure_sheet(drawing, num_rows, num_columns)
    figure = new_figure(size.width, size.height, drawing.title, layout="compressed")
    grid = figure.subplots(num_rows, num_columns, squeeze=False)
    return figure, grid


def _measure_sheet(drawing: _Drawing, num_rows: int, num_columns: int) -> _Size:
    """Return the size of a sheet, which is large enough for its panels and their labels."""
    num_queries, num_keys = drawing.weights.shape[-2:]
    # The labels of the queries stand once in each row, at the left.
    column_width = _side_of_panel(num_keys) + _PANEL_GAP
    query_label_width = width_of(drawing.queries, SMALL_FONT_SIZE)
    width = num_columns * column_width + query_label_width + _MARGIN + _COLOR_BAR_WIDTH
    # The labels of the keys stand below each panel. They are rotated, so their height is the width of the text.
    key_label_height = width_of(drawing.keys, SMALL_FONT_SIZE)
    row_height = _side_of_panel(num_queries) + key_label_height + _PANEL_TITLE_HEIGHT
    height = num_rows * row_height + _MARGIN / 2
    return _Size(width, height)


def _side_of_panel(num_tokens: int) -> float:
    """Return the width (or height) in inches of a panel with the given number of keys (or queries)."""
    return max(num_tokens * _CELL_OF_SHEET, _SMALLEST_PANEL)


def _choose_columns(num_heads: int, panel_width: float) -> int:
    """Return the number of columns for the panels of one layer's heads, such that there are as few rows as possible.

    Among the numbers with equally few rows, the smallest is chosen, because it leaves the fewest empty places. For
    example, if at most 4 columns fit, 6 heads get 3 columns in 2 rows.
    """
    columns_that_fit = max(1, int(_WIDTH_OF_SHEET / panel_width))
    most_columns = min(num_heads, _MOST_HEADS_IN_A_ROW, columns_that_fit)
    fewest_rows = math.ceil(num_heads / most_columns)
    return math.ceil(num_heads / fewest_rows)


def _add_color_bar(figure: "Figure", drawn: "ScalarMappable", axes: "Sequence[Axes]") -> None:
    """Add a color bar next to the given axes. It shows which color stands for which attention weight."""
    bar = figure.colorbar(drawn, ax=axes, label="attention weight", fraction=0.05, aspect=30, shrink=0.9)
    bar.outline.set_visible(False)
