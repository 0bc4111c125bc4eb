"""The description of the machine and the versions."""

import json
import shutil
import subprocess
from types import SimpleNamespace

import pytest
import torch

from hf_vanilla_transformer.support import machine_and_versions
from hf_vanilla_transformer.support.machine_and_versions import describe_environment


def test_environment_can_be_written():
    described = json.loads(json.dumps(describe_environment()))
    assert set(described) == {"machine", "versions", "commit"}
    assert described["machine"]["cpu"]
    assert described["machine"]["instructions"]
    assert {"python", "torch", "transformers", "hf_vanilla_transformer"} <= set(described["versions"])


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr(machine_and_versions, "_PACKAGES", ("torch", "a-package-of-no-one"))
    versions = describe_environment()["versions"]
    assert versions["torch"].partition("+")[0] == torch.__version__.partition("+")[0]
    assert versions["a-package-of-no-one"] is None


@pytest.mark.parametrize(
    ("module", "name"),
    [(SimpleNamespace(get_device_name=lambda: "the best"), "the best"), (SimpleNamespace(), "mps")],
)
def test_an_accelerator_that_has_no_name(monkeypatch, module, name):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch, "get_device_module", lambda: module)
    for device in (None, torch.device("mps")):
        assert describe_environment(device)["machine"]["accelerator"] == name
    assert describe_environment(torch.device("cpu"))["machine"]["accelerator"] is None


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_that_of_the_repository_around(monkeypatch, tmp_path):
    def git(*arguments):
        settings = ["-c", "user.name=someone", "-c", "user.email=someone@here", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *settings, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(machine_and_versions, "__file__", str(tmp_path / "package" / "support" / "module.py"))
    assert describe_environment()["commit"] is None
    (tmp_path / "tracked").write_text("one")
    git("init")
    git("add", "tracked")
    git("commit", "--message", "One")
    (tmp_path / "untracked").write_text("two")
    commit = git("rev-parse", "HEAD")
    assert describe_environment()["commit"] == commit
    (tmp_path / "tracked").write_text("another")
    assert describe_environment()["commit"] == f"{commit}-dirty"
