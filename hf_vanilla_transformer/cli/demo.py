"""Train on the built-in number corpus, evaluate on unseen numbers, and translate some of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import translate
from . import train
from .loading import load
from .parsing import parse


OUTPUT = "runs/numbers"
EXAMPLES = 4


@dataclass
class DemoArguments:
    """The seed and the folder of the run."""

    seed: int = field(default=42, metadata={"help": "Seed of the training."})
    output_dir: str = field(
        default=OUTPUT, metadata={"help": "Folder of the trained model; only the default is overwritten."}
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, evaluate, translate, and print how to do it in Python."""
    (args,) = parse([DemoArguments], __doc__, arguments, verb="demo")
    settings = ["--seed", str(args.seed), "--output_dir", args.output_dir]
    settings += ["--overwrite"] if args.output_dir == OUTPUT else []
    folder = train.main(["--config", train.DEFAULT_CONFIG, *settings])
    print()
    print_translations(folder)
    print("\nin Python:\n")
    print("import hf_vanilla_transformer; from transformers import AutoModelForSeq2SeqLM, AutoTokenizer")
    print(f'tokenizer, model = (c.from_pretrained("{folder}") for c in (AutoTokenizer, AutoModelForSeq2SeqLM))')
    print('print(hf_vanilla_transformer.translate(model, tokenizer, ["forty-two"]))')


def print_translations(folder: Path) -> None:
    """Translate some of the test numbers, which do not depend on the number of training pairs."""
    from ..data.sources import load_pairs

    tokenizer, model = load(str(folder))
    test = load_pairs("numbers", train_size=9)["test"]
    sources = test.select(range(0, len(test), len(test) // EXAMPLES))["source"]
    for source, translation in zip(sources, translate(model, tokenizer, list(sources)), strict=True):
        print(f"{source}\n  -> {translation}")
