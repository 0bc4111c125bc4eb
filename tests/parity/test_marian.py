"""The model equals transformers' MarianMTModel with the same weights.

Marian's sinusoids are the same numbers in another channel order (all sines, then all cosines), so every weight that
reads or writes a model channel is permuted.
"""

import torch

from benchmarks.peers.marian import Marian
from tests.models import pad, sentences, small_model


def test_logits_with_padding(attn_implementation):
    model = small_model(d_k=None, d_v=None, attn_implementation=attn_implementation)
    marian = Marian(model.config, attn_implementation="sdpa")
    marian.copy_weights(model)
    source, mask = pad(sentences(9, 4))
    target = torch.stack(sentences(6, 6, seed=1))
    with torch.no_grad():
        expected = marian.model.eval()(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
        actual = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert expected.std() > 0.1
