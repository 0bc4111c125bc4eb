"""Draw README's picture: BLEU by minutes of training, from the published files of results, light and dark."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.support.figure_style import THEMES, new_figure, save_figure, styled


RESULTS = "multi30k_en_de_seed*.json"
# Transformer-Tiny, Wu et al. 2021, trained on the 29,000 pairs alone.
PUBLISHED = 41.02


@dataclass
class PictureArguments:
    """Where the results are, and where the pictures go."""

    results: str = field(default="docs/results", metadata={"help": "A folder with files of results."})
    output_dir: str = field(default="docs/images", metadata={"help": "A folder for the two pictures."})


@program
def main(arguments: list[str]) -> list[Path]:
    """Draw as the command line says; returns the files."""
    args = parse(PictureArguments, __doc__, arguments)
    runs = [json.loads(path.read_text()) for path in sorted(Path(args.results).glob(RESULTS))]
    files = []
    for theme in THEMES:
        name = "multi30k_bleu.png" if theme == "light" else f"multi30k_bleu_{theme}.png"
        files.append(save_figure(draw(runs, theme), str(Path(args.output_dir, name))))
    return files


def draw(runs: list[dict[str, Any]], theme: str) -> Any:
    """Lines of validation BLEU, points of test BLEU, and the published figure."""
    with styled(theme) as colors:
        figure = new_figure(8, 3.6)
        axes = figure.add_subplot()
        for run in runs:
            minutes = [point["training_seconds"] / 60 for point in run["curve"]["points"]]
            bleu = [point["bleu"] for point in run["curve"]["points"]]
            axes.plot(minutes, bleu, color=colors.lines[0], linewidth=1.5)
            axes.plot(minutes[-1] + 1, run["scores"]["test"]["bleu"], "o", color=colors.lines[1])
        axes.axhline(PUBLISHED, color=colors.text, linestyle="--", linewidth=1)
        axes.annotate(f"best published test BLEU: {PUBLISHED}", (1, PUBLISHED + 0.6))
        axes.annotate("validation, during training\n(three seeds, greedy search)", (23, 30), color=colors.lines[0])
        axes.annotate("test, at the end\n(beam search)", (62.5, 38), ha="right", va="top", color=colors.lines[1])
        axes.set(xlim=(0, 64), ylim=(12, 44), xlabel="minutes of training on two CPU cores", ylabel="BLEU")
        axes.grid(alpha=0.3)
    return figure


if __name__ == "__main__":
    main()
