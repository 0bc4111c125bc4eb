"""What takes another way where tensors are not on a CPU, on a device that stands for a GPU."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.device import compare, second_device


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile the device with")
    folder = tmp_path_factory.mktemp("second_device")
    library, output = folder / "second_device.so", folder / "errors.json"
    second_device.build(library)
    command = [sys.executable, "-m", "tests.device.compare", str(library), str(output)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], timeout=600)
    return json.loads(output.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", [check.__name__ for check in compare.CHECKS])
def test_as_on_the_cpu(errors, name):
    assert errors[name] is None, errors[name]
