"""`translate(..., return_details=True)`."""

import copy
import math
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_vanilla_transformer
from hf_vanilla_transformer import Translation, load_engine, score, translate
from hf_vanilla_transformer.hub import user_cache
from hf_vanilla_transformer.translation import translation_details
from hf_vanilla_transformer.translation.translation_details import DetailLevel, has_loop
from tests.ecosystem.documentation import FIXTURE
from tests.generation.by_hand import forced_log_probabilities, gnmt_penalty


SENTENCES = ["forty-two", "", "nine hundred and one", "   ", "six thousand and thirteen", "two"]


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FIXTURE)


@pytest.mark.parametrize("options", [{}, {"num_beams": 1}, {"tokens_per_batch": 9}, {"num_return_sequences": 3}])
def test_translate_details_equal_translate_and_score(model, tokenizer, options):
    translations = translate(model, tokenizer, SENTENCES, return_details=True, **options)
    texts = [translation.text for translation in translations]
    assert texts == translate(model, tokenizer, SENTENCES, **options)
    for row, expected in enumerate(score(model, tokenizer, SENTENCES, texts)):
        if SENTENCES[row].strip():
            assert translations[row].tokens == expected.tokens
            assert translations[row].log_probs == pytest.approx(expected.log_probs, abs=1e-5)
            assert translations[row].score == pytest.approx(expected.normalized, abs=1e-5)
            assert len(translations[row].alternatives) == options.get("num_return_sequences", 1) - 1
            assert not translations[row].flags
        else:
            assert translations[row] == Translation(SENTENCES[row], 0.0, [], [], [])


@pytest.mark.parametrize("as_settings", [False, True])
@pytest.mark.parametrize("options", [{}, {"length_penalty": 2.0, "length_penalty_type": "hf"}])
def test_translate_details_have_beam_scores(model, tokenizer, options, as_settings):
    options = {"num_beams": 4, "num_return_sequences": 4, **options}
    source = "eight hundred and seventy-six thousand"
    inputs = tokenizer([source], return_tensors="pt")
    output = model.generate(**inputs, return_dict_in_generate=True, output_scores=True, **options)
    if as_settings:
        settings = copy.deepcopy(model.generation_config)
        settings.update(**options)
        options = {"generation_config": settings}
    ((best,)) = translate(model, tokenizer, [source], return_details=True, **options)
    hypotheses = [best, *best.alternatives]
    assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(output.sequences_scores.tolist(), abs=1e-5)
    assert [hypothesis.text for hypothesis in hypotheses] == tokenizer.batch_decode(
        output.sequences, skip_special_tokens=True
    )
    assert all(hypothesis.alternatives == () for hypothesis in best.alternatives)


def test_translate_flags_a_truncated_translation(model, tokenizer):
    # With several beams a shorter hypothesis, which is finished, would win.
    options = {"return_details": True, "max_new_tokens": 2, "num_beams": 1}
    (translation,) = translate(model, tokenizer, ["six thousand and thirteen"], **options)
    assert translation.flags == {"truncated"}
    # OPUS-MT's settings force EOS at the limit.
    (forced,) = translate(model, tokenizer, ["six thousand and thirteen"], forced_eos_token_id=2, **options)
    assert (forced.flags, forced.tokens[-1]) == ({"truncated"}, "</s>")
    (whole,) = translate(model, tokenizer, ["six"], return_details=True, forced_eos_token_id=2)
    assert whole.flags == frozenset()
    assert len(translation.tokens) == len(translation.log_probs) == 2
    ids = torch.tensor([1, *tokenizer.convert_tokens_to_ids(translation.tokens)])
    source = tokenizer("six thousand and thirteen", return_tensors="pt").input_ids[0]
    log_probs = forced_log_probabilities(model, source, ids).tolist()
    assert translation.log_probs == pytest.approx(log_probs, abs=1e-5)
    assert translation.score == pytest.approx(sum(log_probs) / gnmt_penalty(2), abs=1e-5)


@pytest.mark.parametrize("stops", [["und", "x"], "und"])
@pytest.mark.parametrize("as_settings", [True, False])
def test_translate_does_not_flag_stop_strings(model, tokenizer, as_settings, stops):
    stop_settings = {"stop_strings": stops}
    model = copy.deepcopy(model)
    if as_settings:
        model.generation_config.update(**stop_settings)
    (translation,) = translate(
        model, tokenizer, ["forty-two"], return_details=DetailLevel.FLAGS, **({} if as_settings else stop_settings)
    )
    assert (translation.text, translation.flags) == ("zweiund", frozenset())
    options = {"return_details": DetailLevel.FLAGS, "stop_strings": "u", "max_new_tokens": 1}
    (truncated,) = translate(model, tokenizer, ["forty-two"], **options)
    assert (truncated.text, truncated.flags) == ("z", {"truncated"})


def test_translate_flags_without_forced_decoding(model, tokenizer, monkeypatch):
    texts, options = ["six thousand and thirteen", "", "two"], {"max_new_tokens": 2, "num_beams": 1}
    expected = translate(model, tokenizer, texts, return_details=True, **options)
    monkeypatch.setattr(translation_details, "forced_decoding", None)
    translations = translate(model, tokenizer, texts, return_details=DetailLevel.FLAGS, **options)
    assert [(translation.text, translation.tokens, translation.flags) for translation in translations] == [
        (translation.text, translation.tokens, translation.flags) for translation in expected
    ]


@pytest.mark.parametrize("return_details", ["flags", DetailLevel.FLAGS])
def test_detail_level_from_argument_flags(return_details):
    assert DetailLevel.from_argument(return_details) is DetailLevel.FLAGS


def test_detail_level_from_argument_unknown(model, tokenizer):
    with pytest.raises(ValueError, match='return_details is "scores"'):
        translate(model, tokenizer, ["two"], return_details="scores")


def test_translate_log_probs_ignore_logits_processors(model, tokenizer):
    """The search with a repetition penalty prefers other scores, but the model's are what `score()` returns."""
    texts = ["six hundred and sixty-six"]
    (translation,) = translate(model, tokenizer, texts, return_details=True, repetition_penalty=1.5)
    assert translation.log_probs == pytest.approx(
        score(model, tokenizer, texts, [translation.text])[0].log_probs, abs=1e-5
    )


def test_translate_details_without_a_hypothesis(model, tokenizer, caplog):
    def forbid(input_ids, scores):
        return torch.full_like(scores, -math.inf)

    (translation,) = translate(
        model, tokenizer, ["two"], return_details=True, num_return_sequences=2, logits_processor=[forbid]
    )
    assert translation == Translation("", -math.inf, [], [], None, (), frozenset(["truncated"]))


def test_translate_details_keep_tokens_per_batch(model, tokenizer):
    """Also of several hypotheses per sentence."""
    shapes, tokens_per_batch = [], 12
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    translate(
        model,
        tokenizer,
        SENTENCES,
        return_details=True,
        tokens_per_batch=tokens_per_batch,
        num_beams=3,
        num_return_sequences=3,
    )
    hook.remove()
    assert any(rows > 1 for rows, _ in shapes)
    assert all(rows == 1 or rows * length <= tokens_per_batch for rows, length in shapes)


@pytest.mark.skipif(find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")
def test_translate_details_of_an_engine(model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(user_cache, "CACHE", tmp_path)
    engine = load_engine(str(FIXTURE), threads=1)
    options = {"num_beams": 4, "num_return_sequences": 2, "early_stopping": True, "return_details": True}
    alternatives = 0
    translations_by_engine = translate(engine, tokenizer, SENTENCES, **options)
    translations_by_model = translate(model, tokenizer, SENTENCES, **options)
    for source, by_engine, by_model in zip(SENTENCES, translations_by_engine, translations_by_model, strict=True):
        assert (by_engine.text, by_engine.tokens, by_engine.flags) == (by_model.text, by_model.tokens, by_model.flags)
        assert by_engine.log_probs == pytest.approx(by_model.log_probs, abs=1e-4)
        assert by_engine.score == pytest.approx(by_model.score, abs=1e-4)
        # The last hypotheses of both searches may differ.
        for hypothesis in by_engine.alternatives:
            (expected,) = score(model, tokenizer, [source], [hypothesis.text])
            if hypothesis.tokens == expected.tokens:
                assert hypothesis.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
                assert hypothesis.score <= by_engine.score
                alternatives += 1
    assert alternatives > 2
    engine.close()


def test_translate_flags_with_other_eos_tokens(model, tokenizer):
    options = {"return_details": True, "num_beams": 1}
    (whole,) = translate(model, tokenizer, ["six thousand and thirteen"], **options)
    second = tokenizer.convert_tokens_to_ids(whole.tokens[1])
    (translation,) = translate(model, tokenizer, ["six thousand and thirteen"], eos_token_id=[2, second], **options)
    assert translation.tokens == whole.tokens[:2]
    assert not translation.flags


def test_translation_is_public():
    assert hf_vanilla_transformer.Translation is Translation


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (list("abcabcabcabc"), True),
        (list("abcabcabcab"), False),
        (["ha"] * 12, True),
        (["ha"] * 11, False),
        (list("the house and the garden"), False),
        ([*"xyz", *"abcdefgh" * 4], True),
        ([*"abcdefghi" * 4], False),
        ([], False),
    ],
)
def test_has_loop(tokens, expected):
    assert has_loop(tokens) is expected
