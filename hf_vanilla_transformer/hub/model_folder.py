"""Define which files a saved model's folder contains, and replace the files of an earlier run safely."""

import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..model.pretrained_model import give_weights_the_mode_of_config
from ..support.user_errors import InputError


CARD = "README.md"
# The file that reports how a converted model was compared with its source.
CERTIFICATE = "parity.json"
# Patterns of the weight files in a folder that transformers has saved.
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model.bin.index.json")
# Tokenizer files. The first four belong to this package's tokenizers, and the others to other tokenizers.
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
# The code files of a saved model.
_CODE_FILES = tuple(path.name for path in (Path(__file__).parents[1] / "model").glob("[a-z]*.py"))
# A pickle file that the Trainer writes. If the Trainer pushes during training, it pushes this file as well.
TRAINING_ARGUMENTS = "training_args.bin"
# The file with the arguments of `train`, which may contain paths on this machine.
ARGUMENTS = "arguments.yaml"
# The name that this file has while the Trainer pushes during training. The Trainer's push skips files whose names begin
# with an underscore.
ARGUMENTS_WHILE_PUSHED = f"_{ARGUMENTS}"
# The folder inside a distilled model's folder that contains its int8 weights.
INT8 = "int8"
NOT_TO_SHARE = (TRAINING_ARGUMENTS, ARGUMENTS, ARGUMENTS_WHILE_PUSHED)
# Patterns of the files that a run writes next to its checkpoints. A later run in the same folder may write fewer files.
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
    """Raise ValueError if one of the files is a link that leads outside its folder, for example to a secret.

    Call this function before files are copied or pushed. Links in the Hub's cache are allowed if they lead from a
    snapshot to the blobs of the same repository.
    """
    for file in files:
        folder = file.parent.resolve()
        # In the Hub's cache, a snapshot is the folder `snapshots/REVISION` of a repository, and `blobs` is next to
        # `snapshots`.
        blobs = folder.parent.parent / "blobs"
        target = file.resolve()
        is_allowed = target.is_relative_to(folder) or target.is_relative_to(blobs)
        if not is_allowed:
            raise InputError(
                f"{file} is a link to {target}, outside its folder; replace the link by the file if others may have it."
            )


def files_of_a_run(folder: Path) -> list[Path]:
    """Return the files that a run has written to a folder, such as weights and scores, but not its checkpoints."""
    files = []
    # A pattern is a file name, such as "scores.json", or has wildcards, such as "model-?????-of-?????.safetensors".
    for pattern in FILES_OF_A_RUN:
        for path in sorted(folder.glob(pattern)):
            if path.is_file():
                files.append(path)
    return files


def check_holds_no_model(folder: Path, purpose: str) -> None:
    """Raise OSError if the folder for a new model already contains a model, or if it is not a folder but a file.

    `purpose` is the part of the message that tells the user what the folder is for.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder for {purpose}.")
    names = [path.name for path in files_of_a_run(folder)]
    if names:
        # A few names are enough to recognize the model.
        raise FileExistsError(f"{folder} already holds a model ({', '.join(names[:4])}); name another folder.")


@contextmanager
def staged(folder: Path, *, replace_run: bool = False) -> Iterator[Path]:
    """Yield a temporary folder, and move its files into `folder` when the `with` block ends without an error.

    If the block raises an error, the temporary folder is removed, and `folder` is left as it is. If a file cannot be
    moved, the temporary folder stays, and the error names it.

    Args:
        folder (`Path`): a model's folder. It is created if it does not exist. Existing files with the same names are
            replaced.
        replace_run (`bool`): whether to remove the files of an earlier run, including its int8 weights. The earlier
            weights are removed first, and new weights are moved last, so that the folder never contains the weights of
            one run together with the files of a different run.

    Raises:
        OSError: if a file cannot be moved.
    """
    temporary = _make_temporary_folder(folder)
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise

    # This package's `save_pretrained` has already done this, but averaged models and models of other classes are saved
    # differently.
    give_weights_the_mode_of_config(temporary)
    # This must be tested before the next step, which creates the folder.
    is_new = not folder.exists()
    # A new folder gets the permissions that the user's umask allows. `_rename_folder` copies them to the temporary
    # folder, to which only its owner has access.
    folder.mkdir(exist_ok=True)
    try:
        if is_new:
            _rename_folder(temporary, folder)
        else:
            _move_into_existing_folder(temporary, folder, replace_run)
    except OSError as error:
        raise OSError(f"{folder} could not be replaced ({error}); its new files are in {temporary}.") from error


def _make_temporary_folder(folder: Path) -> Path:
    """Create a temporary folder on the disk of `folder`, so that its files can be renamed instead of copied.

    `folder` need not exist.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # An existing folder may be on a different disk than its parent. The name begins with a dot to hide the folder.
    parent = folder if folder.is_dir() else folder.parent
    return Path(tempfile.mkdtemp(dir=parent, prefix=f".{folder.name}-"))


def _move_into_existing_folder(temporary: Path, folder: Path, replace_run: bool) -> None:
    """Move new files from `temporary` into `folder`, and remove `temporary`.

    If `replace_run` is True, the files of an earlier run are removed from `folder` first.
    """
    if replace_run:
        new_names = [path.name for path in temporary.iterdir()]
        _remove_earlier_run(folder, new_names)
    _move_files(temporary, folder)


def _rename_folder(source: Path, target: Path) -> None:
    """Rename the folder `source` to `target`, and give it the permissions of `target`, which is an empty folder.

    All files appear in one step, so other processes never see only some of them.
    """
    source.chmod(stat.S_IMODE(target.stat().st_mode))
    target.rmdir()
    source.rename(target)


def _move_files(source: Path, target: Path) -> None:
    """Move all files of the folder `source` into the folder `target`, weights last, and remove `source`.

    Files of `target` with the same names are replaced.
    """
    weights, other_files = _separate_weights(source.iterdir())
    for path in other_files + weights:
        path.replace(target / path.name)
    shutil.rmtree(source, ignore_errors=True)


def _remove_earlier_run(folder: Path, new_names: Collection[str]) -> None:
    """Remove the files of an earlier run from a folder, including its int8 weights.

    All weights are removed, and they are removed first, so that the folder never contains weights without the
    configuration that belongs to them. Other files are kept if their names are in `new_names`, because the new files
    are about to replace them.
    """
    _remove_int8(folder)
    weights, other_files = _separate_weights(files_of_a_run(folder))
    for path in weights:
        path.unlink()
    for path in other_files:
        if path.name not in new_names:
            path.unlink()


def _remove_int8(folder: Path) -> None:
    """Remove the int8 weights of an earlier run and the files saved with them. Any other files are kept."""
    # If there is no such folder, both lists are empty.
    int8_folder = folder / INT8
    weights, other_files = _separate_weights(files_of_a_run(int8_folder))
    for path in weights + other_files:
        path.unlink()
    if int8_folder.is_dir() and not any(int8_folder.iterdir()):
        int8_folder.rmdir()


def _separate_weights(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Split files into files with weights and other files. Both lists keep the order of `paths`."""
    weights = []
    other_files = []
    for path in paths:
        if _has_weights(path):
            weights.append(path)
        else:
            other_files.append(path)
    return weights, other_files


def _has_weights(path: Path) -> bool:
    """Return True if a file contains safetensors weights, or an index of such files."""
    # The suffixes of an index, "model.safetensors.index.json", are ".safetensors", ".index" and ".json".
    return ".safetensors" in path.suffixes
