"""Errors of a full or broken disk."""

import errno
import re
import traceback


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def is_disk_error(error: BaseException) -> bool:
    """Whether an error says that the disk is full or broken; torch and libraries in Rust have errors of their own."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in DISK_ERRORS
    if isinstance(error.__cause__, OSError):  # The error says more than its cause.
        return is_disk_error(error.__cause__)
    of_rust = re.search(r"\(os error (\d+)\)", str(error))
    if of_rust:
        return int(of_rust[1]) in DISK_ERRORS
    frames = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, RuntimeError) and frames[-1:] == ["torch.serialization"]
