"""The style of figures: colors that every eye tells apart, and sizes of files."""

import numpy as np
import pytest

from hf_vanilla_transformer.support import figure_style


matplotlib = pytest.importorskip("matplotlib")


def luminance(colors: np.ndarray) -> np.ndarray:
    return colors[:, :3] @ np.array([0.2126, 0.7152, 0.0722])


# Viénot et al. 1999, for linear RGB: what an eye without the red, or without the green cones sees.
WITHOUT_RED = np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]])
WITHOUT_GREEN = np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]])


@pytest.mark.parametrize("theme", figure_style.THEMES)
@pytest.mark.parametrize("seen", [np.eye(3), WITHOUT_RED, WITHOUT_GREEN], ids=["all", "no red", "no green"])
def test_colors_differ_for_every_eye(theme, seen):
    colors = figure_style.THEMES[theme]
    to_rgb = matplotlib.colors.to_rgb
    lines = np.array([to_rgb(color) for color in (colors.background, *colors.lines)]) ** 2.2 @ seen.T
    lines = np.clip(lines, 0, 1) ** (1 / 2.2)
    distances = np.linalg.norm(lines[:, None] - lines[None], axis=-1) + np.eye(len(lines))
    assert distances.min() > 0.1
    scale = figure_style.color_map(colors.sequential)(np.linspace(0, 1, 50))
    steps = np.diff(luminance(np.clip(scale[:, :3] ** 2.2 @ seen.T, 0, 1)))
    assert (steps < 0).all() or (steps > 0).all()
    low, high = (np.array(to_rgb(color)) ** 2.2 @ seen.T for color in (colors.diverging[1], colors.diverging[3]))
    assert np.linalg.norm(low - high) > 0.3


def test_a_huge_figure_has_fewer_dots(tmp_path, monkeypatch):
    monkeypatch.setattr(figure_style, "_MOST_PIXELS", 1_000_000)
    with figure_style.styled("light"):
        figure = figure_style.new_figure(9, 9)
    figure_style.save_figure(figure, tmp_path / "a.png")
    height, width, _ = matplotlib.image.imread(tmp_path / "a.png").shape
    assert height * width <= 1_100_000
