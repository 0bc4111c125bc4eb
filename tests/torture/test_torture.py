"""A few cases of `make torture`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


pytestmark = pytest.mark.slow


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to compile the failing disk with")
@pytest.mark.parametrize(("job", "every"), [("train", 230), ("average", 4), ("translate", 3)])
def test_some_cases(job, every):
    options = ["--cases", "2", "--pairs", "2", "--seed", "1", "--jobs", job, "--every", str(every)]
    command = [sys.executable, "-m", "tests.torture", *options]
    end = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600)
    assert end.returncode == 0, end.stdout + end.stderr
    assert f"{job}: 2 kills in runs of" in end.stdout
    assert " s, 2 pairs (" in end.stdout
    assert end.stdout.endswith("no failures\n")
