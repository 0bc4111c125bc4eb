"""The model equals a NumPy transcription of the paper's formulas."""

from functools import partial

import numpy as np
import pytest
import torch

from hf_vanilla_transformer.model.modeling_vanilla_transformer import sinusoidal_positions
from tests.models import IMPORTED, sentences, small_config, small_model
from tests.parity import paper_numpy


pytestmark = pytest.mark.processor


@pytest.fixture(scope="module")
def ids():
    return torch.stack(sentences(7, 7)), torch.stack(sentences(5, 5, seed=1)), torch.stack(sentences(5, 5, seed=2))


def numpy_logits(model, source, target, **encoding):
    weights = {name: parameter.numpy().astype(np.float64) for name, parameter in model.state_dict().items()}
    config = model.config
    return paper_numpy.transformer(
        source.numpy(),
        target.numpy(),
        weights,
        num_heads=config.num_heads,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        eps=config.layer_norm_eps,
        **encoding,
    )


@pytest.mark.parametrize("attention_bias", [True, False])
def test_logits(ids, attn_implementation, attention_bias):
    source, target, _ = ids
    model = small_model(attn_implementation=attn_implementation, attention_bias=attention_bias)
    with torch.no_grad():
        logits = model(input_ids=source, decoder_input_ids=target).logits
    np.testing.assert_allclose(logits.numpy(), numpy_logits(model, source, target), atol=1e-5, rtol=0)


@pytest.mark.parametrize("field", [*IMPORTED, "all"])
def test_fields_of_other_systems(ids, attn_implementation, field):
    source, target, labels = ids
    fields = IMPORTED if field == "all" else {field: IMPORTED[field]}
    first = fields.get("position_offset", 0)
    encoding = partial(paper_numpy.tensor2tensor_encoding, first=first)
    if "position_embedding_type" not in fields:
        encoding = lambda length, d_model: paper_numpy.positional_encoding(first + length, d_model)[first:]  # noqa: E731
    model = small_model(attn_implementation=attn_implementation, **fields, dropout=0.0)
    expected = numpy_logits(model, source, target, encoding=encoding)
    with torch.no_grad():
        output = model(input_ids=source, decoder_input_ids=target, labels=labels)
        without_logits = model.train()(input_ids=source, decoder_input_ids=target, labels=labels, skip_logits=True)
    np.testing.assert_allclose(output.logits.numpy(), expected, atol=1e-5, rtol=0)
    assert not np.allclose(expected, numpy_logits(small_model(), source, target), atol=1e-2)
    assert without_logits.logits is None
    smoothed = paper_numpy.label_smoothed_loss(expected, labels.numpy(), 0.1)
    assert without_logits.loss.item() == pytest.approx(smoothed, abs=1e-5)


@pytest.mark.parametrize("position", [0, 65_537])
def test_sinusoids_of_the_authors_code(position):
    expected = paper_numpy.tensor2tensor_encoding(1, 512, first=position)
    actual = sinusoidal_positions(torch.tensor([[position]]), 512, exponent_divisor=510)[0]
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("training", "epsilon"), [(True, 0.1), (False, 0.0)])
@pytest.mark.parametrize("skip_logits", [True, False])
def test_loss_is_smoothed_in_training_only(ids, training, epsilon, skip_logits):
    source, target, labels = ids
    model = small_model(dropout=0.0).train(training)
    with torch.no_grad():
        loss = model(input_ids=source, decoder_input_ids=target, labels=labels, skip_logits=skip_logits).loss
    expected = paper_numpy.label_smoothed_loss(numpy_logits(model, source, target), labels.numpy(), epsilon)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_sinusoids_are_interleaved_as_printed():
    expected = paper_numpy.positional_encoding(50, 32)
    actual = sinusoidal_positions(torch.arange(50).unsqueeze(0), 32)[0]
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("position", [4095, 65_537, 100_000])
def test_sinusoids_are_exact_far_out(position):
    two_i = np.arange(0, 512, 2)
    angles = position / 10000.0 ** (two_i / 512)
    actual = sinusoidal_positions(torch.tensor([[position]]), 512)[0, 0].numpy()
    np.testing.assert_allclose(actual[0::2], np.sin(angles), atol=1e-6, rtol=0)
    np.testing.assert_allclose(actual[1::2], np.cos(angles), atol=1e-6, rtol=0)


def test_smallest_config_uses_different_sizes():
    config = small_config()
    assert len({config.key_dim, config.value_dim, config.d_model // config.num_heads}) == 3
