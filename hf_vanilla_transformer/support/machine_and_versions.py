"""The machine and the versions that a figure was measured with."""

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
    """The machine, the versions and the commit of a run on a device, by default the accelerator if there is one.

    `instructions` are the most recent ones that torch uses, `cores` those available to this process. `commit` is that
    of the checkout that contains this package, with the suffix `-dirty` if tracked files differ from it; None for an
    installed package.
    """
    return {
        "machine": {
            "cpu": _cpu_model(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "threads": torch.get_num_threads(),
            "accelerator": None if device is not None and device.type == "cpu" else _accelerator(),
        },
        "versions": {
            "python": platform.python_version(),
            "hf_vanilla_transformer": __version__,
            **{package: version_of(package) for package in _PACKAGES},
        },
        "commit": _commit(),
    }


def version_of(package: str) -> str | None:
    """The version of an installed package; None without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _accelerator() -> str | None:
    """The accelerator's name, or its type if torch has no name; None without one."""
    if not torch.accelerator.is_available():
        return None
    kind = str(torch.accelerator.current_accelerator())
    return getattr(torch.get_device_module(), "get_device_name", lambda: kind)()


def _cpu_model() -> str:
    """The processor's name, or its architecture on systems that do not report a name."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # Installed, perhaps inside another project's repository.
        return None
    # Without tags, the description of a commit is its full hash.
    describe = ["describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    command = ["git", "--no-optional-locks", "-C", str(root), *describe]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
