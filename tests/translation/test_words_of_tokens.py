"""Words of tokens, for every kind of tokenizer."""

import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hf_vanilla_transformer import TwoVocabularyTokenizer, train_tokenizer
from hf_vanilla_transformer.translation import words_of_tokens as words
from hf_vanilla_transformer.translation.words_of_tokens import TokenTexts, map_tokens_to_words
from tests.ecosystem.documentation import FIXTURE
from tests.models import normalizer


FIXTURES = Path(__file__).parents[1] / "fixtures"
SENTENCES = ["two hundred and  forty-two ", "drei\N{NO-BREAK SPACE}zwölf \N{GRINNING FACE} x", " one", "", "a b c"]


def found_words(tokenizer, text, is_target):
    ids = (tokenizer(text_target=text) if is_target else tokenizer(text)).input_ids
    return map_tokens_to_words(text.split(), TokenTexts(tokenizer, is_target)(ids))


def words_by_offsets(tokenizer, text):
    """What the tokenizers library says about the characters of each token."""
    words = [(*match.span(), index) for index, match in enumerate(re.finditer(r"\S+", text))]
    offsets = tokenizer(text, return_offsets_mapping=True).offset_mapping
    return [[index for first, last, index in words if max(first, start) < min(last, end)] for start, end in offsets]


def byte_level(**options):
    return train_tokenizer(SENTENCES, vocab_size=300, min_frequency=1, show_progress=False, **options)


@pytest.mark.parametrize("is_target", [False, True])
@pytest.mark.parametrize("text", SENTENCES)
def test_find_words_byte_level(text, is_target):
    other = train_tokenizer(["forty-two x zwei"], vocab_size=290, min_frequency=1, show_progress=False)
    tokenizers = {"trained": byte_level(), "pre-tokenized": byte_level(whitespace_words=True)}
    tokenizers["fixture"] = AutoTokenizer.from_pretrained(FIXTURE)
    for tokenizer in tokenizers.values():
        assert found_words(tokenizer, text, is_target) == words_by_offsets(tokenizer, text)
    sides = byte_level(), other
    both = TwoVocabularyTokenizer.of(*sides)
    assert found_words(both, text, is_target) == words_by_offsets(sides[is_target], text)


def test_find_words_added_tokens():
    """A byte-level vocabulary spells them as they are, with spaces and characters beyond the 256 of its bytes."""
    tokenizer = byte_level()
    tokenizer.add_tokens(["new york", "\N{EURO SIGN}"])
    text = "a new york \N{EURO SIGN} x"
    assert found_words(tokenizer, text, False) == words_by_offsets(tokenizer, text)


def test_find_words_white_space_beyond_ascii(monkeypatch):
    """Between texts that differ, the comparison takes a time that grows with the cube of their length."""
    monkeypatch.setattr(words, "SequenceMatcher", None)
    for tokenizer in (byte_level(normalization="none"), byte_level()):
        for space in ("\N{NO-BREAK SPACE}", "\N{IDEOGRAPHIC SPACE}", "\x85", " \N{EM SPACE}", "\x1c", "\x1d", "\x1f "):
            text = space.join(["zwölf", "x", "drei"])
            assert found_words(tokenizer, text, False) == words_by_offsets(tokenizer, text)


def test_find_words_ascii_separators():
    """`str.split()` splits at U+001C to U+001F, `bytes.split()` does not."""
    tokenizer = byte_level(normalization="none")
    text = "c\xa0twozwölf\x1ezwölfzwölf"
    assert TokenTexts(tokenizer, False).find_words(text, tokenizer(text).input_ids) == words_by_offsets(tokenizer, text)


@pytest.mark.parametrize("is_target", [False, True])
def test_find_words_normalizers(monkeypatch, is_target):
    """What a tokenizer removes or composes is no difference either."""
    monkeypatch.setattr(words, "SequenceMatcher", None)
    sides = byte_level(), byte_level()
    for side in sides:
        side.backend_tokenizer.normalizer = normalizer()
    for tokenizer in (sides[0], TwoVocabularyTokenizer.of(*sides)):
        texts = TokenTexts(tokenizer, is_target)
        for text in ("\ufefftwo  hun\xaddred \u200b and\u200b zwo\u0308lf ", "\xa0e\u0301 \u200bx", "\x07", "a\x85b"):
            ids = (tokenizer(text_target=text) if is_target else tokenizer(text)).input_ids
            words_by_token = texts.find_words(text, ids)
            # The words of the normalized text, in their places of the given one.
            visible = [place for place, word in enumerate(text.split()) if word not in ("\u200b", "\x07")]
            plain = normalizer().normalize_str(text)
            expected = map_tokens_to_words(plain.split(), texts(ids))
            assert words_by_token == [[visible[index] for index in indices] for indices in expected]


@pytest.mark.parametrize("is_target", [False, True])
@pytest.mark.parametrize("name", ["tied_relu", "separate_relu"])
def test_find_words_sentencepiece(tmp_path, name, is_target):
    """Also normalized characters, and tokens that the vocabulary of one side lacks."""
    pytest.importorskip("sentencepiece")
    from hf_vanilla_transformer.apps.conversion.marian import from_marian

    tokenizer = AutoTokenizer.from_pretrained(from_marian(str(FIXTURES / "marian" / name), str(tmp_path / "model")))
    for text, word in (
        ("two hundred and  forty-two", "forty-two"),
        ("two \N{VULGAR FRACTION ONE HALF} hundred", "hundred"),
    ):
        words_by_token = found_words(tokenizer, text, is_target)
        assert [*dict.fromkeys(index for words in words_by_token for index in words)] == list(range(len(text.split())))
        assert words_by_token[-1] == []
        # Of a word that is tokenized alone, after the mark of its beginning.
        count = len(found_words(tokenizer, word, is_target)) - 1
        last = [words for words in words_by_token[-1 - count : -1] if words]
        assert last
        assert all(words == [len(text.split()) - 1] for words in last)


@pytest.mark.parametrize("is_target", [False, True])
@pytest.mark.parametrize("name", ["joint", "two_vocabularies"])
def test_find_words_moses(tmp_path, name, is_target):
    """Moses splits off punctuation and escapes it: "don't" becomes "don &apos;t"."""
    pytest.importorskip("sacremoses")
    from hf_vanilla_transformer.apps.conversion.fairseq import from_fairseq

    tokenizer = AutoTokenizer.from_pretrained(from_fairseq(str(FIXTURES / "fairseq" / name), str(tmp_path / "model")))
    text = "Don't stop, two & twenty-two!"
    words_by_token = found_words(tokenizer, text, is_target)
    order = [index for words in words_by_token for index in words]
    assert order == sorted(order)
    assert set(order) == set(range(5))
    # The tokens of "two", letter by letter.
    texts = TokenTexts(tokenizer, is_target)((tokenizer(text_target=text) if is_target else tokenizer(text)).input_ids)
    start = b"".join(texts).index(b"two")
    positions = [sum(map(len, texts[:place])) for place in range(len(texts))]
    assert [
        words_by_token[place] for place, at in enumerate(positions) if start <= at < start + 3 and texts[place]
    ] == [[2]] * 3


def test_map_tokens_to_words_tokens_across_words_and_unknown_tokens():
    assert map_tokens_to_words(["of", "the", "a"], [b"ofthe", b"a"]) == [[0, 1], [2]]
    assert map_tokens_to_words(["one", "xyz", "two"], [b"one", b"\xff", b"two"]) == [[0], [1], [2]]
    assert map_tokens_to_words([], [b"", b"x"]) == [[], []]
