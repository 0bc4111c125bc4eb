"""Facts about the training pairs that are saved with the tokenizer."""

from types import SimpleNamespace

import pytest
from datasets import Dataset

from hf_vanilla_transformer.model.input_checks import LETTERLESS_SHARE_FIELD, teaches_letterless
from hf_vanilla_transformer.training import tokenizer_facts
from hf_vanilla_transformer.training.tokenizer_facts import set_languages, set_letterless_share, set_longest_source


# A share that is too small to teach a model to translate text without letters, and one that is large enough.
SMALL_SHARE = 0.0
LARGE_SHARE = 0.5


def test_teaches_letterless_by_the_shares_of_these_tests():
    assert (teaches_letterless(SMALL_SHARE), teaches_letterless(LARGE_SHARE)) == (False, True)


@pytest.mark.parametrize(
    ("is_fine_tuned", "earlier_share", "present_share", "expected"),
    [
        (False, LARGE_SHARE, SMALL_SHARE, SMALL_SHARE),
        (False, None, SMALL_SHARE, SMALL_SHARE),
        (True, LARGE_SHARE, SMALL_SHARE, LARGE_SHARE),
        (True, SMALL_SHARE, LARGE_SHARE, LARGE_SHARE),
        (True, None, SMALL_SHARE, None),
        (True, None, LARGE_SHARE, LARGE_SHARE),
    ],
)
def test_set_letterless_share(tokenizer, monkeypatch, is_fine_tuned, earlier_share, present_share, expected):
    monkeypatch.setattr(tokenizer_facts, "translated_letterless_share", lambda pairs, codes: present_share)
    tokenizer.init_kwargs.pop(LETTERLESS_SHARE_FIELD, None)
    if earlier_share is not None:
        tokenizer.init_kwargs[LETTERLESS_SHARE_FIELD] = earlier_share
    set_letterless_share(tokenizer, Dataset.from_dict({"source": ["1"], "target": ["1"]}), is_fine_tuned)
    assert tokenizer.init_kwargs.get(LETTERLESS_SHARE_FIELD) == expected


@pytest.mark.parametrize(
    ("is_fine_tuned", "earlier_length", "expected"),
    [(False, None, 3), (False, 5, 5), (True, None, None), (True, 5, 5), (True, 2, 3)],
)
def test_set_longest_source(is_fine_tuned, earlier_length, expected):
    tokenizer = SimpleNamespace(init_kwargs={})
    if earlier_length is not None:
        tokenizer.init_kwargs["longest_training_source"] = earlier_length
    data = Dataset.from_dict({"input_ids": [[4, 1], [4, 5, 1]], "labels": [[4, 4, 4, 1], [1]]})
    set_longest_source(tokenizer, data, is_fine_tuned)
    assert tokenizer.init_kwargs.get("longest_training_source") == expected


@pytest.mark.parametrize(
    ("languages", "fields", "attributes"),
    [
        ((None, None), {}, {"source_lang": "en"}),
        (("fr", None), {"source_lang": "fr"}, {"source_lang": "fr"}),
        (("fr", "de"), {"source_lang": "fr", "target_lang": "de"}, {"source_lang": "fr"}),
    ],
)
def test_set_languages(languages, fields, attributes):
    tokenizer = SimpleNamespace(init_kwargs={}, source_lang="en")
    set_languages(tokenizer, *languages)
    assert vars(tokenizer) == {"init_kwargs": fields, **attributes}
