"""A joint SentencePiece vocabulary in the files of an OPUS-MT model, which transformers' `MarianTokenizer` loads."""

import io
import json
import shutil
import tempfile
import weakref
from collections.abc import Iterable
from pathlib import Path

from transformers import MarianTokenizer

from ..support.argument_checks import check_number, check_strings
from ..support.user_errors import InputError, needing


# Pieces for bytes, so that no character is unknown, and special tokens.
_FEWEST = 256 + 4
_OF_BOTH_SIDES = ("source.spm", "target.spm")


def train_sentencepiece(texts: Iterable[str], vocab_size: int = 37000) -> MarianTokenizer:
    """Train SentencePiece's unigram model on sentences of both languages.

    Its NFKC normalizes texts. Unknown characters become bytes. The ids are those of Marian's models: `</s>` is 0,
    `<unk>` 1, and `<pad>`, from which decoding starts, the last.

    Args:
        texts (`Iterable[str]`): sentences, sources and targets alike.
        vocab_size (`int`, defaults to 37000): maximum number of tokens; a small corpus gives fewer.

    Returns:
        `MarianTokenizer`: without languages. Its files are temporary: save it to keep them.

    Raises:
        ImportError: if sentencepiece is not installed.
        ValueError: if `vocab_size` is below 260, or the texts are too few.
    """
    check_number("vocab_size", vocab_size, _FEWEST)
    with needing("marian", "SentencePiece needs"):
        import sentencepiece
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(check_strings("texts", texts)),
            model_writer=written,
            vocab_size=vocab_size,
            hard_vocab_limit=False,
            byte_fallback=True,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise InputError(f"SentencePiece cannot learn {vocab_size} tokens from these texts: {error}") from error
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = [model.id_to_piece(token) for token in range(model.get_piece_size())]
    names = ["</s>", "<unk>", *(piece for piece in pieces if piece not in ("<s>", "</s>", "<unk>")), "<pad>"]
    folder = Path(tempfile.mkdtemp(prefix="sentencepiece-"))
    for name in _OF_BOTH_SIDES:
        (folder / name).write_bytes(written.getvalue())
    vocabulary = {name: token for token, name in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    source, target, written_ids = (str(folder / name) for name in (*_OF_BOTH_SIDES, "vocab.json"))
    tokenizer = MarianTokenizer(source, target, written_ids)
    # A copy in another process, such as one that tokenizes a large corpus, reads the files again.
    weakref.finalize(tokenizer, shutil.rmtree, folder, ignore_errors=True)
    return tokenizer
