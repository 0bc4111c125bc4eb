"""`generate(custom_generate=ForcedPhrases(...))`: every translation has the phrases of its sentence."""

import logging
import re

import pytest
import torch
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    TextIteratorStreamer,
)

from hf_vanilla_transformer import ForcedPhrases
from hf_vanilla_transformer.apps.terms import forced_phrases
from tests.apps.terms.test_constrained_beam_search import has_all
from tests.ecosystem.documentation import FIXTURE
from tests.generation.by_hand import BOS, EOS, exhaustive_search, gnmt_penalty
from tests.generation.conftest import NEVER_BY_STEPS, SENTENCES, STEPS, ending_model, path, until_end  # noqa: F401
from tests.generation.test_paper_search import SCORES, SHORT_SOURCES, score_by_hand
from tests.models import pad, small_model


# Of each of `SENTENCES`.
PHRASES = [[[5, 6], [[7], [8, 9]]], [], [[10], [10], [11, 12, 13]]]
OPTIONS = {"num_beams": 4, "max_new_tokens": STEPS}


@pytest.fixture(scope="module")
def model():
    return ending_model()


def as_alternatives(phrases):
    return [phrase if isinstance(phrase[0], list) else [phrase] for phrase in phrases]


def lacks(target, phrases):
    return not has_all(target[1:], as_alternatives(phrases))


def decode(model, phrases=PHRASES, **options):
    """Decode with phrases; None for a search without phrases."""
    source, mask = pad(SENTENCES)
    if phrases is not None:
        options["custom_generate"] = ForcedPhrases(phrases)
    return model.generate(source, attention_mask=mask, **{**OPTIONS, **options})


def targets(model, *args, **options):
    return [until_end(row) for row in decode(model, *args, **options)]


def test_every_hypothesis_has_the_phrases_of_its_sentence(model):
    free, forced = (targets(model, phrases_of_batch, num_return_sequences=4) for phrases_of_batch in (None, PHRASES))
    for number, phrases in enumerate(PHRASES):
        of_sentence = slice(4 * number, 4 * number + 4)
        assert all(lacks(target, phrases) for target in free[of_sentence]) == bool(phrases)
        assert not [target for target in forced[of_sentence] if lacks(target, phrases)]
        assert len(set(map(tuple, forced[of_sentence]))) == 4


def test_a_sentence_has_the_same_translation_alone_and_in_a_batch(model):
    together = targets(model, max_new_tokens=None, max_length_offset=6)
    for row, phrases, target in zip(SENTENCES, PHRASES, together, strict=True):
        alone = model.generate(row[None], custom_generate=ForcedPhrases([phrases]), num_beams=4, max_length_offset=6)
        assert alone[0].tolist() == [token for token in target if token != 0]
    (free,) = model.generate(SENTENCES[1][None], num_beams=4, max_length_offset=6)
    assert free.tolist() == [token for token in together[1] if token != 0]


def test_many_beams_find_the_best_of_all_with_the_phrases():
    model, steps, phrases = small_model(vocab_size=7), 3, [[[[3], [4, 5]]], [[[6]], [[5]]], []]
    sources = torch.stack(SHORT_SOURCES[:3])
    translations = model.generate(
        sources, custom_generate=ForcedPhrases(phrases), num_beams=6**steps, max_new_tokens=steps
    )
    for source, needed, row in zip(sources, phrases, translations, strict=True):
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
    search = ForcedPhrases(phrases)
    part = torch.tensor([[BOS, 20, 21]])
    (target,) = model.generate(source, custom_generate=search, decoder_input_ids=part, **OPTIONS)
    assert not lacks(target.tolist(), phrases[0])
    whole = {"decoder_input_ids": torch.tensor([[BOS, 20, 21, 22]]), **OPTIONS}
    assert torch.equal(model.generate(source, custom_generate=search, **whole), model.generate(source, **whole))


def test_forced_phrases_with_bad_words(model):
    forced = targets(model)
    forbidden = [forced[0][2:4], [forced[2][-2]]]
    phrases = [[[5, 6], [[7], [*forbidden[0], 8]]], [], [[11, 12, 13]]]
    for target, needed in zip(targets(model, phrases, bad_words_ids=forbidden), phrases, strict=True):
        assert not lacks(target, needed)
        assert not any(has_all(target[1:], [[tokens]]) for tokens in forbidden)


@NEVER_BY_STEPS
@pytest.mark.parametrize("options", [{"bad_words_ids": [[5], [12, 13]]}, {"suppress_tokens": [13]}])
def test_a_phrase_that_is_forced_and_forbidden(model, options):
    with pytest.raises(ValueError, match=re.escape("[[11, 12, 13]], which bad_words_ids or suppress_tokens forbids; ")):
        decode(model, [[[5, 4], [5, 7]] if "suppress_tokens" in options else [], [], [[11, 12, 13]]], **options)


def test_phrases_for_no_sentence_are_none(model, monkeypatch):
    """And without phrases the search is the one without them."""
    monkeypatch.setattr(forced_phrases, "ConstrainedBeamSearch", None)
    assert torch.equal(decode(model, [[], [], []]), decode(model, None))


def test_with_the_settings_of_a_call(model):
    source, mask = pad(SENTENCES)
    settings = GenerationConfig(**OPTIONS)
    search = ForcedPhrases(PHRASES)
    output = model.generate(source, attention_mask=mask, generation_config=settings, custom_generate=search)
    assert torch.equal(output, decode(model))


@NEVER_BY_STEPS
def test_arguments_of_earlier_versions_name_the_new_way(model):
    source, mask = pad(SENTENCES)
    settings = GenerationConfig(forced_phrases=PHRASES)
    for options in ({"forced_phrases": PHRASES}, {"generation_config": settings}):
        with pytest.raises(ValueError, match=r"forced_phrases .* custom_generate=ForcedPhrases\(phrases\)"):
            model.generate(source, attention_mask=mask, **options)


def test_one_object_searches_many_times(model):
    search = ForcedPhrases(PHRASES)
    options = {"attention_mask": pad(SENTENCES)[1], "custom_generate": search}
    first, again = (model.generate(pad(SENTENCES)[0], **options, **OPTIONS) for _ in range(2))
    assert torch.equal(first, again)


@NEVER_BY_STEPS
def test_models_of_other_types_have_no_search_for_phrases():
    config = MarianConfig(vocab_size=60, d_model=16, encoder_layers=1, decoder_layers=1)
    config.update({"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "forced_eos_token_id": None})
    with pytest.raises(ValueError, match='do not work with a model of the type "marian"'):
        decode(MarianMTModel(config).eval())


def test_stop_strings():
    """transformers drops the tokenizer that they need where `custom_generate` is a function."""
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    search = ForcedPhrases([[tokenizer("hundert", add_special_tokens=False).input_ids]])
    options = {**tokenizer(["seven"], return_tensors="pt"), "custom_generate": search, "num_beams": 8}
    (free,) = model.generate(**options)
    (stopped,) = model.generate(**options, stop_strings=["hundert"], tokenizer=tokenizer)
    assert free[-1] == tokenizer.eos_token_id
    assert tokenizer.eos_token_id not in stopped
    assert tokenizer.decode(stopped, skip_special_tokens=True).endswith("hundert")


@NEVER_BY_STEPS
def test_a_streamer_is_refused(model):
    """transformers drops it where `custom_generate` is a function, and its reader would wait forever."""
    streamer = TextIteratorStreamer(None)
    with pytest.raises(ValueError, match="stream"):
        decode(model, streamer=streamer)


@NEVER_BY_STEPS
def test_functions_get_only_what_they_have_parameters_for(model):
    """So that another function that is given as `custom_generate` is called as by transformers."""
    received = {}

    def search(model, input_ids, **inputs):
        received.update(inputs)
        return input_ids

    source, mask = pad(SENTENCES)
    model.generate(source, attention_mask=mask, custom_generate=search, synced_gpus=True, tokenizer=object())
    assert "logits_processor" in received
    assert not {"synced_gpus", "tokenizer", "streamer"} & received.keys()


@NEVER_BY_STEPS
def test_processes_search_until_all_of_them_have_finished(model, monkeypatch):
    """transformers drops `synced_gpus`, too; a process that ends alone would leave the others waiting."""
    values_of_synced_gpus = []
    has_unfinished = type(model)._has_unfinished_sequences

    def note(self, is_done, synced_gpus, device):
        values_of_synced_gpus.append(synced_gpus)
        return has_unfinished(self, is_done, False, device=device)

    monkeypatch.setattr(type(model), "_has_unfinished_sequences", note)
    decode(model, synced_gpus=True)
    assert set(values_of_synced_gpus) == {True}


def test_a_search_that_ends_before_the_phrases_has_no_translation(model, caplog):
    with caplog.at_level(logging.WARNING):
        output = targets(model, max_time=0.0)
    assert [len(target) > 1 and target[1] != 0 for target in output] == [False, True, False]
    assert "2 of 3 sentences have no translation: " in caplog.text
    assert "the search ended before the forced phrases" in caplog.text


FAULTS = {
    "forced phrases and glossaries need beam search, but num_beams is 1; give num_beams of 2": (
        PHRASES,
        {"num_beams": 1},
    ),
    "forced phrases and glossaries need beam search, but do_sample is True": (PHRASES, {"do_sample": True}),
    "phrases has 2 lists for 3 sentences; give a list for each": (PHRASES[:2], {}),
    "phrases contains token 60; give ids from 0 to 59": ([[[60]], [], []], {}),
    f"phrases contains token {EOS}; ": ([[[5, EOS]], [], []], {}),
    "phrases contains an empty phrase, []; ": ([[[]], [], []], {}),
    "phrases contains an empty phrase, [[5], []]; ": ([[[[5], []]], [], []], {}),
    "sentence 2 of the batch take up to 6 tokens, </s> included, but its limit is 5": (PHRASES, {"max_new_tokens": 5}),
}
WRONG_TYPES = {
    "phrases contains 5; give a list of phrases for each sentence": 5,
    "phrases contains 5; give a list": [5],
    "phrases contains 'house'; give a list": [["house"], [], []],
    "phrases contains True in the place": [[[[True]]], [], []],
    "phrases contains 6; give a list": [[[[5], 6]], [], []],
    "phrases contains 5.0; give a list": [[[5.0]], [], []],
}


@NEVER_BY_STEPS
@pytest.mark.parametrize("message", FAULTS)
def test_forced_phrases_rejects_values(model, message):
    phrases, options = FAULTS[message]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        decode(model, phrases, **options)
    assert "\n" not in str(error.value)


@NEVER_BY_STEPS
@pytest.mark.parametrize("message", WRONG_TYPES)
def test_forced_phrases_rejects_types(model, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        decode(model, WRONG_TYPES[message])


def test_where_nothing_ends_a_sentence():
    model = ending_model()
    model.generation_config.eos_token_id = None
    for target, phrases in zip(decode(model, max_new_tokens=6).tolist(), PHRASES, strict=True):
        assert not lacks(target, phrases)


@NEVER_BY_STEPS
@pytest.mark.parametrize("phrases", [[[], [], []], [[], [[5]], []]])
def test_forced_phrases_need_a_list_for_each_sentence(phrases):
    model = small_model().eval()
    source = torch.full((2, 4), 7)
    with pytest.raises(ValueError, match="phrases has 3 lists for 2 sentences"):
        model.generate(source, num_beams=2, custom_generate=ForcedPhrases(phrases))
