"""Train on the built-in number corpus, evaluate on unseen numbers, translate some of them, and draw attention.

hf-vanilla-transformer demo
hf-vanilla-transformer demo --seed 1 --output_dir runs/seed1
"""

from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any

from ...support.build_arguments import option
from ...support.recipes import read_recipe
from ...training.run_arguments import Settings
from ...translation.model_loading import load
from ...translation.translate import translate
from .parser import parse, program
from .train import run


RECIPE = "numbers"
EXAMPLES = 4
# In German the units come first: zweiundvierzig.
REORDERED, PICTURE = "forty-two", "attention.png"


@dataclass
class DemoArguments:
    """The seed and the folder of the run."""

    seed: int = option(42, "Seed of the training.")
    output_dir: str | None = option(None, "Folder of the trained model (default: runs/numbers, or the next new one).")


@program
def main(arguments: list[str]) -> None:
    """Train, evaluate, translate, and print how to do it in Python."""
    args = parse(DemoArguments, __doc__, arguments, "demo")
    recipe = read_recipe(RECIPE, Settings)
    name = recipe["output_dir"]
    names = chain([name], (f"{name}_{number}" for number in count(2)))
    output = args.output_dir or next(each for each in names if not Path(each).exists())
    folder = run(Settings.from_arguments(**{**recipe, "seed": args.seed, "output_dir": output}))
    print()
    tokenizer, model = load(str(folder))
    print_translations(model, tokenizer)
    draw_attention(model, tokenizer, folder / PICTURE)
    print("\nin Python:\n")
    print("import hf_vanilla_transformer; from transformers import AutoModelForSeq2SeqLM, AutoTokenizer")
    print(f'tokenizer, model = (c.from_pretrained("{folder}") for c in (AutoTokenizer, AutoModelForSeq2SeqLM))')
    print('print(hf_vanilla_transformer.translate(model, tokenizer, ["forty-two"]))')


def print_translations(model: Any, tokenizer: Any) -> None:
    """Translate some of the test numbers, which do not depend on the number of training pairs."""
    from ...data.load_pairs import load_pairs

    test = load_pairs("numbers", train_size=9)["test"]
    sources = test.select(range(0, len(test), len(test) // EXAMPLES))["source"]
    for source, translation in zip(sources, translate(model, tokenizer, list(sources)), strict=True):
        print(f"{source}\n  -> {translation}")


def draw_attention(model: Any, tokenizer: Any, path: Path) -> None:
    """Draw the cross-attention in which the parts of a number change places, or print what that needs."""
    from ..pictures import plot_attention, save_figure

    try:
        figure = plot_attention(model, tokenizer, REORDERED, style="layers")
    except ImportError as error:
        print(f"\nthe cross-attention of {REORDERED} is not drawn: {error}")
        return
    print(f"\nthe cross-attention of {REORDERED} is in {save_figure(figure, path)}")
