"""Models that the tests of the command line share."""

import shutil
from pathlib import Path

import pytest

from hf_vanilla_transformer.apps.cli import train
from tests.apps.cli.tiny_run import recipe
from tests.models import decisive_model


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    return train.main(recipe(tmp_path_factory.mktemp("trained")))


@pytest.fixture
def finished(trained, tmp_path) -> Path:
    """What a recipe in the test's own folder has left, without another run."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture(scope="session")
def decisive(tmp_path_factory, tokenizer) -> Path:
    """A folder with a model whose translations vary with the sentence and the search, as those of `trained` may not."""
    folder = tmp_path_factory.mktemp("decisive")
    decisive_model(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
