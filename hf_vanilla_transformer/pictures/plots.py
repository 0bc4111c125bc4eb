"""Pictures as `matplotlib.figure.Figure`: attention, positions, the schedule, masks, probabilities, validation curves.

Without pyplot and without settings that outlive a call. `figure.savefig(path)` writes a file, and
[`~hf_vanilla_transformer.pictures.figure_style.save_figure`] one whose text stays text in SVG and PDF.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..model.modeling_vanilla_transformer import sinusoidal_positions
from ..model.pipeline_vanilla_transformer import evaluating
from ..support.argument_checks import check_number
from ..support.paper_schedule import paper_learning_rate
from .attention import draw_attention, plot_attention
from .curves import plot_curve
from .figure_style import (
    DOTS_PER_INCH,
    SMALL_FONT_SIZE,
    Theme,
    check_matplotlib,
    colour_map,
    new_figure,
    readable_on,
    save_figure,
    styled,
    width_of,
)
from .forward_pass import ForwardPass, forward_pass, masks_of


__all__ = [
    "draw_attention",
    "draw_token_probabilities",
    "plot_attention",
    "plot_curve",
    "plot_masks",
    "plot_positions",
    "plot_schedule",
    "plot_token_probabilities",
    "save_figure",
]

_LINE_STYLES = ("-", "--", ":", "-.")
# Points of a curve of the schedule.
_POINTS = 400
# The dot products are a matrix of all pairs of positions.
_MOST_POSITIONS, _MOST_CHANNELS = 2_000, 10_000
# Inches.
_CELL_OF_MASK, _NARROWEST_MASK, _WIDTH_OF_LINE, _LINE_HEIGHT, _SPACE = 0.2, 1.6, 8.0, 0.62, 0.07
# Of the colours of log-probabilities: e^-5 is less than 1 %.
_LOWEST_LOG_PROB = -5.0


def plot_positions(model: Any = None, *, length: int = 100, d_model: int | None = None, theme: str = "light") -> Any:
    """Draw the table of positions (section 3.5), and the dot products of its rows.

    Args:
        model (`VanillaTransformerForConditionalGeneration`, *optional*): its encoder's positions, also learned ones; by
            default the paper's sinusoids.
        length (`int`): number of positions, from 0 on; at most 2,000.
        d_model (`int`, *optional*): even, at most 10,000; width of the table without a model, by default 512.
        theme (`str`): `"light"` or `"dark"`.

    Returns:
        `matplotlib.figure.Figure`: PE as an image `(length, d_model)`, and PE PE^T as an image `(length, length)`.

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        ValueError: if `theme` is unknown, `length` or `d_model` are not possible or `d_model` is given with a model, or
            the model has fewer positions.
    """
    check_number("length", length, 2, _MOST_POSITIONS)
    table = _positions(model, length, d_model)
    products = table @ table.T
    with styled(theme) as colours:
        # Two dots at least for a channel, so that stripes of one channel show.
        width = max(5.0, table.shape[1] * 2.2 / DOTS_PER_INCH)
        figure = new_figure(width + 6.5, 4.8)
        left, right = figure.subplots(1, 2, width_ratios=(width, 4.2))
        most = float(np.abs(table).max())
        _draw_table(left, table, colours.diverging, (-most, most), "value")
        _draw_table(right, products, colours.sequential, (float(products.min()), float(products.max())), "dot product")
        is_learned = model is not None and model.config.position_embedding_type == "learned"
        left.set(title="Positions PE", xlabel="channel" if is_learned else "channel (even: sine, odd: cosine)")
        right.set(title="Dot products of positions, PE PEᵀ", xlabel="position")
    return figure


def _draw_table(axes: Any, values: np.ndarray, colours: Sequence[str], limits: tuple[float, float], label: str) -> None:
    low, high = limits
    options: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
    image = axes.imshow(values, cmap=colour_map(colours), vmin=low, vmax=high, **options)
    axes.set_ylabel("position")
    axes.figure.colorbar(image, ax=axes, label=label)


def _positions(model: Any, length: int, d_model: int | None) -> np.ndarray:
    """The table `(length, d_model)`."""
    if model is None:
        d_model = 512 if d_model is None else d_model
        check_number("d_model", d_model, 2, _MOST_CHANNELS)
        if d_model % 2:
            raise ValueError(f"d_model is {d_model}; it must be even: half of the channels are sines, half cosines.")
        return sinusoidal_positions(torch.arange(length)[None], d_model)[0].numpy()
    if d_model is not None:
        raise ValueError(f"d_model is {d_model}, but the model's is drawn; leave out one of the two.")
    encoder = model.get_encoder()
    position_ids = torch.arange(length, device=model.device)[None]
    zeros = torch.zeros(1, length, model.config.d_model, device=model.device)
    with torch.inference_mode(), evaluating(model):
        return encoder.add_positions(zeros, position_ids)[0].float().cpu().numpy()


def plot_schedule(
    d_model: Sequence[int] = (256, 512, 1024),
    warmup_steps: Sequence[int] = (4000, 8000),
    *,
    updates: int = 20_000,
    theme: str = "light",
) -> Any:
    """Draw Equation 3, the learning rate of section 5.3, for each d_model with each number of warm-up updates.

    Args:
        d_model, warmup_steps (`Sequence[int]`): one curve for each pair; a colour for each d_model, a line style for
            each number of warm-up updates.
        updates (`int`): length of the axis.
        theme (`str`): `"light"` or `"dark"`.

    Returns:
        `matplotlib.figure.Figure`

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        ValueError: if `theme` is unknown, a number is below 1, or there are more values than colours or line styles.
    """
    check_number("updates", updates, 1)
    for name, values in {"d_model": d_model, "warmup_steps": warmup_steps}.items():
        for value in values:
            check_number(name, value, 1)
    with styled(theme) as colours:
        for name, values, most in (("d_model", d_model, colours.lines), ("warmup_steps", warmup_steps, _LINE_STYLES)):
            check_number(f"the number of values of {name}", len(values), 1, len(most))
        figure = new_figure(7.5, 4.2)
        axes = figure.add_subplot()
        for colour, width in zip(colours.lines, d_model, strict=False):
            for line, warmup in zip(_LINE_STYLES, warmup_steps, strict=False):
                # The peak is between two points otherwise.
                at = sorted(
                    {*np.linspace(1, updates, min(updates, _POINTS)).astype(int).tolist(), min(warmup, updates)}
                )
                rates = [paper_learning_rate(update, width, warmup) for update in at]
                axes.plot(at, rates, line, color=colour, label=f"d_model {width}, warm-up {warmup:,}")
        axes.set(xlabel="update", ylabel="learning rate", ylim=(0, None), xlim=(0, updates))
        axes.ticklabel_format(axis="y", style="plain")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid()
        axes.legend(frameon=False)
    return figure


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
    check_matplotlib()
    masks = masks_of(model, tokenizer, sources, targets, **generate_kwargs)
    source, target = masks.cross.shape[2], masks.cross.shape[1]
    words = [width_of([*chain(*side)], SMALL_FONT_SIZE) for side in (masks.source_tokens, masks.read_tokens)]
    with styled(theme) as colours:
        widths = [max(count * _CELL_OF_MASK, _NARROWEST_MASK) for count in (source, target, source)]
        height = len(masks.encoder) * (max(source, target) * _CELL_OF_MASK + max(words) + 0.6) + 0.8
        figure = new_figure(sum(widths) + words[0] + 2 * words[1] + 1.8, height)
        grid = figure.subplots(len(masks.encoder), 3, squeeze=False, width_ratios=widths)
        for sentence, row in enumerate(grid):
            of_source, of_target = masks.source_tokens[sentence], masks.read_tokens[sentence]
            for axes, allowed, queries, keys, title in (
                (row[0], masks.encoder, of_source, of_source, "encoder self-attention"),
                (row[1], masks.decoder, of_target, of_target, "decoder self-attention"),
                (row[2], masks.cross, of_target, of_source, "cross-attention"),
            ):
                _draw_mask(axes, allowed[sentence], queries, keys, colours)
                axes.set_title(title if sentence == 0 else "")
        figure.suptitle("Masks: coloured where a query may attend to a key")
    return figure


def _draw_mask(axes: Any, allowed: np.ndarray, queries: Sequence[str], keys: Sequence[str], theme: Theme) -> None:
    axes.imshow(allowed, cmap=colour_map((theme.background, theme.lines[0])), vmin=0, vmax=1, interpolation="nearest")
    axes.set_yticks(range(len(queries)), queries, size=SMALL_FONT_SIZE)
    axes.set_xticks(range(len(keys)), keys, size=SMALL_FONT_SIZE, rotation=90)
    axes.set_yticks(np.arange(len(queries) + 1) - 0.5, minor=True)
    axes.set_xticks(np.arange(len(keys) + 1) - 0.5, minor=True)
    axes.grid(which="minor", linewidth=0.5)
    axes.tick_params(which="both", length=0)
    axes.set_ylabel("query", size=SMALL_FONT_SIZE)
    axes.set_xlabel("key", size=SMALL_FONT_SIZE)
    axes.set_anchor("N")


def plot_token_probabilities(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    *,
    theme: str = "light",
    **generate_kwargs: Any,
) -> Any:
    """Draw a translation as a line of tokens, each coloured by its log-probability given the tokens before it.

    Args:
        model (`PreTrainedModel`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        source (`str`): a sentence.
        target (`str`, *optional*): its translation; by default the model's own.
        theme (`str`): `"light"` or `"dark"`.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Returns:
        `matplotlib.figure.Figure`: the numbers, in nats, stand below the tokens; long translations have several lines.

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        TypeError, ValueError: as `forward_pass` does; if `theme` is unknown.
    """
    check_matplotlib()
    return draw_token_probabilities(forward_pass(model, tokenizer, source, target, **generate_kwargs), theme=theme)


def draw_token_probabilities(found: ForwardPass, *, theme: str = "light") -> Any:
    """Draw as [`plot_token_probabilities`] does, from a forward pass that may give several pictures."""
    with styled(theme) as colours:
        return _token_line(found.target_tokens, found.log_probs, colours)


def _token_line(tokens: Sequence[str], log_probs: Sequence[float], theme: Theme) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    colours: Any = ScalarMappable(Normalize(_LOWEST_LOG_PROB, 0), colour_map(theme.sequential[::-1]))
    widths = [max(width_of([token]), width_of(["-0.00"], SMALL_FONT_SIZE)) + 0.14 for token in tokens]
    places, line, used = [], 0, 0.0
    longest = max(_WIDTH_OF_LINE, *widths)
    for width in widths:
        if used + width > longest:
            line, used = line + 1, 0.0
        places.append((used, line))
        used += width + _SPACE
    total = max(x + width for (x, _), width in zip(places, widths, strict=True))
    figure = new_figure(max(total, 4.5) + 0.4, (line + 1) * _LINE_HEIGHT + 1.3)
    axes = figure.add_subplot()
    for token, log_prob, (x, row), width in zip(tokens, log_probs, places, widths, strict=True):
        y = row * _LINE_HEIGHT
        fill = colours.to_rgba(max(log_prob, _LOWEST_LOG_PROB))
        axes.add_patch(Rectangle((x, y), width, 0.3, facecolor=fill, edgecolor=theme.faint, linewidth=0.8))
        axes.text(x + width / 2, y + 0.15, token, ha="center", va="center", color=readable_on(fill[:3], theme))
        axes.text(x + width / 2, y + 0.4, f"{log_prob:.2f}", ha="center", va="center", size=SMALL_FONT_SIZE)
    axes.set(xlim=(-0.05, max(total, 4.5) + 0.05), ylim=((line + 1) * _LINE_HEIGHT, -0.05), aspect="equal")
    axes.set_axis_off()
    bar = figure.colorbar(colours, ax=axes, location="bottom", fraction=0.12, aspect=40, extend="min")
    bar.set_label("log-probability of the token (nats)")
    figure.suptitle(f"log P(Y | X) = {sum(log_probs):.2f}")
    return figure
