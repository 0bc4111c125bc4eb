"""The wheel, built from the checkout and installed apart from it, carries all that its command line needs."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import hf_vanilla_transformer


pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "tests" / "fixtures" / "numbers_tiny"
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
# The recipe of 20 updates, with fewer numbers and a smaller model.
QUICK = {
    "max_steps": 20,
    "max_digits": 2,
    "train_size": 60,
    "vocab_size": 300,
    "num_layers": 1,
    "d_model": 16,
    "d_ff": 16,
    "num_heads": 2,
    "per_device_train_batch_size": 8,
    "max_new_tokens": 12,
    "disable_tqdm": "true",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=ROOT, check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([*PIP, "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)], check=True)
    return folder


@pytest.fixture(scope="module")
def run(installed, run_in_fork, tmp_path_factory) -> Callable[..., str]:
    """Run a verb of the installed command line; returns its output."""
    parent = tmp_path_factory.mktemp("run")
    environment = {**os.environ, "HF_HOME": str(parent / "home"), "HF_HUB_OFFLINE": "1"}

    def run(*arguments: object) -> str:
        program = ROOT / "tests" / "run_installed.py"
        return run_in_fork(program, installed, *arguments, environment=environment, folder=parent).stdout

    return run


def test_the_wheel_holds_the_package_and_the_launcher_alone(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if name.startswith("hf_vanilla_transformer/")}
    assert {name.partition("/")[0] for name in names - package} == {
        "hf_vanilla_transformer_launcher.py",
        f"hf_vanilla_transformer-{hf_vanilla_transformer.__version__}.dist-info",
    }
    sources = (ROOT / "hf_vanilla_transformer").rglob("*")
    expected = {
        path.relative_to(ROOT).as_posix() for path in sources if path.is_file() and "__pycache__" not in path.parts
    }
    assert package == expected | {"hf_vanilla_transformer/model_card.md"}
    assert any(name.endswith("recipes/numbers.yaml") for name in package)
    assert "hf_vanilla_transformer/py.typed" in package


def test_the_command_is_installed(installed):
    (command,) = (installed / "bin").iterdir()
    assert command.name == "hf-vanilla-transformer"
    assert "from hf_vanilla_transformer_launcher import main" in command.read_text()
    printed = subprocess.run(
        [sys.executable, command, "--version"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(installed)},
        cwd=installed,
    ).stdout
    assert printed == f"hf-vanilla-transformer {hf_vanilla_transformer.__version__}\n"


def test_the_sdist_holds_the_launcher(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)], cwd=ROOT, check=True
    )
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        assert f"{path.name.removesuffix('.tar.gz')}/hf_vanilla_transformer_launcher.py" in archive.getnames()


def test_help_lists_the_verbs(run):
    printed = run("--help")
    for verb in ("demo", "train", "translate", "evaluate", "score", "average", "convert", "plot", "serve", "info"):
        assert f"\n  {verb} " in printed


def test_info_describes_the_machine(run):
    assert hf_vanilla_transformer.__version__ in run("info")


def test_a_saved_model_translates(run):
    sentences = ["forty-two", "seven"]
    assert run("translate", *sentences, "--model_name_or_path", FIXTURE) == "zweiundvierzig\nsieben\n"


def test_a_recipe_of_the_wheel_trains(run, tmp_path):
    arguments = [word for name, value in QUICK.items() for word in (f"--{name}", value)]
    run("train", "--config", "numbers", "--output_dir", tmp_path / "run", *arguments)
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["d_model"] == QUICK["d_model"]
    # The card is filled from model_card.md, which lies outside of the package in a checkout.
    assert "| updates | 20 |" in (tmp_path / "run" / "README.md").read_text()
    assert "bleu" in (tmp_path / "run" / "scores.json").read_text()
