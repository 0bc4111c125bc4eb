"""Models that `MarianMTModel` cannot hold raise. tests/parity/test_marian.py compares the logits of one that it can."""

import pytest

from hf_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.apps.conversion.hf_marian import copy_to_marian, new_marian
from tests.models import small_model


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position_embedding_type": "learned"}, "position_embedding_type is 'learned', but MarianMTModel needs 'sin"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False, but MarianMTModel needs True; convert a model"),
        ({"attention_bias": False}, "attention_bias is False, but MarianMTModel needs True"),
        ({"d_v": 32}, "value_dim is 32, but MarianMTModel needs 64"),
    ],
)
def test_new_marian_of_unsupported_model(fields, message):
    with pytest.raises(ValueError, match=message):
        new_marian(VanillaTransformerConfig(**fields))


def test_copy_to_marian_of_different_architecture():
    model, deeper = (small_model(d_k=None, d_v=None, encoder_layers=layers) for layers in (1, 2))
    for source, other in ((model, deeper), (deeper, model)):
        with pytest.raises(ValueError, match=r"encoder\.layers\.1.*; make it with new_marian"):
            copy_to_marian(source, new_marian(other.config))
