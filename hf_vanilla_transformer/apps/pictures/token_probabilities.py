"""Draw the tokens of a translation, colored by their log-probabilities."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...support.figure_style import SMALL_FONT_SIZE, Theme, color_map, new_figure, readable_on, styled, width_of
from .forward_pass import forward_pass


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

# Sizes in inches: the width of a full line of tokens, the distance between two lines, the space between two tokens, and
# the height of a token's box.
_WIDTH_OF_LINE = 8.0
_LINE_HEIGHT = 0.62
_SPACE = 0.07
_BOX_HEIGHT = 0.3
# The space in a box to the left and to the right of its text, together.
_PADDING_OF_BOX = 0.14
# The distances from the top of a line to the middle of the token, which is the middle of its box, and to the middle of
# its log-probability.
_TOKEN_MIDDLE = 0.15
_NUMBER_MIDDLE = 0.4
# The color bar needs this width for its label.
_NARROWEST_FIGURE = 4.5
# The space that the title and the color bar take, and the margins of the figure at its left and right sides, together.
_TITLE_AND_COLOR_BAR_HEIGHT = 1.3
_SIDE_MARGINS = 0.4
# The margin that keeps the edges of the outer boxes from being cut off.
_EDGE_MARGIN = 0.05
# Log-probabilities up to this value have the darkest color; e^-5 is less than 1 %.
_LOWEST_LOG_PROB = -5.0


class _Box(NamedTuple):
    """The position of a token's box: its left edge x and its width in inches, and its line, counted from 0."""

    x: float
    width: float
    line: int


class _Size(NamedTuple):
    """The size of all lines of boxes in inches."""

    width: float
    height: float


def plot_token_probabilities(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    *,
    theme: str = "light",
    **generate_kwargs: Any,
) -> "Figure":
    """Draw the tokens of a translation, each colored by its log-probability given the tokens before it.

    Args:
        model (`PreTrainedModel`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        source (`str`): a sentence.
        target (`str`, *optional*): its translation; by default, the model's own.
        theme (`str`): `"light"` or `"dark"`.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Returns:
        `matplotlib.figure.Figure`: each token has its log-probability, in nats, below it. A long translation takes
            several lines.

    Raises:
        ImportError: if matplotlib is missing; the message names the extra to install.
        TypeError, ValueError: as `forward_pass` does; if `theme` is unknown.
    """
    pair = forward_pass(model, tokenizer, source, target, **generate_kwargs)
    with styled(theme) as colors:
        return _draw_tokens(pair.target_tokens, pair.log_probs, colors)


def _draw_tokens(tokens: Sequence[str], log_probs: Sequence[float], theme: Theme) -> "Figure":
    """Draw a colored box for each token, with its log-probability below it, and a color bar below all tokens.

    The title is the log-probability of the whole translation. All log-probabilities are in nats.
    """
    boxes = _place_boxes(tokens)
    size = _measure_boxes(boxes)
    title = f"log P(Y | X) = {sum(log_probs):.2f}"
    figure = new_figure(size.width + _SIDE_MARGINS, size.height + _TITLE_AND_COLOR_BAR_HEIGHT, title)
    axes = figure.add_subplot()
    colors = _new_color_scale(theme)
    for token, log_prob, box in zip(tokens, log_probs, boxes, strict=True):
        _draw_token(axes, box, token, log_prob, colors, theme)
    _set_limits(axes, size)
    _add_color_bar(axes, colors)
    return figure


def _measure_boxes(boxes: Sequence[_Box]) -> _Size:
    """Return the size of all lines of boxes, which is at least the width that the color bar needs."""
    right_edges = [box.x + box.width for box in boxes]
    width = max(_NARROWEST_FIGURE, *right_edges)
    num_lines = boxes[-1].line + 1
    return _Size(width, num_lines * _LINE_HEIGHT)


def _new_color_scale(theme: Theme) -> "ScalarMappable":
    """Return the colors of log-probabilities, from the darkest for improbable tokens to that of the background."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    darkest_first = theme.sequential[::-1]
    return ScalarMappable(Normalize(_LOWEST_LOG_PROB, 0), color_map(darkest_first))


def _set_limits(axes: "Axes", size: _Size) -> None:
    """Make the axes as large as the boxes, with positions in inches from the top left corner."""
    # The larger vertical limit comes first, so the axis points down.
    horizontal_limits = (-_EDGE_MARGIN, size.width + _EDGE_MARGIN)
    vertical_limits = (size.height, -_EDGE_MARGIN)
    axes.set(xlim=horizontal_limits, ylim=vertical_limits, aspect="equal")
    axes.set_axis_off()


def _add_color_bar(axes: "Axes", colors: "ScalarMappable") -> None:
    """Add a color bar below the tokens."""
    # It takes 12 % of the height, and is 40 times as wide as high. Its left end is pointed, because there are values
    # below `_LOWEST_LOG_PROB`.
    bar = axes.figure.colorbar(colors, ax=axes, location="bottom", fraction=0.12, aspect=40, extend="min")
    bar.set_label("log-probability of the token (nats)")


def _draw_token(axes: "Axes", box: _Box, token: str, log_prob: float, colors: "ScalarMappable", theme: Theme) -> None:
    """Draw a token in a colored box, and its log-probability below the box.

    `colors` maps the log-probability to the color of the box.
    """
    from matplotlib.patches import Rectangle

    # The vertical axis points down, so `top` is the smallest vertical position of the box.
    top = box.line * _LINE_HEIGHT
    center = box.x + box.width / 2
    # `to_rgba` returns red, green, blue and opacity. Very improbable tokens all have the same, darkest color.
    fill = colors.to_rgba(max(log_prob, _LOWEST_LOG_PROB))  # type: ignore[arg-type]
    rectangle = Rectangle((box.x, top), box.width, _BOX_HEIGHT, facecolor=fill, edgecolor=theme.faint, linewidth=0.8)
    axes.add_patch(rectangle)
    text_color = readable_on(fill[:3], theme)
    axes.text(center, top + _TOKEN_MIDDLE, token, ha="center", va="center", color=text_color)
    axes.text(center, top + _NUMBER_MIDDLE, f"{log_prob:.2f}", ha="center", va="center", size=SMALL_FONT_SIZE)


def _place_boxes(tokens: Sequence[str]) -> list[_Box]:
    """Arrange tokens from left to right, and begin a new line when the current one is full."""
    widths = _measure_tokens(tokens)
    # If a token is wider than a line, all lines become as wide as this token. So each box fits into an empty line.
    line_width = max(_WIDTH_OF_LINE, *widths)
    boxes = []
    line = 0
    x = 0.0
    for width in widths:
        is_line_full = x + width > line_width
        if is_line_full:
            line += 1
            x = 0.0
        boxes.append(_Box(x, width, line))
        x += width + _SPACE
    return boxes


def _measure_tokens(tokens: Sequence[str]) -> list[float]:
    """Return the width of each token's box, which is wide enough for the token and for the number below it."""
    # Most log-probabilities have as many characters as this one.
    number_width = width_of(["-0.00"], SMALL_FONT_SIZE)
    widths = []
    for token in tokens:
        text_width = max(width_of([token]), number_width)
        widths.append(text_width + _PADDING_OF_BOX)
    return widths
