"""The folder that a run writes: never two models in one, never half a file."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .checkpoints import checkpoints_in


# Of ours the first two; the others of tokenizers that transformers has in Python, or keeps as they were made.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
)
# What a run leaves beside its checkpoints; a later run in the same folder may write fewer of them.
FILES_OF_A_RUN = (
    "README.md",
    "averaged_from.json",
    "config.json",
    "curve.json",
    "curve.png",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-?????-of-?????.safetensors",
    "scores.json",
    "training_args.bin",
    "configuration_vanilla_transformer.py",
    "functional_vanilla_transformer.py",
    "generation_beam_search_vanilla_transformer.py",
    "generation_step_vanilla_transformer.py",
    "generation_vanilla_transformer.py",
    "modeling_vanilla_transformer.py",
    "packed_linear_vanilla_transformer.py",
    "pipeline_vanilla_transformer.py",
    "quantization_vanilla_transformer.py",
    *TOKENIZER_FILES,
)


def check_output_folder(folder: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    """Make sure that a run does not mix its files with another's.

    Args:
        folder (`Path`): where the run is to write.
        overwrite (`bool`): whether what an earlier run left there may be replaced.
        resume (`bool`): whether this run goes on with the earlier one.

    Raises:
        FileExistsError: if the folder holds files like those that a run writes, and neither was said.
        NotADirectoryError: if it is a file.
    """
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name a folder for the trained model.")
    found = [path.name for path in (*checkpoints_in(folder), *files_of_a_run(folder))]
    if found and not (overwrite or resume):
        raise FileExistsError(
            f"{folder} already holds a model or checkpoints ({', '.join(found[:4])}); name another folder, or say "
            "--overwrite to replace them or --resume_from_checkpoint last to go on."
        )


def check_writable(folder: Path) -> None:
    """Make sure that a folder, or where it is to be made, can be written into.

    Raises:
        OSError: if not.
    """
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(dir=place):
            pass
    except OSError as error:
        raise OSError(f"{place} cannot be written into ({error.strerror}); name another folder.") from error


@contextmanager
def staged(folder: Path, *, replace_run: bool = False) -> Iterator[Path]:
    """A temporary folder, whose files move into `folder` when all of them are written.

    It lies in `folder` where that is there, which may be on another disk than what is around it, and beside it
    otherwise. Where moving fails, it stays, and the error names it.

    Args:
        folder (`Path`): made if need be; files of the same names are replaced.
        replace_run (`bool`): whether what an earlier run left there goes, its weights first. The new weights come last,
            so that no moment has the weights of one run beside files of another.

    Raises:
        OSError: if a file cannot be moved.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder if folder.is_dir() else folder.parent
    temporary = Path(tempfile.mkdtemp(dir=place, prefix=f".{folder.name}-"))
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    folder.mkdir(exist_ok=True)
    new = sorted(temporary.iterdir(), key=_has_weights)
    names = {path.name for path in new}
    earlier = sorted(files_of_a_run(folder), key=_has_weights, reverse=True) if replace_run else []
    try:
        for path in earlier:
            if _has_weights(path) or path.name not in names:
                path.unlink()
        for path in new:
            path.replace(folder / path.name)
    except OSError as error:
        raise OSError(f"{folder} could not be replaced ({error}); the new files are in {temporary}.") from error
    shutil.rmtree(temporary, ignore_errors=True)


def _has_weights(path: Path) -> bool:
    return ".safetensors" in path.suffixes


def files_of_a_run(folder: Path) -> list[Path]:
    """What a run left in a folder beside its checkpoints."""
    return [path for pattern in FILES_OF_A_RUN for path in sorted(folder.glob(pattern)) if path.is_file()]
