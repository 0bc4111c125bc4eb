"""`Ensemble`, against forward passes of its models one by one."""

import itertools

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from hf_vanilla_transformer import Ensemble, score, translate
from hf_vanilla_transformer.acceleration.cpu_decoder import CPUDecoder
from hf_vanilla_transformer.model.generation_vanilla_transformer import NextTokenSteps
from tests.generation.by_hand import BOS, EOS, forced_log_probabilities, gnmt_penalty
from tests.generation.conftest import ending_model, until_end
from tests.models import decisive_model, pad, sentences, small_model


SCORES = {"return_dict_in_generate": True, "output_scores": True}


def different_models(**overrides):
    """Two models of one vocabulary, and of different sizes."""
    other = {"d_model": 48, "d_k": None, "d_v": None, "decoder_layers": 1}
    return [decisive_model(0, **overrides), decisive_model(1, **{**overrides, **other})]


def mean_log_probabilities(models, source, target):
    return torch.stack([forced_log_probabilities(model, source, target) for model in models]).mean(dim=0)


@pytest.mark.parametrize("search", [{}, {"num_beams": 1}, {"use_cache": False}, {**SCORES, "num_return_sequences": 2}])
def test_ensemble_of_equal_models_equals_the_model(search):
    model = decisive_model()
    ids, mask = pad(sentences(7, 4, 9))
    expected, by_ensemble = (
        translator.generate(ids, attention_mask=mask, **search) for translator in (model, Ensemble([model, model]))
    )
    if search.keys() >= SCORES.keys():
        assert by_ensemble.sequences_scores.tolist() == pytest.approx(expected.sequences_scores.tolist(), abs=1e-5)
        expected, by_ensemble = expected.sequences, by_ensemble.sequences
    assert torch.equal(expected, by_ensemble)


def test_ensemble_generate_finds_the_best_mean():
    models = [ending_model(seed=seed, vocab_size=7) for seed in (0, 1)]
    source = torch.tensor([3, 6, 4])
    output = Ensemble(models).generate(source[None], num_beams=49, num_return_sequences=49, max_new_tokens=3, **SCORES)
    scored = {}
    for length in (1, 2, 3):
        for words in itertools.product(range(7), repeat=length):
            if EOS in words[:-1] or (words[-1] != EOS and length < 3):
                continue
            total = mean_log_probabilities(models, source, torch.tensor([BOS, *words])).sum().item()
            # What does not end comes behind all that does.
            scored[(BOS, *words)] = (words[-1] == EOS, total / gnmt_penalty(length))
    best = sorted(scored, key=scored.__getitem__, reverse=True)[:49]
    assert [tuple(until_end(row)) for row in output.sequences] == best
    assert output.sequences_scores.tolist() == pytest.approx([scored[words][1] for words in best], abs=1e-5)
    for model in models:
        alone = model.generate(source[None], num_beams=49, num_return_sequences=49, max_new_tokens=3)
        assert [tuple(until_end(row)) for row in alone] != best


def test_ensemble_generate_equals_modules(monkeypatch):
    ensemble, (ids, mask) = Ensemble(different_models()), pad(sentences(7, 4, 9, 2))
    decoders_in_use = []
    for decoder_class in (CPUDecoder, NextTokenSteps):

        def init(self, *args, _init=decoder_class.__init__, _decoder_class=decoder_class, **kwargs):
            decoders_in_use.append(_decoder_class)
            _init(self, *args, **kwargs)

        monkeypatch.setattr(decoder_class, "__init__", init)
    fast = ensemble.generate(ids, attention_mask=mask)
    assert decoders_in_use == [CPUDecoder, CPUDecoder]
    for options in (SCORES, {"use_cache": False}):
        decoders_in_use.clear()
        slow = ensemble.generate(ids, attention_mask=mask, **options)
        assert decoders_in_use == [NextTokenSteps]
        assert torch.equal(getattr(slow, "sequences", slow), fast)


def test_ensemble_config_has_the_smallest_position_limit():
    ids, _ = pad(sentences(7, 4, 9))
    learned = {"position_embedding_type": "learned"}
    sizes = {}, {**learned, "max_position_embeddings": 12}, {**learned, "max_position_embeddings": 10}
    models = [small_model(**options) for options in sizes]
    for order in itertools.permutations(models):
        output = Ensemble(order).generate(ids, num_beams=2, min_length=11, early_stopping=True)
        assert output.shape[1] == 11


def test_ensemble_scores_are_means(tokenizer):
    models = different_models(vocab_size=len(tokenizer))
    ensemble, sources = Ensemble(models), ["one", "two hundred and five"]
    detailed = translate(ensemble, tokenizer, sources, return_details=True, max_new_tokens=6)
    assert [translation.text for translation in detailed] == translate(ensemble, tokenizer, sources, max_new_tokens=6)
    assert all(translation.alignment is None for translation in detailed)
    targets = ["eins", "zwei"]
    first_scores, second_scores = (score(model, tokenizer, sources, targets) for model in models)
    mean_scores = score(ensemble, tokenizer, sources, targets)
    for mean, first, second in zip(mean_scores, first_scores, second_scores, strict=True):
        assert mean.total == pytest.approx((first.total + second.total) / 2, abs=1e-4)
        assert first.total != pytest.approx(second.total, abs=1e-2)


EMPTY_CACHES = {
    "of both attentions": lambda ensemble: EncoderDecoderCache(DynamicCache(), DynamicCache()),
    "of self-attention": lambda ensemble: DynamicCache(),
    "by the configuration": lambda ensemble: EncoderDecoderCache(
        DynamicCache(config=ensemble.config), DynamicCache(config=ensemble.config)
    ),
    "of self-attention, by the configuration": lambda ensemble: DynamicCache(config=ensemble.config),
}


@pytest.mark.parametrize("make_cache", EMPTY_CACHES.values(), ids=EMPTY_CACHES)
@torch.no_grad()
def test_ensemble_forward_with_a_cache(make_cache):
    models = different_models()
    ensemble = Ensemble(models)
    (source,) = sentences(7)
    target = torch.tensor([BOS, 9, 4, 23, 17])
    cache = make_cache(ensemble)
    steps = []
    for tokens in (target[:2], target[2:3], target[3:4]):
        output = ensemble(source[None], decoder_input_ids=tokens[None], cache=cache)
        # As `generate()` does, continue from the cache of the output.
        cache = output.cache
        steps.append(output.logits[0])
    assert cache.get_seq_length() == 4
    log_probabilities = torch.cat(steps).gather(-1, target[1:, None])[:, 0]
    torch.testing.assert_close(
        log_probabilities, mean_log_probabilities(models, source, target).float(), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("make_cache", EMPTY_CACHES.values(), ids=EMPTY_CACHES)
def test_ensemble_generate_fills_the_cache(make_cache):
    ensemble = Ensemble(different_models())
    ids, mask = pad(sentences(7, 4))
    expected = ensemble.generate(ids, attention_mask=mask, num_beams=1, max_new_tokens=5)
    cache = make_cache(ensemble)
    tokens = ensemble.generate(ids, attention_mask=mask, num_beams=1, max_new_tokens=5, cache=cache)
    assert torch.equal(tokens, expected)
    assert cache.get_seq_length() == expected.shape[1] - 1


def test_ensemble_rejects_the_cache_of_one_model():
    models = different_models()
    cache = DynamicCache(config=models[0].config)
    with pytest.raises(ValueError, match=r"has 3 layers, .* 4 "):
        Ensemble(models)(torch.tensor([[5, 6]]), decoder_input_ids=torch.tensor([[BOS]]), cache=cache)


def test_ensemble_rejects_unsuitable_models(tmp_path):
    model = small_model()
    with pytest.raises(ValueError, match="at least one"):
        Ensemble([])
    with pytest.raises(ValueError, match=r"a Linear cannot be in an ensemble"):
        Ensemble([model, torch.nn.Linear(1, 1)])
    with pytest.raises(ValueError, match=r"have vocab_size 60 and 61; give models that share it"):
        Ensemble([model, small_model(vocab_size=61)])
    with pytest.raises(ValueError, match=r"is not one model; save each"):
        Ensemble([model]).save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"neither attentions nor hidden states"):
        Ensemble([model]).generate(torch.tensor([[3]]), output_attentions=True, return_dict_in_generate=True)
    assert not (tmp_path / "saved").exists()
