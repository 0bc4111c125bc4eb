"""The peak memory of a process or of a GPU."""

import sys

import torch


def peak_memory(device: torch.device | None = None) -> int | None:
    """Return the peak memory of this process so far, in bytes. For a CUDA device, return the GPU's peak memory.

    Returns None on Windows, which has no `resource` module to report it.
    """
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS reports bytes, other systems report kilobytes.
    if sys.platform == "darwin":
        return peak
    return peak * 1024
