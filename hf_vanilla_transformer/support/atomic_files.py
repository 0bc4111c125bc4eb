"""Write files as a whole and by one process at a time, and recognize full and broken disks."""

import errno
import logging
import os
import re
import shutil
import socket
import stat
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout


logger = logging.getLogger(__name__)

# Where the streams of a process are, such as /dev/stdout, and /dev/fd/63 for a process substitution of the shell.
_STREAMS = ("/dev/fd/", "/dev/std", "/proc/")
# The disk is full, the user's quota is used up, or the disk is broken.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@contextmanager
def whole_file(
    path: str | os.PathLike[str], *, binary: bool = False, keeps_part: bool = False, sync: bool = False
) -> Iterator[IO[Any]]:
    """Open a file for writing that replaces `path` on success. On an error, `path` stays as it was.

    Until then, a temporary file `.NAME.part` next to the path holds the content, and the path is [`locked`]. If the
    path is a link, the link stays, and the file to which it points is replaced. A device, a pipe or a socket has no
    content to keep, so it is written directly.

    Args:
        path: the file to write. Its folder must exist.
        binary: whether to write bytes instead of text in UTF-8.
        keeps_part: whether to keep the temporary file on an error, unless it is empty, and to log its path as a
            warning.
        sync: whether to flush the content to the disk before the file gets its name.

    Raises:
        FileNotFoundError: if the folder does not exist.
        BlockingIOError: if another process is writing the file.
        OSError: if the file cannot be written.
    """
    mode = "wb" if binary else "w"
    encoding = None if binary else "utf-8"
    if is_stream(path):
        with Path(path).open(mode, encoding=encoding) as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    # FileLock would create the folder.
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} does not exist; create the folder before writing {target.name}.")
    temporary = target.with_name(f".{target.name}.part")
    with locked(target):
        try:
            # If a link is in this place, opening it would overwrite the file to which it points.
            temporary.unlink(missing_ok=True)
            with temporary.open(mode, encoding=encoding) as file:
                yield file
            if target.exists():
                shutil.copymode(target, temporary)
            if sync:
                flush(temporary)
            temporary.replace(target)
        except BaseException as error:
            if keeps_part and temporary.exists() and temporary.stat().st_size:
                logger.warning("the part that was written is in %s", temporary)
            else:
                temporary.unlink(missing_ok=True)
            # An error of writing names no file, unlike an error of opening.
            if isinstance(error, OSError) and error.errno in _DISK_ERRORS and error.filename is None:
                raise OSError(error.errno, error.strerror, str(target)) from error
            raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file as a whole; see [`whole_file`]."""
    with whole_file(path) as file:
        file.write(text)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Prevent other processes from writing a file or a folder at the same time.

    The lock is a file `.NAME.lock` next to the path, which is removed at the end. If the process is killed, the file
    remains, but the operating system releases the lock. If the file system has no locks, or if no file can be created
    next to the path, nothing is locked.

    Raises BlockingIOError if another process holds the lock; the message names the process.
    """
    target = Path(os.path.realpath(path))
    lock_file = target.with_name(f".{target.name}.lock")
    lock = FileLock(lock_file, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        # Below, the holder has written its process number and its machine into the file.
        holder = lock_file.read_text(encoding="utf-8") if lock_file.exists() else "another process"
        raise BlockingIOError(f"{holder} is writing {path}; wait until it ends, or choose another path.") from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        logger.info("%s cannot be locked.", path)
        yield
        return
    try:
        lock_file.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        lock_file.unlink(missing_ok=True)
        lock.release()


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a device, a pipe, a socket or a stream of the process, not a file or a folder.

    A path that does not exist is no stream.
    """
    if str(Path(path).absolute()).startswith(_STREAMS):
        return True
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    is_file_or_folder = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    return not is_file_or_folder


def are_same_file(path: str | os.PathLike[str], other_path: str | os.PathLike[str]) -> bool:
    """Return True if two paths lead to the same file, possibly through links. The file need not exist yet."""
    try:
        return Path(path).samefile(other_path)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other_path)


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, from the system's cache to the disk."""
    # Windows cannot open folders.
    if path.is_dir() and os.name == "nt":
        return
    # A folder can only be opened for reading, and Windows flushes a file only if it is open for writing.
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_error(error: BaseException) -> bool:
    """Return True if an error means that the disk is full or broken.

    Besides OSError, these are the errors that safetensors, tokenizers and torch raise in place of an OSError.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _DISK_ERRORS
    # An error of this package that was raised from an OSError, in order to say more.
    if isinstance(error.__cause__, OSError):
        return is_disk_error(error.__cause__)
    # Libraries in Rust put the number of the error into the message.
    rust_error = re.search(r"\(os error (\d+)\)", str(error))
    if rust_error:
        return int(rust_error[1]) in _DISK_ERRORS
    # torch.save raises a RuntimeError without a number if it cannot write.
    modules = [frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_raised_by_torch_save = len(modules) > 0 and modules[-1] == "torch.serialization"
    return isinstance(error, RuntimeError) and is_raised_by_torch_save


def check_free_space(folder: Path, needed: int, advice: str) -> None:
    """Raise OSError if the disk of a folder has too little free space for a run.

    Args:
        folder: a folder on the disk.
        needed: the space that the run needs, in bytes.
        advice: what the user may do, for the end of the message.
    """
    disk = shutil.disk_usage(folder)
    # Some network file systems report a total of 0.
    if disk.total > 0 and disk.free < needed:
        raise OSError(
            f"the run writes at least {needed / 1e9:,.3g} GB, but the disk of {folder} has {disk.free / 1e9:,.3g} GB "
            f"free; {advice}."
        )
