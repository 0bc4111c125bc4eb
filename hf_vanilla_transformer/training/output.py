"""The folder that a run writes: never two models in one, never half a file."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_output_folder(folder: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    """Make sure that a run does not mix its files with another's.

    Args:
        folder (`Path`): where the run is to write.
        overwrite (`bool`): whether checkpoints of an earlier run may be removed, and its model replaced.
        resume (`bool`): whether this run goes on with the earlier one.

    Raises:
        FileExistsError: if the folder holds a model or checkpoints, and neither was said.
        NotADirectoryError: if it is a file.
    """
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name a folder for the trained model.")
    checkpoints = list(folder.glob("checkpoint-*"))
    if resume or not (checkpoints or (folder / "config.json").exists()):
        return
    if not overwrite:
        raise FileExistsError(
            f"{folder} already holds a model or checkpoints; name another folder, or say --overwrite to replace them "
            "or --resume_from_checkpoint last to go on."
        )
    for checkpoint in checkpoints:
        shutil.rmtree(checkpoint)


@contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`, whose files move into `folder` when all of them are written.

    Args:
        folder (`Path`): made if need be; files of the same names are replaced.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        yield Path(temporary)
        folder.mkdir(exist_ok=True)
        for path in Path(temporary).iterdir():
            path.replace(folder / path.name)
