"""`train()` from Python: the same run as the verb's, with plain arguments, errors and messages."""

import json
import logging
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM

from hf_vanilla_transformer import load_pairs
from hf_vanilla_transformer.apps.cli import train as run_training
from hf_vanilla_transformer.apps.cli import train as verb
from hf_vanilla_transformer.evaluation.evaluate import evaluate
from hf_vanilla_transformer.support.recipes import read_recipe
from hf_vanilla_transformer.training import run
from hf_vanilla_transformer.training.run import train
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.run_saving import RunStoppedError
from tests.apps.cli.tiny_run import TINY, recipe, weights_of


# Arguments of the tiny run without its data.
ARGUMENTS = {name: value for name, value in TINY.items() if name not in ("dataset_name", "train_size", "max_digits")}


@pytest.fixture
def files(tmp_path) -> list[str]:
    """Pairs of another language, in files with other names."""
    (tmp_path / "corpus.en").write_text("one house\ntwo houses\n" * 8)
    (tmp_path / "corpus.fr").write_text("une maison\ndeux maisons\n" * 8)
    return [str(tmp_path / "corpus.en"), str(tmp_path / "corpus.fr")]


def test_train_agrees_with_the_verb(tmp_path, capsys, caplog):
    _, path = recipe(tmp_path)
    folder_of_verb = verb.main(["--config", path, "--output_dir", str(tmp_path / "verb"), "--seed", "7"])
    capsys.readouterr()
    caplog.set_level("INFO")
    folder = train(config=path, output_dir=tmp_path / "python", seed=7)
    assert folder == tmp_path / "python"
    weights_by_verb = weights_of(folder_of_verb)
    assert all((weight == weights_by_verb[name]).all() for name, weight in weights_of(folder).items())
    assert f"the model is in {folder}" in caplog.messages
    assert "the model is in" not in capsys.readouterr().out


def test_train_derives_languages_from_file_names(tmp_path, files):
    folder = train(files, tmp_path / "run", test_files=files, **{**ARGUMENTS, "source_lang": None, "target_lang": None})
    scores = json.loads((folder / "scores.json").read_text())
    assert scores["data"] == "corpus.en, corpus.fr"
    evaluation = evaluate(folder, files, show_progress=False)
    assert evaluation.scores["bleu"] == scores["bleu"]
    assert len(evaluation.translations) == 16
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    assert (tokenizer_config["source_lang"], tokenizer_config["target_lang"]) == ("en", "fr")


def test_train_accepts_one_table_without_a_list(tmp_path):
    (tmp_path / "corpus.tsv").write_text("en\tfr\n" + "one house\tune maison\n" * 8)
    folder = train(tmp_path / "corpus.tsv", tmp_path / "run", **{**ARGUMENTS, "source_lang": "en", "target_lang": "fr"})
    pairs = load_pairs(test_files=tmp_path / "corpus.tsv", source="en", target="fr")["test"]
    assert evaluate(folder, pairs, show_progress=False).scores["sentences"] == 8
    pairs.to_csv(tmp_path / "other.csv")
    assert evaluate(folder, str(tmp_path / "other.csv"), show_progress=False).translations


def test_train_reads_a_recipe_like_the_verb(tmp_path, files):
    path = tmp_path / "mine.yaml"
    settings = {**ARGUMENTS, "source_lang": None, "target_lang": None, "train_file": files}
    lines = [f"{name}: {json.dumps(value)}" for name, value in settings.items()]
    path.write_text("\n".join([*lines, "learning_rate: 5e-4", "lr_scheduler_type: linear"]))
    assert read_recipe(str(path), Settings)["learning_rate"] == 0.0005
    folder = train(config=str(path), output_dir=tmp_path / "python")
    weights_by_verb = weights_of(verb.main(["--config", str(path), "--output_dir", str(tmp_path / "verb")]))
    assert all((weight == weights_by_verb[name]).all() for name, weight in weights_of(folder).items())


def test_train_rejects_false_as_language(tmp_path, files):
    with pytest.raises(ValueError, match=r"source_lang is False\b"):
        train(files, tmp_path / "run", source_lang=False)


def test_train_rejects_arguments_that_do_not_exist_or_have_no_effect(tmp_path, files):
    with pytest.raises(TypeError, match=r"\bbatch_size\b"):
        train(files, tmp_path / "run", batch_size=3)
    with pytest.raises(ValueError, match="do_train has no effect"):
        train(files, tmp_path / "run", do_train=True)
    assert not (tmp_path / "run").exists()


def test_train_raises_if_it_stops_and_the_verb_ends_in_one_line(tmp_path, monkeypatch):
    _, path = recipe(tmp_path)

    def fail(*_):
        raise RunStoppedError("the disk is full. Make room.")

    monkeypatch.setattr(run, "save_model", fail)
    with pytest.raises(RunStoppedError, match=r"the disk is full\. Make room\."):
        train(config=path)
    with pytest.raises(SystemExit, match=r"error: the disk is full\. Make room\."):
        verb.main(["--config", path, "--overwrite"])


def test_main_does_not_hide_a_mistake_in_the_code(tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("a mistake")

    monkeypatch.setattr(run, "save_model", fail)
    with pytest.raises(ValueError, match="a mistake"):
        verb.main(recipe(tmp_path))


def test_printing_messages_prints_only_inside_its_block(capsys):
    logger = logging.getLogger("hf_vanilla_transformer.training.run")
    with run_training.printing_messages():
        logger.info("a message")
        logger.warning("a warning")
        logging.getLogger("hf_vanilla_transformer.support").info("of another room")
    logger.info("after it")
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("a message\n", "a warning\n")
    assert logging.getLogger("hf_vanilla_transformer").level == logging.NOTSET
    assert logging.getLogger("hf_vanilla_transformer.training").handlers == []


def test_train_accepts_paths(tmp_path, files):
    folder = train([Path(file) for file in files], tmp_path / "run", **ARGUMENTS)
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).config.d_model == TINY["d_model"]
