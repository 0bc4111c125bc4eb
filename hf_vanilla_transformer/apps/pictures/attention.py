"""Attention weights as in the paper's Figures 3 to 5: lines between words, and matrices of one head or of many."""

import math
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...support.argument_checks import check_number
from ...support.figure_style import (
    FONT_SIZE,
    SMALL_FONT_SIZE,
    Theme,
    check_choice,
    colour_map,
    draw_matrix,
    new_figure,
    readable_on,
    styled,
    width_of,
)
from ...support.user_errors import InputError
from .forward_pass import KINDS, forward_pass


STYLES = ("lines", "matrix", "heads", "layers")
_STACKS = {"encoder": "encoder", "decoder": "decoder", "cross": "decoder"}
_TITLES = {"encoder": "Encoder self-attention", "decoder": "Decoder self-attention", "cross": "Cross-attention"}
_QUERIES = {"encoder": "source (query)", "decoder": "written next (query)", "cross": "written next (query)"}
_KEYS = {"encoder": "source (key)", "decoder": "read so far (key)", "cross": "source (key)"}
# Inches.
_CELL, _CELL_WITH_NUMBER, _CELL_OF_SHEET = 0.24, 0.42, 0.14
_LINE_HEIGHT, _WIDTH_OF_LINES, _MARGIN = 0.26, 2.6, 1.3
# A matrix of at most so many cells has its numbers.
_MOST_NUMBERS = 200
_MOST_HEADS_IN_A_ROW, _WIDTH_OF_SHEET = 4, 14.0
# The tokens of the queries and of the keys.
_Words = tuple[list[str], list[str]]


def plot_attention(
    model: Any,
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
) -> Any:
    """Draw the attention weights of a sentence pair, or of a sentence and the model's own translation.

    Rows, and the words on the left of lines, are queries. In the decoder a query has the name of the token that it
    writes, and a key of self-attention that of the token that the decoder read at its position.

    Args:
        model (`PreTrainedModel`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        source (`str`): a sentence.
        target (`str`, *optional*): its translation; by default the model's own.
        kind (`str`): `"encoder"` or `"decoder"` self-attention, or `"cross"` (section 3.2.3).
        style (`str`, *optional*): `"lines"` between two columns of words (Figures 3 to 5), or `"matrix"`, of one head;
            `"heads"`, all heads of a layer; `"layers"`, all heads of all layers. By default `"heads"`, or `"matrix"`
            if a head is given.
        layer, head (`int`, *optional*): counted from 0; by default the last layer, and the first head.
        theme (`str`): `"light"` or `"dark"`.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Returns:
        `matplotlib.figure.Figure`: as large as the sentences need.

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        TypeError, ValueError: as `forward_pass` does; if `kind`, `style` or `theme` is unknown, the model has no such
            layer or head, or one is given that the style does not draw.
    """
    style = style or ("heads" if head is None else "matrix")
    check_choice("kind", kind, KINDS)
    check_choice("style", style, STYLES)
    if style in ("heads", "layers") and head is not None:
        raise InputError(f'head is {head}, but the style "{style}" draws all heads; choose "lines" or "matrix".')
    if style == "layers" and layer is not None:
        raise InputError(f'layer is {layer}, but the style "layers" draws all layers; choose "heads" for one.')
    found = forward_pass(model, tokenizer, source, target, **generate_kwargs)
    weights, words, title = getattr(found, kind), found.words(kind), _TITLES[kind]
    layer = len(weights) - 1 if layer is None else layer
    check_number("layer", layer, 0, len(weights) - 1)
    check_number("head", head or 0, 0, weights.shape[1] - 1)
    with styled(theme) as colours:
        if style == "layers":
            return _sheet(weights, words, kind, title, colours, has_layers=True)
        title += f", {_STACKS[kind]}.layers[{layer}]"
        if style == "heads":
            return _sheet(weights[layer : layer + 1], words, kind, title, colours, has_layers=False)
        draw = _lines if style == "lines" else _matrix
        return draw(weights[layer, head or 0], words, kind, f"{title}, head {head or 0}", colours)


def _lines(weights: np.ndarray, words: _Words, kind: str, title: str, theme: Theme) -> Any:
    """Weights `(queries, keys)` of a head as lines between two columns of words."""
    from matplotlib.collections import LineCollection

    rows = max(weights.shape)
    width = _WIDTH_OF_LINES + sum(map(width_of, words)) + 2 * _MARGIN
    figure = new_figure(width, rows * _LINE_HEIGHT + _MARGIN, title)
    axes = figure.add_subplot()
    # Each column is centred.
    places = [(rows - count) / 2 + np.arange(count) for count in weights.shape]
    order = np.argsort(weights, axis=None)  # The strongest are drawn last.
    lines = LineCollection(
        [
            [(0, places[0][row]), (1, places[1][key])]
            for row, key in zip(*np.unravel_index(order, weights.shape), strict=True)
        ],
        array=weights.ravel()[order],
        cmap=colour_map(theme.sequential),
        linewidths=0.5 + 3 * weights.ravel()[order],
        capstyle="round",
        clim=(0, 1),
    )
    axes.add_collection(lines)
    other = axes.twinx()
    for column, names, label, at in zip((axes, other), words, (_QUERIES[kind], _KEYS[kind]), places, strict=True):
        column.set(xlim=(-0.02, 1.02), ylim=(rows - 0.5, -0.5), xticks=[], ylabel=label)
        column.set_yticks(at, names)
        column.tick_params(length=0)
        column.spines[:].set_visible(False)
    _colour_bar(figure, lines, [axes, other])
    return figure


def _matrix(weights: np.ndarray, words: _Words, kind: str, title: str, theme: Theme) -> Any:
    """Weights `(queries, keys)` of a head as a matrix; a small one has its numbers."""
    has_numbers = weights.size <= _MOST_NUMBERS
    cell = _CELL_WITH_NUMBER if has_numbers else _CELL
    width = weights.shape[1] * cell + width_of(words[0]) + 2 * _MARGIN
    height = weights.shape[0] * cell + width_of(words[1]) + _MARGIN
    figure = new_figure(width, height, title, layout="compressed")
    axes = figure.add_subplot()
    image = draw_matrix(axes, weights, *words, FONT_SIZE, theme.sequential)
    axes.set(xlabel=_KEYS[kind], ylabel=_QUERIES[kind])
    if has_numbers:
        for (row, key), weight in np.ndenumerate(weights):
            colour = readable_on(image.to_rgba(weight)[:3], theme)
            axes.text(key, row, f"{weight:.2f}", size=7, color=colour, ha="center", va="center")
    _colour_bar(figure, image, [axes])
    return figure


def _sheet(weights: np.ndarray, words: _Words, kind: str, title: str, theme: Theme, has_layers: bool) -> Any:
    """Weights `(layers, heads, queries, keys)` as one small matrix for each head; queries are named on the left.

    With `has_layers` each row is a layer.
    """
    panels = weights.reshape(-1, *weights.shape[2:])
    wide, high = (max(count * _CELL_OF_SHEET, 0.9) for count in reversed(weights.shape[2:]))
    columns = weights.shape[1]
    if not has_layers:
        fitting = min(columns, _MOST_HEADS_IN_A_ROW, max(1, int(_WIDTH_OF_SHEET / wide)))
        columns = math.ceil(columns / math.ceil(columns / fitting))  # As many heads in each row.
    rows = math.ceil(len(panels) / columns)
    queries, keys = words
    width = columns * (wide + 0.15) + width_of(queries, SMALL_FONT_SIZE) + _MARGIN + 0.3
    height = rows * (high + width_of(keys, SMALL_FONT_SIZE) + 0.3) + _MARGIN / 2
    figure = new_figure(width, height, title, layout="compressed")
    grid = figure.subplots(rows, columns, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index >= len(panels):
            axes.set_axis_off()
            continue
        named = queries if index % columns == 0 else []
        image = draw_matrix(axes, panels[index], named, keys, SMALL_FONT_SIZE, theme.sequential)
        head = f"head {index % weights.shape[1]}"
        axes.set_title(f"layers[{index // columns}], {head}" if has_layers else head, size=SMALL_FONT_SIZE)
        if index + columns >= len(panels):
            axes.set_xlabel(_KEYS[kind], size=SMALL_FONT_SIZE)
    figure.supylabel(_QUERIES[kind], size=SMALL_FONT_SIZE)
    _colour_bar(figure, image, list(grid.flat))
    return figure


def _colour_bar(figure: Any, drawn: Any, axes: Any) -> None:
    bar = figure.colorbar(drawn, ax=axes, label="attention weight", fraction=0.05, aspect=30, shrink=0.9)
    bar.outline.set_visible(False)
