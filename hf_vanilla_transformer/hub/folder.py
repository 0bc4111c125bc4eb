"""The folder that a run writes: never two models in one, never half a file."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
# The code that a saved model carries: that of today, and that of models saved by version 0.1.0.
_CODE_FILES = tuple(path.name for path in (Path(__file__).parents[1] / "model").glob("[a-z]*.py"))
_EARLIER_CODE_FILES = "*_vanilla_transformer.py"
# What a run leaves in its folder, next to its checkpoints; a later run in the same folder may write fewer of them.
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
    *TOKENIZER_FILES,
    *_CODE_FILES,
    _EARLIER_CODE_FILES,
)


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
    found = (path for pattern in FILES_OF_A_RUN for path in sorted(folder.glob(pattern)) if path.is_file())
    return list(dict.fromkeys(found))
