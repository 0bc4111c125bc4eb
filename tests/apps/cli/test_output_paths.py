"""Outputs of all verbs: what they may replace."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from hf_vanilla_transformer.apps.cli import evaluate, plot, score, train, translate
from tests.apps.cli.tiny_run import recipe


@pytest.fixture
def pairs(tmp_path):
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("one\n")
    return ["--test_file", str(tmp_path / "a.en"), str(tmp_path / "a.de")]


@pytest.fixture
def model(decisive, tmp_path):
    return shutil.copytree(decisive, tmp_path / "model")


def verbs(model, pairs, folder):
    """A command line of each verb that writes files, without the output and its path."""
    of_model = ["--model_name_or_path", str(model)]
    curve = folder / "curve.json"
    curve.write_text(json.dumps({"steps": [1], "bleu": [2.0]}))
    training = recipe(folder, dataset_name=None, train_file=pairs[1:], source_lang=None, target_lang=None)
    return {
        "translate --output": (translate.main, [*of_model, "--input", pairs[1], "--output"]),
        "evaluate --output": (evaluate.main, [*of_model, *pairs, "--output"]),
        "evaluate --translations": (evaluate.main, [*of_model, *pairs, "--translations"]),
        "score --output": (score.main, [*of_model, *pairs, "--output"]),
        "train --results": (train.main, [*training, "--results"]),
        "plot --output": (plot.main, ["curve", str(curve), "--output"]),
    }


VERBS = [
    "translate --output",
    "evaluate --output",
    "evaluate --translations",
    "score --output",
    "train --results",
    "plot --output",
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("how", ["path", "link", "hard link"])
def test_verbs_do_not_replace_an_input(model, pairs, tmp_path, verb, how):
    main, command = verbs(model, pairs, tmp_path)[verb]
    target = tmp_path / ("curve.json" if verb.startswith("plot") else "a.en")
    before, output = target.read_bytes(), tmp_path / "output.png"
    if how == "path":
        output = tmp_path / "model" / ".." / target.name
    elif how == "link":
        output.symlink_to(target)
    else:
        output.hardlink_to(target)
    with pytest.raises(SystemExit, match="is also an input"):
        main([*command, str(output)])
    assert target.read_bytes() == before


@pytest.mark.parametrize("verb", VERBS[:4])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_verbs_do_not_replace_a_file_of_the_model(model, pairs, tmp_path, verb, name):
    main, command = verbs(model, pairs, tmp_path)[verb]
    with pytest.raises(SystemExit, match=f"is also an input, .*{name}"):
        main([*command, str(model / name)])


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "an empty path is a folder; name a file to write"),
        ("circle", "is a link to itself; name a file to write"),
        ("nowhere/output.png", "nowhere does not exist; create the folder before writing"),
    ],
)
def test_verbs_reject_outputs_before_the_work(model, pairs, tmp_path, monkeypatch, verb, path, message):
    main, command = verbs(model, pairs, tmp_path)[verb]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(SystemExit, match=message):
        main([*command, path])


@pytest.mark.parametrize("verb", VERBS[:4])
def test_verbs_write_to_devices(model, pairs, tmp_path, verb):
    main, command = verbs(model, pairs, tmp_path)[verb]
    main([*command, os.devnull])
    assert not os.path.isfile(os.devnull)  # noqa: PTH113


def test_translate_does_not_replace_standard_input(model, tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("seven\n")
    command = [sys.executable, "-m", "hf_vanilla_transformer", "translate", "--model_name_or_path", str(model)]
    with path.open() as stdin:
        end = subprocess.run([*command, "--output", str(path)], stdin=stdin, capture_output=True, text=True)
    assert end.returncode == 1
    assert end.stderr == f"error: {path} is also an input, /dev/stdin; write to another file.\n"
    assert path.read_text() == "seven\n"


@pytest.mark.parametrize("name", ["recipe.yaml", "model/tokenizer.json"])
def test_train_results_do_not_replace_an_input(model, tmp_path, name):
    before = (tmp_path / name).read_bytes() if "/" in name else None
    command = recipe(tmp_path, tokenizer_name=str(model), vocab_size=37000)
    with pytest.raises(SystemExit, match=f"{name} is also an input, .*{name}"):
        train.main([*command, "--results", str(tmp_path / name)])
    assert before is None or (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "README.md", "scores.json"])
def test_train_results_do_not_replace_a_file_of_the_model(tmp_path, name):
    (tmp_path / "run").mkdir()
    with pytest.raises(SystemExit, match=f"{name} is a file of the trained model"):
        train.main(recipe(tmp_path, results=str(tmp_path / "run" / name)))
    assert not list((tmp_path / "run").iterdir())


def test_train_results_may_lie_beside_the_new_folder(tmp_path):
    path = tmp_path / "runs" / "mine.json"
    train.main(recipe(tmp_path, output_dir=str(tmp_path / "runs" / "mine"), results=str(path)))
    assert path.is_file()
    with pytest.raises(SystemExit, match="other does not exist"):
        train.main(recipe(tmp_path, output_dir=str(tmp_path / "runs" / "two"), results=str(tmp_path / "other" / "x")))
