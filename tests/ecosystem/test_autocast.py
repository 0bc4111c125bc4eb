"""Decoding under autocast: the Trainer evaluates so, with autocast inside of the model's `forward`."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_vanilla_transformer.model.operations import cast_weights_once
from tests.models import decisive_model, pad, patch_everywhere, sentences


SEARCHES = [{"num_beams": 1}, {"num_beams": 3}, {"num_beams": 1, "do_sample": True, "top_k": 1}]


class WeightCasts(TorchDispatchMode):
    """Counts how often each weight of a model is cast, by name, and the casts of other tensors by their shape."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.names_of_addresses = {weight.data_ptr(): name for name, weight in model.named_parameters()}
        self.casts_by_weight: Counter[str] = Counter()
        self.casts_by_shape: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation._schema.name == "aten::_to_copy" and kwargs.get("dtype") == torch.bfloat16:
            name = self.names_of_addresses.get(args[0].data_ptr())
            if name is not None:
                self.casts_by_weight[name] += 1
            else:
                self.casts_by_shape[tuple(args[0].shape)] += 1
        return operation(*args, **(kwargs or {}))


def model_under_autocast():
    model = decisive_model()
    # As accelerate does.
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    return model


@pytest.fixture
def inputs():
    source, mask = pad(sentences(9, 4, 6))
    return {"input_ids": source, "attention_mask": mask, "max_new_tokens": 8}


@pytest.mark.parametrize("settings", SEARCHES)
def test_each_weight_is_cast_once_per_call(settings, inputs):
    model = model_under_autocast()
    # The second call must not read casts of the first one.
    for _ in range(2):
        with WeightCasts(model) as casts:
            tokens = model.generate(**inputs, **settings)
        assert tokens.shape[1] > 3
        assert {"lm_head.weight", "model.decoder.layers.0.fc1.weight"} <= {*casts.casts_by_weight}
        assert {*casts.casts_by_weight.values()} == {1}, casts.casts_by_weight
        with torch.no_grad():
            model.lm_head.weight.neg_()
        assert not torch.equal(model.generate(**inputs, **settings), tokens)


@pytest.mark.parametrize("settings", SEARCHES)
def test_tokens_are_those_without_the_cache_of_casts(settings, inputs):
    tokens = model_under_autocast().generate(**inputs, **settings)
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        assert torch.equal(model_under_autocast().generate(**inputs, **settings), tokens)
    finally:
        torch.set_autocast_cache_enabled(before)


def test_training_after_an_evaluation_has_all_gradients(inputs):
    """Casts made without gradients must not serve a training step."""
    model = model_under_autocast()
    model.generate(**inputs)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    model.train()(input_ids=inputs["input_ids"], labels=labels).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


@pytest.mark.parametrize(("offloaded", "expected"), [(False, 2), (True, 1)])
def test_casts_of_offloaded_weights_do_not_pile_up(offloaded, expected):
    """accelerate loads new copies of them for each forward pass."""
    model = decisive_model()
    if offloaded:
        pytest.importorskip("accelerate").cpu_offload(model, execution_device="cpu")
    with cast_weights_once(model):
        nesting = torch.autocast_increment_nesting()
        torch.autocast_decrement_nesting()
    assert nesting == expected


def test_the_encoder_s_output_is_cast_once_for_all_layers_on_accelerators(monkeypatch):
    patch_everywhere(monkeypatch, "is_plain_cpu_tensor", lambda x: False)
    model = decisive_model().train()
    source = torch.stack(sentences(5, 5, 5))
    target = torch.stack(sentences(7, 7, 7))
    with torch.autocast("cpu", torch.bfloat16), WeightCasts(model) as casts:
        states = model.get_encoder()(source).last_hidden_state
        casts.casts_by_shape.clear()
        model.get_decoder()(target, encoder_hidden_states=states, use_cache=False)
    assert casts.casts_by_shape[tuple(states.shape)] == 1
