"""Labels of tokens are the decoded text, for every tokenizer that a model may have."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, TokenizersBackend

from hf_vanilla_transformer import TwoVocabularyTokenizer, train_tokenizer
from hf_vanilla_transformer.apps.pictures.token_labels import SPLIT, token_texts
from tests.apps.conversion import fsmt, marian


TEXTS = ["Die Häuser sind grün, $5 für 日本!", "naïve  café 🙂", "a <s> in a text"]


@pytest.fixture(scope="module", params=[False, True], ids=["ByteLevel", "spaces"])
def byte_level(request):
    return train_tokenizer(TEXTS[:1] * 3, vocab_size=275, show_progress=False, whitespace_words=request.param)


def joined(texts: list[str]) -> str:
    """The characters of a sentence without spaces, each once: one that several tokens share ends in the last."""
    parts = [text.removeprefix(SPLIT) for text in texts]
    return "".join(part[:-2] if part.endswith(SPLIT) else part for part in parts).replace("␣", "")


@pytest.mark.parametrize("text", TEXTS)
def test_token_texts_byte_level(byte_level, text):
    texts = token_texts(byte_level, byte_level(text).input_ids)
    assert joined(texts) == text.replace(" ", "") + "</s>"
    assert not {"Ġ", "Ã", "�", ""} & set(texts)


def test_token_texts_character_of_several_tokens():
    tokenizer = train_tokenizer(["a"], 259, show_progress=False, normalization="none")
    ids = tokenizer("aü日 ").input_ids
    assert token_texts(tokenizer, ids) == ["a", "ü…", "…ü", "日…", "…日…", "…日", "␣", "</s>"]
    # A model may write any bytes.
    assert token_texts(tokenizer, [ids[0], ids[2], ids[0], ids[1]]) == ["a", "�", "a", "�"]


def test_token_texts_control_characters():
    tokenizer = train_tokenizer(["a"], 259, show_progress=False, normalization="none")
    ids = [tokenizer(text).input_ids[0] for text in ("a", "\0", "\x01", "\x0b", "\x1b", "\x7f", "\n", "\t")]
    assert token_texts(tokenizer, ids) == ["a", *["\ufffd"] * 5, "⏎", "⇥"]
    assert token_texts(tokenizer, tokenizer("\x85\uffff").input_ids) == ["�…", "…�", "�…", "…�…", "…�", "</s>"]


def test_token_texts_two_vocabularies():
    source, target = (
        train_tokenizer([text] * 3, vocab_size=270, show_progress=False) for text in ("two houses", "zwei Häuser")
    )
    tokenizer = TwoVocabularyTokenizer.of(source, target)
    both = tokenizer("two houses", text_target="zwei Häuser")
    assert token_texts(tokenizer, both.input_ids) == ["two", "houses", "</s>"]
    assert token_texts(tokenizer, both.labels, of_target=True) == ["zwei", "Häuser", "</s>"]


@pytest.mark.parametrize("is_joint", [True, False])
def test_token_texts_sentencepiece(tmp_path, is_joint):
    pytest.importorskip("sentencepiece")
    marian.write_tokenizer(tmp_path)
    if not is_joint:
        (tmp_path / "target_vocab.json").write_bytes((tmp_path / "vocab.json").read_bytes())
        settings = (tmp_path / "tokenizer_config.json").read_text().replace("false", "true")
        (tmp_path / "tokenizer_config.json").write_text(settings)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert not tokenizer.is_fast
    for text in marian.SENTENCES:
        both = tokenizer(text, text_target=text)
        for ids, of_target in ((both.input_ids, False), (both.labels, True)):
            assert joined(token_texts(tokenizer, ids, of_target=of_target)) == text.replace(" ", "") + "</s>"


def test_token_texts_bpe_of_fairseq(tmp_path):
    pytest.importorskip("sacremoses")
    fsmt.write_tokenizer(tmp_path, fsmt.OTHER)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = "the and runs"
    assert joined(token_texts(tokenizer, tokenizer(text).input_ids)) == "theandruns</s>"
    target = [fsmt.OTHER[token] for token in ("the</w>", "ä", "ß</w>")]
    assert token_texts(tokenizer, target, of_target=True) == ["the", "ä", "ß"]


def test_token_texts_bytes_of_sentencepiece():
    vocabulary = {token: index for index, token in enumerate(["<unk>", "▁a", "<0xC3>", "<0xBC>", "b"])}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()])
    tokenizer = TokenizersBackend(tokenizer_object=backend, unk_token="<unk>")
    assert token_texts(tokenizer, [1, 2, 3, 4, 0]) == ["a", "ü…", "…ü", "b", "<unk>"]
