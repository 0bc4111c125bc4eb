"""`translate(..., split_sentences=...)`, and what `Translation` flags."""

import sys
from itertools import product

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import Translation, translate
from hf_vanilla_transformer.translation.multi_sentence_texts import translate_texts
from tests.ecosystem.documentation import FIXTURE


pytest.importorskip("sentencex")


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(FIXTURE)


def test_white_space_is_kept(model, tokenizer):
    text = "\n  forty-two\r\n\n\tthree \u00a0\n"
    forty_two, three = translate(model, tokenizer, ["forty-two", "three"])
    found = translate(model, tokenizer, [text, "", " \n", "three"], split_sentences=True)
    assert found == [f"\n  {forty_two}\r\n\n\t{three} \u00a0\n", "", " \n", three]


def test_a_sentence_longer_than_any_of_the_training_is_split(model, tokenizer):
    parts = ["six thousand,", "forty-two;", "three"]
    tokenizer.model_max_length = max(len(tokenizer(part).input_ids) for part in parts)
    expected = translate(model, tokenizer, parts)
    (found,) = translate(model, tokenizer, [" ".join(parts)], split_sentences="en", return_details=True)
    assert found.text == " ".join(expected)
    assert "split" in found.flags
    assert "longer_than_training" not in found.flags
    (whole,) = translate(model, tokenizer, [" ".join(parts)], return_details=True)
    assert "longer_than_training" in whole.flags


def test_details_of_a_text_are_those_of_its_sentences(model, tokenizer):
    sentences = ["forty-two", "six thousand and three"]
    (found,) = translate(model, tokenizer, ["\n".join(sentences)], split_sentences=True, return_details=True)
    one, other = translate(model, tokenizer, sentences, return_details=True)
    assert found.text == f"{one.text}\n{other.text}"
    assert found.tokens == one.tokens + other.tokens
    assert found.log_probs == pytest.approx(one.log_probs + other.log_probs, abs=1e-5)
    assert found.score == pytest.approx(one.score + other.score, abs=1e-5)
    assert not found.alternatives


def test_a_blank_text_has_details(model, tokenizer):
    for text in ("", " \n"):
        (found,) = translate(model, tokenizer, [text], split_sentences=True, return_details=True)
        assert found == Translation(text, 0.0, [], [], [])


def test_alternatives_are_the_best_combinations(model, tokenizer):
    sentences, options = ["forty-two", "three", "sixty"], {"return_details": True, "num_return_sequences": 4}
    (found,) = translate(model, tokenizer, ["\n".join(sentences)], split_sentences=True, **options)
    hypotheses = [(each, *each.alternatives) for each in translate(model, tokenizer, sentences, **options)]
    ranked = sorted(product(*hypotheses), key=lambda chosen: -sum(each.score for each in chosen))[:4]
    assert [each.text for each in (found, *found.alternatives)] == [
        "\n".join(each.text for each in chosen) for chosen in ranked
    ]
    assert [each.score for each in found.alternatives] == pytest.approx(
        [sum(each.score for each in chosen) for chosen in ranked[1:]], abs=1e-4
    )


def test_a_truncated_hypothesis_with_a_better_score_stays_an_alternative(tokenizer):
    def hypotheses(sentences):
        better = Translation("cut", -1.0, ["cut"], [-1.0], None, flags=frozenset({"truncated"}))
        return [Translation("best", -2.0, ["best"], [-2.0], None, (better,)) for _ in sentences]

    (found,) = translate_texts(hypotheses, tokenizer, ["One.\nTwo."])
    assert found.text == "best\nbest"
    assert len(found.alternatives) == 1


def test_one_sentence_keeps_its_alternatives(model, tokenizer):
    (found,) = translate(
        model, tokenizer, ["three\n"], split_sentences=True, return_details=True, num_return_sequences=2
    )
    assert found.text.endswith("\n")
    assert [each.text[-1] for each in found.alternatives] == ["\n"]


def test_alignments_count_the_words_of_the_text(tokenizer):
    """Words are separated by white space, so that sentences without white space between them share one."""

    def reverse(sentences):
        return [Translation(each, -1.0, [each], [-1.0], [(0, len(each.split()) - 1)]) for each in sentences]

    (found,) = translate_texts(reverse, tokenizer, ["One two. Three!\n四。五六 七。"], "zh")
    assert found.text == "One two. Three!\n四。五六 七。"
    assert found.alignment == [(0, 1), (2, 2), (3, 3), (3, 4)]


def test_the_language_is_that_of_the_tokenizer(tokenizer):
    seen = []
    text = ["Am 3. Mai kam er."]
    for language in (None, "de"):
        if language:
            tokenizer.init_kwargs["source_lang"] = language
        translate_texts(lambda sentences: seen.append(sentences) or sentences, tokenizer, text)
    assert seen == [["Am 3.", "Mai kam er."], text]


@pytest.mark.parametrize("source", ["three", " three" * 12])
def test_a_loop_is_flagged_unless_the_source_has_it(model, tokenizer, source):
    (found,) = translate(model, tokenizer, [source], return_details=True)
    assert "repetition" not in found.flags
    loop = tokenizer("drei" * 20, add_special_tokens=False).input_ids
    options = {"prefix_allowed_tokens_fn": lambda _, ids: [loop[min(len(ids) - 1, len(loop) - 1)]]}
    (found,) = translate(model, tokenizer, [source], return_details=True, num_beams=1, max_new_tokens=40, **options)
    assert ("repetition" in found.flags) == (source == "three")


def test_without_sentencex_one_sentence_says_so(model, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    with pytest.raises(ImportError, match=r"split_sentences needs sentencex; install it with: .*\[text\]"):
        translate(model, tokenizer, ["three"], split_sentences=True)
