"""A server with the page, in a process of its own; `make test-apps` installs what these tests need."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ecosystem.documentation import FIXTURE


NEEDED = ("fastapi", "uvicorn", "prometheus_client", "babel", "gradio", "deep_translator", "libretranslatepy")
NEEDED += ("schemathesis", "selenium")
MISSING = [name for name in NEEDED if find_spec(name) is None]
COMMAND = (sys.executable, "-m", "hf_vanilla_transformer", "serve", "--page", "--model_name_or_path", str(FIXTURE))
# huggingface_hub's client refuses every address while it is offline, so only the server is.
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if MISSING else ():
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.skip(reason=f"{', '.join(MISSING)} not installed; `make test-apps` adds them"))


def start(command: tuple[str, ...], **options) -> tuple[subprocess.Popen, str]:
    """Start a server; returns its process and its address."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **{"env": ENVIRONMENT, **options})
    printed = ""
    for line in process.stderr:
        printed += line
        if match := re.search(r"serving .* at (http://.*)$", line):
            return process, match[1]
    pytest.fail(printed)


def stop(process: subprocess.Popen) -> int:
    """Ask a server to end; returns its exit code."""
    process.terminate()
    try:
        process.communicate(timeout=30)
    finally:
        process.kill()
    return process.returncode


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    process, url = start((*COMMAND, "--port", "0"))
    yield url
    assert stop(process) == 0
