"""Texts in sentences, and back; `translate(..., split_sentences=...)`, and what `Translation` flags."""

import sys
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import Translation, translate
from hf_vanilla_transformer.translation.sentence_splitting import (
    join_texts,
    join_translations,
    split_at_clauses,
    split_into_pieces,
    split_text,
)
from tests.ecosystem.documentation import FIXTURE


pytest.importorskip("sentencex")
TEXT = 'Dr. Smith paid $3.50 on Jan. 5.  "Why?" she asked.\n\n\tNobody knew… not even Mr. Lee!\r\nThe end'
# Marks, white space of several bytes, letters whose case changes their length, and joined emojis.
CHARACTERS = st.sampled_from(list("ab. !?\t\"'()…。\u3000 \x0b\x85\u2028é😀\u0301؟\r\n12A,;:-\u00a0\u200bİß।Ä«»"))
TEXTS = st.text(CHARACTERS | st.characters(exclude_categories=["Cs"]), max_size=60)


def always(sentence):
    return True


def test_split_text_sentences():
    pieces = split_text(TEXT, "en", always)
    assert [piece.text for piece in pieces if piece.text] == [
        "Dr. Smith paid $3.50 on Jan. 5.",
        '"Why?" she asked.',
        "Nobody knew… not even Mr. Lee!",
        "The end",
    ]
    assert [piece.space for piece in pieces] == ["  ", "\n", "\n", "\t", "\r\n", ""]
    assert not any(piece.is_part for piece in pieces)
    lines = split_text("one\x1etwo\x1fthree\nfour\r\nfive\rsix\u2028seven", "en", always)
    assert [piece.text for piece in lines] == ["one\x1etwo\x1fthree", "four", "five", "six", "seven"]


def test_split_text_abbreviations_of_the_language():
    german = "Das ist z.B. gut. Am 3. Mai kam er."
    assert [piece.text for piece in split_text(german, "de", always)] == ["Das ist z.B. gut.", "Am 3. Mai kam er."]
    for code in ("DE", "deu", "de-AT", "de_DE", "deu_Latn"):
        assert split_text(german, code, always) == split_text(german, "de", always)
    assert len(split_text(german, None, always)) > 2


def test_split_text_long_sentence_at_clauses():
    sentence = "When it rains, we stay; when the sun shines (in May), we go out and we play in the garden."
    short = split_text(sentence, "en", lambda part: len(part) <= 35)
    assert [piece.text for piece in short] == [
        "When it rains, we stay;",
        "when the sun shines (in May),",
        "we go out and we",
        "play in the garden.",
    ]
    assert all(piece.is_part for piece in short)


def test_split_text_long_word_anywhere():
    assert split_at_clauses("a" * 10, lambda part: len(part) <= 3) == ["aa", "aaa", "aa", "aaa"]
    assert split_at_clauses("ab", lambda part: False) == ["a", "b"]


@pytest.mark.parametrize(
    "whole",
    [
        *("1,250,000", "1 250 000", "1\u202f250\u202f000,50", "10:30", "3–4"),  # noqa: RUF001
        *("https://example.org/a,b;c:d)e", "www.example.org/x,y", "ann.lee@example.org"),
    ],
)
@pytest.mark.parametrize("longest", [1, 5, 20, 40])
def test_split_text_keeps_numbers_and_urls_whole(whole, longest):
    for sentence in (f"we paid {whole}, and they {whole} more", f"我们付了{whole}，他们付了更多", whole):  # noqa: RUF001
        parts = split_at_clauses(sentence, lambda part: len(part) <= longest)
        assert "".join(parts) == sentence
        assert sum(part.count(whole) for part in parts) == sentence.count(whole)
        assert all(len(part.strip()) <= longest or whole in part for part in parts)


@settings(deadline=None)
@given(TEXTS, st.integers(1, 20), st.sampled_from(["en", "de", "fr", "ja", "hi", "unknown", None]))
def test_split_text_loses_nothing(text, longest, language):
    pieces = split_text(text, language, lambda part: len(part) <= longest)
    assert join_texts(pieces, [piece.text for piece in pieces]) == text
    assert all(piece.text == piece.text.strip() and not piece.space.strip() for piece in pieces)
    assert all(len(piece.text) <= longest or any(map(str.isdecimal, piece.text)) for piece in pieces)
    assert not any("\n" in piece.text for piece in pieces)


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(FIXTURE)


def test_translate_split_keeps_white_space(model, tokenizer):
    text = "\n  forty-two\r\n\n\tthree \u00a0\n"
    forty_two, three = translate(model, tokenizer, ["forty-two", "three"])
    translations = translate(model, tokenizer, [text, "", " \n", "three"], split_sentences=True)
    assert translations == [f"\n  {forty_two}\r\n\n\t{three} \u00a0\n", "", " \n", three]


def test_translate_splits_sentences_longer_than_training(model, tokenizer):
    parts = ["six thousand,", "forty-two;", "three"]
    longest = max(len(tokenizer(part).input_ids) for part in parts)
    tokenizer.init_kwargs["longest_training_source"] = longest
    expected = translate(model, tokenizer, parts)
    (translation,) = translate(model, tokenizer, [" ".join(parts)], split_sentences="en", return_details=True)
    assert translation.text == " ".join(expected)
    assert "split" in translation.flags
    assert "longer_than_training" not in translation.flags
    (whole,) = translate(model, tokenizer, [" ".join(parts)], return_details=True)
    assert "longer_than_training" in whole.flags


def test_translate_details_of_a_split_text(model, tokenizer):
    sentences = ["forty-two", "six thousand and three"]
    (translation,) = translate(model, tokenizer, ["\n".join(sentences)], split_sentences=True, return_details=True)
    first, second = translate(model, tokenizer, sentences, return_details=True)
    assert translation.text == f"{first.text}\n{second.text}"
    assert translation.tokens == first.tokens + second.tokens
    assert translation.log_probs == pytest.approx(first.log_probs + second.log_probs, abs=1e-5)
    assert translation.score == pytest.approx(first.score + second.score, abs=1e-5)
    assert not translation.alternatives


def test_translate_details_of_a_blank_text(model, tokenizer):
    for text in ("", " \n"):
        (translation,) = translate(model, tokenizer, [text], split_sentences=True, return_details=True)
        assert translation == Translation(text, 0.0, [], [], [])


def test_join_translations_best_combinations(model, tokenizer):
    sentences, options = ["forty-two", "three", "sixty"], {"return_details": True, "num_return_sequences": 4}
    (translation,) = translate(model, tokenizer, ["\n".join(sentences)], split_sentences=True, **options)
    hypotheses = [
        (hypothesis, *hypothesis.alternatives) for hypothesis in translate(model, tokenizer, sentences, **options)
    ]
    ranked = sorted(product(*hypotheses), key=lambda chosen: -sum(hypothesis.score for hypothesis in chosen))[:4]
    assert [hypothesis.text for hypothesis in (translation, *translation.alternatives)] == [
        "\n".join(hypothesis.text for hypothesis in chosen) for chosen in ranked
    ]
    assert [hypothesis.score for hypothesis in translation.alternatives] == pytest.approx(
        [sum(hypothesis.score for hypothesis in chosen) for chosen in ranked[1:]], abs=1e-4
    )


def test_join_translations_truncated_alternative(tokenizer):
    better = Translation("cut", -1.0, ["cut"], [-1.0], None, flags=frozenset({"truncated"}))
    best = Translation("best", -2.0, ["best"], [-2.0], None, (better,))
    translation = join_translations(split_into_pieces(tokenizer, "One.\nTwo."), [best, best])
    assert translation.text == "best\nbest"
    assert len(translation.alternatives) == 1


def test_join_translations_of_one_sentence(model, tokenizer):
    (translation,) = translate(
        model, tokenizer, ["three\n"], split_sentences=True, return_details=True, num_return_sequences=2
    )
    assert translation.text.endswith("\n")
    assert [hypothesis.text[-1] for hypothesis in translation.alternatives] == ["\n"]


def test_join_translations_alignment_counts_words_of_the_text(tokenizer):
    """Words are separated by white space, so that sentences without white space between them share one."""

    pieces = split_into_pieces(tokenizer, "One two. Three!\n四。五六 七。", "zh")
    reverse = [Translation(text, -1.0, [text], [-1.0], [(0, len(text.split()) - 1)]) for text, *_ in pieces]
    translation = join_translations(pieces, reverse)
    assert translation.text == "One two. Three!\n四。五六 七。"
    assert translation.alignment == [(0, 1), (2, 2), (3, 3), (3, 4)]


def test_split_into_pieces_language_of_the_tokenizer(tokenizer):
    text = "Am 3. Mai kam er."
    assert [piece.text for piece in split_into_pieces(tokenizer, text)] == ["Am 3.", "Mai kam er."]
    tokenizer.init_kwargs["source_lang"] = "de"
    assert [piece.text for piece in split_into_pieces(tokenizer, text)] == [text]


@pytest.mark.parametrize("source", ["three", " three" * 12])
def test_translate_flags_a_loop_unless_the_source_has_it(model, tokenizer, source):
    (translation,) = translate(model, tokenizer, [source], return_details=True)
    assert "repetition" not in translation.flags
    loop = tokenizer("drei" * 20, add_special_tokens=False).input_ids
    options = {"prefix_allowed_tokens_fn": lambda _, ids: [loop[min(len(ids) - 1, len(loop) - 1)]]}
    (translation,) = translate(
        model, tokenizer, [source], return_details=True, num_beams=1, max_new_tokens=40, **options
    )
    assert ("repetition" in translation.flags) == (source == "three")


def test_split_text_without_sentencex(model, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ImportError, match=r"split_sentences needs sentencex.*\[text\]"):
        translate(model, tokenizer, ["three"], split_sentences=True)
