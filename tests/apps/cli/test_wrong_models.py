"""Models that may be loaded, through every verb that loads one."""

import json
import math
import os
import re
import shutil

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BartConfig, BartForConditionalGeneration

from hf_vanilla_transformer import Int8Config
from hf_vanilla_transformer.apps.cli import evaluate, score, train, translate
from hf_vanilla_transformer.model.input_checks import check_vocabulary
from hf_vanilla_transformer.support.checkpoint_marks import newest_complete
from hf_vanilla_transformer.translation.model_loading import load
from tests.apps.cli.tiny_run import recipe
from tests.models import small_config


@pytest.mark.parametrize("ends", [2, [7, 2]])
def test_a_tokenizer_goes_with_a_model_that_has_its_tokens(tokenizer, ends):
    check_vocabulary(small_config(vocab_size=len(tokenizer) + 5, eos_token_id=ends), tokenizer)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pad_token_id": 7}, "pad_token_id is 0 in the tokenizer and 7 in the model; use a model with"),
        ({"eos_token_id": 7}, "eos_token_id is 2 in the tokenizer and 7 in the model; use a model with"),
        ({"eos_token_id": [7, 8]}, r"eos_token_id is 2 in the tokenizer and \[7, 8\] in the model"),
        ({"source_vocab_size": 100}, r"the tokenizer has \d+ tokens, but the model's source vocabulary has 100"),
    ],
)
def test_a_tokenizer_of_another_model(tokenizer, fields, message):
    with pytest.raises(ValueError, match=message):
        check_vocabulary(small_config(**{"vocab_size": len(tokenizer), **fields}), tokenizer)


@pytest.fixture
def copy(decisive, tmp_path):
    return shutil.copytree(decisive, tmp_path / "model")


def change_config(folder, name="config.json", **fields):
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def change_weights(folder, change):
    path = folder / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def spoil(weights):
    weights["model.decoder.layers.0.fc1.bias"][3] = math.nan


FAULTS = {
    "a weight is NaN": (
        lambda folder: change_weights(folder, spoil),
        r"model cannot be loaded: model\.decoder\.layers\.0\.fc1\.bias has values that are NaN or infinite; ",
    ),
    "a weight is missing": (
        lambda folder: change_weights(folder, lambda weights: weights.pop("model.decoder.layers.0.fc1.bias")),
        r"1 weights are not in the files of .* \(model\.decoder\.layers\.0\.fc1\.bias, \.\.\.\)",
    ),
    "more layers": (lambda folder: change_config(folder, encoder_layers=9), "weights are not in the files of"),
    "fewer layers": (lambda folder: change_config(folder, encoder_layers=1), "weights are left over in the files of"),
    "another width": (lambda folder: change_config(folder, d_ff=8), "its weights have other shapes than"),
    "a smaller vocabulary": (
        lambda folder: change_config(folder, vocab_size=9),
        "vocabulary has 9|other shapes than",
    ),
    "another end": (
        lambda folder: change_config(folder, eos_token_id=5),
        "loaded: eos_token_id is 2 in the tokenizer",
    ),
    "no tokens": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be loaded: "),
    "an empty file": (lambda folder: (folder / "tokenizer.json").write_text(""), "cannot be loaded: "),
    "a length that is no number": (
        lambda folder: change_config(folder, "tokenizer_config.json", model_max_length=""),
        "model_max_length of the tokenizer is ''; it must be a number",
    ),
    "another kind": (lambda folder: change_config(folder, model_type="bart"), "."),
    "cut weights": (lambda folder: os.truncate(folder / "model.safetensors", 5000), "truncated or damaged"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("verb", ["translate", "evaluate", "score", "train"])
def test_verbs_reject_an_incomplete_model(copy, tmp_path, capsys, fault, verb):
    break_it, message = FAULTS[fault]
    break_it(copy)
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("one\n" * 9)
    of_model = ["--model_name_or_path", str(copy)]
    files = [str(tmp_path / "a.en"), str(tmp_path / "a.de")]
    arguments = {
        "translate": ["one", *of_model],
        "evaluate": [*of_model, "--test_file", *files],
        "score": [*of_model, "--test_file", *files],
        "train": [*of_model, "--train_file", *files, "--output_dir", str(tmp_path / "run"), "--max_steps", "1"],
    }[verb]
    with pytest.raises(SystemExit) as stop:
        {"translate": translate, "evaluate": evaluate, "score": score, "train": train}[verb].main(arguments)
    assert re.search(f"^error: .*{message}", str(stop.value))
    assert "MISSING" not in capsys.readouterr().err  # The sentence says it.
    assert not (tmp_path / "run").exists()


def test_models_of_other_architectures_may_have_other_tokens(tokenizer, tmp_path, capsys):
    config = BartConfig(vocab_size=400, d_model=16, encoder_layers=1, decoder_layers=1, pad_token_id=7, eos_token_id=9)
    BartForConditionalGeneration(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    translate.main(["one", "--model_name_or_path", str(tmp_path), "--max_new_tokens", "2"])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_load_names_a_checkpoint_of_the_folder(trained, tmp_path):
    run = tmp_path / "run"
    newest = newest_complete(trained)
    shutil.copytree(newest, run / newest.name)
    with pytest.raises(
        SystemExit, match=rf"holds no config\.json; name one of its checkpoints, such as .*{newest.name}"
    ):
        translate.main(["one", "--model_name_or_path", str(run)])


def test_load_an_int8_model(decisive, tmp_path):
    int8 = AutoModelForSeq2SeqLM.from_pretrained(decisive, quantization_config=Int8Config())
    int8.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(decisive).save_pretrained(tmp_path)
    _, model = load(str(tmp_path))
    assert model.state_dict().keys() == int8.state_dict().keys()


@pytest.mark.parametrize("verb", [translate.main, score.main])
def test_verbs_reject_a_file_as_a_model(copy, verb, tmp_path):
    pairs = [str(tmp_path / name) for name in ("a.en", "a.de")]
    for path in pairs:
        (tmp_path / path).write_text("one\n")
    data = ["one"] if verb is translate.main else ["--test_file", *pairs]
    with pytest.raises(SystemExit, match=r"config\.json is a file"):
        verb([*data, "--model_name_or_path", str(copy / "config.json")])


def test_weights_of_another_architecture_are_named(copy):
    change_config(copy, model_type="bart")
    with pytest.raises(
        SystemExit, match=r"cannot be loaded as a bart: its weights have other shapes than its config\.json"
    ):
        translate.main(["one", "--model_name_or_path", str(copy)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "nowhere, and the Hub answered: "),
        ("{}", "tokenizer cannot be loaded: a file lacks 'added_tokens'"),
        ("", "tokenizer cannot be loaded: Expecting value"),
        ("gone", "tokenizer holds no tokenizer_config.json; name"),
    ],
)
def test_train_rejects_a_damaged_tokenizer(decisive, tmp_path, content, message):
    folder = tmp_path / ("nowhere" if content is None else "tokenizer")
    if content is not None:
        shutil.copytree(decisive, folder)
        (folder / "tokenizer.json").write_text(content)
    if content == "gone":
        (folder / "tokenizer_config.json").unlink()
    with pytest.raises(SystemExit, match=message):
        train.main(recipe(tmp_path, tokenizer_name=str(folder), vocab_size=37000))


def test_program_reports_an_error_of_several_lines_in_one(tmp_path):
    with pytest.raises(SystemExit, match=r"^error: [^\n]*Field 'd_model' expected int[^\n]*$"):
        train.main(recipe(tmp_path, d_model=None, config_overrides='{"d_model": NaN}'))
