"""Memory of the process on CPUs."""

import ctypes
import platform
import sys

import torch


# Options of mallopt(), as malloc.h numbers them, and what they are set to.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_NEVER, _NONE, _BYTES_AT_ONCE = -1, 0, 2**28


def keep_freed_memory() -> bool:
    """Let the process keep the memory that torch frees on CPUs, for what torch needs next.

    Otherwise the C library gives much of it back after every update and asks for it again, in fresh pages, which the
    system fills with zeros. It holds for the whole process until its end.

    Returns:
        `bool`: whether it could be set. That takes glibc, the C library of most Linux systems; others are left alone.
    """
    library = _glibc()
    if library is None:
        return False
    settings = {_MMAP_MAX: _NONE, _TRIM_THRESHOLD: _NEVER, _TOP_PAD: _BYTES_AT_ONCE}
    done = [library.mallopt(option, value) for option, value in settings.items()]
    return all(done)


def release_freed_memory() -> bool:
    """Give what is kept, but not in use, back to the system, all at once.

    Returns:
        `bool`: whether there was something. That takes glibc; other libraries are left alone.
    """
    library = _glibc()
    return library is not None and bool(library.malloc_trim(0))


def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None


def peak_memory(device: torch.device | None = None) -> int | None:
    """Most memory that the process has had so far, in bytes; None where the system does not tell.

    Args:
        device (`torch.device`, *optional*): of an NVIDIA or AMD GPU, for what torch has taken of its memory instead.
    """
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
