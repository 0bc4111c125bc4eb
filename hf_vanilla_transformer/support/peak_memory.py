"""Measure the peak memory of this process or of a GPU."""

import sys
from pathlib import Path

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
    peak = _read_peak_from_proc()
    if peak is not None:
        return peak
    # On Linux, this peak includes that of the process that started this one, so it is only the second choice.
    return _read_peak_from_resource()


def _read_peak_from_resource() -> int:
    """Return the peak memory of this process so far, in bytes, from Python's module `resource`."""
    import resource

    maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS reports bytes, and other systems report kilobytes.
    if sys.platform == "darwin":
        return maximum
    return maximum * 1024


def _read_peak_from_proc() -> int | None:
    """Return the peak memory of this process so far, in bytes, from Linux's folder `/proc`.

    Returns None on other systems, and in containers whose `/proc` does not report the peak.
    """
    try:
        status = Path("/proc/self/status").read_bytes()
    except OSError:
        return None
    # The line is, for example, "VmHWM:    123456 kB". HWM stands for high water mark.
    for line in status.splitlines():
        if line.startswith(b"VmHWM:"):
            kilobytes = int(line.split()[1])
            return kilobytes * 1024
    return None
