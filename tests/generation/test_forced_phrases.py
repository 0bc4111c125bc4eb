"""`generate(forced_phrases=...)`: every translation has the phrases of its sentence."""

import logging
import re

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

from hf_vanilla_transformer.model import generation_vanilla_transformer as generation
from tests.generation.by_hand import BOS, EOS, exhaustive_search, gnmt_penalty
from tests.generation.conftest import NEVER_BY_STEPS, SENTENCES, STEPS, ending_model, until_end
from tests.generation.test_constraints import has_all
from tests.generation.test_paper_search import SCORES, SHORT_SOURCES, score_by_hand
from tests.models import pad, small_model


# Of each of `SENTENCES`.
PHRASES = [[[5, 6], [[7], [8, 9]]], [], [[10], [10], [11, 12, 13]]]
OPTIONS = {"num_beams": 4, "max_new_tokens": STEPS}


def as_alternatives(phrases):
    return [phrase if isinstance(phrase[0], list) else [phrase] for phrase in phrases]


def lacks(target, phrases):
    return not has_all(target[1:], as_alternatives(phrases))


def decode(model, phrases=PHRASES, **options):
    source, mask = pad(SENTENCES)
    return model.generate(source, attention_mask=mask, forced_phrases=phrases, **{**OPTIONS, **options})


def targets(model, *args, **options):
    return [until_end(row) for row in decode(model, *args, **options)]


def test_every_hypothesis_has_the_phrases_of_its_sentence(model):
    free, found = (targets(model, each, num_return_sequences=4) for each in (None, PHRASES))
    for number, phrases in enumerate(PHRASES):
        of_sentence = slice(4 * number, 4 * number + 4)
        assert all(lacks(target, phrases) for target in free[of_sentence]) == bool(phrases)
        assert not [target for target in found[of_sentence] if lacks(target, phrases)]
        assert len(set(map(tuple, found[of_sentence]))) == 4


def test_a_sentence_has_the_same_translation_alone_and_in_a_batch(model):
    together = targets(model, max_new_tokens=None, max_length_offset=6)
    for row, phrases, target in zip(SENTENCES, PHRASES, together, strict=True):
        alone = model.generate(row[None], forced_phrases=[phrases], num_beams=4, max_length_offset=6)
        assert alone[0].tolist() == [token for token in target if token != 0]
    (free,) = model.generate(SENTENCES[1][None], num_beams=4, max_length_offset=6)
    assert free.tolist() == [token for token in together[1] if token != 0]


def test_many_beams_find_the_best_of_all_with_the_phrases():
    model, steps, phrases = small_model(vocab_size=7), 3, [[[[3], [4, 5]]], [[[6]], [[5]]], []]
    sources = torch.stack(SHORT_SOURCES[:3])
    found = model.generate(sources, forced_phrases=phrases, num_beams=6**steps, max_new_tokens=steps)
    for source, needed, row in zip(sources, phrases, found, strict=True):
        everything = exhaustive_search(model, source, steps, gnmt_penalty)
        best = next(tokens for _, tokens in everything if has_all(tokens[1:], needed))
        assert (until_end(row) == everything[0][1]) == (not needed)
        assert until_end(row) == best


@NEVER_BY_STEPS
def test_scores_are_those_of_the_translations(model):
    output = decode(model, **SCORES)
    for row, score, source in zip(output.sequences, output.sequences_scores, SENTENCES, strict=True):
        assert score.item() == pytest.approx(score_by_hand(model, source, row, gnmt_penalty), abs=1e-5)


@NEVER_BY_STEPS
def test_a_forced_prefix_counts(model):
    source, phrases = SENTENCES[0][None], [[[20, 21, 22]]]
    options = {"forced_phrases": phrases, "decoder_input_ids": torch.tensor([[BOS, 20, 21]]), **OPTIONS}
    (target,) = model.generate(source, **options)
    assert not lacks(target.tolist(), phrases[0])
    whole = {**options, "decoder_input_ids": torch.tensor([[BOS, 20, 21, 22]])}
    free = {**whole, "forced_phrases": None}
    assert torch.equal(model.generate(source, **whole), model.generate(source, **free))


def test_forbidden_phrases_too(model):
    forced = targets(model)
    forbidden = [forced[0][2:4], [forced[2][-2]]]
    phrases = [[[5, 6], [[7], [*forbidden[0], 8]]], [], [[11, 12, 13]]]
    for target, needed in zip(targets(model, phrases, bad_words_ids=forbidden), phrases, strict=True):
        assert not lacks(target, needed)
        assert not any(has_all(target[1:], [[each]]) for each in forbidden)


@NEVER_BY_STEPS
@pytest.mark.parametrize("options", [{"bad_words_ids": [[5], [12, 13]]}, {"suppress_tokens": [13]}])
def test_a_phrase_that_is_forced_and_forbidden(model, options):
    with pytest.raises(ValueError, match=re.escape("[[11, 12, 13]], which bad_words_ids or suppress_tokens forbids; ")):
        decode(model, [[[5, 4], [5, 7]] if "suppress_tokens" in options else [], [], [[11, 12, 13]]], **options)


def test_phrases_for_no_sentence_are_none(model, monkeypatch):
    """And without phrases the search is the one without them."""
    monkeypatch.setattr(generation, "ConstrainedBeamSearch", None)
    free = decode(model, None)
    assert torch.equal(decode(model, [[], [], []]), free)
    assert torch.equal(decode(model, [[], [], []], num_beams=1), decode(model, None, num_beams=1))


def test_phrases_in_the_settings_of_a_call(model, tmp_path):
    settings = GenerationConfig(forced_phrases=PHRASES, **OPTIONS)
    source, mask = pad(SENTENCES)
    output = model.generate(source, attention_mask=mask, generation_config=settings)
    assert torch.equal(output, decode(model))
    model.save_pretrained(tmp_path)
    assert "forced_phrases" not in (tmp_path / "generation_config.json").read_text()
    assert not hasattr(AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config, "forced_phrases")


def test_a_search_that_ends_before_the_phrases_has_no_translation(model, caplog):
    with caplog.at_level(logging.WARNING):
        output = targets(model, max_time=0.0)
    assert [len(target) > 1 and target[1] != 0 for target in output] == [False, True, False]
    assert "2 of 3 sentences have no translation: " in caplog.text
    assert "the search ended before the forced phrases" in caplog.text


FAULTS = {
    "forced_phrases and glossaries need beam search, but num_beams is 1; give num_beams of 2": (
        PHRASES,
        {"num_beams": 1},
    ),
    "forced_phrases and glossaries need beam search, but do_sample is True": (PHRASES, {"do_sample": True}),
    "forced_phrases has 2 lists for 3 sentences; give a list for each": (PHRASES[:2], {}),
    "forced_phrases contains token 60; give ids from 0 to 59": ([[[60]], [], []], {}),
    f"forced_phrases contains token {EOS}; ": ([[[5, EOS]], [], []], {}),
    "forced_phrases contains an empty phrase, []; ": ([[[]], [], []], {}),
    "forced_phrases contains an empty phrase, [[5], []]; ": ([[[[5], []]], [], []], {}),
    "sentence 2 of the batch take up to 6 tokens, </s> included, but its limit is 5": (PHRASES, {"max_new_tokens": 5}),
}
WRONG_TYPES = {
    "forced_phrases contains 5; give a list of phrases for each sentence": 5,
    "forced_phrases contains 5; give a list": [5],
    "forced_phrases contains 'house'; give a list": [["house"], [], []],
    "forced_phrases contains True in the place": [[[[True]]], [], []],
    "forced_phrases contains 6; give a list": [[[[5], 6]], [], []],
    "forced_phrases contains 5.0; give a list": [[[5.0]], [], []],
}


@NEVER_BY_STEPS
@pytest.mark.parametrize("message", FAULTS)
def test_faults(model, message):
    phrases, options = FAULTS[message]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        decode(model, phrases, **options)
    assert "\n" not in str(error.value)


@NEVER_BY_STEPS
@pytest.mark.parametrize("message", WRONG_TYPES)
def test_wrong_types(model, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        decode(model, WRONG_TYPES[message])


def test_where_nothing_ends_a_sentence():
    model = ending_model()
    model.generation_config.eos_token_id = None
    for target, phrases in zip(decode(model, max_new_tokens=6).tolist(), PHRASES, strict=True):
        assert not lacks(target, phrases)
