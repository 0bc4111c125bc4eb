"""Fixtures of all tests, and the order in which files run.

The process that starts the workers of `make test` reads this file too, so slow imports stand where they are used.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_of_datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`datasets` caches in a temporary folder, in child processes too."""
    import datasets

    folder = tmp_path_factory.mktemp("datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        patch.setenv("HF_DATASETS_CACHE", str(folder))
        yield


# Files, and folders with a trailing slash, in which a worker process spends much time. Tests whose processes wait for
# each other at every layer alternate with tests of one process, because otherwise four processes would share two cores.
LONG = (
    "tests/parallel/test_fsdp.py",
    "tests/ecosystem/test_compile.py",
    "tests/parallel/",
    "tests/invariants/test_processes.py",
    "tests/hub/test_push_pull.py",
    "tests/invariants/test_resuming.py",
    "tests/hub/test_train.py",
    "tests/test_wheel.py",
    "tests/test_launcher.py",
    "tests/invariants/",
    "tests/hub/",
    "tests/model/test_remote_code.py",
    "tests/test_notebook.py",
    "tests/training/test_trainer.py",
    "tests/device/",
    "tests/benchmarks/",
    "tests/scripts/",
    "tests/ecosystem/test_export.py",
    "tests/apps/cli/",
)


@pytest.fixture(scope="session", autouse=True)
def processor() -> None:
    """Make sure that torch uses the instructions that the environment asks for: it ignores names it does not know."""
    asked_for = os.environ.get("ATEN_CPU_CAPABILITY")
    if asked_for:
        import torch

        assert torch.backends.cpu.get_cpu_capability() == asked_for.upper()


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Tests kill processes but never the machine, so written files survive without fsync."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests run with the operations that saved folders carry, as where the package is not installed."""
    parser.addoption("--plain-operations", action="store_true", help="run the model without acceleration/")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--plain-operations"):
        from tests.plain_operations import use_plain_operations

        use_plain_operations()


def pytest_collection() -> None:
    """Import the tests without collecting garbage: the objects of modules stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from now on, except for the modules; each training passes over all objects several times."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run long files first, so that no worker runs one alone at the end."""
    if config.getoption("--plain-operations"):
        skip_fast_attention(items)
    places = {
        item: next((place for place, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG))
        for item in items
    }
    items.sort(key=places.__getitem__)


def skip_fast_attention(items: list[pytest.Item]) -> None:
    """Skip tests of the attention that acceleration/ registers under a name."""
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if "vanilla_transformer" in parameters.values():
            item.add_marker(pytest.mark.skip(reason="acceleration/ registers this attention"))


@pytest.fixture(scope="session")
def tokenizer():
    from hf_vanilla_transformer import train_tokenizer

    texts = ["a small house", "ein kleines Haus", "two small houses", "zwei kleine Häuser"] * 5
    return train_tokenizer(texts, vocab_size=300, show_progress=False)


@pytest.fixture(scope="session")
def run_in_fork() -> Iterator[Callable[..., subprocess.CompletedProcess]]:
    """Run a program as `python -I` does, and assert that it succeeds; see tests/forks.py."""
    command = [sys.executable, "-I", str(Path(__file__).with_name("forks.py"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:

        def run(
            program: Path, *arguments: object, environment: dict[str, str], folder: Path
        ) -> subprocess.CompletedProcess:
            request = {"program": str(program), "arguments": [*map(str, arguments)], "environment": environment}
            print(json.dumps({**request, "folder": str(folder)}), file=server.stdin, flush=True)
            result = subprocess.CompletedProcess(program, **json.loads(server.stdout.readline()))
            assert result.returncode == 0, result.stdout + result.stderr
            return result

        yield run
        # The server ends with its input.
        server.stdin.close()


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux with two cores, and an environment without settings of OpenMP."""
    from hf_vanilla_transformer_launcher import is_about_waiting

    for name in [*filter(is_about_waiting, os.environ), "OMP_NUM_THREADS"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)


@pytest.fixture(scope="session")
def multi30k() -> Path:
    folder = os.environ.get("MULTI30K_DIR")
    if not folder:
        pytest.skip("MULTI30K_DIR is not set to a folder with Multi30k")
    return Path(folder)


@pytest.fixture(scope="session")
def libreoffice_help() -> Path:
    folder = os.environ.get("LIBREOFFICE_HELP_DIR")
    if not folder:
        pytest.skip("LIBREOFFICE_HELP_DIR is not set to a folder with LibreOffice's help")
    return Path(folder)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a text file into the test's temporary folder."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file
