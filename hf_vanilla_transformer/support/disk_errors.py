"""Full and broken disks: free space before a run, and errors of the operating system and of libraries."""

import errno
import re
import shutil
import traceback
from pathlib import Path


DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def is_disk_error(error: BaseException) -> bool:
    """Whether an error says that the disk is full or broken; torch and libraries in Rust have errors of their own."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in DISK_ERRORS
    if isinstance(error.__cause__, OSError):  # The error says more than its cause.
        return is_disk_error(error.__cause__)
    rust_error = re.search(r"\(os error (\d+)\)", str(error))
    if rust_error:
        return int(rust_error[1]) in DISK_ERRORS
    frames = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    return isinstance(error, RuntimeError) and frames[-1:] == ["torch.serialization"]


def check_free_space(folder: Path, needed: int, advice: str) -> None:
    """Raise OSError, with advice, if the disk of a folder has less free space than a run needs, in bytes."""
    disk = shutil.disk_usage(folder)
    if disk.total and disk.free < needed:  # Some network file systems tell nothing.
        raise OSError(
            f"the run writes at least {needed / 1e9:,.3g} GB, but the disk of {folder} has {disk.free / 1e9:,.3g} GB "
            f"free; {advice}."
        )
