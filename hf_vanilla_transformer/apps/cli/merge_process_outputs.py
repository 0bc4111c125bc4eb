"""One output of several processes: `accelerate launch -m hf_vanilla_transformer translate ...`."""

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import IO, Any

import torch

from ...support.atomic_files import locked
from ...support.output_files import open_output
from ...support.user_errors import InputError


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Processes:
    """The processes that a launcher started, and the place of this one among them; one process without a launcher."""

    count: int = 1
    index: int = 0

    @classmethod
    def launched(cls) -> "Processes":
        """As the environment says."""
        return cls(int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0")))

    def check(self, source: str | None, target: str | None) -> None:
        """Raise ValueError if several processes would read or write one stream."""
        if self.count > 1 and (source is None or target is None):
            raise InputError(f"{self.count} processes cannot share a stream; give both --input and --output.")

    def device(self) -> str | None:
        """The device of this process, or None if it is alone."""
        return str(_state().device) if self.count > 1 else None

    def share(self, chunks: Iterator[list[Any]], counted: list[int]) -> Iterator[list[Any]]:
        """The chunks of this process, in turns; `counted` gets the length of every chunk."""
        for number, chunk in enumerate(chunks):
            counted.append(len(chunk))
            if number % self.count == self.index:
                yield chunk

    @contextmanager
    def open(self, path: str | None, counted: list[int]) -> Iterator[IO[str]]:
        """The output of one process, or of all, which must share a file system.

        Each process writes the lines of its chunks to `.NAME.part-INDEX-of-COUNT`; when all have ended, the first one
        puts them in order. If a process fails, the launcher ends the others, and these files stay. `counted` has the
        lengths of all chunks at the end; see [`share`].
        """
        if self.count == 1 or path is None:
            with open_output(path) as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        parts = [target.with_name(f".{target.name}.part-{index}-of-{self.count}") for index in range(self.count)]
        with ExitStack() as stack:
            if self.index == 0:
                stack.enter_context(locked(Path(path).with_name(f"{Path(path).name}.parts")))
            try:
                with parts[self.index].open("w", encoding="utf-8") as file:
                    yield file
                _state().wait_for_everyone()
            except BaseException:
                logger.warning("the part that was written is in %s", parts[self.index])
                raise
            if self.index == 0:
                _merge(path, parts, counted)


def _merge(path: str, parts: list[Path], counted: list[int]) -> None:
    """Write the lines of all chunks in their order; chunk k is in part k modulo the number of parts."""
    with ExitStack() as stack:
        target = stack.enter_context(open_output(path))
        files = [stack.enter_context(part.open(encoding="utf-8", newline="\n")) for part in parts]
        for number, (size, part) in enumerate(zip(counted, cycle(files))):
            lines = list(islice(part, size))
            if len(lines) < size:
                raise InputError(
                    f"{part.name} ends after {len(lines)} of the {size} lines of chunk {number}; translate again."
                )
            target.writelines(lines)
    for path_of_part in parts:
        path_of_part.unlink()


def _state() -> Any:
    from accelerate import PartialState

    # The fastest process waits for the slowest one as long as that works; a launcher ends all if one fails.
    return PartialState(cpu=not torch.accelerator.is_available(), timeout=timedelta(days=365))
