"""Pairs that `train` trains on and validates with."""

import json

import pytest
from datasets import Dataset, DatasetDict

from hf_vanilla_transformer.apps.cli import train
from hf_vanilla_transformer.data.cleaning import clean_pairs, hold_out
from hf_vanilla_transformer.data.pair_arguments import TrainingDataArguments
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.training_pairs import load_training_pairs, prepare_pairs
from tests.apps.cli.tiny_run import TINY, recipe


NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def corpus(count: int) -> Dataset:
    texts = [f"{NUMBERS[number // 10]} {NUMBERS[number % 10]}" for number in range(count)]
    return Dataset.from_dict({"source": texts, "target": [text.upper() for text in texts]})


@pytest.fixture
def pairs() -> DatasetDict:
    """A hundred pairs, with copies, equal sides, and two of the test pairs."""
    train = corpus(100).to_list()
    train[10:10] = [train[0], {"source": "equal", "target": "equal "}, train[90]]
    return DatasetDict(train=Dataset.from_list(train), test=Dataset.from_list(train[5:7]))


def test_prepare_pairs_keeps_all_by_default(pairs):
    prepared = prepare_pairs(pairs, TrainingDataArguments())
    assert {name: split._fingerprint for name, split in prepared.items()} == {
        name: split._fingerprint for name, split in pairs.items()
    }


def test_prepare_pairs_samples_then_cleans_then_holds_out(pairs, caplog):
    caplog.set_level("INFO")
    rows_before = {name: split.to_list() for name, split in pairs.items()}
    arguments = TrainingDataArguments(max_train_samples=100, clean=True, validation_size=7)
    prepared = prepare_pairs(pairs, arguments)
    sampled = pairs["train"].select([index * 103 // 100 for index in range(100)])
    train, validation = hold_out(clean_pairs(sampled, [pairs["test"]])[0], 7)
    assert {name: split.to_list() for name, split in prepared.items()} == {
        "train": train.to_list(),
        "test": rows_before["test"],
        "validation": validation.to_list(),
    }
    # The first two rules also remove what was sampled once only: its copy stays, or not.
    assert caplog.messages[0].startswith(
        "removed 5 of 100 training pairs: 2 duplicates, 1 identical sides, 2 in the test"
    )
    assert caplog.messages[1:] == ["held out 7 training pairs for validation"]
    assert {name: split.to_list() for name, split in pairs.items()} == rows_before


def test_prepare_pairs_drops_long_lines_except_from_test_pairs(pairs, caplog):
    caplog.set_level("INFO")
    long_pair = {"source": "a page " * 1000, "target": "EINE SEITE " * 1000}
    long_training_pair = {"source": "one page " * 1000, "target": "SEITE " * 1000}
    pairs_with_long_lines = DatasetDict(
        train=Dataset.from_list([long_training_pair, *pairs["train"].to_list()]),
        validation=Dataset.from_list([*corpus(3).to_list(), long_pair]),
        test=Dataset.from_list([long_pair, *pairs["test"].to_list()]),
    )
    prepared = prepare_pairs(pairs_with_long_lines, TrainingDataArguments(clean=True))
    assert long_training_pair not in prepared["train"].to_list()
    assert prepared["validation"].to_list() == corpus(3).to_list()
    assert prepared["test"].to_list() == pairs_with_long_lines["test"].to_list()
    assert caplog.messages[-1] == "removed 1 of 4 validation pairs: 1 long lines"

    kept = prepare_pairs(pairs_with_long_lines, TrainingDataArguments(clean=True, clean_skip=["long_lines"]))
    assert long_training_pair in kept["train"].to_list()
    assert kept["validation"].to_list() == pairs_with_long_lines["validation"].to_list()
    assert prepare_pairs(pairs_with_long_lines, TrainingDataArguments()) == pairs_with_long_lines


def test_training_data_arguments_reject_an_unknown_cleaning_rule():
    with pytest.raises(ValueError, match=r"'longest'.*length ratio"):
        TrainingDataArguments(clean=True, clean_skip=["longest"])
    # A file of arguments may have one name instead of a list.
    assert TrainingDataArguments(clean=True, clean_skip="long_lines").skipped_rules == ["long lines"]


def test_prepare_pairs_with_more_samples_than_pairs(pairs):
    assert (
        prepare_pairs(pairs, TrainingDataArguments(max_train_samples=500))["train"].to_list()
        == pairs["train"].to_list()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"validation_size": 0}, "validation_size is 0; it must be at least 1"),
        ({"max_train_samples": -1}, "max_train_samples is -1; it must be at least 1"),
        ({"validation_size": 103}, "103 of 103 training pairs are too many to hold out"),
        ({"max_train_samples": 5, "validation_size": 5}, "5 of 5 training pairs are too many to hold out"),
    ],
)
def test_prepare_pairs_rejects_numbers_out_of_range(pairs, arguments, message):
    with pytest.raises(ValueError, match=message):
        prepare_pairs(pairs, TrainingDataArguments(**arguments))


def test_prepare_pairs_holds_nothing_out_beside_validation_pairs(pairs):
    arguments = TrainingDataArguments(validation_size=5)
    with pytest.raises(
        ValueError, match="validation_size is 5, but validation pairs are given; leave out one of the two"
    ):
        prepare_pairs(DatasetDict({**pairs, "validation": pairs["test"]}), arguments)


@pytest.fixture
def files(tmp_path) -> list[str]:
    """Two pairs of files, of which the second repeats the first."""
    for name, count in (("a", 40), ("b", 60)):
        for language in ("en", "fr"):
            lines = corpus(count)["source" if language == "en" else "target"][:]
            (tmp_path / f"{name}.{language}").write_text("\n".join(lines))
    return [str(tmp_path / name) for name in ("a.en", "a.fr", "b.en", "b.fr")]


def test_train_on_two_pairs_of_files(tmp_path, files, capsys):
    changes = {
        "dataset_name": None,
        "source_lang": None,
        "target_lang": None,
        "eval_strategy": "steps",
        "eval_steps": 3,
    }
    changes |= {"train_file": files, "clean": True, "validation_size": 6, "results": str(tmp_path / "results.json")}
    folder = train.main(recipe(tmp_path, **changes))
    printed = capsys.readouterr().out
    assert "removed 40 of 100 training pairs: 40 duplicates\nheld out 6 training pairs for validation\n" in printed
    results = json.loads((tmp_path / "results.json").read_text())
    names = "a.en, a.fr, b.en, b.fr"
    assert results["data"] == {"train": names, "validation": f"held out of {names}"}
    assert results["scores"]["validation"]["sentences"] == 6
    assert "| pairs | 54 |" in (folder / "README.md").read_text()
    arguments = {**TINY, **changes, "output_dir": str(tmp_path / "run")}
    settings = [Settings.from_arguments(**arguments) for _ in range(2)]
    once, again = (load_training_pairs(run_settings.args, run_settings.data) for run_settings in settings)
    assert {name: split._fingerprint for name, split in once.items()} == {
        name: split._fingerprint for name, split in again.items()
    }


def test_train_on_two_copies_of_one_file(tmp_path, files):
    (tmp_path / "a.fr").write_text((tmp_path / "a.en").read_text())
    changes = {"dataset_name": None, "train_file": files[:2], "clean": True}
    with pytest.raises(
        SystemExit, match="error: no training pair of 40 would remain: 40 identical sides; give other pairs"
    ):
        train.main(recipe(tmp_path, **changes))


def test_train_holds_nothing_out_beside_validation_pairs(tmp_path):
    with pytest.raises(SystemExit, match="validation_size is 6, but validation pairs are given"):
        train.main(recipe(tmp_path, max_digits=5, validation_size=6))
