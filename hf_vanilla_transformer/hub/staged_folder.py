"""Folders that are replaced as a whole: all files of a run, or none."""

import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .model_folder import files_of_a_run


@contextmanager
def staged(folder: Path, *, replace_run: bool = False) -> Iterator[Path]:
    """Yield a temporary folder whose files move into `folder` when all of them are written.

    The temporary folder is inside `folder` if that exists, because `folder` may be on another disk than its parent;
    otherwise it is next to `folder`. If a file cannot be moved, the temporary folder stays and the error names it.

    Args:
        folder (`Path`): created if it does not exist; files of the same names are replaced.
        replace_run (`bool`): remove the files of an earlier run, its weights first. New weights are moved last, so that
            the folder never holds the weights of one run together with files of another.

    Raises:
        OSError: if a file cannot be moved.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    parent = folder if folder.is_dir() else folder.parent
    temporary = Path(tempfile.mkdtemp(dir=parent, prefix=f".{folder.name}-"))
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    new = sorted(temporary.iterdir(), key=_has_weights)
    names = {path.name for path in new}
    earlier = sorted(files_of_a_run(folder), key=_has_weights, reverse=True) if replace_run else []
    try:
        if is_new:  # All files in one step, which others see done or not.
            temporary.chmod(stat.S_IMODE(folder.stat().st_mode))
            folder.rmdir()
            temporary.rename(folder)
            return
        for path in earlier:
            if _has_weights(path) or path.name not in names:
                path.unlink()
        for path in new:
            path.replace(folder / path.name)
    except OSError as error:
        raise OSError(f"{folder} could not be replaced ({error}); its new files are in {temporary}.") from error
    shutil.rmtree(temporary, ignore_errors=True)


def _has_weights(path: Path) -> bool:
    return ".safetensors" in path.suffixes
