"""Texts in sentences, and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.translation.sentence_splitting import join_texts, split_at_clauses, split_text


pytest.importorskip("sentencex")
TEXT = 'Dr. Smith paid $3.50 on Jan. 5.  "Why?" she asked.\n\n\tNobody knew… not even Mr. Lee!\r\nThe end'
# Marks, white space of several bytes, letters whose case changes their length, and joined emojis.
CHARACTERS = st.sampled_from(list("ab. !?\t\"'()…。\u3000 \x0b\x85\u2028é😀\u0301؟\r\n12A,;:-\u00a0\u200bİß।Ä«»"))
TEXTS = st.text(CHARACTERS | st.characters(exclude_categories=["Cs"]), max_size=60)


def always(sentence):
    return True


def test_sentences_of_a_text():
    pieces = split_text(TEXT, "en", always)
    assert [piece.text for piece in pieces if piece.text] == [
        "Dr. Smith paid $3.50 on Jan. 5.",
        '"Why?" she asked.',
        "Nobody knew… not even Mr. Lee!",
        "The end",
    ]
    assert [piece.space for piece in pieces] == ["  ", "\n", "\n", "\t", "\r\n", ""]
    assert not any(piece.is_part for piece in pieces)


def test_abbreviations_are_those_of_the_language():
    german = "Das ist z.B. gut. Am 3. Mai kam er."
    assert [piece.text for piece in split_text(german, "de", always)] == ["Das ist z.B. gut.", "Am 3. Mai kam er."]
    assert len(split_text(german, None, always)) > 2


def test_a_sentence_that_is_too_long_is_split_at_clauses():
    sentence = "When it rains, we stay; when the sun shines (in May), we go out and we play in the garden."
    short = split_text(sentence, "en", lambda part: len(part) <= 35)
    assert [piece.text for piece in short] == [
        "When it rains, we stay;",
        "when the sun shines (in May),",
        "we go out and we",
        "play in the garden.",
    ]
    assert all(piece.is_part for piece in short)


def test_a_word_that_is_too_long_is_split_anywhere():
    assert split_at_clauses("a" * 10, lambda part: len(part) <= 3) == ["aa", "aaa", "aa", "aaa"]
    assert split_at_clauses("ab", lambda part: False) == ["a", "b"]


@settings(deadline=None)
@given(TEXTS, st.integers(1, 20), st.sampled_from(["en", "de", "fr", "ja", "hi", "unknown", None]))
def test_nothing_is_lost(text, longest, language):
    pieces = split_text(text, language, lambda part: len(part) <= longest)
    assert join_texts(pieces, [piece.text for piece in pieces]) == text
    assert all(piece.text == piece.text.strip() and not piece.space.strip() for piece in pieces)
    assert all(len(piece.text) <= longest for piece in pieces)
    assert not any("\n" in piece.text for piece in pieces)
