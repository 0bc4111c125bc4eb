"""The conditions of a measurement: machine, versions, commit, load and time."""

import os
import time
from typing import Any

import torch

from hf_vanilla_transformer.support.machine_and_versions import describe_environment


def describe_conditions(device: torch.device) -> dict[str, Any]:
    """The package's description of machine, versions and commit, flat, with the load and the time at the start."""
    environment = describe_environment(device)
    machine, versions = environment["machine"], environment["versions"]
    return {
        "device": machine["accelerator"] or f"{machine['cpu']} with {machine['instructions']}",
        "threads": machine["threads"],
        **versions,
        "commit": environment["commit"],
        "load": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
