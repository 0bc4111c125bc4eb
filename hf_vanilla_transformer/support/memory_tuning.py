"""Settings that decide how much freed memory a process keeps: those of the C library's allocator and of oneDNN."""

import ctypes
import os
import platform


# Options of mallopt(), by their numbers in glibc's malloc.h.
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Make the process keep the CPU memory that torch frees, and reuse it, until the process ends.

    By default, the C library returns much of this memory to the operating system after every update. The next update
    requests it again as new pages, which the system must fill with zeros first.

    Returns:
        `bool`: True if the settings took effect. They need glibc; with another C library the function does nothing.
    """
    library = _load_glibc()
    if library is None:
        return False
    settings = {
        # Allocate every block from the heap, because a block with a mapping of its own is unmapped when it is freed.
        _MMAP_MAX: 0,
        # Never return the free end of the heap to the system, which -1 means.
        _TRIM_THRESHOLD: -1,
        # Grow the heap by 256 MiB at a time, so that a process that needs gigabytes makes few system calls.
        _TOP_PAD: 2**28,
    }
    return all(library.mallopt(setting, number) for setting, number in settings.items())


def release_freed_memory() -> bool:
    """Release all freed memory to the operating system, and return True if there was any. This needs glibc."""
    library = _load_glibc()
    if library is None:
        return False
    return bool(library.malloc_trim(0))


def limit_onednn_cache() -> None:
    """Make oneDNN keep at most 64 compiled matmuls instead of 1,024, unless the environment sets another number.

    The batches of a training have ever new shapes, and each shape adds a compiled matmul of about half a megabyte. The
    limit takes effect if this function is called before the first matmul of the process.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def _load_glibc() -> ctypes.CDLL | None:
    """Return the C library of this process if it is glibc, else None."""
    if platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)
