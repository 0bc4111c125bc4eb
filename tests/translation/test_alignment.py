"""Word alignments, compared with the true ones of the number corpus."""

import copy
import random
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from num2words import num2words
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import hf_vanilla_transformer
from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    align,
    load_engine,
    translate,
)
from hf_vanilla_transformer.apps.conversion.ctranslate2 import with_heads_first
from hf_vanilla_transformer.hub import user_cache
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerDecoderLayer
from hf_vanilla_transformer.translation.alignment import compute_attention, link
from hf_vanilla_transformer.translation.inference import Inference
from tests.generation.by_hand import forced_pass
from tests.models import decisive_model
from tests.number_alignment import diagonal, english, german, gold, spell
from tests.support.gold_links import GoldLinks, alignment_error_rate


# Trained on numbers in parts ("forty two", "zwei und vierzig") by tests/fixtures/make.py.
FOLDER = Path(__file__).parents[1] / "fixtures" / "numbers_in_parts"
ALL_HEADS = [[layer, head] for layer in range(2) for head in range(4)]


@pytest.fixture(scope="module")
def trained():
    return AutoModelForSeq2SeqLM.from_pretrained(FOLDER).eval()


@pytest.fixture
def model(trained):
    return copy.deepcopy(trained)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


def pairs(count: int, seed: int) -> tuple[list[str], list[str], list[GoldLinks]]:
    generator = random.Random(seed)
    numbers = [generator.randrange(10 ** generator.randrange(1, 7)) for _ in range(count)]
    sides = ([spell(language(number), True) for number in numbers] for language in (english, german))
    return (*sides, [gold(number, True) for number in numbers])


TEST = pairs(150, seed=1)


def test_gold_alignments_belong_to_the_corpus():
    generator = random.Random(0)
    numbers = [*range(1300), *(generator.randrange(10 ** generator.randrange(4, 10)) for _ in range(600))]
    for number in numbers:
        assert spell(english(number)) == num2words(number, lang="en")
        assert spell(german(number)) == num2words(number, lang="de")
    assert gold(42) == ({(0, 0)}, {(0, 0)})
    assert gold(42, in_parts=True)[0] == {(0, 2), (1, 0)}
    # "three million, two hundred and five" and "drei Millionen zweihundertfünf"
    assert gold(3_000_205)[0] == {(0, 0), (1, 1), (2, 2), (3, 2), (5, 2)}


def test_align_beats_the_diagonal_and_the_average_of_all_heads(model, tokenizer):
    sources, targets, true = TEST
    rates = {"diagonal": alignment_error_rate(diagonal(sources, targets), true)}
    rates["default"] = alignment_error_rate(align(model, tokenizer, sources, targets), true)
    model.config.alignment_heads = ALL_HEADS
    rates["all heads"] = alignment_error_rate(align(model, tokenizer, sources, targets), true)
    print({name: f"{100 * rate:.1f} %" for name, rate in rates.items()})
    assert rates["default"] < 0.08 < rates["all heads"] < rates["diagonal"]


def test_align_equals_links_by_hand(model, tokenizer):
    """The attention of transformers' own output, one sentence at a time, for each way to read it."""
    source, target = "three hundred and sixty five", "drei hundert fünf und sechzig"
    ids = [tokenizer(source).input_ids, [1, *tokenizer(text_target=target).input_ids]]
    attentions = forced_pass(model, *map(torch.tensor, ids), output_attentions=True).cross_attentions
    sides = ((source, ids[0]), (target, ids[1][1:]))
    spans = [tokenizer(text, return_offsets_mapping=True).offset_mapping for text, _ in sides]
    word_of = [
        [len(text[:end].split()) - 1 for _, end in span[:-1]] for (text, _), span in zip(sides, spans, strict=True)
    ]
    for heads in ([[1, 2]], [[0, 0], [0, 3]], ALL_HEADS):
        for shift in (False, True):
            model.config.alignment_heads, model.config.alignment_shift = heads, shift
            average = sum(attentions[layer][0, head] for layer, head in heads)
            expected = set()
            for token, word in enumerate(word_of[1]):
                best = int(average[token + shift].argmax())
                if best < len(word_of[0]):
                    expected.add((word_of[0][best], word))
            assert align(model, tokenizer, [source], [target]) == [sorted(expected)]


def test_compute_attention_calls_the_self_attention_of_the_layer(model, tokenizer, monkeypatch):
    """With another self-attention in the layer, alignments read what the layer computes then."""
    monkeypatch.setattr(VanillaTransformerDecoderLayer, "attend_to_target", lambda layer, x, **kwargs: x)
    source, target = "three hundred and sixty five", "drei hundert fünf und sechzig"
    ids = [tokenizer(source).input_ids, [1, *tokenizer(text_target=target).input_ids]]
    heads = model.config.heads_for_alignment
    output = forced_pass(model, *map(torch.tensor, ids), output_attentions=True)
    with torch.inference_mode():
        (pair,) = compute_attention(Inference(model, tokenizer, 4096), [source], [target])
    expected = sum(output.cross_attentions[layer][0, head, :-1] for layer, head in heads) / len(heads)
    torch.testing.assert_close(pair.attention, expected)


@pytest.mark.parametrize("tokens_per_batch", [1, 30, 4096])
def test_align_is_independent_of_batches(model, tokenizer, tokens_per_batch):
    sources, targets, _ = pairs(20, seed=3)
    sources, targets = ["", *sources, "two"], ["zwei", *targets, ""]
    alignments = align(model, tokenizer, sources, targets, tokens_per_batch=tokens_per_batch)
    expected = [align(model, tokenizer, [source], [target])[0] for source, target in zip(sources, targets, strict=True)]
    assert alignments == expected
    assert alignments[0] == alignments[-1] == []
    assert align(model, tokenizer, [], []) == []


@pytest.mark.parametrize("shift", [False, True])
def test_translate_details_contain_the_alignment(model, tokenizer, shift):
    model.config.alignment_shift = shift
    sources = ["", *TEST[0][:12]]
    translations = translate(model, tokenizer, sources, return_details=True, num_return_sequences=2)
    expected = align(model, tokenizer, sources, [translation.text for translation in translations])
    assert [translation.alignment for translation in translations] == expected
    assert translations[0].alignment == []
    second = [translation.alternatives[0] for translation in translations[1:]]
    assert [translation.alignment for translation in second] == align(
        model, tokenizer, sources[1:], [translation.text for translation in second]
    )


def test_translate_details_of_a_truncated_translation(model, tokenizer):
    model.config.alignment_heads = [[1, 1]]
    options = {"return_details": True, "num_beams": 1}
    (whole,) = translate(model, tokenizer, ["three hundred and sixty five"], **options)
    (translation,) = translate(
        model, tokenizer, ["three hundred and sixty five"], max_new_tokens=len(whole.tokens) - 2, **options
    )
    assert translation.flags == {"truncated"}
    assert set(translation.alignment) <= set(whole.alignment)


def test_config_saves_alignment_fields(model, tokenizer, tmp_path):
    model.config.alignment_heads, model.config.alignment_shift = [[1, 3], [0, 0]], True
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert (loaded.config.alignment_heads, loaded.config.alignment_shift) == ([[1, 3], [0, 0]], True)
    assert loaded.config.heads_for_alignment == [(1, 3), (0, 0)]
    alignments = align(loaded, tokenizer, *TEST[:2])
    assert alignments == align(model, tokenizer, *TEST[:2])
    loaded.config.alignment_heads = None
    assert alignments != align(loaded, tokenizer, *TEST[:2])


@pytest.mark.parametrize(("layers", "layer"), [(1, 0), (2, 1), (3, 2), (6, 4), (12, 9)])
def test_config_alignment_heads_default(layers, layer):
    config = VanillaTransformerConfig(decoder_layers=layers)
    assert config.heads_for_alignment == [(layer, head) for head in range(8)]


@pytest.mark.parametrize("heads", [[], [[2, 0]], [[0, 8]], [[0]], [3], [[0, -1]], [[True, 0]], [["0", 0]]])
def test_config_rejects_unknown_alignment_heads(heads):
    with pytest.raises(ValueError, match="alignment_heads is "):
        VanillaTransformerConfig(decoder_layers=2, alignment_heads=heads)


def test_align_turns_dropout_off_and_leaves_no_hooks(model, tokenizer):
    expected = align(model, tokenizer, *TEST[:2])
    model.train()
    model.config.attention_dropout = 0.9
    assert align(model, tokenizer, *TEST[:2]) == expected
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_align_with_other_attention_implementations(tokenizer, trained):
    expected = align(trained, tokenizer, *TEST[:2])
    for name in ("eager", "sdpa", "flex_attention"):
        model = AutoModelForSeq2SeqLM.from_pretrained(FOLDER, attn_implementation=name)
        assert align(model, tokenizer, *TEST[:2]) == expected


def test_link_joins_words_of_tokens():
    attention = torch.tensor([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.9, 0.1, 0.0]])
    source_words, target_words = [[0], [0, 1], []], [[0], [1], [1, 2], []]
    # The third target token attends to </s>.
    assert link(attention, source_words, target_words, shift=False) == [(0, 0), (0, 1), (1, 0)]
    assert link(attention, source_words, target_words, shift=True) == [(0, 0), (0, 1), (0, 2)]


def test_align_rejects_unpaired_texts(model, tokenizer):
    with pytest.raises(ValueError, match="2 sources and 1 targets"):
        align(model, tokenizer, ["a", "b"], ["a"])
    with pytest.raises(TypeError, match="targets is one string; give a list"):
        align(model, tokenizer, ["a"], "a")


def test_align_rejects_models_without_attention(model, tokenizer):
    class Other(torch.nn.Module):
        config, device, generate = model.config, model.device, model.generate
        generation_config = model.generation_config
        prepare_decoder_input_ids_from_labels = model.prepare_decoder_input_ids_from_labels

        def forward(self, **inputs):
            return model(**inputs)

    with pytest.raises(ValueError, match="a Other gives no attention to align words by"):
        align(Other(), tokenizer, ["two"], ["zwei"])
    (translation,) = translate(Other(), tokenizer, ["two"], return_details=True)
    assert translation.text == "zwei"
    assert translation.alignment is None


needs_ctranslate2 = pytest.mark.skipif(find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")


@needs_ctranslate2
@pytest.mark.parametrize(
    ("heads", "shift"), [(None, False), ([[1, 2]], False), ([[0, 3], [0, 1]], True), (ALL_HEADS, False)]
)
def test_align_of_an_engine_equals_the_model(model, tokenizer, tmp_path, monkeypatch, heads, shift):
    """CTranslate2 averages the first heads of a layer, so these are moved to the front."""
    monkeypatch.setattr(user_cache, "CACHE", tmp_path / "cache")
    model.config.alignment_heads, model.config.alignment_shift = heads, shift
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    engine = load_engine(str(tmp_path / "model"), threads=1)
    sources, targets, _ = pairs(12, seed=4)
    options = {"return_details": True, "num_beams": 1}
    ours = translate(model, tokenizer, sources, **options)
    theirs = translate(engine, tokenizer, sources, **options)
    assert [translation.text for translation in ours] == [translation.text for translation in theirs]
    if heads is ALL_HEADS:
        assert [translation.alignment for translation in theirs] == [None] * 12
        with pytest.raises(ValueError, match=r"no attention.*CTranslate2"):
            align(engine, tokenizer, sources, targets)
    else:
        assert [translation.alignment for translation in ours] == [translation.alignment for translation in theirs]
        # Targets that the model would not have chosen, and an empty one.
        sources, targets = [*sources, "two", "two"], [*targets[1:], targets[0], "", "neun tausend"]
        assert align(engine, tokenizer, sources, targets) == align(model, tokenizer, sources, targets)
        ids = tokenizer(sources).input_ids, tokenizer(text_target=targets).input_ids
        average = model.config.heads_for_alignment
        for source_ids, target_ids, attention in zip(*ids, engine.attention(*ids), strict=True):
            output = forced_pass(
                model, torch.tensor(source_ids), torch.tensor([1, *target_ids[:-1]]), output_attentions=True
            )
            expected = sum(output.cross_attentions[layer][0, head] for layer, head in average) / len(average)
            torch.testing.assert_close(attention, expected, atol=1e-5, rtol=0)
    engine.close()


@torch.no_grad()
def test_alignment_heads_in_another_order():
    attention = decisive_model().get_decoder().layers[1].encoder_attn
    states, source = torch.randn(2, 3, 32), torch.randn(2, 5, 32)
    expected, weights = attention(states, source, output_attentions=True)
    attended, moved = with_heads_first(attention, [2, 1])(states, source, output_attentions=True)
    torch.testing.assert_close(attended, expected)
    torch.testing.assert_close(moved, weights[:, [2, 1, 0, 3]])
    assert with_heads_first(attention, [0]) is attention


def test_align_is_public():
    assert hf_vanilla_transformer.align is align
    assert "align" in hf_vanilla_transformer.__all__


@pytest.mark.parametrize("shift", [False, True])
def test_link_for_tags_links_unlinked_sources(shift):
    """The second source token is nobody's first choice; the third gets too little attention."""
    attention = torch.tensor([[0.7, 0.25, 0.05], [0.6, 0.35, 0.05], [0.9, 0.02, 0.08]])
    if shift:
        attention = torch.tensor([[0.0, 0.0, 1.0], [0.7, 0.25, 0.05], [0.6, 0.35, 0.05]])
    words = [[0], [1], [2]]
    plain = link(attention, words, words, shift)
    links = link(attention, words, words, shift, for_tags=True)
    assert plain == [(0, 0), (0, 1), (0, 2)]
    assert links == [(0, 0), (0, 1), (0, 2), (1, 1)]


def test_link_for_tags_leaves_out_small_weights():
    attention = torch.tensor([[0.9, 0.05, 0.05, 0.0], [0.29, 0.28, 0.25, 0.18], [0.2, 0.4, 0.2, 0.2]])
    words = [[0], [1], [2], [3]]
    assert link(attention, words, words[:3], shift=False) == [(0, 0), (0, 1), (1, 2)]
    # The third and the fourth word of the source have no link then, and get their best ones.
    assert link(attention, words, words[:3], shift=False, for_tags=True) == [(0, 0), (1, 2), (2, 1), (3, 2)]
