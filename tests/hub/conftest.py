"""Child processes that use the test Hub as the Hub."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.hub.server import Hub


ROOT = Path(__file__).parents[2]
CHILDREN = Path(__file__).parent / "children"
FIXTURE = ROOT / "tests" / "fixtures" / "numbers_tiny"


@pytest.fixture(scope="module")
def hub():
    # Model files are larger than this, so they are uploaded in parts.
    with Hub(part_size=50_000) as hub:
        yield hub


@pytest.fixture(scope="module")
def run_child(hub, run_in_fork, tmp_path_factory) -> Callable[..., subprocess.CompletedProcess]:
    """Run a program of `children` in a process with these settings, by default with its own cache."""

    def run(
        program: str,
        *arguments: object,
        token: str | None = None,
        home: Path | None = None,
        **settings: str,
    ) -> subprocess.CompletedProcess:
        home = home or tmp_path_factory.mktemp("home")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment = {**inherited, **hub.environment(home, token), **settings}
        return run_in_fork(CHILDREN / program, *arguments, environment=environment, folder=home)

    return run
