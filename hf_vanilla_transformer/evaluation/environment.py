"""The machine and the versions that a figure was measured with."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "sacrebleu")


def describe_environment(device: torch.device | None = None) -> dict[str, Any]:
    """Where and with what a run was made.

    Args:
        device (`torch.device`, *optional*): of the run; the accelerator if there is one.

    Returns:
        `dict`: `machine` (`cpu`, the most recent `instructions` that torch uses of it, `cores` that this process may
        use, `threads` of torch, `accelerator`), `versions` of Python and of packages, and `commit`, that of the
        repository if this package lies in one, with `-dirty` behind it where files differ; None otherwise.
    """
    from .. import __version__

    return {
        "machine": {
            "cpu": _cpu_model(),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "cores": _cores(),
            "threads": torch.get_num_threads(),
            "accelerator": None if device is not None and device.type == "cpu" else _accelerator(),
        },
        "versions": {
            "python": platform.python_version(),
            "hf_vanilla_transformer": __version__,
            **{package: version(package) for package in _PACKAGES},
        },
        "commit": _commit(),
    }


def _accelerator() -> str | None:
    """The accelerator's name, or its kind where torch knows no more; None without one."""
    if not torch.accelerator.is_available():
        return None
    name_of = getattr(torch.get_device_module(), "get_device_name", None)
    return str(torch.accelerator.current_accelerator()) if name_of is None else name_of()


def _cpu_model() -> str:
    """The processor's name, as far as the system tells it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # Installed, perhaps below another project's repository.
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return f"{commit}-dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
