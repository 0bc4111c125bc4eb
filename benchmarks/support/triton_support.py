"""Whether Triton's kernels can run."""

import os
from importlib.util import find_spec

import torch


def missing_for_triton(device: torch.device) -> str | None:
    """Return a sentence that says why Triton's kernels cannot run on a device, or None if they can.

    With `TRITON_INTERPRET=1` in the environment, Triton interprets its kernels on the CPU. That is slow, and shows what
    they compute without a GPU.
    """
    if find_spec("triton") is None:
        return "triton is not installed."
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != "cuda" and not is_interpreted:
        return "Triton needs a GPU, or TRITON_INTERPRET=1."
    return None
