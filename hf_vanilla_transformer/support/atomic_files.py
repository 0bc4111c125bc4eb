"""Write files so that they are never seen half-written, lock them against other processes, and detect disk errors."""

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

# The paths of a process's streams begin like this, for example /dev/stdout, or /dev/fd/63 for a shell's process
# substitution.
_STREAMS = ("/dev/fd/", "/dev/std", "/proc/")
# The disk is full, the user's quota is used up, or the disk is broken.
_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


@contextmanager
def whole_file(
    path: str | os.PathLike[str], *, binary: bool = False, keeps_part: bool = False, sync: bool = False
) -> Iterator[IO[Any]]:
    """Open a file for writing, and replace `path` only when the block ends without an error.

    During the block, the content is written to a temporary file `.NAME.part` next to `path`, and `path` is [`locked`].
    If the block raises an error, `path` stays as it was. If `path` is a link, the file to which it points is replaced.
    A device, a pipe or a socket is written directly.

    Args:
        path: the file to write. Its folder must exist.
        binary: whether to write bytes instead of UTF-8 text.
        keeps_part: whether to keep the temporary file after an error, unless it is empty, and to log a warning with its
            path.
        sync: whether to flush the content to the disk before the file replaces `path`.

    Raises:
        FileNotFoundError: if the folder does not exist.
        BlockingIOError: if another process is writing the file.
        OSError: if the file cannot be written.
    """
    if is_stream(path):
        with _open_for_writing(Path(path), binary) as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    _check_folder_exists(target)
    temporary = target.with_name(f".{target.name}.part")
    # The lock comes first: if another process holds it, the temporary file belongs to that process and must stay.
    with locked(target), _discarded_after_error(temporary, target, keeps_part):
        # A killed process may have left a file of this name. If it is a link, opening it would overwrite its target.
        temporary.unlink(missing_ok=True)
        with _open_for_writing(temporary, binary) as file:
            yield file
        # The file is closed now, so all of its content has been written. The lock is still held. If this step fails,
        # the same happens as after an error of the caller.
        _replace_file(target, temporary, sync)


def _open_for_writing(path: Path, binary: bool) -> IO[bytes] | IO[str]:
    """Open a file for writing bytes, or text in UTF-8."""
    if binary:
        return path.open("wb")
    return path.open("w", encoding="utf-8")


def _check_folder_exists(target: Path) -> None:
    """Raise FileNotFoundError if the folder of a file does not exist. [`locked`] would create it."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} does not exist; create the folder before writing {target.name}.")


def _replace_file(target: Path, temporary: Path, sync: bool) -> None:
    """Replace a file by a complete temporary file, which gets the permissions of the file that it replaces.

    Args:
        target: the file to replace. It need not exist.
        temporary: the new file, in the same folder.
        sync: whether to flush the new content to the disk before it replaces the old one.
    """
    if target.exists():
        shutil.copymode(target, temporary)
    if sync:
        flush(temporary)
    # This comes last, because other processes may read the file as soon as it has its final name.
    temporary.replace(target)


@contextmanager
def _discarded_after_error(temporary: Path, target: Path, keeps_part: bool) -> Iterator[None]:
    """Remove a temporary file if the block raises an error. If `keeps_part` is True, keep the file if it has content.

    A disk error that does not name a file is raised again with the name of `target`.
    """
    try:
        yield
    except BaseException as error:
        _discard(temporary, keeps_part)
        # Unlike errors when opening a file, errors when writing do not name the file.
        if isinstance(error, OSError) and error.errno in _DISK_ERRORS and error.filename is None:
            raise OSError(error.errno, error.strerror, str(target)) from error
        raise


def _discard(temporary: Path, keeps_part: bool) -> None:
    """Remove a temporary file. If `keeps_part` is True and the file is not empty, keep it and log a warning instead."""
    has_content = temporary.exists() and temporary.stat().st_size > 0
    if keeps_part and has_content:
        logger.warning("the part that was written is in %s", temporary)
    else:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file. An existing file is replaced only when all of the text is written; see [`whole_file`]."""
    with whole_file(path) as file:
        file.write(text)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file or a folder for the duration of the block, so that no other process writes to it.

    The lock is a file `.NAME.lock` next to the path, which is removed at the end. If the process is killed, the file
    remains, but the operating system releases the lock. If the file system does not support locks, or if no file can be
    created next to the path, nothing is locked.

    Raises BlockingIOError if another process holds the lock. The message names the process.
    """
    target = Path(os.path.realpath(path))
    lock_file = target.with_name(f".{target.name}.lock")
    lock = FileLock(lock_file, blocking=False)
    if not _try_to_acquire(lock, path):
        logger.info("%s cannot be locked.", path)
        yield
        return
    try:
        # If another process fails to acquire the lock, its error message has this text.
        lock_file.write_text(f"process {os.getpid()} on {socket.gethostname()}", encoding="utf-8")
        yield
    finally:
        # The file is removed while the lock is held. After the release, it may belong to the next holder.
        lock_file.unlink(missing_ok=True)
        lock.release()


def _try_to_acquire(lock: FileLock, path: Path) -> bool:
    """Acquire the lock for a path, and return True. Return False if no lock is possible there.

    Raises BlockingIOError if another process holds the lock.
    """
    try:
        lock.acquire()
    except Timeout:
        lock_file = Path(lock.lock_file)
        # The holder's `locked` has written its process number and its machine's name to the file.
        holder = lock_file.read_text(encoding="utf-8") if lock_file.exists() else "another process"
        raise BlockingIOError(f"{holder} is writing {path}; wait until it ends, or choose another path.") from None
    except NotImplementedError:
        # The file system does not support locks.
        return False
    except OSError as error:
        # The folder is read-only, or belongs to a different user. A Timeout is an OSError, too, so its clause is above.
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return False
        raise
    return True


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a device, a pipe, a socket or a stream such as `/dev/stdout`.

    Returns False for files, for folders and for paths that do not exist.
    """
    # A stream may have been redirected to a file, so the beginning of its path decides, such as "/dev/std".
    if str(Path(path).absolute()).startswith(_STREAMS):
        return True
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return False
    is_file_or_folder = stat.S_ISREG(mode) or stat.S_ISDIR(mode)
    return not is_file_or_folder


def are_same_file(path: str | os.PathLike[str], other_path: str | os.PathLike[str]) -> bool:
    """Return True if two paths lead to the same file, directly or through links. The file need not exist yet."""
    try:
        return Path(path).samefile(other_path)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other_path)


def flush(path: Path) -> None:
    """Flush a file's content, or a folder's list of file names, from the system's cache to the disk."""
    # Windows cannot open folders.
    if path.is_dir() and os.name == "nt":
        return
    # Folders can be opened only for reading, and Windows flushes a file only if it is open for writing.
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_disk_error(error: BaseException) -> bool:
    """Return True if an error means that the disk is full or broken.

    The error may be an OSError, or an error that safetensors, tokenizers or PyTorch raises instead of an OSError.
    """
    # The error number is looked for in the error itself, then in its cause, and then in its message.
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _DISK_ERRORS
    # The error may be one of this package's own, raised from an OSError with a more detailed message.
    if isinstance(error.__cause__, OSError):
        return is_disk_error(error.__cause__)
    # Libraries written in Rust put the error number into the message, for example "(os error 28)".
    rust_error = re.search(r"\(os error (?P<number>\d+)\)", str(error))
    if rust_error is not None:
        return int(rust_error["number"]) in _DISK_ERRORS
    # If torch.save cannot write, it raises a RuntimeError without an error number.
    return isinstance(error, RuntimeError) and _raising_module(error) == "torch.serialization"


def _raising_module(error: BaseException) -> str | None:
    """Return the name of the module in which an error was raised, or None if the error was never raised."""
    module = None
    # A traceback begins with the outermost call, so the last frame belongs to the function that raised the error.
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = frame.f_globals["__name__"]
    return module


def check_free_space(folder: Path, needed: int, advice: str) -> None:
    """Raise OSError if the disk that contains a folder has too little free space for a run.

    Args:
        folder: a folder on the disk.
        needed: the space that the run needs, in bytes.
        advice: the end of the message, which tells the user what to do.
    """
    disk = shutil.disk_usage(folder)
    # Some network file systems report a total of 0.
    if disk.total > 0 and disk.free < needed:
        raise OSError(
            f"the run writes at least {needed / 1e9:,.3g} GB, but the disk of {folder} has {disk.free / 1e9:,.3g} GB "
            f"free; {advice}."
        )
