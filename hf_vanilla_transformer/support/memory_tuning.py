"""Control how much memory a process keeps for reuse in the C library's allocator and in oneDNN's cache."""

import ctypes
import os
import platform


# Numbers of mallopt() options, from glibc's malloc.h.
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Make the process keep the CPU memory that PyTorch frees, and reuse it until the process ends.

    By default, the C library returns much of this memory to the operating system after every training update. The next
    update requests it again as new pages, and it has to wait until the system has filled them with zeros.

    Returns:
        `bool`: True if the settings took effect. They require glibc. With a different C library, nothing is changed.
    """
    library = _load_glibc()
    if library is None:
        return False
    settings = {
        # Allocate every block from the heap, because a block with a separate mapping is unmapped when it is freed.
        _MMAP_MAX: 0,
        # With -1, the free end of the heap is never returned to the system.
        _TRIM_THRESHOLD: -1,
        # Grow the heap by 256 MiB at a time, so that a process that needs gigabytes makes few system calls.
        _TOP_PAD: 2**28,
    }
    # mallopt() returns 1 if a setting took effect, and 0 otherwise.
    return all(library.mallopt(setting, number) for setting, number in settings.items())


def release_freed_memory() -> bool:
    """Release all freed memory to the operating system, and return True if there was any. Requires glibc."""
    library = _load_glibc()
    if library is None:
        return False
    # The argument is the number of free bytes to keep at the end of the heap.
    return bool(library.malloc_trim(0))


def limit_onednn_cache() -> None:
    """Make oneDNN cache at most 64 compiled matmuls instead of 1,024, unless the user has set a different limit.

    Training batches have many different shapes, and each new shape adds a compiled matmul of about half a megabyte to
    the cache. Call this function before the first matmul of the process, because it has no effect afterward. The user
    sets a limit with the environment variable `ONEDNN_PRIMITIVE_CACHE_CAPACITY`.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def _load_glibc() -> ctypes.CDLL | None:
    """Return this process's C library if it is glibc, and None otherwise."""
    if platform.libc_ver()[0] != "glibc":
        return None
    # None stands for the running process, which has already loaded its C library.
    return ctypes.CDLL(None)
