"""Fixtures of all tests, and the order in which files run.

The process that starts the workers of `make test` reads this file too, so slow imports stand where they are used.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
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
    items_of_files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        items_of_files.setdefault(item.path, []).append(item)
    items[:] = chain.from_iterable(order_files(list(items_of_files.values())))


def order_files(files: list[list[pytest.Item]]) -> list[list[pytest.Item]]:
    """Put files with long tests before the others.

    Among the long ones, files whose processes wait for each other at every layer alternate with files of one process.
    Otherwise two workers would run two of the former at the same time, and four processes would share two cores.
    """
    with_several_processes = []
    long_with_one_process = []
    short = []
    for file in files:
        if has_marker(file, "several_processes"):
            with_several_processes.append(file)
        elif has_marker(file, "long") or has_marker(file, "slow"):
            long_with_one_process.append(file)
        else:
            short.append(file)
    alternating = chain.from_iterable(zip_longest(with_several_processes, long_with_one_process))
    return [*filter(None, alternating), *short]


def has_marker(file: list[pytest.Item], name: str) -> bool:
    """Return True if any test of a file has a marker."""
    return any(item.get_closest_marker(name) for item in file)


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


def find_corpus(variable: str, name: str) -> Path:
    """Return the folder that an environment variable names, or skip the test if the variable is not set."""
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} is not set to a folder with {name}")
    return Path(folder)


@pytest.fixture(scope="session")
def multi30k() -> Path:
    return find_corpus("MULTI30K_DIR", "Multi30k")


@pytest.fixture(scope="session")
def libreoffice_help() -> Path:
    return find_corpus("LIBREOFFICE_HELP_DIR", "LibreOffice's help")


@pytest.fixture(scope="session")
def localization() -> Path:
    return find_corpus("LOCALIZATION_DIR", "the localization corpus")


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a text file into the test's temporary folder."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file
