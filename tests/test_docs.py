"""What the pages name is there: files, headings, arguments, and in docs/paper.md code and tests of each section.

The Python of some pages runs; that of others is run by the tests of what it is about.
"""

import re
import shlex
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer.cli import common
from tests.models import small_model


ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "tests" / "fixtures" / "numbers_tiny"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
NAMES = re.findall(r"\[`(\w+)`\]\(\.\./([^)#]+\.py)\)", (ROOT / "docs" / "paper.md").read_text(encoding="utf-8"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def commands() -> list[tuple[str, list[str]]]:
    """The command lines of scripts/ and benchmarks/ on all pages: a module's name, and its arguments."""
    lines = [
        line for page in PAGES for block in blocks(page, "bash") for line in block.replace("\\\n", " ").splitlines()
    ]
    found = (re.search(r"((?:scripts|benchmarks)/\w+)\.py([^&]*)", line) for line in lines)
    return [(match[1].replace("/", "."), shlex.split(match[2], comments=True)) for match in found if match]


def anchors(page: Path) -> set[str]:
    """Of the headings, as Markdown pages are shown on the web."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    # Jinja's templates make some of the links of the model card.
    for target in re.findall(r"\]\(([^){}\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_paper_md_has_names():
    assert len(NAMES) > 40


@pytest.mark.parametrize(("name", "file"), sorted(set(NAMES)))
def test_what_paper_md_names_is_defined(name, file):
    assert re.search(rf"^ *(?:def|class) {name}\b", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)


class ParsedError(Exception):
    """The arguments of a command line were understood."""


def understand(name: str, arguments: list[str], monkeypatch) -> None:
    """Run a command until it has read its arguments."""

    def stop(*args, **kwargs):
        common.parse(*args, **kwargs)
        raise ParsedError

    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "torchao":  # Not installed with the oldest versions.
            raise
        pytest.skip(f"it takes {error.name}")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(module, "parse", stop)
    with pytest.raises(ParsedError):
        module.main(arguments)


@pytest.mark.parametrize(("name", "arguments"), commands(), ids=lambda each: each if isinstance(each, str) else "")
def test_command_lines_are_understood(name, arguments, monkeypatch):
    understand(name, arguments, monkeypatch)


def test_there_are_command_lines():
    scripts = {f"scripts.{name}" for name in ("train", "evaluate", "translate", "average_checkpoints")}
    assert {name for name, _ in commands()} >= {*scripts, "benchmarks.training", "benchmarks.generation"}


def test_keeping_the_best_checkpoint_of_a_recipe(tmp_path, monkeypatch):
    (block,) = blocks(ROOT / "docs" / "training.md", "yaml")
    settings = yaml.safe_load(
        (ROOT / "hf_vanilla_transformer" / "recipes" / "multi30k_en_de.yaml").read_text(encoding="utf-8")
    )
    del settings["average_last"]
    path = tmp_path / "best.yaml"
    path.write_text(yaml.safe_dump({**settings, **yaml.safe_load(block)}))
    understand("hf_vanilla_transformer.cli.train", [str(path)], monkeypatch)


def run(page: str, number: int, names: dict[str, Any], *changes: tuple[str, str]) -> None:
    """Run one of a page's blocks of Python in the working folder, with names that are there and that it adds to."""
    block = blocks(ROOT / "docs" / page, "python")[number]
    for original, replacement in changes:
        assert original in block
        block = block.replace(original, replacement)
    exec(compile(block, page, "exec"), names)


def test_scores_of_decoding_md(capsys):
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    names: dict[str, Any] = {"model": model, "tokenizer": tokenizer}
    run("decoding.md", 0, names)
    found = names["found"]
    inputs = tokenizer(["forty-two"], return_tensors="pt")
    best = model.generate(**inputs, return_dict_in_generate=True, output_scores=True)
    assert found.tokens == tokenizer.convert_ids_to_tokens(best.sequences[0, 1:].tolist())
    assert found.normalized == pytest.approx(best.sequences_scores.item(), abs=1e-5)
    assert f"{found.total} {found.normalized}\n" in capsys.readouterr().out


def test_the_tokenizer_of_own_data_md():
    names: dict[str, Any] = {}
    run("own_data.md", 0, names, ("user/name", FIXTURE.as_posix()))
    config, expected = names["config"], AutoConfig.from_pretrained(FIXTURE)
    special = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    assert [getattr(config, name) for name in special] == [getattr(expected, name) for name in special]


def test_averages_of_averaging_md(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    averaged = [tmp_path / "runs" / "averaged" / f"checkpoint-{step}" for step in (1600, 2000)]
    for seed, folder in enumerate(averaged):
        small_model(seed).save_pretrained(folder)
    run("averaging.md", 0, {})
    first, second, average = (
        load_file(folder / "model.safetensors") for folder in (*averaged, tmp_path / "runs" / "another_average")
    )
    assert average.keys() == first.keys()
    for name, weight in average.items():
        assert torch.equal(weight, ((first[name].double() + second[name].double()) / 2).float())


def test_long_corpora_of_scaling_md(tmp_path, monkeypatch, tokenizer):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"tokenizer": tokenizer}
    (tmp_path / "train.en").write_text("one\ntwo\n" + "one " * 300 + "\n")
    (tmp_path / "train.de").write_text("eins\n\neins\n")
    # As many processes are not worth while for three sentences.
    run("scaling.md", 0, names, (", num_proc=8", ""))
    assert names["dropped"] == {"empty": 1, "too long": 1}
    (kept,) = names["data"]
    assert names["tokenizer"].decode(kept["labels"], skip_special_tokens=True) == "eins"
    assert list(names["sampler"]) == [[0]]


def test_blocks_of_python_are_all_run():
    """The others of docs/scaling.md by tests/parallel/test_docs.py."""
    pages = ("averaging.md", "decoding.md", "own_data.md", "scaling.md")
    count = {page: len(blocks(ROOT / "docs" / page, "python")) for page in pages}
    assert count == {"averaging.md": 1, "decoding.md": 1, "own_data.md": 1, "scaling.md": 3}
