"""Memory of the process on CPUs."""

import ctypes
import platform
import sys


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
    if platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    settings = {_MMAP_MAX: _NONE, _TRIM_THRESHOLD: _NEVER, _TOP_PAD: _BYTES_AT_ONCE}
    done = [library.mallopt(option, value) for option, value in settings.items()]
    return all(done)


def peak_memory() -> int | None:
    """Most memory that the process has had so far, in bytes; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
