"""A run of `train` that takes a second."""

import pytest
import yaml

from tests.apps.cli.tiny_run import TINY_RUN
from tests.invariants.killed import MAX_STEPS, SAVE_STEPS


@pytest.fixture(scope="package")
def recipe(tmp_path_factory):
    """A file of arguments: dropout, more than one epoch, checkpoints in the middle of them."""
    settings = {
        **TINY_RUN,
        "dropout": 0.1,
        "max_steps": MAX_STEPS,
        "save_steps": SAVE_STEPS,
        "use_cpu": True,
    }
    path = tmp_path_factory.mktemp("recipe") / "recipe.yaml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)
