"""Files that are written as a whole, by one process at a time; and full and broken disks."""

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

# Names of a process's own streams, such as /dev/stdout and the /dev/fd/63 of a process substitution.
_STREAMS = ("/dev/fd/", "/dev/std", "/proc/")
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@contextmanager
def whole_file(
    path: str | os.PathLike[str], *, binary: bool = False, keeps_part: bool = False, sync: bool = False
) -> Iterator[IO[Any]]:
    """Open a file for writing that replaces `path` on success; on an error `path` stays as it was.

    A link stays, and the file that it names is replaced. A device, a pipe or a socket is written to as it is, because
    it has no content to keep. A temporary file `.NAME.part` next to the path, which is [`locked`], holds the content
    until then; on an error `keeps_part` keeps it, unless it is empty, and logs its path as a warning. `sync` flushes
    the content to the disk before the file gets its name.

    Raises OSError; FileNotFoundError if the folder does not exist, BlockingIOError if another process writes the file.
    """
    mode, encoding = ("wb", None) if binary else ("w", "utf-8")
    if is_stream(path):
        with Path(path).open(mode, encoding=encoding) as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():  # FileLock would create it.
        raise FileNotFoundError(f"{target.parent} does not exist; create the folder before writing {target.name}.")
    temporary = target.with_name(f".{target.name}.part")
    with locked(target):
        try:
            temporary.unlink(missing_ok=True)  # It may be a link, whose target would be overwritten.
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
            if isinstance(error, OSError) and error.errno in _DISK_ERRORS and error.filename is None:
                raise OSError(error.errno, error.strerror, str(target)) from error
            raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file atomically, see [`whole_file`]."""
    with whole_file(path) as file:
        file.write(text)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from writing a file or a folder; BlockingIOError if another one holds the lock.

    The lock is a file `.NAME.lock` next to the path. It is removed at the end; a process that is killed leaves the
    file, but not the lock. Where there are no locks, or no file can be made there, nothing is locked.
    """
    target = Path(os.path.realpath(path))
    file = target.with_name(f".{target.name}.lock")
    lock = FileLock(file, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        holder = file.read_text(encoding="utf-8") if file.exists() else "another process"
        raise BlockingIOError(f"{holder} is writing {path}; wait until it ends, or choose another path.") from None
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        logger.info("%s cannot be locked.", path)
        yield
        return
    try:
        file.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        file.unlink(missing_ok=True)
        lock.release()


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether a path names a device, a pipe, a socket, or a stream of the process, and not a file or a folder."""
    if str(Path(path).absolute()).startswith(_STREAMS):
        return True
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def are_same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two paths name one file, through links too, or would name one when it is written."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, from the system's cache to the disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders.
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_error(error: BaseException) -> bool:
    """Whether an error says that the disk is full or broken; torch and libraries in Rust have errors of their own."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _DISK_ERRORS
    if isinstance(error.__cause__, OSError):  # The error says more than its cause.
        return is_disk_error(error.__cause__)
    rust_error = re.search(r"\(os error (\d+)\)", str(error))
    if rust_error:
        return int(rust_error[1]) in _DISK_ERRORS
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
