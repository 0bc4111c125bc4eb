"""Name the files in a saved model's folder, and replace the files of a run as a whole: all of them or none."""

import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..model.pretrained_model import give_weights_the_mode_of_config
from ..support.user_errors import InputError


CARD = "README.md"
# The file that says how a converted model was compared with its source.
CERTIFICATE = "parity.json"
# Patterns of the files with weights in a folder of transformers.
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
# Files of tokenizers. This package's tokenizers have the first four, and other tokenizers have the rest.
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
# The files with the code of a saved model.
_CODE_FILES = tuple(path.name for path in (Path(__file__).parents[1] / "model").glob("[a-z]*.py"))
# A pickle that the Trainer writes. If it pushes during training, it pushes this file as well.
TRAINING_ARGUMENTS = "training_args.bin"
# The arguments of `train`, which may contain paths of the machine.
ARGUMENTS = "arguments.yaml"
# The name of this file while the Trainer pushes during training, because it skips names that begin with an underscore.
ARGUMENTS_WHILE_PUSHED = f"_{ARGUMENTS}"
# The folder of a student's int8 weights, inside the student's folder.
INT8 = "int8"
NOT_TO_SHARE = (TRAINING_ARGUMENTS, ARGUMENTS, ARGUMENTS_WHILE_PUSHED)
# The files that a run writes next to its checkpoints. A later run in the same folder may write fewer of them.
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
    """Raise ValueError if a file is a link to a place outside its folder, where a secret may be.

    Call this before files are copied or pushed. Links in the Hub's cache, from a snapshot to the blobs of its
    repository, are allowed.
    """
    for file in files:
        folder = file.parent.resolve()
        # The snapshot with the name REVISION is the folder `snapshots/REVISION` of a repository, next to `blobs`.
        blobs = folder.parent.parent / "blobs"
        target = file.resolve()
        if not target.is_relative_to(folder) and not target.is_relative_to(blobs):
            raise InputError(
                f"{file} is a link to {target}, outside its folder; replace the link by the file if others may have it."
            )


def files_of_a_run(folder: Path) -> list[Path]:
    """Return the files of a run in a folder, without its checkpoints."""
    files = []
    for pattern in FILES_OF_A_RUN:
        for path in sorted(folder.glob(pattern)):
            if path.is_file():
                files.append(path)
    return files


def check_holds_no_model(folder: Path, purpose: str) -> None:
    """Raise OSError if a folder for a new model already holds a model, or is a file.

    `purpose` says in the message what the folder is for.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder for {purpose}.")
    names = [path.name for path in files_of_a_run(folder)]
    if names:
        # A few names are enough to recognize the model.
        raise FileExistsError(f"{folder} already holds a model ({', '.join(names[:4])}); name another folder.")


@contextmanager
def staged(folder: Path, *, replace_run: bool = False) -> Iterator[Path]:
    """Yield a temporary folder whose files move into `folder` when all of them are written.

    The temporary folder is inside `folder` if that exists, because `folder` may be on a different disk than its parent.
    Otherwise it is next to `folder`. If a file cannot be moved, the temporary folder stays, and the error names it.

    Weights get the permissions of the `config.json` that is written with them.

    Args:
        folder (`Path`): the folder of a model. It is created if it does not exist. Files of the same names are
            replaced.
        replace_run (`bool`): whether to remove the files of an earlier run, its weights first, and its int8 weights.
            New weights are moved last, so that the folder never holds the weights of one run together with files of
            a different one.

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

    # This package's `save_pretrained` does so, but averages and models of other classes are saved differently.
    give_weights_the_mode_of_config(temporary)
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    # False sorts before True, so new weights are moved last, and earlier weights are removed first.
    new_paths = sorted(temporary.iterdir(), key=_has_weights)
    new_names = {path.name for path in new_paths}
    earlier_paths: list[Path] = []
    if replace_run:
        earlier_paths = sorted(files_of_a_run(folder), key=_has_weights, reverse=True)
    try:
        if is_new:
            # Renaming the folder moves all files in one step, so other processes never see a part of them.
            temporary.chmod(stat.S_IMODE(folder.stat().st_mode))
            folder.rmdir()
            temporary.rename(folder)
            return
        if replace_run:
            _remove_int8(folder)
        for path in earlier_paths:
            if _has_weights(path) or path.name not in new_names:
                path.unlink()
        for path in new_paths:
            path.replace(folder / path.name)
    except OSError as error:
        raise OSError(f"{folder} could not be replaced ({error}); its new files are in {temporary}.") from error
    shutil.rmtree(temporary, ignore_errors=True)


def _remove_int8(folder: Path) -> None:
    """Remove the int8 weights and their files of an earlier run. Other files in their folder stay."""
    int8 = folder / INT8
    for path in sorted(files_of_a_run(int8), key=_has_weights, reverse=True):
        path.unlink()
    if int8.is_dir() and not any(int8.iterdir()):
        int8.rmdir()


def _has_weights(path: Path) -> bool:
    """Return True for a file of weights and for the index of such files."""
    return ".safetensors" in path.suffixes
