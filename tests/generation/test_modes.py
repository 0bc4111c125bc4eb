"""What must not change a translation, in every way to decode: cache, padding, batching, precision of masks, mode."""

import copy

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig, StaticCache

from tests.generation.by_hand import BOS, forced_logits, greedy_search
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
from tests.models import decisive_model, pad, sentences
from tests.rounding import RandomRounding, explained


def all_targets(decode, model, mode, rows=SENTENCES, padding=None, **kwargs):
    """The translations of all sentences, as lists without padding."""
    outputs = [
        decode(model, mode, ids, attention_mask=mask, **kwargs) for ids, mask in batches(mode, rows, **(padding or {}))
    ]
    return [until_end(row) for output in outputs for row in output]


def test_generate_modes_differ(decode, model):
    targets = {mode: all_targets(decode, model, mode) for mode in MODES}
    assert targets["greedy"] == targets["assisted"] == targets["prompt lookup"]
    targets_of_modes = [targets[mode] for mode in ("greedy", "sampling", "beams", "sampled beams")]
    assert all(first != second for first in targets_of_modes for second in targets_of_modes if first is not second)
    for targets_of_mode in targets_of_modes:
        assert len({tuple(target) for target in targets_of_mode}) == len(SENTENCES)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, "steps"),
        ({}, "modules"),
        ({"cache_implementation": "static"}, "never steps"),
        ({"use_cache": False}, "never steps"),
    ],
    ids=str,
    indirect=["path"],
)
def test_generate_greedy_equals_a_loop_by_hand(decode, model, options):
    targets = all_targets(decode, model, "greedy", padding={"side": "left"}, **options)
    expected = [greedy_search(model, row, torch.tensor([BOS]), STEPS).tolist() for row in SENTENCES]
    assert targets == expected
    assert len({len(target) for target in targets}) > 1


@BATCH_MODES
@pytest.mark.parametrize("side", ["left", "right"])
def test_generate_without_cache(decode, model, mode, side):
    padding = {"side": side}
    targets = all_targets(decode, model, mode, padding=padding)
    assert all_targets(decode, model, mode, padding=padding, use_cache=False) == targets


@BATCH_MODES
@pytest.mark.parametrize("side", ["left", "right"])
def test_generate_with_a_static_cache(decode, model, mode, side):
    padding = {"side": side}
    targets = all_targets(decode, model, mode, padding=padding)
    assert all_targets(decode, model, mode, padding=padding, cache_implementation="static") == targets
    # A longer cache of an earlier call is taken again.
    all_targets(decode, model, mode, padding=padding, cache_implementation="static", max_new_tokens=STEPS + 5)
    assert all_targets(decode, model, mode, padding=padding, cache_implementation="static") == targets


@NEVER_BY_STEPS
@pytest.mark.parametrize("mode", ONE_BY_ONE_MODES)
@pytest.mark.parametrize("options", [{"use_cache": False}, {"cache_implementation": "static"}], ids=str)
def test_generate_drafts_need_a_dynamic_cache(decode, model, mode, options):
    error_class, message = RuntimeError, "Assisted decoding requires a cache"
    if options != {"use_cache": False}:
        error_class, message = TypeError, "`crop` is only defined for dynamic cache"
    with pytest.raises(error_class, match=message):
        decode(model, mode, SENTENCES[0][None], **options)


CACHES = {
    "self-attention only": lambda config: DynamicCache(config=config),
    "dynamic": lambda config: EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config)),
    "static": lambda config: StaticCache(config, max_cache_len=STEPS + 3),
}


@BATCH_MODES
@pytest.mark.parametrize("cache", CACHES)
def test_generate_with_an_empty_cache(decode, model, mode, cache):
    own_cache = CACHES[cache](model.config.get_text_config(decoder=True))
    targets = all_targets(decode, model, mode)
    assert all_targets(decode, model, mode, cache=own_cache) == targets
    # All but the last token of the longest, to continue from.
    assert own_cache.get_seq_length() >= max(map(len, targets)) - 1


@in_each_way(*MODES)
def test_generate_ignores_padding(decode, model, mode):
    targets = all_targets(decode, model, mode)
    for padding in ({"side": "left"}, {"side": "left", "extra": 3}, {"side": "right", "extra": 3}):
        assert all_targets(decode, model, mode, padding=padding) == targets


@pytest.mark.parametrize("mode", ["greedy", "beams"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("options", [{}, {"max_new_tokens": None, "max_length_offset": 2}], ids=str)
def test_generate_alone_equals_in_a_batch(decode, model, mode, side, options):
    together = all_targets(decode, model, mode, padding={"side": side}, **options)
    # Batches of different lengths in tokens end in different steps: what was found must be kept.
    alone = [all_targets(decode, model, mode, rows=[row], **options)[0] for row in SENTENCES]
    expected = [target[: len(row) + 3] if options else target for target, row in zip(together, SENTENCES, strict=True)]
    assert alone == expected


@in_each_way(*MODES)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32])
def test_generate_masks_of_any_dtype(decode, model, mode, dtype):
    options = {"max_new_tokens": None, "max_length_offset": 1}
    for ids, mask in batches(mode, extra=2):
        expected = decode(model, mode, ids, attention_mask=mask, **options)
        assert torch.equal(decode(model, mode, ids, attention_mask=mask.to(dtype), **options), expected)


@in_each_way(*MODES)
def test_generate_without_a_mask(decode, model, mode):
    source = SENTENCES[0][None]
    expected = decode(model, mode, source, attention_mask=torch.ones_like(source))
    assert torch.equal(decode(model, mode, source), expected)
    padded = torch.nn.functional.pad(source, (0, 3))
    expected = decode(model, mode, padded, attention_mask=torch.ones_like(padded))
    assert torch.equal(decode(model, mode, padded), expected)


@in_each_way(*MODES)
def test_generate_in_inference_mode(decode, model, mode):
    targets = all_targets(decode, model, mode)
    with torch.inference_mode():
        assert all_targets(decode, model, mode) == targets


@in_each_way(*MODES)
def test_generate_in_training_mode(decode, mode):
    model = ending_model(dropout=0.0)
    targets = all_targets(decode, model, mode)
    model.train()
    assert all_targets(decode, model, mode) == targets
    assert model.training
    model = ending_model(dropout=0.3).train()
    assert all_targets(decode, model, mode) != targets


@BATCH_MODES
@pytest.mark.parametrize(
    ("cache_implementation", "path"),
    [(None, "steps"), (None, "modules"), ("static", "never steps")],
    indirect=["path"],
)
def test_generate_with_attentions_and_eager_attention(decode, model, mode, cache_implementation):
    options = {"cache_implementation": cache_implementation}
    targets = all_targets(decode, model, mode, **options)
    (ids, mask), *_ = batches(mode)
    output = decode(
        model, mode, ids, attention_mask=mask, output_attentions=True, return_dict_in_generate=True, **options
    )
    assert [until_end(row) for row in output.sequences] == targets
    eager = ending_model(attn_implementation="eager")
    assert all_targets(decode, eager, mode, **options) == targets


@in_each_way(*MODES)
def test_generate_with_a_generation_config(decode, model, assistant, mode):
    targets = all_targets(decode, model, mode)
    options = {**MODES[mode], "max_new_tokens": STEPS}
    extra = {"assistant_model": assistant} if options.pop("assisted", False) else {}
    settings = GenerationConfig(**options)
    before, models_own = copy.deepcopy(settings), copy.deepcopy(model.generation_config)
    outputs = []
    for ids, mask in batches(mode):
        torch.manual_seed(0)
        outputs += model.generate(ids, attention_mask=mask, generation_config=settings, **extra)
    assert [until_end(row) for row in outputs] == targets
    assert settings == before
    assert model.generation_config == models_own


@in_each_way(*MODES)
def test_generate_keeps_inputs_and_settings(decode, model, mode):
    models_own = copy.deepcopy(model.generation_config)
    for ids, mask in batches(mode):
        copied_ids, copied_mask = ids.clone(), mask.clone()
        decode(model, mode, copied_ids, attention_mask=copied_mask, max_new_tokens=None, max_length_offset=1)
        assert torch.equal(copied_ids, ids)
        assert torch.equal(copied_mask, mask)
    assert model.generation_config == models_own


@NEVER_BY_STEPS
@ALL_MODES
@pytest.mark.processor
def test_generate_bfloat16_errors_are_rounding(decode, mode):
    model = ending_model().to(torch.bfloat16)
    exact = copy.deepcopy(model).double()
    exact.set_attn_implementation("eager")
    logits, expected, rounded = [], [], []
    # Enough rows of logits for a root mean square, also where a mode takes batches of one.
    for ids, mask in batches(mode, sentences(9, 4, 6, 8, 5, 7)):
        output = decode(
            model, mode, ids, attention_mask=mask, return_dict_in_generate=True, output_logits=True, output_scores=True
        )
        assert output.cache.self_attention_cache.layers[0].keys.dtype == torch.bfloat16
        assert {scores.dtype for scores in (*output.logits, *output.scores)} == {torch.float32}
        for row, (source, keep) in enumerate(zip(ids, mask, strict=True)):
            target = torch.tensor(until_end(output.sequences[row]))
            beams = getattr(output, "beam_indices", None)
            hypotheses = [row if beams is None else beams[row, step] for step in range(len(target) - 1)]
            logits += [output.logits[step][hypothesis] for step, hypothesis in enumerate(hypotheses)]
            expected.append(forced_logits(exact, source[keep.bool()], target))
            with RandomRounding(torch.bfloat16):
                rounded.append(forced_logits(exact, source[keep.bool()], target))
    assert explained(torch.stack(logits), torch.cat(expected), torch.cat(rounded))


@pytest.mark.parametrize("mode", ["sampling", "sampled beams"])
def test_generate_seeds(decode, model, mode):
    ids, mask = pad(SENTENCES)
    outputs = [
        decode(model, mode, ids, attention_mask=mask, seed=seed, min_new_tokens=STEPS).tolist() for seed in (0, 0, 1)
    ]
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize("mode", ["sampling", "assisted", "prompt lookup"])
def test_generate_samples_from_one_token_are_greedy(decode, model, mode):
    targets = all_targets(decode, model, "greedy")
    assert all_targets(decode, model, mode, do_sample=True, top_k=1) == targets


@NEVER_BY_STEPS
@pytest.mark.parametrize(
    "shape",
    [
        {"encoder_layers": 1, "decoder_layers": 4},
        {"encoder_layers": 2, "decoder_layers": 1, "d_model": 16, "num_heads": 2, "d_k": None, "d_v": None},
        {"seed": 5},
    ],
    ids=str,
)
def test_generate_any_assistant_gives_the_same(model, shape):
    helper = decisive_model(**shape)
    for row in sentences(9, 4, 6, seed=1):
        expected = greedy_search(model, row, torch.tensor([BOS]), 12)
        output = model.generate(row[None], num_beams=1, max_new_tokens=12, assistant_model=helper)
        assert output[0].tolist() == expected.tolist()


@pytest.mark.parametrize(("prefix", "path"), [(None, "steps"), ([BOS, 5, 6], "never steps")], indirect=["path"])
def test_generate_accepts_all_drafts_of_an_equal_model(model, prefix):
    twin = ending_model()
    twin.generation_config.num_assistant_tokens = 3
    twin.generation_config.num_assistant_tokens_schedule = "constant"
    twin.generation_config.assistant_confidence_threshold = 0.0
    passes = []
    hook = model.register_forward_hook(lambda *args: passes.append(1))
    options = {} if prefix is None else {"decoder_input_ids": torch.tensor([prefix])}
    options |= {"num_beams": 1, "max_new_tokens": 20, "min_new_tokens": 20}
    output = model.generate(SENTENCES[0][None], assistant_model=twin, **options)
    hook.remove()
    assert torch.equal(output, model.generate(SENTENCES[0][None], **options))
    # Three drafted tokens and one of its own in each pass.
    assert len(passes) == 20 / 4


@in_each_way("greedy", "assisted", "prompt lookup")
def test_generate_assistant_with_two_vocabularies(mode):
    model = decisive_model(source_vocab_size=90)
    options = {**MODES[mode], "max_new_tokens": STEPS}
    if options.pop("assisted", False):
        options["assistant_model"] = decisive_model(source_vocab_size=90, decoder_layers=1)
    for row in SENTENCES:
        source = row + 30
        expected = greedy_search(model, source, torch.tensor([BOS]), STEPS)
        assert torch.equal(model.generate(source[None], **options)[0], expected)
