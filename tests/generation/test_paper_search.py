"""What the paper's decoding adds to transformers' own: the length penalty, the length limit, and their defaults."""

import copy
import itertools
import logging
import math

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, StoppingCriteria

from hf_vanilla_transformer.model.beam_search import gnmt_length_penalty
from hf_vanilla_transformer.model.generation_settings import length_penalty_of
from tests.generation.by_hand import (
    BOS,
    EOS,
    beam_search,
    exhaustive_search,
    forced_log_probabilities,
    gnmt_penalty,
    hf_penalty,
)
from tests.generation.conftest import NEVER_BY_STEPS, SENTENCES, ending_model, generated_lengths, until_end
from tests.models import pad, sentences, small_model


PENALTIES = pytest.mark.parametrize(("penalty_type", "penalty"), [("gnmt", gnmt_penalty), ("hf", hf_penalty)])
SCORES = {"return_dict_in_generate": True, "output_scores": True}
# Of a vocabulary of 7.
SHORT_SOURCES = [torch.tensor(words) for words in itertools.product(range(3, 7), repeat=2)]


def score_by_hand(model, source, sequence, penalty):
    """log P / lp of a row of `generate()`'s output, `(target,)`, for one source, `(source,)`."""
    target = torch.tensor(until_end(sequence))
    return forced_log_probabilities(model, source, target).sum().item() / penalty(len(target) - 1)


@NEVER_BY_STEPS
def test_defaults_of_a_new_model():
    config = small_model().generation_config
    assert (config.num_beams, config.length_penalty, config.length_penalty_type) == (4, 0.6, "gnmt")
    assert (config.max_length_offset, config.early_stopping) == (50, "never")
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, EOS)


@NEVER_BY_STEPS
def test_generation_config_defaults_survive_saving(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config == model.generation_config


@NEVER_BY_STEPS
def test_defaults_come_back_where_the_file_is_missing(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config == model.generation_config


@NEVER_BY_STEPS
def test_generation_config_rejects_unsavable_settings(tmp_path):
    model = small_model()
    model.generation_config.update(num_beams=1, temperature=0.3)
    with pytest.raises(ValueError, match="temperature"):
        model.save_pretrained(tmp_path)
    model.generation_config.do_sample = True
    model.save_pretrained(tmp_path)


@NEVER_BY_STEPS
@pytest.mark.parametrize("num_beams", [1, 4])
def test_generate_rejects_an_empty_batch(num_beams):
    with pytest.raises(ValueError, match="the batch is empty; give at least one sentence"):
        small_model().generate(torch.empty(0, 5, dtype=torch.long), num_beams=num_beams)


def test_a_saved_greedy_default(tmp_path):
    model = ending_model()
    model.generation_config.num_beams = 1
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.generation_config.num_beams == 1
    source, mask = pad(SENTENCES)
    greedy = model.generate(source, attention_mask=mask, num_beams=1, max_new_tokens=10)
    beams = model.generate(source, attention_mask=mask, num_beams=4, max_new_tokens=10)
    assert not torch.equal(greedy, beams)
    assert torch.equal(loaded.generate(source, attention_mask=mask, max_new_tokens=10), greedy)
    assert torch.equal(loaded.generate(source, attention_mask=mask, max_new_tokens=10, num_beams=4), beams)
    loaded.save_pretrained(tmp_path / "again")
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").generation_config == loaded.generation_config


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 4}, {"num_beams": 1, "do_sample": True}])
@pytest.mark.parametrize("side", ["left", "right"])
def test_each_sentence_has_its_own_limit(endless, options, side):
    source, mask = pad(sentences(9, 4, 1), side, extra=5)
    output = endless.generate(source, attention_mask=mask, **options)
    assert generated_lengths(endless, output) == [59, 54, 51]
    assert EOS not in output


@pytest.mark.parametrize("num_beams", [1, 3])
def test_each_sentence_has_its_own_limit_where_there_is_no_end_token(num_beams):
    model = ending_model()
    model.generation_config.eos_token_id = None
    source, mask = pad(SENTENCES)
    options = {"num_beams": num_beams, "max_length_offset": 2}
    output = model.generate(source, attention_mask=mask, **options)
    assert generated_lengths(model, output) == [11, 6, 8]
    for row, alone in zip(output, SENTENCES, strict=True):
        expected = model.generate(alone[None], **options)[0]
        assert torch.equal(row[: len(expected)], expected)
        assert not row[len(expected) :].any()


def test_generate_limit_without_a_mask(endless):
    output = endless.generate(torch.stack(sentences(6, 6)), num_beams=1)
    assert generated_lengths(endless, output) == [56, 56]


def test_generate_limit_with_several_sequences(endless):
    source, mask = pad(sentences(9, 4))
    beams = endless.generate(source, attention_mask=mask, num_return_sequences=3)
    assert generated_lengths(endless, beams) == [59] * 3 + [54] * 3
    samples = endless.generate(source, attention_mask=mask, num_beams=1, do_sample=True, num_return_sequences=2)
    assert generated_lengths(endless, samples) == [59] * 2 + [54] * 2


@NEVER_BY_STEPS
def test_generate_limit_in_prompt_lookup(endless):
    source, mask = pad(sentences(6), extra=7)
    output = endless.generate(source, attention_mask=mask, num_beams=1, prompt_lookup_num_tokens=2)
    assert generated_lengths(endless, output) == [56]


def test_generate_limit_of_embeddings_or_encoder_outputs(endless):
    source, mask = pad(sentences(9, 4))
    embeds = endless.get_input_embeddings()(source)
    encoded = endless.get_encoder()(source, attention_mask=mask)
    for source_inputs in ({"inputs_embeds": embeds}, {"encoder_outputs": encoded}):
        output = endless.generate(**source_inputs, attention_mask=mask, num_beams=1)
        assert generated_lengths(endless, output) == [59, 54]
        assert generated_lengths(endless, endless.generate(**source_inputs, num_beams=1)) == [59, 59]


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({"max_new_tokens": 7}, 7),
        ({"max_length": 7}, 6),
        ({"max_length": 20}, 19),
        ({"max_length_offset": 3}, 8),
        ({"generation_config": GenerationConfig(max_new_tokens=4)}, 4),
        ({"generation_config": GenerationConfig(max_length=20)}, 19),
    ],
)
@pytest.mark.parametrize("num_beams", [1, 4])
def test_generate_max_length_replaces_the_offset(endless, options, length, num_beams):
    if "generation_config" in options:
        options["generation_config"].num_beams = num_beams
    else:
        options = {**options, "num_beams": num_beams}
    output = endless.generate(torch.stack(sentences(5)), **options)
    assert generated_lengths(endless, output) == [length]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_generate_ignores_the_max_length_of_predict(endless, num_beams):
    settings = copy.deepcopy(endless.generation_config)
    settings.update(**GenerationConfig._get_default_generation_params(), defaults_only=True)
    assert settings.max_length == 20
    settings.num_beams = num_beams
    output = endless.generate(torch.stack(sentences(5)), generation_config=settings)
    assert generated_lengths(endless, output) == [55]


def test_generate_limit_of_20_in_the_model_settings():
    """It is also what `predict` writes, with all other defaults."""
    model = ending_model()
    model.generation_config.eos_token_id = None
    model.generation_config.max_length = 20
    assert model.generate(torch.stack(sentences(5))).shape[1] == 20


def test_generate_limit_of_the_call_precedes_the_model_settings():
    model = ending_model()
    model.generation_config.eos_token_id = None
    model.generation_config.max_new_tokens = 3
    source = torch.stack(sentences(5))
    assert model.generate(source).shape[1] == 1 + 3
    assert model.generate(source, max_length_offset=2).shape[1] == 1 + 5 + 2
    assert model.generate(source, max_length_offset=2, max_new_tokens=4).shape[1] == 1 + 4


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate_offset_of_the_call_precedes_the_model_limit(num_beams):
    model = ending_model()
    model.generation_config.eos_token_id = None
    model.generation_config.max_new_tokens = 3
    settings = GenerationConfig(max_length_offset=2, num_beams=num_beams)
    assert model.generate(torch.stack(sentences(5)), generation_config=settings).shape[1] == 1 + 5 + 2


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate_arguments_missing_in_the_model_settings(num_beams):
    model = ending_model()
    source = torch.stack(sentences(5))
    expected = model.generate(source, num_beams=num_beams, max_length_offset=1, length_penalty=2.0)
    model.generation_config = GenerationConfig(
        num_beams=4,
        early_stopping="never",
        pad_token_id=0,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )
    options = {"max_length_offset": 1, "length_penalty_type": "gnmt", "length_penalty": 2.0}
    assert torch.equal(model.generate(source, num_beams=num_beams, **options), expected)
    assert not hasattr(model.generation_config, "max_length_offset")


@NEVER_BY_STEPS
def test_generate_penalty_missing_in_the_model_settings():
    model, (source,) = ending_model(), sentences(5)
    model.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=EOS, decoder_start_token_id=BOS)
    options = {"num_beams": 3, "min_new_tokens": 3, "max_new_tokens": 8}
    output = model.generate(source[None], length_penalty_type="gnmt", length_penalty=2.0, **options, **SCORES)
    expected = score_by_hand(model, source, output.sequences[0], lambda length: ((5 + length) / 6) ** 2)
    assert output.sequences_scores.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate_forced_eos_at_the_last_learned_position(num_beams):
    model = small_model(position_embedding_type="learned", max_position_embeddings=12)
    source = torch.stack(sentences(10))
    model.generation_config.eos_token_id = None
    options = {"attention_mask": torch.ones_like(source), "num_beams": num_beams}
    free = model.generate(source, **options)
    forced = int(free[0, -1] + 1) % model.config.vocab_size
    output = model.generate(source, forced_eos_token_id=forced, **options)
    assert output.shape == free.shape == (1, 1 + 12)
    assert output[0, -1] == forced


class Never(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate_does_not_warn_with_sinusoids(endless, num_beams, caplog):
    logger = logging.getLogger("transformers.generation.stopping_criteria")
    type(logger).warning_once.cache_clear()
    logger.addHandler(caplog.handler)
    # A criterion of the caller, so that the beam search evaluates criteria at all.
    options = {"num_beams": num_beams, "stopping_criteria": [Never()]}
    try:
        length = endless.config.max_position_embeddings = 8
        output = endless.generate(torch.stack(sentences(5)), max_new_tokens=2 * length, **options)
    finally:
        logger.removeHandler(caplog.handler)
        endless.config.max_position_embeddings = 1024
    assert "maximum length" not in caplog.text
    assert generated_lengths(endless, output) == [2 * length]


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generate_beyond_max_position_embeddings(endless, num_beams, monkeypatch):
    monkeypatch.setattr(endless.config, "max_position_embeddings", 8)
    output = endless.generate(torch.stack(sentences(5)), num_beams=num_beams)
    assert generated_lengths(endless, output) == [5 + 50]


def test_generate_stays_within_learned_positions():
    model = small_model(position_embedding_type="learned", max_position_embeddings=12)
    model.generation_config.eos_token_id = None
    output = model.generate(torch.stack(sentences(10)), num_beams=1)
    assert output.shape == (1, 1 + 12)


@NEVER_BY_STEPS
def test_generate_length_penalty_none(model):
    (source,) = sentences(6)
    options = {"num_beams": 3, "min_new_tokens": 3, "max_new_tokens": 8}
    output = model.generate(source[None], length_penalty=None, **options, **SCORES)
    expected = score_by_hand(model, source, output.sequences[0], lambda length: (5 + length) / 6)
    assert output.sequences_scores.item() == pytest.approx(expected, abs=1e-5)


@NEVER_BY_STEPS
def test_gnmt_length_penalty():
    assert gnmt_length_penalty(25, 0.6) == pytest.approx((30 / 6) ** 0.6)
    assert gnmt_length_penalty(1, 0.6) == 1
    assert gnmt_length_penalty(25, 0) == 1
    lengths = torch.tensor([500, 600])
    settings = [GenerationConfig(length_penalty=alpha, length_penalty_type="hf") for alpha in (20, 20.0)]
    whole, real = (length_penalty_of(config)(lengths) for config in settings)
    assert torch.equal(whole, real)


@NEVER_BY_STEPS
@PENALTIES
def test_generate_scores_are_divided_by_the_penalty(model, penalty_type, penalty):
    source, mask = pad(SENTENCES)
    output = model.generate(
        source,
        attention_mask=mask,
        num_return_sequences=4,
        length_penalty_type=penalty_type,
        max_length_offset=3,
        return_dict_in_generate=True,
        output_scores=True,
    )
    lengths = set()
    for row, (sequence, score) in enumerate(zip(output.sequences, output.sequences_scores, strict=True)):
        target = torch.tensor(until_end(sequence))[: 1 + len(SENTENCES[row // 4]) + 3]
        log_probabilities = forced_log_probabilities(model, SENTENCES[row // 4], target)
        assert score.item() == pytest.approx(log_probabilities.sum().item() / penalty(len(target) - 1), abs=1e-5)
        lengths.add(len(target))
    assert len(lengths) > 2


@NEVER_BY_STEPS
@PENALTIES
def test_beam_search_equals_a_search_by_hand(model, penalty_type, penalty):
    source, mask = pad(SENTENCES, "left")
    output = model.generate(
        source,
        attention_mask=mask,
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=7,
        length_penalty_type=penalty_type,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for sentence, alone in enumerate(SENTENCES):
        rows = slice(4 * sentence, 4 * sentence + 4)
        scores, targets = zip(*beam_search(model, alone, 4, 7, penalty), strict=True)
        assert [until_end(row) for row in output.sequences[rows]] == list(targets)
        assert output.sequences_scores[rows].tolist() == pytest.approx(scores, abs=1e-5)


@NEVER_BY_STEPS
@PENALTIES
def test_generate_wide_beams_equal_exhaustive_search(penalty_type, penalty):
    model = ending_model(vocab_size=7)
    source = torch.tensor([3, 6, 4])
    output = model.generate(
        source[None],
        num_beams=7**2,
        num_return_sequences=7**2,
        max_new_tokens=3,
        length_penalty_type=penalty_type,
        return_dict_in_generate=True,
        output_scores=True,
    )
    scores, targets = zip(*exhaustive_search(model, source, 3, penalty)[: 7**2], strict=True)
    assert [until_end(row) for row in output.sequences] == list(targets)
    assert output.sequences_scores.tolist() == pytest.approx(scores, abs=1e-5)
    assert {len(target) for target in targets} >= {3, 4}


def test_beam_search_with_one_beam_is_greedy():
    for seed in range(3):
        model, sources = ending_model(seed=seed), torch.stack(SHORT_SOURCES)
        greedy = model.generate(sources, num_beams=1, max_new_tokens=9)
        assert len({tuple(row.tolist()) for row in greedy}) > 1
        with_one_beam = model.generate(sources, num_beams=1, max_new_tokens=9, custom_generate=type(model)._beam_search)
        assert torch.equal(with_one_beam, greedy)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_generate_narrow_beams_miss_the_best(alpha):
    missed, sources = 0, SHORT_SOURCES[::5]
    for seed in range(2):
        model = ending_model(seed=seed, vocab_size=7)
        wide, narrow = (
            model.generate(torch.stack(sources), num_beams=num_beams, max_new_tokens=3, length_penalty=alpha)
            for num_beams in (7**2, 2)
        )
        scored = model.generate(
            torch.stack(sources),
            num_beams=7**2,
            max_new_tokens=3,
            length_penalty=alpha,
            return_dict_in_generate=True,
            output_scores=True,
        )
        assert torch.equal(scored.sequences, wide)
        for source, wide_row, score, narrow_row in zip(sources, wide, scored.sequences_scores, narrow, strict=True):
            highest, best = exhaustive_search(model, source, 3, lambda length: ((5 + length) / 6) ** alpha)[0]
            assert until_end(wide_row) == best
            assert float(score) == pytest.approx(highest, abs=1e-5)
            missed += until_end(narrow_row) != best
    assert missed


@pytest.mark.parametrize(
    ("penalty_type", "alpha", "penalty"),
    [("gnmt", -0.3, lambda length: ((5 + length) / 6) ** -0.3), ("hf", -0.05, lambda length: length**-0.05)],
)
def test_generate_negative_length_penalty(penalty_type, alpha, penalty):
    goes_on = False
    for seed in range(2):
        model = ending_model(seed=seed, vocab_size=7)
        options = {"num_beams": 2, "max_new_tokens": 7, "length_penalty_type": penalty_type, "length_penalty": alpha}
        output = model.generate(torch.stack(SHORT_SOURCES), **options)
        for source, row in zip(SHORT_SOURCES, output, strict=True):
            best, second = (target for _, target in beam_search(model, source, 2, 7, penalty))
            assert until_end(row) == best
            goes_on |= best[-1] == second[-1] == EOS and len(best) > len(second)
    # What ends first is not always the best.
    assert goes_on


def has_ended(hypotheses):
    return all(target[-1] == EOS for _, target in hypotheses)


@NEVER_BY_STEPS
def test_generate_early_stopping():
    model, limit = ending_model(seed=3, vocab_size=12), 12
    options = {"num_beams": 2, "num_return_sequences": 2, "max_new_tokens": limit, **SCORES}
    steps = {
        patience: [
            len(model.generate(source[None], early_stopping=patience, **options).scores) for source in SHORT_SOURCES
        ]
        for patience in (True, False, "never")
    }
    lengths = range(1, limit + 1)
    assert steps[True] == [
        next((length for length in lengths if has_ended(beam_search(model, source, 2, length))), limit)
        for source in SHORT_SOURCES
    ]
    # Two have ended; and none can enter if it ends now; and none can if it ends at the limit, which favors it most.
    assert all(list(of_one) == sorted(of_one) for of_one in zip(*steps.values(), strict=True))
    assert steps[True] != steps[False] != steps["never"]


@pytest.mark.parametrize("seed", range(3))
def test_generate_beams_with_many_eos_tokens(seed):
    model = ending_model(seed=seed, vocab_size=7)
    source = torch.tensor([3, 6, 4])
    ends = [2, 3, 4, 5, 6]
    output = model.generate(
        source[None],
        num_beams=2,
        num_return_sequences=2,
        max_new_tokens=4,
        eos_token_id=ends,
        length_penalty_type="hf",
        length_penalty=4.0,
    )
    expected = [target for _, target in beam_search(model, source, 2, 4, lambda length: length**4.0, eos=ends)]
    assert [until_end(row, ends) for row in output] == expected
    assert max(len(target) for target in expected) == 1 + 4


@NEVER_BY_STEPS
def test_generate_rejects_length_penalty_type():
    with pytest.raises(ValueError, match='length_penalty_type is "google"; choose "gnmt"'):
        small_model().generate(torch.stack(sentences(5)), length_penalty_type="google")


@NEVER_BY_STEPS
@pytest.mark.parametrize("offset", [-1, 2.5, "a"])
def test_generate_rejects_max_length_offset(offset):
    with pytest.raises(ValueError, match=r"max_length_offset is .*; it must be a whole number from 0"):
        small_model().generate(torch.stack(sentences(5)), max_length_offset=offset)


def test_generate_pads_short_hypotheses():
    model = ending_model()
    output = model.generate(torch.stack(sentences(*[6] * 20)))
    lengths = generated_lengths(model, output)
    assert len(set(lengths)) > 1
    for row, length in zip(output, lengths, strict=True):
        assert (row == EOS).sum() <= 1
        assert not row[1 + length :].any()


@NEVER_BY_STEPS
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_beams": 0}, "num_beams is 0; it must be a whole number from 1"),
        ({"num_beams": 2.5}, "num_beams is 2.5; it must be a whole number from 1"),
        ({"length_penalty": math.nan}, "length_penalty is nan; it must lie between -100 and 100"),
        ({"length_penalty": 1e6}, "length_penalty is 1000000.0; it must lie between -100 and 100"),
        ({"bos_token_id": 1e300}, r"bos_token_id is 1e\+300; give the number of a token"),
        ({"length_penalty": "much"}, "length_penalty is 'much'; it must lie between -100 and 100"),
    ],
)
def test_generate_rejects_search_settings(settings, message):
    model, ids = small_model(), torch.full((1, 3), 5)
    with pytest.raises(ValueError, match=message):
        model.generate(ids, max_new_tokens=2, **settings)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    with pytest.raises(ValueError, match=message):
        model.generate(ids, max_new_tokens=2)


@NEVER_BY_STEPS
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_generate_rejects_a_batch_without_tokens(shape):
    with pytest.raises(ValueError, match=r"the batch is empty; give at least one sentence of one token, not .* \("):
        small_model().generate(torch.zeros(shape, dtype=torch.long), max_new_tokens=2)


@NEVER_BY_STEPS
@pytest.mark.parametrize("name", ["num_beams", "num_return_sequences", "max_new_tokens", "max_length"])
@pytest.mark.parametrize("value", [0, -1, 2.5, "4"])
def test_generate_rejects_numbers_of_beams_and_sequences(name, value):
    source = torch.tensor([[5, 6, 2]])
    with pytest.raises(ValueError, match=f"{name} is {value!r}; it must be a whole number from 1"):
        small_model().generate(source, **{name: value})


@NEVER_BY_STEPS
@pytest.mark.parametrize(
    ("name", "most", "options"),
    [
        ("max_new_tokens", "100,000", {}),
        ("max_length", "100,000", {}),
        ("num_beams", "10,000", {}),
        ("num_return_sequences", "10,000", {"do_sample": True}),
    ],
)
def test_generate_rejects_huge_numbers(name, most, options):
    with pytest.raises(ValueError, match=f"{name} is 1000000000000; .* to {most}"):
        small_model().generate(torch.tensor([[5, 6, 2]]), **{name: 10**12, **options})


@NEVER_BY_STEPS
@pytest.mark.parametrize("name", ["forced_bos_token_id", "forced_eos_token_id"])
@pytest.mark.parametrize("value", [99999, [3, 99999], [None], -1, 0.0, "1"])
def test_generate_rejects_forced_tokens_outside_the_vocabulary(name, value):
    with pytest.raises(ValueError, match=rf"{name} is .*([019]\]?|\[None\]), but the vocabulary has ids 0 to \d+"):
        small_model().generate(torch.tensor([[5, 6, 2]]), **{name: value})
