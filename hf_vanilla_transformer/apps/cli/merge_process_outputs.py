"""Share a translation among several processes, and merge their outputs into one file.

A launcher starts the processes, as in `accelerate launch -m hf_vanilla_transformer translate ...`.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import torch

from ...support.atomic_files import locked
from ...support.output_files import open_output
from ...support.user_errors import InputError


if TYPE_CHECKING:
    from accelerate import PartialState

Item = TypeVar("Item")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Processes:
    """The number of processes that a launcher started, and the index of this process.

    Without a launcher, there is one process, whose index is 0.
    """

    count: int = 1
    index: int = 0

    @classmethod
    def launched(cls) -> "Processes":
        """Read the number of processes and this process's index from the environment variables that a launcher sets."""
        return cls(int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0")))

    def check(self, source: str | None, target: str | None) -> None:
        """Raise ValueError if several processes would share standard input or standard output."""
        if self.count > 1 and (source is None or target is None):
            raise InputError(f"{self.count} processes cannot share a stream; give both --input and --output.")

    def device(self) -> str | None:
        """Return the device of this process, such as `"cuda:1"`, or None if it is the only process."""
        return str(_process_state().device) if self.count > 1 else None

    def share(self, chunks: Iterator[list[Item]], chunk_sizes: list[int]) -> Iterator[list[Item]]:
        """Yield the chunks that this process translates. Of N processes, each takes every N-th chunk.

        The sizes of all chunks, including the other processes' chunks, are appended to `chunk_sizes`.
        """
        for number, chunk in enumerate(chunks):
            chunk_sizes.append(len(chunk))
            if number % self.count == self.index:
                yield chunk

    def open(self, path: str | None, chunk_sizes: list[int]) -> AbstractContextManager[IO[str]]:
        """Open the output file for the duration of a `with` block.

        A single process writes to the file directly. Of several processes, each writes the lines of its chunks to a
        separate file, which is called a part. When all have finished, the first process merges the parts.

        Args:
            path: the file to write, or None for standard output.
            chunk_sizes: a list that contains the sizes of all chunks when the block ends; [`share`] fills it.
        """
        # `check` has rejected standard output if there are several processes.
        if self.count == 1 or path is None:
            return open_output(path)
        return self._open_part(path, chunk_sizes)

    @contextmanager
    def _open_part(self, path: str, chunk_sizes: list[int]) -> Iterator[IO[str]]:
        """Open this process's part for the duration of the block. Then wait for the other parts, and merge them.

        A part is a file with the output lines of one process. Every process runs this method, but only the first merges
        the parts into the file `path`.

        Args:
            chunk_sizes: a list to which [`share`] appends the size of every chunk during the block.
        """
        parts = self._name_parts(path)
        own_part = parts[self.index]
        # The lock is held until the merge has ended, so that no other command writes the parts in the meantime.
        with self._lock_of_parts(path):
            with _warning_on_failure(own_part):
                with own_part.open("w", encoding="utf-8") as file:
                    # The caller's block runs here, and writes this part.
                    yield file
                # Each process calls this when its part is complete, and waits until all others have called it, too.
                _process_state().wait_for_everyone()
            if self.index == 0:
                # Only now, after the caller's block, does `chunk_sizes` have the sizes of all chunks.
                _merge_parts(path, parts, chunk_sizes)

    def _lock_of_parts(self, path: str) -> AbstractContextManager[object]:
        """Return a lock that prevents other commands from writing the same parts.

        The lock of the first process protects all processes of this command, so the others get one without effect.
        """
        if self.index > 0:
            return nullcontext()
        return locked(Path(path).with_name(f"{Path(path).name}.parts"))

    def _name_parts(self, path: str) -> list[Path]:
        """Return the path of each process's part of an output file, in the order of the processes.

        The processes must share a file system, because the first process reads all parts.
        """
        # If the output is a symbolic link, the parts lie next to the file that it points to.
        target = Path(os.path.realpath(path))
        return [target.with_name(f".{target.name}.part-{index}-of-{self.count}") for index in range(self.count)]


@contextmanager
def _warning_on_failure(part: Path) -> Iterator[None]:
    """Log a warning that names a part if the block fails, because the part is then kept.

    A part is a file with the output lines of one process. After a failure, the launcher ends the other processes.
    """
    try:
        yield
    except BaseException:
        logger.warning("the part that was written is in %s", part)
        raise


def _merge_parts(path: str, parts: list[Path], chunk_sizes: list[int]) -> None:
    """Merge the parts into one file, with the chunks in their original order, and delete the parts.

    A part is a file with the output lines of one process. A chunk is a group of consecutive lines that one process has
    translated, and `chunk_sizes` has the number of lines of each chunk. Raises InputError if a part is truncated.
    """
    with ExitStack() as open_files:
        merged_file = open_files.enter_context(open_output(path))
        part_files = []
        for part in parts:
            part_files.append(open_files.enter_context(part.open(encoding="utf-8", newline="\n")))

        for chunk_number, chunk_size in enumerate(chunk_sizes):
            # The processes took turns. For example, with 2 processes, the chunks 0, 2, 4, ... are in part 0.
            part_file = part_files[chunk_number % len(part_files)]
            merged_file.writelines(_read_next_chunk(part_file, chunk_number, chunk_size))
    # The merged file is complete only after the block, so the parts must stay until then.
    for part in parts:
        part.unlink()


def _read_next_chunk(part_file: IO[str], chunk_number: int, chunk_size: int) -> list[str]:
    """Read the lines of the next chunk from a part. Raise InputError if the part ends before the chunk does."""
    # `islice` continues where the previous chunk of this part ended.
    lines = list(islice(part_file, chunk_size))
    if len(lines) < chunk_size:
        raise InputError(
            f"{part_file.name} ends after {len(lines)} of the {chunk_size} lines of chunk {chunk_number}; "
            "translate again."
        )
    return lines


def _process_state() -> "PartialState":
    """Return accelerate's `PartialState`, which lets this process wait for the other processes."""
    from accelerate import PartialState

    # The timeout is long because the fastest process must wait for the slowest one. If a process fails, the launcher
    # ends the others.
    return PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=365))
