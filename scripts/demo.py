"""Train on the built-in number corpus, score unseen numbers, and translate some: the whole way in one command.

Arguments are passed on to scripts/train.py, for example --seed 2.
"""

import sys
from pathlib import Path


# Run as a file, Python looks in the file's folder first, where evaluate.py hides the library of that name.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from hf_vanilla_transformer import load_pairs, translate
from scripts import evaluate, train
from scripts.common import load


# The test numbers are the same whatever the number of training pairs, so a few of those are enough to score.
TEST_NUMBERS = "--dataset numbers --source en --target de --train_size 9 --bleu_tokenize char".split()  # noqa: SIM905


def main() -> None:
    """Train, score, translate, and say how to go on."""
    folder = train.main([str(train.DEFAULT_RECIPE), "--overwrite", *sys.argv[1:]])
    print()
    evaluate.main(["--model", str(folder), *TEST_NUMBERS])
    print()
    show_examples(folder)
    print(f"\nthe model is in {folder}; in Python:\n")
    print("import hf_vanilla_transformer; from transformers import AutoModelForSeq2SeqLM, AutoTokenizer")
    print(f'tokenizer, model = (c.from_pretrained("{folder}") for c in (AutoTokenizer, AutoModelForSeq2SeqLM))')
    print('print(hf_vanilla_transformer.translate(model, tokenizer, ["forty-two"]))')


def show_examples(folder: Path) -> None:
    tokenizer, model = load(str(folder))
    test = load_pairs("numbers", train_size=9)["test"]
    sources = test.select(range(0, len(test), len(test) // 4))["source"]
    for source, translation in zip(sources, translate(model, tokenizer, list(sources)), strict=True):
        print(f"{source}\n  -> {translation}")


if __name__ == "__main__":
    main()
