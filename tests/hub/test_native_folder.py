"""The registry of importers, and the folder that a model of another type becomes."""

import json
from pathlib import Path

import pytest

from hf_vanilla_transformer.apps.conversion.source_folder import MODEL_TYPES
from hf_vanilla_transformer.hub import native_folder as module
from hf_vanilla_transformer.hub import user_cache
from hf_vanilla_transformer.hub.native_folder import IMPORTERS, native_folder
from hf_vanilla_transformer.support.lazy_functions import LazyFunctions


FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"


def write_a_model(source: str, output: str) -> None:
    """An importer that counts its calls in the source, and writes what `native_folder` needs."""
    with Path(source, "calls").open("a") as calls:
        calls.write("called\n")
    Path(output).mkdir()
    Path(output, "parity.json").write_text("{}")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(user_cache, "CACHE", tmp_path / "cache")
    importers = LazyFunctions()
    importers.register("other", f"{__name__}:write_a_model")
    monkeypatch.setattr(module, "IMPORTERS", importers)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "other"}))
    return folder


def test_a_registered_type_is_converted_once_into_the_cache(folder, tmp_path):
    converted = native_folder(str(folder))
    assert converted.parent == tmp_path / "cache"
    assert native_folder(str(folder)) == converted
    assert (folder / "calls").read_text() == "called\n"


def test_a_changed_folder_is_converted_again(folder):
    converted = native_folder(str(folder))
    (folder / "config.json").write_text(json.dumps({"model_type": "other", "d_model": 8}))
    assert native_folder(str(folder)) != converted


def test_a_folder_of_this_package_stays_where_it_is():
    assert native_folder(str(FIXTURE)) == FIXTURE


def test_the_registered_importers_are_those_that_convert_recognizes():
    for model_type, system in MODEL_TYPES.items():
        assert IMPORTERS[model_type].__name__ == f"from_{system}"
    assert set(IMPORTERS) == set(MODEL_TYPES)
