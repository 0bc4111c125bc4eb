"""Saved folders work without the package, by the code that they carry, and with it, by the package's."""

import ast
import importlib
import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    pipeline,
)

import hf_vanilla_transformer
from hf_vanilla_transformer import (
    Int8Config,
    PaperTrainingArguments,
    TranslationPipeline,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerModel,
    VanillaTransformerTokenizer,
)
from tests.models import IMPORTED, decisive_model, small_config
from tests.without_package import SEARCHES, SENTENCES, tokens_of, tokens_of_searches


pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "fixtures" / "numbers_tiny"
PAGE = ROOT.parent / "docs" / "share.md"
MODEL = {path.name for path in (ROOT.parent / "hf_vanilla_transformer" / "model").glob("[a-z]*.py")}
# Tokenizers that need code travel with the models that use them.
SHIPPED = MODEL - {"tokenization_fairseq.py", "tokenization_two_vocabularies.py"}
MOST_FILES = 10
MOST_NODES = 19_500
ALLOWED = {"torch", "transformers", "huggingface_hub", *sys.stdlib_module_names}


def block(marker: str, folder: Path) -> str:
    """The code of docs/share.md for the use with or without the package, for a model in `folder`."""
    (code,) = re.findall(rf"```python {marker}\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert '"runs/numbers"' in code
    return code.replace("runs/numbers", str(folder))


def shipped_files(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.py")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A trained model saved by hand and in int8, a Trainer's checkpoint of it, and one with fields of other systems."""
    parent = tmp_path_factory.mktemp("folders")
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)
    tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
    model.save_pretrained(parent / "saved")
    tokenizer.save_pretrained(parent / "saved")
    AutoModelForSeq2SeqLM.from_pretrained(FIXTURE, quantization_config=Int8Config()).save_pretrained(parent / "int8")
    tokenizer.save_pretrained(parent / "int8")
    decisive_model(vocab_size=len(tokenizer), **IMPORTED).save_pretrained(parent / "imported")
    tokenizer.save_pretrained(parent / "imported")
    args = PaperTrainingArguments(
        output_dir=parent / "run", max_steps=1, save_steps=1, warmup_steps=0, learning_rate=0, use_cpu=True
    )
    data = [{"input_ids": [5, 6, 2], "attention_mask": [1, 1, 1], "labels": [7, 2]}] * 8
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    Seq2SeqTrainer(model, args, data_collator=collator, train_dataset=data, processing_class=tokenizer).train()
    saved = {name: parent / name for name in ("saved", "int8", "imported")}
    return {**saved, "checkpoint": parent / "run" / "checkpoint-1"}


@pytest.fixture(scope="module")
def without_package(folders, run_in_fork, tmp_path_factory) -> dict:
    """The output of a process without the package for these folders."""
    parent = tmp_path_factory.mktemp("child")
    results = parent / "results.json"
    environment = {**os.environ, "HF_HOME": str(parent / "home"), "HF_HUB_OFFLINE": "1"}
    described = {name: str(folder) for name, folder in folders.items() if name != "int8"}
    (parent / "page.py").write_text(block("without", folders["saved"]))
    arguments = [results, *described.values(), "--int8", folders["int8"], "--save", parent / "again"]
    arguments += ["--run", "page.py"]
    child = run_in_fork(ROOT / "without_package.py", *arguments, environment=environment, folder=parent)
    facts = json.loads(results.read_text())
    return {
        **{name: facts[folder] for name, folder in described.items()},
        "tokens": facts["tokens"],
        "int8": facts["int8"],
        "saved again": facts["saved again"],
        "without trust": facts["without trust"],
        "folder": parent / "again",
        "printed": child.stdout,
    }


@pytest.fixture(scope="module")
def with_package(folders) -> dict:
    """The tokens of the first of these folders with the package."""
    return tokens_of(str(folders["saved"]))


@pytest.mark.parametrize("search", [*SEARCHES, "trained", "adapter"])
def test_without_the_package_tokens_are_the_same(with_package, without_package, search):
    assert without_package["tokens"][search] == with_package[search]
    if search in ("sampling", "sampling with beams", "trained", "adapter"):
        assert with_package[search] != with_package["beams"]


@pytest.mark.parametrize("name", ["saved", "checkpoint", "saved again", "imported"])
def test_without_the_package_it_is_the_same_model(folders, without_package, name):
    """Also with the fields that weights of other systems need."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folders["imported" if name == "imported" else "saved"])
    inputs = AutoTokenizer.from_pretrained(FIXTURE)(SENTENCES, padding=True, return_tensors="pt")
    facts = without_package[name]
    assert facts["tokens"] == tokens_of_searches(model, dict(inputs))
    assert facts["dtype"] == str(model.dtype)
    with torch.no_grad():
        states = model.model(**inputs, decoder_input_ids=inputs.input_ids).last_hidden_state
    torch.testing.assert_close(torch.tensor(facts["states"]), states)


@pytest.mark.parametrize("name", ["saved", "checkpoint", "saved again"])
def test_without_the_package_the_pipeline_translates(without_package, name):
    assert without_package[name]["translations"] == ["zweiundvierzig", "sieben", "einhunderteins"]


def test_int8_weights_without_the_package_are_an_error(without_package):
    """transformers skips a quantization method that it does not know, and reads the integers as weights."""
    assert "the weights of this model are int8" in without_package["int8"]
    assert "`import hf_vanilla_transformer`" in without_package["int8"]


@pytest.mark.parametrize("name", ["saved", "checkpoint", "saved again"])
def test_without_the_package_the_code_is_the_folder_s(without_package, name):
    assert without_package[name]["modules"] == ["transformers_modules"] * 4
    assert without_package[name]["attention"] == "sdpa"
    assert without_package[name]["classes"] == [
        "TokenizersBackend",
        "VanillaTransformerConfig",
        "VanillaTransformerModel",
        "VanillaTransformerForConditionalGeneration",
        "PlainTranslationPipeline",
    ]


def test_without_the_package_code_needs_trust(without_package):
    assert "trust_remote_code=True" in without_package["without trust"]


def test_the_page_s_code_without_the_package(without_package):
    # What comes before are transformers' questions about the configuration's code, which a tokenizer does not need.
    assert without_package["printed"].endswith("[{'translation_text': 'zweiundvierzig'}]\n")


def test_the_page_s_code_with_the_package(folders, capsys):
    exec(compile(block("with", folders["saved"]), "docs/share.md", "exec"), {})
    assert capsys.readouterr().out == "[{'translation_text': 'zweiundvierzig'}]\n"


@pytest.mark.parametrize("name", ["saved", "checkpoint"])
@pytest.mark.parametrize("trust", [None, False, True])
def test_with_the_package_the_code_is_the_package_s(folders, name, trust):
    folder = folders[name]
    assert type(AutoConfig.from_pretrained(folder, trust_remote_code=trust)) is VanillaTransformerConfig
    assert type(AutoModel.from_pretrained(folder, trust_remote_code=trust)) is VanillaTransformerModel
    assert type(AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)) is VanillaTransformerTokenizer
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=trust)
    assert type(model) is VanillaTransformerForConditionalGeneration
    translator = pipeline("translation", model=str(folder), trust_remote_code=trust, device="cpu")
    assert type(translator) is TranslationPipeline
    assert translator("seven") == [{"translation_text": "sieben"}]


def test_what_was_saved_without_the_package_loads_with_it(without_package):
    model = AutoModelForSeq2SeqLM.from_pretrained(without_package["folder"])
    assert type(model) is VanillaTransformerForConditionalGeneration
    for name, weight in AutoModelForSeq2SeqLM.from_pretrained(FIXTURE).state_dict().items():
        assert torch.equal(model.state_dict()[name], weight), name


def test_what_is_shipped(folders, without_package, tmp_path):
    small_config().save_pretrained(tmp_path)
    for folder in (*folders.values(), without_package["folder"], tmp_path):
        assert shipped_files(folder) == SHIPPED
        for name in SHIPPED:
            original = Path(hf_vanilla_transformer.__file__).parent / "model" / name
            assert (folder / name).read_text() == original.read_text()


def test_a_saved_folder_is_short_enough_to_read(folders):
    assert len(SHIPPED) <= MOST_FILES
    trees = [ast.parse((folders["saved"] / name).read_text(encoding="utf-8")) for name in SHIPPED]
    assert sum(1 for tree in trees for _ in ast.walk(tree)) <= MOST_NODES


@pytest.mark.parametrize("name", sorted(MODEL))
def test_what_is_shipped_imports_what_it_may(name):
    tree = ast.parse((Path(hf_vanilla_transformer.__file__).parent / "model" / name).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert {alias.name.partition(".")[0] for alias in node.names} <= ALLOWED
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module.partition(".")[0] in ALLOWED
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            assert node.level == 1
            assert f"{node.module}.py" in SHIPPED


def test_saving_leaves_no_trace_that_would_ask_for_trust(tmp_path):
    config = small_config()
    config.save_pretrained(tmp_path)
    assert not hasattr(config, "custom_pipelines")
    assert not hasattr(AutoConfig.from_pretrained(tmp_path), "custom_pipelines")


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    """A third-party module with classes derived from ours."""
    (tmp_path / "theirs.py").write_text(
        "from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration\n"
        "class TheirConfig(VanillaTransformerConfig):\n"
        "    model_type = 'their_transformer'\n"
        "class TheirModel(VanillaTransformerForConditionalGeneration):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("theirs")
    del sys.modules["theirs"]


def test_a_configuration_of_others_claims_nothing_unasked(theirs, tmp_path):
    theirs.TheirConfig().save_pretrained(tmp_path / "saved")
    assert "auto_map" not in json.loads((tmp_path / "saved" / "config.json").read_text())


def test_a_model_of_others_is_registered_as_transformers_says(theirs, tmp_path):
    theirs.TheirModel.register_for_auto_class("AutoModelForSeq2SeqLM")
    theirs.TheirModel(small_config()).save_pretrained(tmp_path / "saved")
    auto_map = json.loads((tmp_path / "saved" / "config.json").read_text())["auto_map"]
    assert auto_map == {
        "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
        "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
        "AutoModelForSeq2SeqLM": "theirs.TheirModel",
    }
    assert shipped_files(tmp_path / "saved") == {*SHIPPED, "theirs.py"}
