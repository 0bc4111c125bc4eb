"""Measure the peak memory of this process or of a GPU."""

import sys

import torch


def peak_memory(device: torch.device | None = None) -> int | None:
    """Return the peak memory of this process so far, in bytes. For a CUDA device, return the peak GPU memory.

    GPU memory is the memory that PyTorch has reserved. Returns None for a process on Windows, where Python has no
    `resource` module.
    """
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS reports bytes, and other systems report kilobytes.
    if sys.platform == "darwin":
        return peak
    return peak * 1024
