"""The model equals transformers' MarianMTModel with the same weights, as `conversion.hf_marian` permutes them."""

import pytest
import torch

from hf_vanilla_transformer.apps.conversion.hf_marian import copy_to_marian, new_marian
from tests.models import pad, sentences, small_model


pytestmark = pytest.mark.processor


@pytest.mark.parametrize("fields", [{}, {"lm_head_bias": True}, {"source_vocab_size": 70}])
def test_logits_with_padding(attn_implementation, fields):
    model = small_model(d_k=None, d_v=None, attn_implementation=attn_implementation, **fields)
    marian = new_marian(model.config, attn_implementation="sdpa")
    copy_to_marian(model, marian)
    source, mask = pad(sentences(9, 4))
    target = torch.stack(sentences(6, 6, seed=1))
    with torch.no_grad():
        expected = marian.eval()(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        actual = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert expected.std() > 0.1
