"""Keeping, releasing and measuring the memory of a process on CPUs."""

import ctypes
import os
import platform
import sys

import torch


# Options of mallopt() by their numbers in malloc.h, and the values that keep_freed_memory() sets.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_NEVER, _NONE, _BYTES_AT_ONCE = -1, 0, 2**28


def keep_freed_memory() -> bool:
    """Make the process keep the CPU memory that torch frees, and reuse it, until the process ends.

    By default the C library returns much of it to the operating system after every update and requests it again as new
    pages, which the system fills with zeros.

    Returns:
        `bool`: whether that took effect. It needs glibc; with another C library the function does nothing.
    """
    library, settings = _glibc(), {_MMAP_MAX: _NONE, _TRIM_THRESHOLD: _NEVER, _TOP_PAD: _BYTES_AT_ONCE}
    return library is not None and all(library.mallopt(option, value) for option, value in settings.items())


def release_freed_memory() -> bool:
    """Release all freed memory to the operating system; whether there was any, which needs glibc."""
    library = _glibc()
    return library is not None and bool(library.malloc_trim(0))


def limit_onednn_cache() -> None:
    """Make oneDNN keep 64 compiled matmuls of half a megabyte, not 1,024, unless the environment says how many.

    The batches of a training have ever new shapes. It takes effect before the first matmul of the process.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def peak_memory(device: torch.device | None = None) -> int | None:
    """Peak memory of the process, or of a GPU, so far, in bytes; None on systems that do not report it."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
