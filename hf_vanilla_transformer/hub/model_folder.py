"""The files of a saved model's folder."""

from collections.abc import Iterable
from pathlib import Path

from ..support.user_errors import InputError


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
NOT_TO_SHARE = "training_args.bin"
# Files that a run writes, next to its checkpoints; a later run in the same folder may write fewer of them.
FILES_OF_A_RUN = (
    "README.md",
    "config.json",
    "curve.json",
    "curve.png",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-?????-of-?????.safetensors",
    "parity.json",
    "scores.json",
    NOT_TO_SHARE,
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
