"""Folders that an earlier commit saved load with the package, whatever code they carry, and are saved with today's."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from hf_vanilla_transformer import (
    TranslationPipeline,
    VanillaTransformerForConditionalGeneration,
    average_checkpoints,
    translate,
)
from hf_vanilla_transformer.hub.model_folder import staged
from tests.model.test_remote_code import FIXTURE, ROOT, SHIPPED, shipped_files
from tests.without_package import SENTENCES


TRANSLATIONS = ["zweiundvierzig", "sieben", "einhunderteins"]
# The code of an earlier commit imports files that have other names today, or does not run with today's transformers.
BROKEN = 'raise RuntimeError("the code of the folder was run")\n'


@pytest.fixture
def earlier(tmp_path) -> Path:
    """A folder whose code cannot run."""
    return save_earlier(tmp_path / "earlier")


def save_earlier(folder: Path) -> Path:
    AutoModelForSeq2SeqLM.from_pretrained(FIXTURE).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURE / name, folder)
    for path in folder.glob("*.py"):
        path.write_text(BROKEN)
    assert json.loads((folder / "config.json").read_text())["auto_map"]
    return folder


def assert_code_is_today_s(folder: Path) -> None:
    assert shipped_files(folder) == SHIPPED
    for name in SHIPPED:
        assert (folder / name).read_bytes() == (ROOT.parent / "hf_vanilla_transformer" / "model" / name).read_bytes()


@pytest.mark.parametrize("trust", [None, True])
def test_an_earlier_folder_loads_and_translates_with_the_package(earlier, trust):
    model = AutoModelForSeq2SeqLM.from_pretrained(earlier, trust_remote_code=trust)
    tokenizer = AutoTokenizer.from_pretrained(earlier, trust_remote_code=trust)
    assert type(model) is VanillaTransformerForConditionalGeneration
    assert translate(model, tokenizer, SENTENCES) == TRANSLATIONS
    translator = pipeline("translation", model=str(earlier), trust_remote_code=trust, device="cpu")
    assert type(translator) is TranslationPipeline
    assert [output["translation_text"] for output in translator(SENTENCES)] == TRANSLATIONS


def test_an_earlier_folder_is_saved_with_today_s_code(earlier, tmp_path):
    model = AutoModelForSeq2SeqLM.from_pretrained(earlier)
    model.save_pretrained(tmp_path / "again")
    assert_code_is_today_s(tmp_path / "again")
    with staged(earlier, replace_run=True) as folder:
        model.save_pretrained(folder)
    assert_code_is_today_s(earlier)


def test_an_average_of_earlier_folders_loads_with_the_package(earlier, tmp_path):
    output = average_checkpoints([earlier, save_earlier(tmp_path / "other")], tmp_path / "average")
    model = AutoModelForSeq2SeqLM.from_pretrained(output)
    assert translate(model, AutoTokenizer.from_pretrained(output), SENTENCES) == TRANSLATIONS
