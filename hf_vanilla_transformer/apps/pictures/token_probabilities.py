"""Pictures of a translation's tokens, coloured by their log-probabilities."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...support.figure_style import SMALL_FONT_SIZE, Theme, colour_map, new_figure, readable_on, styled, width_of
from .forward_pass import forward_pass


# Inches.
_WIDTH_OF_LINE, _LINE_HEIGHT, _SPACE = 8.0, 0.62, 0.07
# Of the colours of log-probabilities: e^-5 is less than 1 %.
_LOWEST_LOG_PROB = -5.0


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
    found = forward_pass(model, tokenizer, source, target, **generate_kwargs)
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
    title = f"log P(Y | X) = {sum(log_probs):.2f}"
    figure = new_figure(max(total, 4.5) + 0.4, (line + 1) * _LINE_HEIGHT + 1.3, title)
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
    return figure
