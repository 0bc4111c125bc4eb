"""What all tests share: the order of files, the cache of `datasets`, a tokenizer, and places of files.

`make test` starts several processes, and the one that starts them reads this file before: what takes long to import is
imported where it is used.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_of_datasets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Pairs that are read are kept in a folder of the tests, by processes that they start, too."""
    import datasets

    folder = tmp_path_factory.mktemp("datasets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder)
        patch.setenv("HF_DATASETS_CACHE", str(folder))
        yield


# Tests that take long for their number: files, and folders with a slash behind them. Those whose processes wait for
# each other at every layer come beside such as are one process, or else four processes would share two cores.
LONG = (
    "tests/parallel/test_fsdp.py",
    "tests/ecosystem/test_compile.py",
    "tests/parallel/",
    "tests/invariants/test_processes.py",
    "tests/hub/test_push_pull.py",
    "tests/invariants/test_resuming.py",
    "tests/hub/test_train.py",
    "tests/invariants/",
    "tests/hub/",
    "tests/test_side_by_side.py",
    "tests/training/test_trainer.py",
    "tests/device/",
    "tests/benchmarks/",
    "tests/test_reproduce_table3.py",
    "tests/ecosystem/test_export.py",
    "tests/test_scripts.py",
    "tests/test_train_settings.py",
)


@pytest.fixture(scope="session", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Processes of tests are killed, but the power does not fail: what they have written is there without waiting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first, so that of several processes none is left alone with one at the end."""
    places = {
        item: next((place for place, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG))
        for item in items
    }
    items.sort(key=places.__getitem__)


@pytest.fixture(scope="session")
def tokenizer():
    from hf_vanilla_transformer import train_tokenizer

    texts = ["a small house", "ein kleines Haus", "two small houses", "zwei kleine Häuser"] * 5
    return train_tokenizer(texts, vocab_size=300, show_progress=False)


@pytest.fixture(scope="session")
def run_in_fork() -> Iterator[Callable[..., subprocess.CompletedProcess]]:
    """Run a program as `python -I` would, and see that it succeeds; see tests/forks.py."""
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
        # It ends when nobody asks any more.
        server.stdin.close()


@pytest.fixture(scope="session")
def multi30k() -> Path:
    folder = os.environ.get("MULTI30K_DIR")
    if not folder:
        pytest.skip("MULTI30K_DIR names no folder with Multi30k")
    return Path(folder)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a text file into the test's own folder."""

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file
