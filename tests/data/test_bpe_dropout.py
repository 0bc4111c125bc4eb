import copy
from collections import Counter
from itertools import pairwise

import pytest
from datasets import Dataset
from tokenizers.processors import TemplateProcessing

import hf_vanilla_transformer.data.bpe_dropout as module
from hf_vanilla_transformer import tokenize_pairs, train_tokenizer
from hf_vanilla_transformer.data.bpe_dropout import BpeDropout, tokenize_with_dropout


TEXTS = ["the cat sat on the mat", "  two  cats' mats", "thé <pad> cat</s>", "", "the\tthe", "a"]


@pytest.fixture(scope="module", params=[False, True], ids=["letters and signs", "whitespace words"])
def learnt(request):
    texts = ["the cat sat on the mat", "the fat cat sat", "a mat for the cat"] * 3
    return train_tokenizer(texts, vocab_size=300, show_progress=False, whitespace_words=request.param)


@pytest.fixture
def pairs():
    return Dataset.from_dict({"source": TEXTS * 30, "target": TEXTS[::-1] * 30})


def ids_of(segmenter, text):
    return [token for word in segmenter.words(text) for token in segmenter.cuts(word)[0]]


def test_without_dropout_it_cuts_as_the_library(learnt):
    segmenter = BpeDropout(learnt, 0.0)
    for text in TEXTS:
        assert [*ids_of(segmenter, text), learnt.eos_token_id] == learnt(text).input_ids


@pytest.mark.parametrize("whitespace_words", [False, True])
def test_without_dropout_it_cuts_multi30k_as_the_library(multi30k, whitespace_words):
    lines = [
        line for name in ("val.en", "val.de") for line in (multi30k / name).read_text(encoding="utf-8").splitlines()
    ]
    tokenizer = train_tokenizer(lines, 3000, show_progress=False, whitespace_words=whitespace_words)
    segmenter = BpeDropout(tokenizer, 0.0)
    assert [[*ids_of(segmenter, line), tokenizer.eos_token_id] for line in lines] == tokenizer(lines).input_ids


def test_every_cut_is_of_the_same_text(learnt):
    segmenter = BpeDropout(learnt, 0.5)
    for text in TEXTS:
        for number in range(20):
            ids = [token for word in segmenter.words(text) for token in segmenter.cuts(word)[number]]
            assert learnt.decode(ids) == text


def test_dropping_all_merges_leaves_bytes(learnt):
    ids = ids_of(BpeDropout(learnt, 1.0), "the cat")
    assert max(ids) < 3 + 256


def test_merges_are_left_out_as_often_as_asked_for():
    """Of a word of three letters each way to cut has a probability that can be worked out."""
    tokenizer = train_tokenizer(["abc"] * 3, vocab_size=261, show_progress=False)
    assert tokenizer.convert_ids_to_tokens([259, 260]) == ["ab", "abc"]
    counts: Counter = Counter()
    draws = 0
    for seed in range(80):
        for cut in BpeDropout(tokenizer, 0.3, seed).cuts("abc"):
            counts[tuple(tokenizer.convert_ids_to_tokens(cut))] += 1
            draws += 1
    expected = {("abc",): 0.7 * 0.7, ("ab", "c"): 0.7 * 0.3, ("a", "b", "c"): 0.3}
    assert counts.keys() == expected.keys()
    for cut, probability in expected.items():
        deviation = (probability * (1 - probability) / draws) ** 0.5
        assert abs(counts[cut] / draws - probability) < 4 * deviation


def test_copies_of_the_pairs(learnt, pairs):
    data = tokenize_with_dropout(pairs, learnt, dropout=0.3, copies=4, seed=1)
    assert data.features == tokenize_pairs(pairs, learnt).features
    for column, texts in (("input_ids", pairs["source"]), ("labels", pairs["target"])):
        decoded = learnt.batch_decode([ids[:-1] for ids in data[column]])
        assert decoded == list(texts) * 4
        assert all(ids[-1] == learnt.eos_token_id for ids in data[column])
    copies = [data["input_ids"][start : start + len(pairs)] for start in range(0, len(data), len(pairs))]
    assert all(one != other for one, other in pairwise(copies))


def test_words_that_were_forgotten_are_cut_alike(learnt, pairs, monkeypatch):
    segmenter = BpeDropout(learnt, 0.3)
    words = sorted({word for text in TEXTS for word in segmenter.words(text)})
    expected = [segmenter.cuts(word) for word in words]
    monkeypatch.setattr(module, "_MOST_WORDS", 2)
    forgetful = BpeDropout(learnt, 0.3)
    assert [forgetful.cuts(word) for word in words * 2] == expected * 2
    assert len(forgetful._drawn) == 2 < len(words)


def test_equal_cuts_are_in_memory_once(learnt):
    cuts = BpeDropout(learnt, 0.3).cuts("cat")
    assert len({id(cut) for cut in cuts}) == len({tuple(cut) for cut in cuts}) > 1


@pytest.mark.parametrize(
    "change",
    [
        {"post_processor": TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])},
        {"pre_tokenizer": None},
    ],
    ids=["before the text", "no words"],
)
def test_a_tokenizer_that_cuts_otherwise(learnt, change):
    tokenizer = copy.deepcopy(learnt)
    for name, part in change.items():
        setattr(tokenizer.backend_tokenizer, name, part)
    with pytest.raises(ValueError, match=r"needs a tokenizer of train_tokenizer\(\); this one cuts texts otherwise"):
        BpeDropout(tokenizer, 0.1)


def test_tokens_that_were_added(learnt):
    tokenizer = copy.deepcopy(learnt)
    tokenizer.add_tokens(["<num>"])
    with pytest.raises(ValueError, match="BPE dropout would cut <num>, which were added to the tokenizer as a whole"):
        BpeDropout(tokenizer, 0.1)


def test_the_seed_decides(learnt, pairs):
    first, again = (tokenize_with_dropout(pairs, learnt, 0.3, 2, seed=1)[:] for _ in range(2))
    assert first == again
    assert tokenize_with_dropout(pairs, learnt, 0.3, 2, seed=2)[:] != first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.5}, "bpe_dropout is 1.5; it must lie between 0 and 1"),
        ({"copies": 0}, "bpe_dropout_copies is 0; it must be at least 1"),
    ],
)
def test_wrong_options(learnt, pairs, options, message):
    with pytest.raises(ValueError, match=message):
        tokenize_with_dropout(pairs, learnt, **options)
