"""Draw a batch's attention masks: the padding masks and the look-ahead mask."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.figure_style import SMALL_FONT_SIZE, Theme, draw_matrix, new_figure, styled, width_of
from .forward_pass import Masks, masks_of


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Sizes in inches: the side of a cell; the minimum width of a mask, which its title needs; the height of an axis label;
# and the margins of the figure, including its title.
_CELL = 0.2
_NARROWEST_MASK = 1.6
_AXIS_LABEL_HEIGHT = 0.6
_HORIZONTAL_MARGIN = 1.8
_VERTICAL_MARGIN = 0.8


def plot_masks(
    model: VanillaTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str] | None = None,
    *,
    theme: str = "light",
    **generate_kwargs: Any,
) -> "Figure":
    """Draw the attention masks of a batch, with one row per sentence and one column per type of attention.

    The types are encoder self-attention, decoder self-attention and cross-attention. All of them have a padding mask,
    which hides pad tokens. Decoder self-attention also has the look-ahead mask (section 3.2.3).

    Args:
        model (`VanillaTransformerForConditionalGeneration`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer; its `padding_side` determines where it pads.
        sources (`Iterable[str]`): sentences.
        targets (`Iterable[str]`, *optional*): one translation of each sentence; by default, the model's own.
        theme (`str`): `"light"` or `"dark"`.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Returns:
        `matplotlib.figure.Figure`: one image per mask, with the value 1 where a query (row) may attend to a key
            (column), and 0 elsewhere.

    Raises:
        ImportError: if matplotlib is missing.
        TypeError, ValueError: as `masks_of` does; if `theme` is unknown.
    """
    masks = masks_of(model, tokenizer, sources, targets, **generate_kwargs)
    with styled(theme) as colors:
        figure, grid = _new_grid(masks)
        for sentence, axes_of_sentence in enumerate(grid):
            _draw_masks_of_sentence(axes_of_sentence, masks, sentence, colors)
        titles = ("encoder self-attention", "decoder self-attention", "cross-attention")
        for axes, title in zip(grid[0], titles, strict=True):
            axes.set_title(title)
    return figure


def _draw_masks_of_sentence(axes_of_sentence: "Iterable[Axes]", masks: Masks, sentence: int, theme: Theme) -> None:
    """Draw the three masks of one sentence of a batch, which is given by its index."""
    encoder_axes, decoder_axes, cross_axes = axes_of_sentence
    source_tokens = masks.source_tokens[sentence]
    read_tokens = masks.read_tokens[sentence]
    _draw_mask(encoder_axes, masks.encoder[sentence], source_tokens, source_tokens, theme)
    _draw_mask(decoder_axes, masks.decoder[sentence], read_tokens, read_tokens, theme)
    _draw_mask(cross_axes, masks.cross[sentence], read_tokens, source_tokens, theme)


def _new_grid(masks: Masks) -> "tuple[Figure, np.ndarray]":
    """Return a new figure with room for the masks and their labels, and its grid of axes.

    The axes have one row per sentence, and a column each for encoder self-attention, decoder self-attention and
    cross-attention.
    """
    # `masks.cross` has the shape (batch, target, source), padding included.
    num_sentences, target_length, source_length = masks.cross.shape
    width_for_source_keys = max(source_length * _CELL, _NARROWEST_MASK)
    width_for_target_keys = max(target_length * _CELL, _NARROWEST_MASK)
    # A mask has one column per key. Only decoder self-attention has the target's tokens as keys.
    mask_widths = [width_for_source_keys, width_for_target_keys, width_for_source_keys]
    mask_height = max(source_length, target_length) * _CELL

    source_label_width = _measure_labels(masks.source_tokens)
    target_label_width = _measure_labels(masks.read_tokens)
    # The queries, which label the rows, are source tokens in one mask, and target tokens in two.
    width_of_all_query_labels = source_label_width + 2 * target_label_width
    # The labels of the keys are rotated, so their height is the width of the text.
    key_label_height = max(source_label_width, target_label_width)

    width = sum(mask_widths) + width_of_all_query_labels + _HORIZONTAL_MARGIN
    height = num_sentences * (mask_height + key_label_height + _AXIS_LABEL_HEIGHT) + _VERTICAL_MARGIN
    figure = new_figure(width, height, "Masks: colored where a query may attend to a key")
    grid = figure.subplots(num_sentences, len(mask_widths), squeeze=False, width_ratios=mask_widths)
    return figure, grid


def _measure_labels(tokens_of_sentences: Iterable[Sequence[str]]) -> float:
    """Return the width in inches of the widest token of all sentences."""
    all_tokens = list(chain.from_iterable(tokens_of_sentences))
    return width_of(all_tokens, SMALL_FONT_SIZE)


def _draw_mask(axes: "Axes", is_allowed: np.ndarray, queries: Sequence[str], keys: Sequence[str], theme: Theme) -> None:
    """Draw one mask of shape `(queries, keys)`, with token labels and a line around each cell."""
    draw_matrix(axes, is_allowed, queries, keys, SMALL_FONT_SIZE, (theme.background, theme.lines[0]))
    # The center of cell i is at the position i, so its edges are at i - 0.5 and i + 0.5. The minor ticks lie on these
    # edges, and the lines of the grid are drawn at the minor ticks.
    axes.set_yticks(np.arange(len(queries) + 1) - 0.5, minor=True)
    axes.set_xticks(np.arange(len(keys) + 1) - 0.5, minor=True)
    axes.grid(which="minor", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.set_ylabel("query", size=SMALL_FONT_SIZE)
    axes.set_xlabel("key", size=SMALL_FONT_SIZE)
    # The masks of one row are aligned at the top, even if their heights differ.
    axes.set_anchor("N")
