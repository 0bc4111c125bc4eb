"""Pictures of the padding masks and the look-ahead mask of a batch."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...support.figure_style import SMALL_FONT_SIZE, Theme, draw_matrix, new_figure, styled, width_of
from .forward_pass import masks_of


# Inches.
_CELL_OF_MASK, _NARROWEST_MASK = 0.2, 1.6


def plot_masks(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str] | None = None,
    *,
    theme: str = "light",
    **generate_kwargs: Any,
) -> Any:
    """Draw the masks of a batch: a row for each sentence, a column for each kind of attention.

    The padding masks hide pad tokens; the decoder's self-attention has the look-ahead mask, too (section 3.2.3).

    Args:
        model (`VanillaTransformerForConditionalGeneration`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): of the model; it pads on its side.
        sources (`Iterable[str]`): sentences.
        targets (`Iterable[str]`, *optional*): one translation of each; by default the model's own.
        theme (`str`): `"light"` or `"dark"`.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Returns:
        `matplotlib.figure.Figure`: images of 1 where a query (row) may attend to a key (column), and 0 elsewhere.

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        TypeError, ValueError: as `masks_of` does; if `theme` is unknown.
    """
    masks = masks_of(model, tokenizer, sources, targets, **generate_kwargs)
    target, source = masks.cross.shape[1:]
    with styled(theme) as colours:
        words = [width_of([*chain(*side)], SMALL_FONT_SIZE) for side in (masks.source_tokens, masks.read_tokens)]
        widths = [max(count * _CELL_OF_MASK, _NARROWEST_MASK) for count in (source, target, source)]
        height = len(masks.encoder) * (max(source, target) * _CELL_OF_MASK + max(words) + 0.6) + 0.8
        width = sum(widths) + words[0] + 2 * words[1] + 1.8
        figure = new_figure(width, height, "Masks: coloured where a query may attend to a key")
        grid = figure.subplots(len(masks.encoder), 3, squeeze=False, width_ratios=widths)
        for sentence, row in enumerate(grid):
            of_source, of_target = masks.source_tokens[sentence], masks.read_tokens[sentence]
            _draw_mask(row[0], masks.encoder[sentence], of_source, of_source, colours)
            _draw_mask(row[1], masks.decoder[sentence], of_target, of_target, colours)
            _draw_mask(row[2], masks.cross[sentence], of_target, of_source, colours)
        for axes, kind in zip(grid[0], ("encoder self-", "decoder self-", "cross-"), strict=True):
            axes.set_title(f"{kind}attention")
    return figure


def _draw_mask(axes: Any, allowed: np.ndarray, queries: Sequence[str], keys: Sequence[str], theme: Theme) -> None:
    draw_matrix(axes, allowed, queries, keys, SMALL_FONT_SIZE, (theme.background, theme.lines[0]))
    axes.set_yticks(np.arange(len(queries) + 1) - 0.5, minor=True)
    axes.set_xticks(np.arange(len(keys) + 1) - 0.5, minor=True)
    axes.grid(which="minor", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.set_ylabel("query", size=SMALL_FONT_SIZE)
    axes.set_xlabel("key", size=SMALL_FONT_SIZE)
    axes.set_anchor("N")
