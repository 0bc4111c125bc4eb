"""benchmarks/without_package.py times a saved folder in processes with and without the package."""

import subprocess
import sys

import pytest

from benchmarks import without_package


pytestmark = pytest.mark.slow

TINY = ["--size", "C N=2", "--vocab_size", "50", "--new_tokens", "3", "--beams", "2", "--rounds", "2"]


def test_main(capsys):
    times = without_package.main(TINY)
    assert set(times) == {without_package.PACKAGE, without_package.WITHOUT, without_package.MARIAN}
    for milliseconds in times.values():
        assert len(milliseconds) == 2
        assert min(milliseconds) > 0
    assert "| without the package |" in capsys.readouterr().out


def test_decoding_process_forbids_the_package():
    code = (
        "import sys\n"
        "from decoding_process import NoPackage\n"
        "sys.meta_path.insert(0, NoPackage())\n"
        "import json\n"
        "import hf_vanilla_transformer.model\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=without_package.PROGRAM.parent, capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError: No module named 'hf_vanilla_transformer'" in process.stderr
