"""What two processes found, and one."""

import pytest

from tests.parallel.models import NAMES, PROCESSES, alone, load_results


@pytest.fixture(scope="module")
def processes(folder):
    results = load_results(folder)
    assert len(results) == PROCESSES
    return results


@pytest.fixture(scope="module")
def one_process(folder):
    return {name: alone(folder / "models" / name) for name in NAMES}
