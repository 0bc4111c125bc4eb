"""Train a SentencePiece vocabulary that both languages share, for transformers' tokenizer class `MarianTokenizer`."""

import io
import json
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import MarianTokenizer

from ..support.argument_checks import check_number, check_strings
from ..support.user_errors import InputError, needing


if TYPE_CHECKING:
    import sentencepiece


# One piece for each byte, so that no character is unknown, plus `<s>`, `</s>`, `<unk>` and `<pad>`.
_SMALLEST_VOCABULARY = 256 + 4


def train_sentencepiece(texts: Iterable[str], vocab_size: int = 37000) -> MarianTokenizer:
    """Train a SentencePiece unigram model on sentences in both languages, and return it as a `MarianTokenizer`.

    SentencePiece normalizes texts with its variant of NFKC, and encodes unknown characters as bytes. The ids are the
    same as in Marian models: `</s>` has the id 0, `<unk>` has the id 1, and `<pad>`, with which decoding starts, has
    the last id.

    Args:
        texts (`Iterable[str]`): sentences, both sources and targets. SentencePiece ignores texts of more than 4,192
            bytes.
        vocab_size (`int`, defaults to 37000): maximum number of tokens. A small corpus gives fewer.

    Returns:
        `MarianTokenizer`: a tokenizer that stores no source or target language. Its files are temporary, so save it if
            you want to keep it.

    Raises:
        ImportError: if sentencepiece is not installed.
        ValueError: if `vocab_size` is below 260, or if there are too few texts.
    """
    check_number("vocab_size", vocab_size, _SMALLEST_VOCABULARY)
    model_bytes = _train_model(texts, vocab_size)
    return _make_tokenizer(model_bytes)


def _train_model(texts: Iterable[str], vocab_size: int) -> bytes:
    """Train a SentencePiece unigram model, and return the content of its file; see [`train_sentencepiece`]."""
    # If the library is missing, needing() raises an error that names the extra "marian".
    with needing("marian", "SentencePiece needs"):
        import sentencepiece
    model_file = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(check_strings("texts", texts)),
            model_writer=model_file,
            vocab_size=vocab_size,
            hard_vocab_limit=False,  # A small corpus gives fewer tokens instead of an error.
            byte_fallback=True,  # Unknown characters are encoded as bytes.
            minloglevel=2,  # Only errors are logged.
        )
    except RuntimeError as error:
        raise InputError(f"SentencePiece cannot learn {vocab_size} tokens from these texts: {error}") from error
    return model_file.getvalue()


def _make_tokenizer(model_bytes: bytes) -> MarianTokenizer:
    """Make a tokenizer from the content of a SentencePiece file, with the same model for sources and targets."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
    vocabulary = json.dumps(_make_vocabulary(model), ensure_ascii=False)
    # `MarianTokenizer` can be made only from files.
    folder = Path(tempfile.mkdtemp(prefix="sentencepiece-"))
    tokenizer = _load_from_new_files(folder, model_bytes, vocabulary)
    # The files are kept as long as the tokenizer exists, because its copies in other processes read them again.
    weakref.finalize(tokenizer, shutil.rmtree, folder, ignore_errors=True)
    return tokenizer


def _load_from_new_files(folder: Path, model_bytes: bytes, vocabulary: str) -> MarianTokenizer:
    """Write the files of a tokenizer into a folder, with one SentencePiece file for each side, and load it."""
    source_path = folder / "source.spm"
    target_path = folder / "target.spm"
    vocabulary_path = folder / "vocab.json"
    source_path.write_bytes(model_bytes)
    target_path.write_bytes(model_bytes)
    vocabulary_path.write_text(vocabulary, encoding="utf-8")
    return MarianTokenizer(str(source_path), str(target_path), str(vocabulary_path))


def _make_vocabulary(model: "sentencepiece.SentencePieceProcessor") -> dict[str, int]:
    """Return the id of each token. The order is that of Marian models: `</s>`, `<unk>`, all other tokens, `<pad>`."""
    # SentencePiece puts these tokens at different ids, and its `<s>` does not exist in Marian models.
    tokens = ["</s>", "<unk>"]
    for piece_id in range(model.get_piece_size()):
        piece = model.id_to_piece(piece_id)
        if piece not in ("<s>", "</s>", "<unk>"):
            tokens.append(piece)
    tokens.append("<pad>")
    return {token: token_id for token_id, token in enumerate(tokens)}
