"""Command lines, recipes and the arguments that verbs share."""

import json
import re
import shutil
from dataclasses import fields

import pytest
import torch
from transformers import AutoTokenizer, Seq2SeqTrainingArguments

from benchmarks.tabulate_runs import TableArguments
from hf_vanilla_transformer.apps.cli import evaluate, score, train, translate
from hf_vanilla_transformer.apps.cli.average import AveragingArguments
from hf_vanilla_transformer.apps.cli.parser import given_arguments, parse
from hf_vanilla_transformer.data.pair_arguments import DataArguments
from hf_vanilla_transformer.support.recipes import read_recipe, recipes
from hf_vanilla_transformer.support.user_errors import InputError
from hf_vanilla_transformer.training.run_arguments import REJECTED, Settings
from hf_vanilla_transformer.translation.model_loading import load
from tests.apps.cli.tiny_run import recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": [1, 2]}, r"d_model is \[1, 2\]: one value is needed"),
        ({"vocab_size": None}, "vocab_size is None: "),
        ({"train_size": 5.5}, "train_size is 5.5: "),
        ({"max_steps": "many"}, "max_steps is 'many': "),
        ({"help": True}, 'there is no argument "help"'),
    ],
)
def test_parse_rejects_wrong_values_in_a_recipe(tmp_path, changes, message):
    with pytest.raises(SystemExit, match=f"^error: .*recipe.yaml: {message}"):
        train.main(recipe(tmp_path, **changes))


@pytest.mark.parametrize(("value_in_file", "expected"), [(35, [35.0]), ("35", [35.0]), ([35, 38], [35.0, 38.0])])
def test_parse_takes_one_value_for_a_list(tmp_path, value_in_file, expected):
    (tmp_path / "table.yaml").write_text(json.dumps({"targets": value_in_file}))
    args = parse(TableArguments, "", ["--config", str(tmp_path / "table.yaml")])
    assert args.targets == expected


def test_parse_rejects_an_unknown_argument_in_a_recipe(tmp_path):
    with pytest.raises(SystemExit, match='there is no argument "d_modle"'):
        train.main(recipe(tmp_path, d_modle=16))


def test_parse_rejects_an_unknown_argument():
    with pytest.raises(SystemExit, match=r"^error: there is no argument --test_size"):
        train.main(["--test_size", "100"])


def test_load_reads_one_split_as_with_the_others(tmp_path, monkeypatch):
    numbers = DataArguments(dataset_name="numbers", source_lang="en", target_lang="de", max_digits=2, train_size=20)
    both = numbers.load()
    assert numbers.load("test")["test"]["source"] == both["test"]["source"]
    assert numbers.load("train")["train"]["source"] == both["train"]["source"]
    test = tmp_path / "test.csv"
    test.write_text("source,target\none,eins\n")
    pairs = DataArguments(train_file=["nowhere.csv"], test_file=[str(test)]).load("test")
    assert pairs["test"]["target"] == ["eins"]
    load_options = {}
    monkeypatch.setattr(
        "hf_vanilla_transformer.data.load_pairs.load_pairs",
        lambda dataset, **options: load_options.update(options) or {"test": []},
    )
    DataArguments(dataset_name="user/name", dataset_config_name="de-en").load("test")
    assert (load_options["split"], load_options["name"]) == ("test", "de-en")


def test_parse_reads_no_as_norwegian(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("dataset_name: numbers\nsource_lang: en\ntarget_lang: no\n")
    assert parse(DataArguments, "", ["--config", str(path)]).languages() == ("en", "no")


def test_load_moves_the_model_to_an_accelerator(trained, monkeypatch):
    """And on a CPU the process keeps the memory that it frees."""
    devices_at_keeping = []
    monkeypatch.setattr(
        "hf_vanilla_transformer.translation.model_loading.keep_freed_memory",
        lambda: devices_at_keeping.append(expected),
    )
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    for is_available, device, expected in ((False, None, "cpu"), (True, None, "meta"), (True, "cpu", "cpu")):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda is_available=is_available: is_available)
        _, model = load(str(trained), device and torch.device(device))
        assert model.device.type == expected
    assert devices_at_keeping == ["cpu", "cpu"]


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_load_rejects_a_model_without_a_file(trained, tmp_path, file):
    shutil.copytree(trained, tmp_path / "part", ignore=shutil.ignore_patterns(file, "checkpoint-*"))
    with pytest.raises(SystemExit, match=f"error: .*part holds no {file}"):
        translate.main(["--model_name_or_path", str(tmp_path / "part"), "one"])


def test_parse_rejects_a_recipe_that_is_not_yaml(tmp_path):
    (tmp_path / "broken.yaml").write_text("a: [1, 2\nb")
    with pytest.raises(SystemExit, match=r"broken\.yaml cannot be read as YAML or JSON"):
        train.main(["--config", str(tmp_path / "broken.yaml")])


@pytest.mark.parametrize("script", [evaluate, translate])
def test_verbs_reject_an_output_in_a_missing_folder(script, tmp_path):
    with pytest.raises(SystemExit, match=r"error: .*nowhere does not exist"):
        script.main(["--model_name_or_path", "not loaded", "--output", str(tmp_path / "nowhere" / "out")])


def test_describe_names_a_local_data_set(tmp_path):
    (tmp_path / "pairs").mkdir()
    assert DataArguments(dataset_name=str(tmp_path / "pairs")).describe("train") == "pairs (train)"
    assert DataArguments(dataset_name="user/pairs").describe("train") == "user/pairs (train)"


def parsed(*arguments: str):
    return parse(DataArguments, "", arguments)


def test_parse_reads_a_recipe_by_name_or_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("dataset_name: numbers\nmax_digits: 3\n")
    for form in (["--config", str(path)], [f"--config={path}"]):
        assert parsed(*form) == DataArguments(dataset_name="numbers", max_digits=3)
        assert parsed(*form, "--max_digits", "4") == DataArguments(dataset_name="numbers", max_digits=4)
    assert parsed("--max_digits", "4", "--config", str(path)).max_digits == 4


def test_recipes_are_found_by_name_in_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    of_runs = ["multi30k_en_de", "multi30k_en_de_raw", "numbers"]
    assert recipes() == sorted([*of_runs, "cmudict_g2p", "tiny", "small", "medium", "base"])
    for name in of_runs:
        settings = Settings.from_arguments(**given_arguments(Settings, "", ["--config", name]))
        assert settings.args.output_dir == f"runs/{name}"
        assert settings.data.languages() == ("en", "de")


def test_recipes_run_on_any_device():
    for name in recipes():
        settings = read_recipe(name, Settings)
        assert not settings.keys() & {"use_cpu", "device", "fp16"}
        assert settings.get("bf16") is not True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--config", "nope"],
            'config is "nope"; give a file that ends in .yaml or .json, or a recipe: base, cmudict_g2p, medium,',
        ),
        (["numbers"], "there is no argument numbers; --help lists them"),
        (["--config", "nope.yaml"], 'config is "nope.yaml", but there is no such file; give a file that exists, or a'),
        (["--model", "x"], "there is no argument --model; --help lists them"),
        (["--tokenizer", "x"], "there is no argument --tokenizer; --help lists them"),
        (["--train_files=x"], "there is no argument --train_files; --help lists them"),
    ],
)
def test_wrong_recipes_and_old_names(arguments, message):
    with pytest.raises(SystemExit, match=f"^error: {re.escape(message)}"):
        train.main(arguments)


@pytest.mark.parametrize("name", sorted(REJECTED))
def test_arguments_that_are_not_supported_are_rejected(tmp_path, capsys, name):
    assert name == "early_stopping" or name in {field.name for field in fields(Seq2SeqTrainingArguments)}
    value = "never" if name == "early_stopping" else "1"
    path = tmp_path / "recipe.yaml"
    path.write_text(f'{name}: "{value}"\n')
    for arguments in ([f"--{name}", value], [f"--{name}={value}"], ["--config", str(path)]):
        with pytest.raises(SystemExit, match=f"^error: {re.escape(REJECTED[name])}"):
            train.main(arguments)
    with pytest.raises(SystemExit):
        train.main(["--help_all"])
    assert f"--{name} " not in capsys.readouterr().out


def test_help_of_train_fits_and_help_all_shows_the_rest(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = {}
    for option in ("--help", "--help_all"):
        with pytest.raises(SystemExit, match=r"^0$"):
            train.main([option])
        shown[option] = capsys.readouterr().out
    assert len(shown["--help"].splitlines()) <= 250
    assert "(default: None)" not in shown["--help_all"]
    groups = ("data", "model", "training", "evaluation", "output", "Hub")
    places = [shown["--help"].index(f"\n{group}:\n") for group in groups]
    assert places == sorted(places)
    for name in ("--deepspeed", "--fsdp"):
        assert f"{name} " in shown["--help_all"]
        assert f"{name} " not in shown["--help"]


def test_program_raises_with_traceback(tmp_path):
    missing = ["--model_name_or_path", str(tmp_path / "nowhere"), "one"]
    with pytest.raises(SystemExit, match=r"^error: "):
        translate.main(missing)
    with pytest.raises(OSError, match="nowhere"):
        translate.main([*missing, "--traceback"])


def test_program_raises_errors_that_are_bugs(decisive, monkeypatch):
    def fail(*args, **kwargs):
        raise TypeError("a fault of the program")

    monkeypatch.setattr(translate, "translate", fail)
    with pytest.raises(TypeError, match="a fault of the program"):
        translate.main(["one", "--model_name_or_path", str(decisive)])


def test_columns_whose_names_are_not_the_languages(write):
    path = str(write("a.csv", "english,german\none,eins\n"))
    columns = ["--source_column", "english", "--target_column", "german"]
    data = parsed("--test_file", path, "--source_lang", "en", "--target_lang", "de", *columns)
    assert data.load("test")["test"].to_list() == [{"source": "one", "target": "eins"}]
    assert data.languages() == ("en", "de")
    assert parsed("--test_file", path, *columns).languages() == (None, None)


def test_parse_rejects_a_language_that_is_no_code():
    with pytest.raises(SystemExit, match=r"error: target_lang is german; .* --target_column"):
        evaluate.main(["--model_name_or_path", "not loaded", "--dataset_name", "numbers", "--target_lang", "german"])


def test_several_tables_of_a_split(write):
    tables = [
        str(write(name, f"source,target\n{pair}\n")) for name, pair in (("a.csv", "one,un"), ("b.csv", "two,deux"))
    ]
    assert parsed("--test_file", *tables).load("test")["test"]["target"] == ["un", "deux"]


def test_verbs_pass_hub_options_to_from_pretrained(decisive, monkeypatch):
    load_options = []

    def note(cls, name, **options):
        load_options.append(options)
        raise OSError("enough")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", classmethod(note))
    options = ["--revision", "small", "--token", "hf_mine", "--trust_remote_code"]
    numbers = ["--dataset_name", "numbers", "--max_digits", "1", "--train_size", "9", "--split", "train"]
    for verb, data in ((translate, ["one"]), (evaluate, numbers), (score, numbers)):
        with pytest.raises(SystemExit, match="enough"):
            verb.main([*data, "--model_name_or_path", str(decisive), *options])
    assert load_options == [{"revision": "small", "token": "hf_mine", "trust_remote_code": True}] * 3


@pytest.mark.parametrize("device", ["cuda:99", "nope"])
def test_load_rejects_a_missing_device(device):
    with pytest.raises(SystemExit, match=f"error: device is {device}, which torch cannot use here; give cpu"):
        translate.main(["one", "--model_name_or_path", "not loaded", "--device", device])


def test_translate_computes_on_the_chosen_device(decisive, monkeypatch):
    def stop(model, *args, **kwargs):
        raise InputError(f"it would compute on {model.device.type}")

    monkeypatch.setattr(translate, "translate", stop)
    with pytest.raises(SystemExit, match="error: it would compute on meta"):
        translate.main(["one", "--model_name_or_path", str(decisive), "--device", "meta"])


def test_parse_reads_positional_arguments_from_a_recipe(tmp_path):
    path = tmp_path / "average.yaml"
    path.write_text("folders: [runs/one, runs/2]\noutput: out\n")
    args = parse(AveragingArguments, "", ["--config", str(path)])
    assert (args.folders, args.output) == (["runs/one", "runs/2"], "out")
    assert parse(AveragingArguments, "", ["runs/three", "--config", str(path)]).folders == ["runs/three"]
    path.write_text("folders: runs/one\noutput: out\n")
    with pytest.raises(InputError, match="folders is 'runs/one': give a list"):
        parse(AveragingArguments, "", ["--config", str(path)])
