"""Phrases that translations must have: any object may give them, and batches are split by their sizes."""

import pytest

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.translation.required_phrases import PhraseSizes, RequiredPhrases, split_by_phrases
from tests.models import decisive_model


def test_split_by_phrases_limits_cells():
    """So that memory has a bound, and sentences with small phrases do not pay for those with large ones."""
    small, large, none = PhraseSizes(20, 10, 2), PhraseSizes(9000, 50, 20), PhraseSizes()
    assert split_by_phrases([3, 1, 0, 2], [none] * 4, 100) == [[3, 1, 0, 2]]
    assert split_by_phrases([0, 1, 2, 3], [none, small, none, small], 100_000) == [[1, 3, 0, 2]]
    assert split_by_phrases([0, 1, 2, 3], [small, large, small, none], 100_000) == [[1, 0], [2, 3]]
    assert split_by_phrases([0, 1, 2, 3], [large, small, large, none], 15_000) == [[0], [2], [1, 3]]


class Endings:
    """Requires phrases of long sentences only; the search says what it got, and decodes greedily."""

    def __init__(self, fault=None):
        self.fault = fault
        self.searched = []

    def check(self, settings):
        if self.fault is not None:
            raise ValueError(f"{self.fault} with {settings.num_beams} beams")

    def phrases(self, sentence):
        return [[[len(sentence)]]] if len(sentence) > 4 else []

    def sizes(self, sentence):
        return PhraseSizes()

    def search(self, model, phrases):
        def greedy(model, input_ids, **inputs):
            self.searched.append(phrases)
            return model._sample(input_ids, **inputs)

        return greedy


def test_translate_accepts_any_required_phrases(tokenizer):
    model = decisive_model(vocab_size=len(tokenizer))
    endings = Endings()
    assert isinstance(endings, RequiredPhrases)
    sentences = ["a house", "", "two", "  ", "a small house"]
    translations = translate(model, tokenizer, sentences, glossary=endings, num_beams=1, max_new_tokens=4)
    assert translations == translate(model, tokenizer, sentences, num_beams=1, max_new_tokens=4)
    # All in one batch, longest first; blank sentences are not translated.
    ((*searched,),) = endings.searched
    assert sorted(searched) == [[], [[[7]]], [[[13]]]]


def test_translate_checks_the_glossary_first(tokenizer):
    model = decisive_model(vocab_size=len(tokenizer))
    with pytest.raises(ValueError, match="none with 3 beams"):
        translate(model, tokenizer, [], glossary=Endings("none"), num_beams=3)
