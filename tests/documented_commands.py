"""Run the command lines of every page in their order, on a small model and a few pairs; `make walk` does.

Each page has a folder of its own. It holds the data that pages speak of, and models under the names that the page uses
and does not make. Trainings are of a tiny model, and have a hundredth of the documented updates.
"""

import gzip
import json
import os
import re
import shlex
import shutil
from functools import partial
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import yaml

from hf_vanilla_transformer import load_pairs
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.data.number_corpus import number_pairs
from hf_vanilla_transformer.hub import user_cache
from tests.apps.conversion.opus_mt import write_opus_mt
from tests.support.pronunciation_page import write_pronunciations
from tests.test_docs import FIXTURE, PAGES, RECIPES, ROOT, blocks


PROGRAM = "hf-vanilla-transformer "
# Run by others; and pushes by tests/hub.
ELSEWHERE = {
    "demo": "make demo",
    "serve --model_name_or_path runs/mine": "tests/walk.py",
    "serve --model_name_or_path runs/numbers --port 8000": "tests/apps/serving and tests/walk.py",
    "serve --model_name_or_path runs/first --port 8000": "tests/apps/serving",
    "serve --model_name_or_path Helsinki-NLP/opus-mt-en-de --source_lang en --target_lang de --engine ctranslate2 "
    "--compute_type int8": "by hand, with the folder of tests/apps/conversion/opus_mt.py",
    "convert --from marian --input runs/marian --output runs/imported": "make test-bridges",
}
SMALL = shlex.split("--num_layers 2 --d_model 16 --d_ff 16 --num_heads 4 --vocab_size 300 --bf16 false")
# Divided by 100.
COUNTS = ("max_steps", "eval_steps", "save_steps", "warmup_steps", "logging_steps", "validation_size")
PAIRS, TEST_PAIRS, MOST_UPDATES = 40, 8, 20
# Files that a page tells to tokenize with Moses.
TOKENIZED = ("mine.tok", "test.tok")
# The public dataset that docs/first_translator.md trains on.
HUB_DATASET = "Helsinki-NLP/opus-100"
# Every word of one to three of these letters, spelled out.
_PHONEMES = {"a": "AE1", "b": "B", "c": "K", "d": "D", "e": "EH1", "f": "F"}
_WORDS = ["".join(letters) for length in (1, 2, 3) for letters in product(_PHONEMES, repeat=length)]
_PRONUNCIATIONS = [(word, [_PHONEMES[letter] for letter in word]) for word in _WORDS]


def commands(page: Path) -> list[list[str]]:
    """The arguments of a page's commands, each once."""
    text = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    lines = re.findall(rf"^(?:\$ )?{PROGRAM}(?!--version)(.*)$", text, flags=re.MULTILINE)
    command_lines = [shlex.split(os.path.expandvars(line), comments=True) for line in dict.fromkeys(lines)]
    return [words for words in command_lines if " ".join(words) not in ELSEWHERE and "--push_to_hub" not in words]


def outputs(arguments: list[str]) -> list[str]:
    """The paths that a command makes."""
    names = ("--output", "--output_dir", "--results", "--translations", "--write_space")
    paths = [value for name, value in pairwise(arguments) if name in names]
    if "--config" in arguments and "--output_dir" not in arguments:
        paths.append(recipe_of(arguments)["output_dir"])
    return paths


def recipe_of(arguments: list[str]) -> dict[str, Any]:
    """The arguments of the recipe that a command names."""
    if "--config" not in arguments:
        return {}
    path = RECIPES / f"{arguments[arguments.index('--config') + 1]}.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def with_fewer_updates(arguments: list[str]) -> list[str]:
    """The arguments of a command with a hundredth of each count, and of a training for a tiny model."""
    arguments = [
        re.sub(r"(?<=checkpoint-)\d+", lambda step: str(int(step[0]) // 100), argument) for argument in arguments
    ]
    if arguments[0] not in ("train", "distill"):
        return arguments
    options = dict(pairwise(arguments))
    counts = {"max_steps": 400, "eval_steps": 200, "save_steps": 500, **recipe_of(arguments)}
    for name in COUNTS:
        if count := int(options.get(f"--{name}", counts.get(name, 0))):
            arguments = [*arguments, f"--{name}", str(min(max(1, count // 100), MOST_UPDATES))]
    if not {"--config", "--preset", "--model_name_or_path"} & options.keys():  # A plan, which ends at max_steps.
        arguments = [*arguments, "--eval_strategy", "steps"]
        # A dataset of the Hub has validation pairs, and a resumed run has those of the interrupted run.
        if "--train_file" in options and "--validation_file" not in options:
            arguments = [*arguments, "--validation_size", "4"]
    return arguments + (SMALL if "--model_name_or_path" not in options else [])


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model as small as these trainings, but of two layers, which a documented picture needs."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    main(
        ["train", "--config", "numbers", "--train_size", "100", "--output_dir", str(folder), "--max_steps", "1", *SMALL]
    )
    return folder


def prepare(folder: Path, needed: set[str], model: Path) -> None:
    """Write the data, and models under these names."""
    sides = {}
    for target in ("de", "fr"):
        pairs = load_pairs("numbers", source="en", target=target, max_digits=3, train_size=PAIRS)["train"]
        sides |= {"en": pairs["source"], target: pairs["target"]}
    (folder / "multi30k" / "tok").mkdir(parents=True)
    for language, texts in sides.items():
        for name in ("train", "mine", "more", "validation", "val", "test", "test_2016_flickr", "new", *TOKENIZED):
            count = PAIRS if name in ("train", "more") else TEST_PAIRS
            lines = "".join(f"{text}\n" for text in texts[:count])
            for file in (
                f"{name}.{language}",
                f"multi30k/{name}.{language}",
                f"multi30k/tok/{name}.lc.norm.tok.{language}",
            ):
                (folder / file).write_text(lines, encoding="utf-8")
    (folder / "terms.tsv").write_text("forty\tvierzig\n", encoding="utf-8")
    write_pronunciations(folder, _PRONUNCIATIONS, TEST_PAIRS, TEST_PAIRS)
    (folder / "pages").mkdir()
    for name in ("page.html", "pages/one.html"):
        (folder / name).write_text("<p>forty-<b>two</b></p>\n", encoding="utf-8")
    with gzip.open(folder / "new.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps({"text": "forty-two"}) + "\n")
    for name in needed:
        if name == HUB_DATASET:
            write_hub_dataset(folder / name, sides["en"], sides["fr"])
        elif name.startswith("Helsinki-NLP"):
            write_opus_mt(folder / name, target=name.rpartition("-")[2])
        else:
            shutil.copytree(model if name == "runs/numbers" else FIXTURE, folder / name)
    for name in ("docs", "tests"):
        (folder / name).symlink_to(ROOT / name)


def write_hub_dataset(folder: Path, sources: list[str], targets: list[str]) -> None:
    """Write pairs as English and Welsh into a folder like `HUB_DATASET`, which `datasets` prefers to the Hub."""
    pairs = [{"translation": {"en": source, "cy": target}} for source, target in zip(sources, targets, strict=True)]
    lines = [f"{json.dumps(pair)}\n" for pair in pairs]
    configuration = folder / "cy-en"
    configuration.mkdir(parents=True)
    splits = {
        "test": lines[:TEST_PAIRS],
        "validation": lines[TEST_PAIRS : 2 * TEST_PAIRS],
        "train": lines[2 * TEST_PAIRS :],
    }
    for split, split_lines in splits.items():
        (configuration / f"{split}.jsonl").write_text("".join(split_lines), encoding="utf-8")
    card = {"configs": [{"config_name": "cy-en", "data_dir": "cy-en"}]}
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n", encoding="utf-8")


def _expanded(argument: str) -> list[str]:
    return sorted(map(str, Path().glob(argument))) if "*" in argument else [argument]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands(page, model, tmp_path, monkeypatch):
    monkeypatch.setenv("MULTI30K_DIR", "multi30k")
    monkeypatch.setenv("LOCALIZATION_DIR", "multi30k")
    monkeypatch.setenv("T", "multi30k/tok")
    to_run = commands(page)
    written = {path for arguments in to_run for path in outputs(arguments)}
    model_name = re.compile(r"(runs|Helsinki-NLP)/[\w-]+(/average)?")
    named = {value for arguments in to_run for value in arguments if model_name.fullmatch(value)}
    prepare(tmp_path, named - written, model)
    few = partial(number_pairs, train_size=10 * PAIRS, test_size=TEST_PAIRS)
    monkeypatch.setattr(
        import_module("hf_vanilla_transformer.data.load_pairs"),
        "number_pairs",
        lambda *languages, **options: few(*languages, max_digits=options["max_digits"]),
    )
    monkeypatch.setattr(user_cache, "CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    for arguments in to_run:
        shown = f"{PROGRAM}{shlex.join(arguments)}"
        print(shown)
        arguments = [path for argument in arguments for path in _expanded(argument)]
        if "runs/first" in arguments and arguments[0] == "distill":
            # After so few updates, every translation of the model that the page has trained is truncated.
            arguments[arguments.index("runs/first")] = str(FIXTURE)
        main(with_fewer_updates(arguments))
        assert all(Path(path).exists() for path in outputs(arguments)), shown
