"""Train on the built-in number corpus, evaluate on unseen numbers, translate some of them, and draw attention weights.

hf-vanilla-transformer demo
hf-vanilla-transformer demo --seed 1 --output_dir runs/seed1
"""

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...support.build_arguments import option
from ...support.recipes import read_recipe
from ...training.run_arguments import Settings
from ...translation.model_loading import load
from ...translation.translate import translate
from .parser import parse, program
from .train import run


RECIPE = "numbers"
# The number of translations that are printed.
EXAMPLES = 4
# A number whose words change their order: in German the units come first (zweiundvierzig).
REORDERED = "forty-two"
PICTURE = "attention.png"


@dataclass
class DemoArguments:
    """Command-line arguments for the random seed and the output folder."""

    seed: int = option(42, "Seed of the training.")
    output_dir: str | None = option(
        None, "Folder of the trained model (default: runs/numbers, or runs/numbers_2, ... if it exists)."
    )


@program
def main(arguments: list[str]) -> None:
    """Train and evaluate a model, translate with it, draw attention weights, and print how to translate in Python."""
    args = parse(DemoArguments, __doc__, arguments, "demo")
    # The recipe "numbers" has the settings of the training, by argument name.
    settings = read_recipe(RECIPE, Settings)
    settings["output_dir"] = args.output_dir or _find_new_folder(settings["output_dir"])
    settings["seed"] = args.seed
    folder = run(Settings.from_arguments(**settings))
    print()
    tokenizer, model = load(str(folder))
    print_translations(model, tokenizer)
    draw_attention(model, tokenizer, folder / PICTURE)
    _print_python_example(folder)


def _print_python_example(folder: Path) -> None:
    """Print Python code that loads the model from the folder and translates a number."""
    print("\nin Python:\n")
    print("import hf_vanilla_transformer; from transformers import AutoModelForSeq2SeqLM, AutoTokenizer")
    print(f'tokenizer, model = (c.from_pretrained("{folder}") for c in (AutoTokenizer, AutoModelForSeq2SeqLM))')
    print('print(hf_vanilla_transformer.translate(model, tokenizer, ["forty-two"]))')


def _find_new_folder(name: str) -> str:
    """Return a name for a folder that does not exist yet: `name` itself, or `name_2`, `name_3` and so on."""
    new_name = name
    number = 1
    while Path(new_name).exists():
        number += 1
        new_name = f"{name}_{number}"
    return new_name


def print_translations(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Translate some of the test numbers, and print the numbers with their translations."""
    from ...data.load_pairs import load_pairs

    # The test numbers do not depend on the number of training pairs, so a few training pairs suffice.
    test_pairs = load_pairs("numbers", train_size=9)["test"]
    # The rows are spread evenly over the test pairs, `distance` rows apart.
    distance = len(test_pairs) // EXAMPLES
    rows = range(0, len(test_pairs), distance)
    sources = list(test_pairs.select(rows)["source"])
    translations = translate(model, tokenizer, sources)
    for source, translation in zip(sources, translations, strict=True):
        print(f"{source}\n  -> {translation}")


def draw_attention(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path) -> None:
    """Draw the cross-attention weights for a number whose words have a different order in German.

    If matplotlib is missing, print what to install instead.
    """
    from ..pictures import plot_attention, save_figure

    try:
        figure = plot_attention(model, tokenizer, REORDERED, style="layers")
    except ImportError as error:
        print(f"\nthe cross-attention of {REORDERED} is not drawn: {error}")
        return
    print(f"\nthe cross-attention of {REORDERED} is in {save_figure(figure, path)}")
