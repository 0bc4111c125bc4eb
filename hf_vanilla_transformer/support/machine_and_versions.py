"""Describe the machine, the package versions and the commit of a run, so that its results can be reproduced."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from .version import __version__


_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "sacrebleu")


def describe_environment(device: torch.device | None = None) -> dict[str, Any]:
    """Describe the machine, the package versions and the commit in a dictionary that can be saved as JSON.

    `instructions` is the most recent CPU instruction set that PyTorch uses, and `cores` is the number of cores
    available to this process. `commit` is the commit of the checkout that contains this package, with the suffix
    `-dirty` if tracked files differ from it. It is None for an installed package.

    Args:
        device: the device of the run. By default, this is the accelerator if there is one, and the CPU otherwise.
    """
    runs_on_cpu = device is not None and device.type == "cpu"
    versions: dict[str, str | None] = {"python": platform.python_version(), "hf_vanilla_transformer": __version__}
    for package in _PACKAGES:
        versions[package] = version_of(package)
    return {
        "machine": {
            "cpu": _cpu_model(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": _available_cores(),
            "threads": torch.get_num_threads(),
            "accelerator": None if runs_on_cpu else _accelerator_name(),
        },
        "versions": versions,
        "commit": _commit(),
    }


def version_of(package: str) -> str | None:
    """Return a package's version, or None if the package is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _available_cores() -> int | None:
    """Return the number of cores that this process may use, or None if the system does not report it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    # Windows and macOS do not have this function. There, all cores of the machine are counted.
    return os.cpu_count()


def _accelerator_name() -> str | None:
    """Return the accelerator's name, or its type if PyTorch cannot report a name. Returns None without accelerator."""
    if not torch.accelerator.is_available():
        return None
    device_module = torch.get_device_module()
    if hasattr(device_module, "get_device_name"):
        return device_module.get_device_name()
    return str(torch.accelerator.current_accelerator())


def _cpu_model() -> str:
    """Return the processor's name, or its architecture if the system does not report a name."""
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.is_file():
        for line in cpu_info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                _, _, name = line.partition(":")
                return name.strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Return the commit of the checkout that contains this package.

    Returns None if the package is installed, or if git is missing or fails.
    """
    # This file is two folders below the root of the checkout, in hf_vanilla_transformer/support/.
    root = Path(__file__).resolve().parents[2]
    # An installed package may be inside the repository of a different project, whose commit is irrelevant.
    if not (root / ".git").exists():
        return None
    # If all tags are excluded, git describes a commit by its full hash.
    describe = ["describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    command = ["git", "--no-optional-locks", "-C", str(root), *describe]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
