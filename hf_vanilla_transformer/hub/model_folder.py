"""The output folder of a run: files of one model only, none of them incomplete."""

import json
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open


WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16")
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
# Files that a run writes, next to its checkpoints; a later run in the same folder may write fewer of them.
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
    "parity.json",
    "scores.json",
    "training_args.bin",
    *TOKENIZER_FILES,
    *_CODE_FILES,
)


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


def check_links(files: Iterable[Path]) -> None:
    """Check, before files are copied or pushed, that none is a link out of its folder, perhaps to a secret.

    Links of the Hub's cache, from a snapshot to the repository's blobs, are allowed.

    Raises:
        ValueError: if a file is such a link.
    """
    for file in files:
        folder, target = file.parent.resolve(), file.resolve()
        if not any(target.is_relative_to(allowed) for allowed in (folder, folder.parent.parent / "blobs")):
            raise ValueError(
                f"{file} is a link to {target}, outside its folder; replace the link by the file if others may have it."
            )


def files_of_a_run(folder: Path) -> list[Path]:
    """Files of a run in a folder, without its checkpoints."""
    found = (path for pattern in FILES_OF_A_RUN for path in sorted(folder.glob(pattern)) if path.is_file())
    return list(dict.fromkeys(found))


def read_layout(folder: Path) -> tuple[dict[str, Path], dict[str, tuple]]:
    """File of every tensor, and its dtype followed by its shape, by name, from the headers of the files.

    Raises:
        FileNotFoundError: if the folder has no weights.
        ValueError: if a file is damaged, or a dtype is not one of weights.
    """
    files, layout = {}, {}
    for file in _weight_files(folder):
        try:
            with safe_open(file, framework="pt") as stored:
                for name in stored.offset_keys():
                    part = stored.get_slice(name)
                    files[name], layout[name] = file, (part.get_dtype(), *part.get_shape())
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{file} is missing, truncated or damaged ({error}); use another checkpoint.") from error
    for name, (dtype, *_) in layout.items():
        if dtype not in _DTYPES:
            raise ValueError(
                f"{name} in {folder} has the dtype {dtype}; weights must have one of {', '.join(_DTYPES)}."
            )
    return files, layout


def _weight_files(folder: Path) -> list[Path]:
    """The files that `from_pretrained` reads the weights from."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    shards = read_json(folder / INDEX).get("weight_map") if (folder / INDEX).is_file() else None
    if not shards:
        raise FileNotFoundError(f"{folder} has neither {WEIGHTS} nor {INDEX}; name another folder.")
    return [folder / name for name in sorted(set(shards.values()))]


def read_json(path: Path) -> dict[str, Any]:
    """Fields of a JSON object in a file of a checkpoint.

    Raises:
        ValueError: if the file holds no JSON object.
    """
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path} is truncated or damaged ({error}); use another checkpoint.") from error
