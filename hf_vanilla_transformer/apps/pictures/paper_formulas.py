"""Pictures of the paper's formulas: positional encodings (section 3.5), and Equation 3, the learning rate."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.modeling_vanilla_transformer import sinusoidal_positions
from ...support.argument_checks import check_number
from ...support.figure_style import DOTS_PER_INCH, colour_map, new_figure, styled
from ...support.paper_schedule import paper_learning_rate
from ...support.user_errors import InputError
from ...translation.concurrent_use import evaluating


# The dot products are a matrix of all pairs of positions.
_MOST_POSITIONS, _MOST_CHANNELS = 2_000, 10_000
_LINE_STYLES = ("-", "--", ":", "-.")
# Points of a curve of the schedule.
_POINTS = 400


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
    image = axes.imshow(values, cmap=colour_map(colours), aspect="auto", interpolation="nearest", clim=limits)
    axes.set_ylabel("position")
    axes.figure.colorbar(image, ax=axes, label=label)


def _positions(model: Any, length: int, d_model: int | None) -> np.ndarray:
    """The table `(length, d_model)`."""
    if model is None:
        d_model = 512 if d_model is None else d_model
        check_number("d_model", d_model, 2, _MOST_CHANNELS)
        if d_model % 2:
            raise InputError(f"d_model is {d_model}; it must be even: half of the channels are sines, half cosines.")
        return sinusoidal_positions(torch.arange(length)[None], d_model)[0].numpy()
    if d_model is not None:
        raise InputError(f"d_model is {d_model}, but the model's is drawn; leave out one of the two.")
    if model.config.model_type != VanillaTransformerConfig.model_type:
        raise InputError(f"{type(model).__name__} is another architecture; give a VanillaTransformer model.")
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
    with styled(theme) as colours:
        for name, values, most in (("d_model", d_model, colours.lines), ("warmup_steps", warmup_steps, _LINE_STYLES)):
            check_number(f"the number of values of {name}", len(values), 1, len(most))
            for value in values:
                check_number(name, value, 1)
        figure = new_figure(7.5, 4.2)
        axes = figure.add_subplot()
        for colour, width in zip(colours.lines, d_model, strict=False):
            for line, warmup in zip(_LINE_STYLES, warmup_steps, strict=False):
                points = np.linspace(1, updates, min(updates, _POINTS)).astype(int).tolist()
                at = sorted({*points, min(warmup, updates)})  # The peak is between two points otherwise.
                rates = [paper_learning_rate(update, width, warmup) for update in at]
                axes.plot(at, rates, line, color=colour, label=f"d_model {width}, warm-up {warmup:,}")
        axes.set(xlabel="update", ylabel="learning rate", ylim=(0, None), xlim=(0, updates))
        axes.ticklabel_format(axis="y", style="plain")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid()
        axes.legend(frameon=False)
    return figure
