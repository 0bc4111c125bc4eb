"""The files of a saved model's folder, and their replacement as a whole: all files of a run, or none."""

import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..model.pretrained_model import give_weights_the_mode_of_config
from ..support.user_errors import InputError


CARD = "README.md"
# How a converted model was compared with its source.
CERTIFICATE = "parity.json"
# Patterns of the files of weights in a folder of transformers.
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
# This package's tokenizers have the first four, other tokenizers the rest.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "source_tokenizer.json",
    "target_tokenizer.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "vocab-src.json",
    "vocab-tgt.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# The code in a saved model.
_CODE_FILES = tuple(path.name for path in (Path(__file__).parents[1] / "model").glob("[a-z]*.py"))
# A pickle, which the Trainer writes, and pushes during training.
TRAINING_ARGUMENTS = "training_args.bin"
# What `train` was given, paths of the machine included.
ARGUMENTS = "arguments.yaml"
# Their name in a training that the Trainer pushes meanwhile: it leaves out names that begin so.
ARGUMENTS_WHILE_PUSHED = f"_{ARGUMENTS}"
# The folder of a student in int8, inside of its own.
INT8 = "int8"
NOT_TO_SHARE = (TRAINING_ARGUMENTS, ARGUMENTS, ARGUMENTS_WHILE_PUSHED)
# Files that a run writes, next to its checkpoints; a later run in the same folder may write fewer of them.
FILES_OF_A_RUN = (
    CARD,
    "config.json",
    "curve.json",
    "curve.png",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-?????-of-?????.safetensors",
    CERTIFICATE,
    "scores.json",
    *NOT_TO_SHARE,
    *TOKENIZER_FILES,
    *_CODE_FILES,
)


def check_links(files: Iterable[Path]) -> None:
    """Check, before files are copied or pushed, that none is a link out of its folder, perhaps to a secret.

    Links of the Hub's cache, from a snapshot to the repository's blobs, are allowed.

    Raises:
        ValueError: if a file is such a link.
    """
    for file in files:
        folder, target = file.parent.resolve(), file.resolve()
        if not any(target.is_relative_to(allowed) for allowed in (folder, folder.parent.parent / "blobs")):
            raise InputError(
                f"{file} is a link to {target}, outside its folder; replace the link by the file if others may have it."
            )


def files_of_a_run(folder: Path) -> list[Path]:
    """Files of a run in a folder, without its checkpoints."""
    return [path for pattern in FILES_OF_A_RUN for path in sorted(folder.glob(pattern)) if path.is_file()]


def check_holds_no_model(folder: Path, purpose: str) -> None:
    """Raise OSError if a folder for a new model holds one already, or is a file."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder for {purpose}.")
    found = [path.name for path in files_of_a_run(folder)]
    if found:
        raise FileExistsError(f"{folder} already holds a model ({', '.join(found[:4])}); name another folder.")


@contextmanager
def staged(folder: Path, *, replace_run: bool = False) -> Iterator[Path]:
    """Yield a temporary folder whose files move into `folder` when all of them are written.

    The temporary folder is inside `folder` if that exists, because `folder` may be on another disk than its parent;
    otherwise it is next to `folder`. If a file cannot be moved, the temporary folder stays and the error names it.

    Weights get the permissions of the `config.json` that is staged with them.

    Args:
        folder (`Path`): created if it does not exist; files of the same names are replaced.
        replace_run (`bool`): remove the files of an earlier run, its weights first, and its model in int8. New weights
            are moved last, so that the folder never holds the weights of one run together with files of another.

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
    # Averages and models of other classes are not saved by our `save_pretrained`.
    give_weights_the_mode_of_config(temporary)
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
        if replace_run:
            _remove_int8(folder)
        for path in earlier:
            if _has_weights(path) or path.name not in names:
                path.unlink()
        for path in new:
            path.replace(folder / path.name)
    except OSError as error:
        raise OSError(f"{folder} could not be replaced ({error}); its new files are in {temporary}.") from error
    shutil.rmtree(temporary, ignore_errors=True)


def _remove_int8(folder: Path) -> None:
    """Remove the model in int8 of an earlier run; other files in its folder stay."""
    int8 = folder / INT8
    for path in sorted(files_of_a_run(int8), key=_has_weights, reverse=True):
        path.unlink()
    if int8.is_dir() and not any(int8.iterdir()):
        int8.rmdir()


def _has_weights(path: Path) -> bool:
    return ".safetensors" in path.suffixes
