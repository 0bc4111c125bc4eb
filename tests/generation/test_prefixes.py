"""What a translation begins from: forced prefixes, caches of an earlier call, embeddings, encoded sources."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.generation.by_hand import BOS, EOS, beam_search, greedy_search
from tests.generation.conftest import (
    ALL_MODES,
    BATCH_MODES,
    MODES,
    NEVER_BY_STEPS,
    ONE_BY_ONE_MODES,
    SENTENCES,
    STEPS,
    batches,
    ending_model,
    in_each_way,
    until_end,
)
from tests.models import pad, sentences


PREFIXES = [torch.tensor([BOS, *words]) for words in ([5, 6, 7], [8], [9, 10])]


def targets_behind(output, prefix_length):
    """The tokens that `generate()` appended to prefixes of that padded length, as lists."""
    return [until_end(row[prefix_length:]) for row in output]


def prefix_batches(mode, **padding):
    """Arguments of `generate()`: sources and padded prefixes, in a mode's batches."""
    sources, prefixes = batches(mode), batches(mode, PREFIXES, **padding)
    for (source, mask), (prefix, prefix_mask) in zip(sources, prefixes, strict=True):
        yield {
            "input_ids": source,
            "attention_mask": mask,
            "decoder_input_ids": prefix,
            "decoder_attention_mask": prefix_mask,
        }


def targets_behind_prefixes(decode, model, mode, options=None, **padding):
    targets = []
    for inputs in prefix_batches(mode, **padding):
        output = decode(model, mode, **inputs, **(options or {}))
        targets += targets_behind(output, inputs["decoder_input_ids"].shape[1])
    return targets


@NEVER_BY_STEPS
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"use_cache": False}], ids=str)
@pytest.mark.parametrize("mode", ["greedy", "beams"])
def test_a_padded_prefix_equals_a_search_by_hand(decode, model, mode, side, options):
    targets = targets_behind_prefixes(decode, model, mode, options, side=side, extra=1)
    for source, prefix, target in zip(SENTENCES, PREFIXES, targets, strict=True):
        if mode == "greedy":
            expected = greedy_search(model, source, prefix, STEPS).tolist()
        else:
            expected = beam_search(model, source, 3, STEPS, prefix=prefix)[0][1]
        assert target == expected[len(prefix) :]
    assert len({tuple(target) for target in targets}) == len(SENTENCES)


@NEVER_BY_STEPS
@ALL_MODES
def test_prefix_padding_changes_nothing(decode, model, mode):
    targets = targets_behind_prefixes(decode, model, mode)
    for padding in ({"side": "left"}, {"side": "left", "extra": 2}, {"side": "right", "extra": 2}):
        assert targets_behind_prefixes(decode, model, mode, **padding) == targets


@NEVER_BY_STEPS
@BATCH_MODES
@pytest.mark.parametrize("options", [{"cache_implementation": "static"}, {"use_cache": False}], ids=str)
def test_prefix_with_padding_and_any_cache(decode, model, mode, options):
    targets = targets_behind_prefixes(decode, model, mode, side="left", extra=1)
    assert targets_behind_prefixes(decode, model, mode, options, side="left", extra=1) == targets


@NEVER_BY_STEPS
@pytest.mark.parametrize("mode", ["greedy", "beams"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_prefix_is_not_counted_by_limits(decode, mode, side):
    model = ending_model()
    model.generation_config.eos_token_id = None
    options = {"max_new_tokens": None, "max_length_offset": 2}
    (inputs,) = prefix_batches(mode, side=side, extra=1)
    together = decode(model, mode, **inputs, **options)[:, inputs["decoder_input_ids"].shape[1] :].tolist()
    for source, prefix, target in zip(SENTENCES, PREFIXES, together, strict=True):
        (alone,) = decode(model, mode, source[None], decoder_input_ids=prefix[None], **options)
        expected = alone[len(prefix) :].tolist()
        assert len(expected) == len(source) + 2
        assert target[: len(expected)] == expected
        assert not any(target[len(expected) :])


@NEVER_BY_STEPS
@ALL_MODES
def test_prefix_without_the_start_token(decode, model, mode):
    for inputs in prefix_batches(mode, side="left"):
        inputs = {name: value[:1] for name, value in inputs.items()}
        expected = decode(model, mode, **inputs)
        bare = {"decoder_input_ids": inputs["decoder_input_ids"][:, 1:]}
        without = {**inputs, **bare, "decoder_attention_mask": None}
        assert torch.equal(decode(model, mode, **without), expected)
        masked = {**inputs, **bare, "decoder_attention_mask": inputs["decoder_attention_mask"][:, 1:]}
        assert torch.equal(decode(model, mode, **masked), expected)


@in_each_way(*MODES)
def test_prefix_with_another_start_token(decode, model, mode):
    for ids, mask in batches(mode):
        output = decode(model, mode, ids, attention_mask=mask, decoder_start_token_id=9)
        prefix = torch.full((len(ids), 1), 9)
        expected = decode(model, mode, ids, attention_mask=mask, decoder_input_ids=prefix, decoder_start_token_id=9)
        assert (output[:, 0] == 9).all()
        assert torch.equal(output, expected)


@NEVER_BY_STEPS
@pytest.mark.parametrize("length", [3, 5])
def test_prefix_rejects_wrong_masks(model, length):
    prefix = torch.ones(3, 4, dtype=torch.long)
    mask = torch.ones(3, length, dtype=torch.long)
    source, source_mask = pad(SENTENCES)
    with pytest.raises(ValueError, match=rf"shape \(3, {length}\), but decoder_input_ids is of shape \(3, 4\)"):
        model.generate(
            source, attention_mask=source_mask, decoder_input_ids=prefix, decoder_attention_mask=mask, max_new_tokens=2
        )
    with pytest.raises(ValueError, match="decoder_input_ids is missing"):
        model.generate(source, attention_mask=source_mask, decoder_attention_mask=mask, max_new_tokens=2)


def first_part(model, inputs, steps=4, **options):
    """A greedy translation that stops early, its cache, and the mask of all it wrote."""
    output = model.generate(
        **inputs, num_beams=1, max_new_tokens=steps, min_new_tokens=steps, return_dict_in_generate=True, **options
    )
    # The returned prefix is padded on the left.
    mask = inputs["decoder_attention_mask"].sort(dim=-1, stable=True).values
    return output.sequences, torch.nn.functional.pad(mask, (0, steps), value=1), output.cache


@NEVER_BY_STEPS
@ALL_MODES
@pytest.mark.parametrize("side", ["left", "right"])
def test_continuing_from_a_cache(decode, model, mode, side):
    for inputs in prefix_batches(mode, side=side, extra=1):
        written, mask, cache = first_part(model, inputs)
        source = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        prefix = {"decoder_input_ids": written, "decoder_attention_mask": mask}
        if "beams" in mode:
            cache.batch_repeat_interleave(3)
        read = []
        hook = model.model.decoder.register_forward_pre_hook(
            lambda module, args, kwargs, read=read: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        continued = decode(model, mode, **source, **prefix, cache=cache)
        hook.remove()
        assert torch.equal(continued, decode(model, mode, **source, **prefix))
        # One token has not been read yet, and there may be a draft; what the cache holds is not read again.
        assert read[0] <= (1 + 3 if mode in ONE_BY_ONE_MODES else 1)


@NEVER_BY_STEPS
@pytest.mark.parametrize(
    ("mode", "cache_type"), [*((mode, "dynamic") for mode in MODES), ("greedy", "static"), ("sampling", "static")]
)
def test_prefix_in_a_cache_without_a_mask(decode, model, mode, cache_type):
    row = SENTENCES[0][None]
    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config) if cache_type == "dynamic" else StaticCache(config, max_cache_len=20)
    first = decode(model, "greedy", row, max_new_tokens=4, cache=cache, return_dict_in_generate=True)
    cache = first.cache
    if "beams" in mode:
        cache.batch_repeat_interleave(3)
    continued = decode(model, mode, row, decoder_input_ids=first.sequences, cache=cache)
    assert torch.equal(continued, decode(model, mode, row, decoder_input_ids=first.sequences))


@in_each_way("greedy", "sampling", "assisted", "prompt lookup")
def test_prefix_in_two_calls_equals_one_call(decode, model, mode):
    for row in SENTENCES:
        whole = decode(model, mode, row[None], min_new_tokens=STEPS)
        options = {"max_new_tokens": 4, "min_new_tokens": 4, "return_dict_in_generate": True}
        first = decode(model, mode, row[None], **options)
        state = torch.get_rng_state()
        options = {"max_new_tokens": STEPS - 4, "min_new_tokens": STEPS - 4}
        options |= {"decoder_input_ids": first.sequences, "cache": first.cache}
        if mode == "sampling":
            torch.set_rng_state(state)
            second = model.generate(row[None], num_beams=1, do_sample=True, **options)
        else:
            second = decode(model, mode, row[None], **options)
        assert torch.equal(second, whole)


@NEVER_BY_STEPS
def test_prefix_rejects_a_cache_of_the_whole_prefix(model):
    row = SENTENCES[0][None]
    first = model.generate(row, num_beams=1, max_new_tokens=4, return_dict_in_generate=True)
    for prefix in ({}, {"decoder_input_ids": first.sequences[:, :-1]}):
        with pytest.raises(ValueError, match=r"the cache holds 4 tokens, but decoder_input_ids has [14]"):
            model.generate(row, num_beams=1, max_new_tokens=4, cache=first.cache, **prefix)


@NEVER_BY_STEPS
def test_prefix_rejects_chunks(model):
    with pytest.raises(ValueError, match="prefill_chunk_size is for decoder-only models"):
        model.generate(SENTENCES[0][None], decoder_input_ids=torch.tensor([[BOS, 5, 6]]), prefill_chunk_size=2)


@BATCH_MODES
@pytest.mark.parametrize("side", ["left", "right"])
def test_generate_inputs_embeds(decode, model, mode, side):
    for ids, mask in batches(mode, side=side):
        embeds = model.get_input_embeddings()(ids)
        for options in ({}, {"max_new_tokens": None, "max_length_offset": 1}):
            expected = decode(model, mode, ids, attention_mask=mask, **options)
            output = decode(model, mode, inputs_embeds=embeds, attention_mask=mask, **options)
            assert torch.equal(output, expected)


@in_each_way("greedy", "sampling", "beams", "sampled beams", "prompt lookup")
@pytest.mark.parametrize("form", ["an output", "a tuple", "a dict"])
def test_sources_as_the_encoder_s_output(decode, model, mode, form):
    for ids, mask in batches(mode, side="left", extra=1):
        with torch.no_grad():
            encoded = model.get_encoder()(ids, attention_mask=mask)
        encoder_outputs = {"an output": encoded, "a tuple": encoded.to_tuple(), "a dict": dict(encoded)}[form]
        states = encoded.last_hidden_state.clone()
        for options in ({}, {"max_new_tokens": None, "max_length_offset": 1}):
            expected = decode(model, mode, ids, attention_mask=mask, **options)
            for _ in range(2):
                output = decode(model, mode, encoder_outputs=encoder_outputs, attention_mask=mask, **options)
                assert torch.equal(output, expected)
        # Beams repeat it, which is not to be seen outside.
        states_afterwards = encoder_outputs[0] if form == "a tuple" else encoder_outputs["last_hidden_state"]
        assert torch.equal(states_afterwards, states)


@pytest.mark.parametrize("mode", ["greedy", "beams"])
def test_generate_encoder_outputs_without_a_mask(decode, model, mode):
    ids = torch.stack(sentences(5, 5))
    with torch.no_grad():
        encoded = model.get_encoder()(ids)
    options = {"max_new_tokens": None, "max_length_offset": 2, "eos_token_id": [EOS]}
    expected = decode(model, mode, ids, **options)
    assert torch.equal(decode(model, mode, encoder_outputs=encoded.to_tuple(), **options), expected)


@NEVER_BY_STEPS
def test_generate_encoder_outputs_with_attentions(model):
    ids = SENTENCES[0][None]
    with torch.no_grad():
        encoded = model.get_encoder()(ids, output_attentions=True, output_hidden_states=True)
    options = {"return_dict_in_generate": True, "output_attentions": True, "output_hidden_states": True}
    for encoder_outputs in (encoded, encoded.to_tuple()):
        output = model.generate(encoder_outputs=encoder_outputs, max_new_tokens=3, **options)
        assert output.encoder_attentions == encoded.attentions
        assert output.encoder_hidden_states == encoded.hidden_states


@NEVER_BY_STEPS
def test_generate_rejects_ids_with_embeddings(model):
    ids = SENTENCES[0][None]
    with pytest.raises(ValueError, match="inputs_embeds"):
        model.generate(ids, inputs_embeds=model.get_input_embeddings()(ids))
