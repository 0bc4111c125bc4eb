"""What the paper's decoding adds to transformers' own; the search itself is transformers'."""

import copy

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, GenerationConfig

from hf_vanilla_transformer.generation_vanilla_transformer import GNMTLengthPenalty
from tests.conftest import decisive_model, pad, sentences, small_model


EOS = 2


@pytest.fixture(scope="module")
def endless():
    """A model that never ends a sentence by itself."""
    model = small_model()
    with torch.no_grad():
        model.model.shared.weight[EOS] = 0
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(5)
    return model


def generated_lengths(model, output):
    """Tokens after `<s>`, `</s>` included, padding not."""
    return (output[:, 1:] != model.config.pad_token_id).sum(dim=-1).tolist()


def greedy_by_hand(model, source, prefix, steps):
    """No cache, no padding, one sentence."""
    target = prefix[None]
    for _ in range(steps):
        with torch.no_grad():
            logits = model(input_ids=source[None], decoder_input_ids=target).logits
        target = torch.cat([target, logits[:, -1].argmax(-1, keepdim=True)], dim=-1)
        if target[0, -1] == EOS:
            break
    return target[0]


def test_defaults_of_a_new_model():
    config = small_model().generation_config
    assert (config.num_beams, config.length_penalty, config.length_penalty_type) == (4, 0.6, "gnmt")
    assert (config.max_length_offset, config.early_stopping) == (50, "never")
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (0, 1, EOS)


def test_defaults_survive_saving(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config == model.generation_config


def test_defaults_come_back_where_the_file_is_missing(tmp_path):
    model = small_model()
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).generation_config == model.generation_config


def test_a_saved_greedy_default(tmp_path):
    model = small_model()
    model.generation_config.num_beams = 1
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert loaded.generation_config.num_beams == 1
    source = torch.stack(sentences(5))
    assert torch.equal(loaded.generate(source), model.generate(source, num_beams=1))
    assert torch.equal(loaded.generate(source, num_beams=4), model.generate(source, num_beams=4))
    loaded.save_pretrained(tmp_path / "again")
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").generation_config == loaded.generation_config


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 4}, {"num_beams": 1, "do_sample": True}])
@pytest.mark.parametrize("side", ["left", "right"])
def test_each_sentence_has_its_own_limit(endless, options, side):
    source, mask = pad(sentences(9, 4, 1), side, extra=5)
    output = endless.generate(source, attention_mask=mask, **options)
    assert generated_lengths(endless, output) == [59, 54, 51]
    assert EOS not in output


def test_limit_without_a_mask(endless):
    output = endless.generate(torch.stack(sentences(6, 6)), num_beams=1)
    assert generated_lengths(endless, output) == [56, 56]


def test_limit_with_several_sequences_a_sentence(endless):
    source, mask = pad(sentences(9, 4))
    beams = endless.generate(source, attention_mask=mask, num_return_sequences=3)
    assert generated_lengths(endless, beams) == [59] * 3 + [54] * 3
    samples = endless.generate(source, attention_mask=mask, num_beams=1, do_sample=True, num_return_sequences=2)
    assert generated_lengths(endless, samples) == [59] * 2 + [54] * 2


def test_limit_of_one_padded_sentence_in_prompt_lookup(endless):
    source, mask = pad(sentences(6), extra=7)
    output = endless.generate(source, attention_mask=mask, num_beams=1, prompt_lookup_num_tokens=2)
    assert generated_lengths(endless, output) == [56]


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
def test_the_caller_s_limit_replaces_the_paper_s(endless, options, length, num_beams):
    if "generation_config" in options:
        options["generation_config"].num_beams = num_beams
    else:
        options = {**options, "num_beams": num_beams}
    output = endless.generate(torch.stack(sentences(5)), **options)
    assert generated_lengths(endless, output) == [length]


@pytest.mark.parametrize("num_beams", [1, 4])
def test_what_predict_wrote_is_no_limit_when_settings_are_passed_on(endless, num_beams):
    settings = copy.deepcopy(endless.generation_config)
    settings.max_length = 20
    settings.num_beams = num_beams
    output = endless.generate(torch.stack(sentences(5)), generation_config=settings)
    assert generated_lengths(endless, output) == [55]


def test_a_limit_set_in_the_model_s_own_settings_counts():
    model = small_model()
    model.generation_config.max_new_tokens = 3
    assert model.generate(torch.stack(sentences(5))).shape[1] <= 4


def test_generation_stays_within_learned_positions():
    model = small_model(position_embedding_type="learned", max_position_embeddings=12)
    model.generation_config.eos_token_id = None
    output = model.generate(torch.stack(sentences(10)), num_beams=1)
    assert output.shape == (1, 1 + 12)


def test_gnmt_length_penalty():
    assert 25 ** GNMTLengthPenalty(0.6) == pytest.approx((30 / 6) ** 0.6)
    assert 1 ** GNMTLengthPenalty(0.6) == 1
    assert 25 ** GNMTLengthPenalty(0) == 1
    assert GNMTLengthPenalty(0.6) > 0


@pytest.mark.parametrize(
    ("penalty_type", "divisor"),
    [("gnmt", lambda length: ((5 + length) / 6) ** 0.6), ("hf", lambda length: length**0.6)],
)
def test_scores_are_log_probabilities_divided_by_the_penalty(penalty_type, divisor):
    model = small_model()
    source, mask = pad(sentences(9, 4))
    output = model.generate(
        source,
        attention_mask=mask,
        num_return_sequences=4,
        length_penalty_type=penalty_type,
        return_dict_in_generate=True,
        output_scores=True,
    )
    for row, (sequence, score) in enumerate(zip(output.sequences, output.sequences_scores, strict=True)):
        ends = (sequence == EOS).nonzero()
        length = int(ends[0]) if len(ends) else len(sequence) - 1
        target = sequence[: length + 1][None]
        sentence = row // 4
        with torch.no_grad():
            logits = model(source[sentence][None], mask[sentence][None], decoder_input_ids=target[:, :-1]).logits
        log_probability = logits.log_softmax(-1).gather(-1, target[:, 1:, None]).sum()
        assert score.item() == pytest.approx(log_probability.item() / divisor(length), abs=1e-5)


def test_penalty_type_is_checked():
    with pytest.raises(ValueError, match='length_penalty_type is "google"; choose "gnmt"'):
        small_model().generate(torch.stack(sentences(5)), length_penalty_type="google")


@pytest.mark.parametrize("offset", [-1, 2.5, "a"])
def test_offset_is_checked(offset):
    with pytest.raises(ValueError, match=r"max_length_offset is .*; it must be a whole number of tokens"):
        small_model().generate(torch.stack(sentences(5)), max_length_offset=offset)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_a_padded_forced_prefix_equals_the_prefix_alone(side, options):
    model = decisive_model()
    sources = sentences(7, 7)
    prefixes = [torch.cat([torch.tensor([1]), words]) for words in sentences(3, 1, seed=5)]
    prefix, mask = pad(prefixes, side, extra=1)
    options = {**options, "num_beams": 1, "max_new_tokens": 8}
    output = model.generate(torch.stack(sources), decoder_input_ids=prefix, decoder_attention_mask=mask, **options)
    for row, (source, words) in enumerate(zip(sources, prefixes, strict=True)):
        expected = greedy_by_hand(model, source, words, steps=8)[len(words) :].tolist()
        assert output[row, prefix.shape[1] :][: len(expected)].tolist() == expected
        assert len(set(expected)) > 2


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_forced_prefix_in_beam_search(side):
    model = decisive_model()
    source, mask = pad(sentences(7, 4))
    prefixes = [torch.cat([torch.tensor([1]), words]) for words in sentences(3, 1, seed=5)]
    prefix, prefix_mask = pad(prefixes, side, extra=2)
    options = {"max_new_tokens": 8, "return_dict_in_generate": True, "output_scores": True}
    together = model.generate(
        source, attention_mask=mask, decoder_input_ids=prefix, decoder_attention_mask=prefix_mask, **options
    )
    for row, words in enumerate(prefixes):
        alone = model.generate(source[row][mask[row].bool()][None], decoder_input_ids=words[None], **options)
        expected = alone.sequences[0, len(words) :].tolist()
        assert together.sequences[row, prefix.shape[1] :][: len(expected)].tolist() == expected
        assert together.sequences_scores[row].item() == pytest.approx(alone.sequences_scores[0].item(), abs=1e-5)


@pytest.mark.parametrize("cache_implementation", [None, "static"])
def test_greedy_search_equals_a_loop_by_hand(cache_implementation):
    model = decisive_model()
    rows = sentences(9, 4, 6)
    source, mask = pad(rows, "left")
    output = model.generate(
        source, attention_mask=mask, num_beams=1, max_new_tokens=12, cache_implementation=cache_implementation
    )
    for index, row in enumerate(rows):
        expected = greedy_by_hand(model, row, torch.tensor([1]), steps=12)
        assert output[index, : len(expected)].tolist() == expected.tolist()
        assert len(set(expected.tolist())) > 3


@pytest.mark.parametrize("num_beams", [1, 4])
def test_without_cache_the_same(num_beams):
    model = decisive_model()
    source, mask = pad(sentences(9, 4))
    inputs = {"attention_mask": mask, "num_beams": num_beams, "max_new_tokens": 10}
    output = model.generate(source, **inputs)
    assert torch.equal(output, model.generate(source, **inputs, use_cache=False))
    assert len(output.unique()) > 5


@pytest.mark.parametrize("cache_implementation", [None, "static"])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_attentions_do_not_change_the_output(cache_implementation, num_beams):
    model = decisive_model()
    source, mask = pad(sentences(9, 4))
    inputs = {"attention_mask": mask, "num_beams": num_beams, "max_new_tokens": 10}
    inputs["cache_implementation"] = cache_implementation
    output = model.generate(source, **inputs, output_attentions=True, return_dict_in_generate=True)
    assert torch.equal(output.sequences, model.generate(source, **inputs))
    assert len(output.cross_attentions[0]) == model.config.decoder_layers


def test_short_hypotheses_are_filled_up_with_padding():
    model = decisive_model()
    with torch.no_grad():
        model.lm_head.weight[EOS].mul_(2)
    output = model.generate(torch.stack(sentences(*[6] * 20)))
    lengths = generated_lengths(model, output)
    assert len(set(lengths)) > 1
    for row, length in zip(output, lengths, strict=True):
        assert (row == EOS).sum() <= 1
        assert not row[1 + length :].any()
