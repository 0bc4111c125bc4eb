"""Draw two of the paper's formulas: positional encodings (section 3.5) and the learning rate schedule (Eq. 3)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, sinusoidal_positions
from ...support.argument_checks import check_number
from ...support.figure_style import DOTS_PER_INCH, Theme, color_map, new_figure, styled
from ...support.paper_schedule import paper_learning_rate
from ...support.user_errors import InputError
from ...translation.concurrent_use import evaluating


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The image of dot products has a cell for each pair of positions, so longer tables would take too much memory.
_MOST_POSITIONS = 2_000
_MOST_CHANNELS = 10_000
_LINE_STYLES = ("-", "--", ":", "-.")
# The number of points at which a curve of the schedule is computed.
_POINTS = 400
# Sizes of the picture of positions in inches: the minimum width of the table of positions, the width of the dot
# products, and the width of the dot products with all labels and color bars.
_NARROWEST_TABLE = 5.0
_PRODUCTS_WIDTH = 4.2
_WIDTH_BESIDE_TABLE = 6.5


def plot_positions(
    model: VanillaTransformerForConditionalGeneration | None = None,
    *,
    length: int = 100,
    d_model: int | None = None,
    theme: str = "light",
) -> "Figure":
    """Draw the table of positional encodings (section 3.5), and the dot products between all pairs of its rows.

    Args:
        model (`VanillaTransformerForConditionalGeneration`, *optional*): the model whose encoder positions are drawn,
            either sinusoids or learned ones. The default is the paper's sinusoids.
        length (`int`): number of positions, from 2 to 2,000. The first position is 0.
        d_model (`int`, *optional*): width of the table; even, at most 10,000, and only without a model. The default is
            512.
        theme (`str`): `"light"` or `"dark"`.

    Returns:
        `matplotlib.figure.Figure`: PE as an image `(length, d_model)`, and PE PE^T as an image `(length, length)`.

    Raises:
        ImportError: if matplotlib is missing.
        ValueError: if an argument is invalid, or the model has fewer positions than `length`.
    """
    check_number("length", length, 2, _MOST_POSITIONS)
    table = _compute_positions(model, length, d_model)  # (length, d_model)
    dot_products = table @ table.T  # (length, length)
    channel_label = _label_channels(model)
    with styled(theme) as colors:
        table_axes, products_axes = _new_position_axes(num_channels=table.shape[1])
        _draw_positions(table_axes, table, colors, channel_label)
        _draw_dot_products(products_axes, dot_products, colors)
    return table_axes.figure


def _label_channels(model: VanillaTransformerForConditionalGeneration | None) -> str:
    """Return the label of the table's horizontal axis, for a model's positions or for the paper's sinusoids."""
    is_learned = model is not None and model.config.position_embedding_type == "learned"
    if is_learned:
        return "channel"
    return "channel (even: sine, odd: cosine)"


def _draw_positions(axes: "Axes", table: np.ndarray, colors: Theme, channel_label: str) -> None:
    """Draw the table of positional encodings, `(length, d_model)`. `colors` is what `styled` yields."""
    # The limits are symmetric, so that 0 has the color of the background.
    largest_value = float(np.abs(table).max())
    limits = (-largest_value, largest_value)
    _draw_table(axes, table, colors.diverging, limits=limits, label="value")
    axes.set(title="Positions PE", xlabel=channel_label)


def _draw_dot_products(axes: "Axes", dot_products: np.ndarray, colors: Theme) -> None:
    """Draw the dot products of all pairs of positions, `(length, length)`. `colors` is what `styled` yields."""
    limits = (float(dot_products.min()), float(dot_products.max()))
    _draw_table(axes, dot_products, colors.sequential, limits=limits, label="dot product")
    axes.set(title="Dot products of positions, PE PEᵀ", xlabel="position")


def _new_position_axes(num_channels: int) -> np.ndarray:
    """Return the axes for the table and for the dot products, side by side in a new figure."""
    # Each channel is at least two dots wide, so that stripes of a single channel are visible.
    table_width = max(_NARROWEST_TABLE, num_channels * 2.2 / DOTS_PER_INCH)
    figure = new_figure(table_width + _WIDTH_BESIDE_TABLE, 4.8)
    return figure.subplots(1, 2, width_ratios=(table_width, _PRODUCTS_WIDTH))


def _draw_table(
    axes: "Axes", values: np.ndarray, colors: Sequence[str], limits: tuple[float, float], label: str
) -> None:
    """Draw values of shape `(positions, columns)` as an image with a color bar.

    `limits` contains the values that the first and the last color represent.
    """
    image = axes.imshow(values, cmap=color_map(colors), aspect="auto", interpolation="nearest", clim=limits)
    axes.set_ylabel("position")
    axes.figure.colorbar(image, ax=axes, label=label)


def _compute_positions(
    model: VanillaTransformerForConditionalGeneration | None, length: int, d_model: int | None
) -> np.ndarray:
    """Return the positional encodings `(length, d_model)` of a model, or the paper's sinusoids if there is no model."""
    if model is None:
        width = 512 if d_model is None else d_model
        return _compute_sinusoids(length, width)
    if d_model is not None:
        raise InputError(f"d_model is {d_model}, but the model's is drawn; leave out one of the two.")
    if model.config.model_type != VanillaTransformerConfig.model_type:
        raise InputError(f"{type(model).__name__} is another architecture; give a VanillaTransformer model.")
    return _read_positions(model, length)


def _compute_sinusoids(length: int, width: int) -> np.ndarray:
    """Return the paper's sinusoids `(length, width)`. Raise ValueError if the width is not allowed."""
    check_number("d_model", width, 2, _MOST_CHANNELS)
    if width % 2:
        raise InputError(f"d_model is {width}; it must be even: half of the channels are sines, half cosines.")
    # A batch of one row, so the result has a batch axis, too.
    position_ids = torch.arange(length)[None]
    return sinusoidal_positions(position_ids, width)[0].numpy()


def _read_positions(model: VanillaTransformerForConditionalGeneration, length: int) -> np.ndarray:
    """Return the positions `(length, d_model)` that a model's encoder adds to embeddings."""
    encoder = model.get_encoder()
    position_ids = torch.arange(length, device=model.device)[None]
    # The sum of zeros and positions is the positions, because dropout is off in evaluation mode.
    zero_embeds = torch.zeros(1, length, model.config.d_model, device=model.device)
    with torch.inference_mode(), evaluating(model):
        return encoder.add_positions(zero_embeds, position_ids)[0].float().cpu().numpy()


def plot_schedule(
    d_model: Sequence[int] = (256, 512, 1024),
    warmup_steps: Sequence[int] = (4000, 8000),
    *,
    updates: int = 20_000,
    theme: str = "light",
) -> "Figure":
    """Draw the learning rate schedule of Eq. 3 (section 5.3), with a curve for each combination of the two parameters.

    Args:
        d_model, warmup_steps (`Sequence[int]`): the parameters. Each `d_model` has a color, and each number of warm-up
            updates has a line style.
        updates (`int`): number of updates on the horizontal axis.
        theme (`str`): `"light"` or `"dark"`.

    Returns:
        `matplotlib.figure.Figure`

    Raises:
        ImportError: if matplotlib is missing.
        ValueError: if `theme` is unknown, a number is below 1, or there are more values than colors or line styles.
    """
    check_number("updates", updates, 1)
    with styled(theme) as colors:
        _check_curves("d_model", d_model, len(colors.lines))
        _check_curves("warmup_steps", warmup_steps, len(_LINE_STYLES))
        figure = new_figure(width=7.5, height=4.2)
        axes = figure.add_subplot()
        # There may be more colors and line styles than values, so `strict` is False.
        for color, width in zip(colors.lines, d_model, strict=False):
            for line_style, warmup in zip(_LINE_STYLES, warmup_steps, strict=False):
                _draw_curve(axes, width, warmup, updates, line_style=line_style, color=color)
        _label_schedule(axes, updates)
    return figure


def _draw_curve(axes: "Axes", width: int, warmup: int, updates: int, *, line_style: str, color: str) -> None:
    """Draw the learning rate for one `d_model`, which is `width`, and one number of warm-up updates."""
    shown_updates = _choose_points(updates, warmup)
    rates = [paper_learning_rate(update, width, warmup) for update in shown_updates]
    label = f"d_model {width}, warm-up {warmup:,}"
    axes.plot(shown_updates, rates, line_style, color=color, label=label)


def _label_schedule(axes: "Axes", updates: int) -> None:
    """Add labels, limits, a grid and a legend to the picture of the schedule."""
    axes.set(xlabel="update", ylabel="learning rate", ylim=(0, None), xlim=(0, updates))
    axes.ticklabel_format(axis="y", style="plain")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.grid()
    axes.legend(frameon=False)


def _check_curves(name: str, numbers: Sequence[int], most: int) -> None:
    """Raise ValueError unless the argument `name` contains 1 to `most` numbers, and each number is at least 1."""
    check_number(f"the number of values of {name}", len(numbers), 1, most)
    for number in numbers:
        check_number(name, number, 1)


def _choose_points(updates: int, warmup: int) -> list[int]:
    """Return the updates at which a curve is computed: evenly spaced updates, and the last update of the warm-up."""
    # With up to 400 updates, these are all updates.
    evenly_spaced = np.linspace(1, updates, min(updates, _POINTS)).astype(int).tolist()
    peak = min(warmup, updates)
    return sorted({*evenly_spaced, peak})
