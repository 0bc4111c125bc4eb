"""What several tests need: small models with every weight at work, and inputs with padding."""

import torch
from tokenizers import Regex, normalizers

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.acceleration import attention as attention_module
from hf_vanilla_transformer.acceleration import (
    chunked_loss,
    fast_path_checks,
    linear_and_dropout,
    position_tables,
    prepacked_weights,
)
from hf_vanilla_transformer.model import input_checks


VOCAB_SIZE = 60
FIRST_WORD_ID = 3
# Fields that weights of other systems need, and the paper does not have.
IMPORTED = {
    "position_embedding_type": "sinusoidal_tensor2tensor",
    "position_offset": 2,
    "lm_head_bias": True,
    "stack_layer_norm": True,
}


def small_config(**overrides) -> VanillaTransformerConfig:
    """Small, with d_k, d_v and d_model / h all different, and stacks of different depths."""
    fields = {
        "vocab_size": VOCAB_SIZE,
        "d_model": 32,
        "d_ff": 48,
        "num_heads": 4,
        "d_k": 6,
        "d_v": 10,
        "encoder_layers": 2,
        "decoder_layers": 3,
    }
    return VanillaTransformerConfig(**{**fields, **overrides})


def small_model(seed: int = 0, **overrides) -> VanillaTransformerForConditionalGeneration:
    """A small model in evaluation mode whose biases and norms are not 0 and 1, so that every weight shows."""
    torch.manual_seed(seed)
    attn_implementation = overrides.pop("attn_implementation", None)
    model = VanillaTransformerForConditionalGeneration._from_config(
        small_config(**overrides), attn_implementation=attn_implementation
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def decisive_model(seed: int = 0, **overrides) -> VanillaTransformerForConditionalGeneration:
    """A small model whose translations vary with the source and the prefix, as a trained one's do."""
    model = small_model(seed, tie_word_embeddings=False, **overrides)
    with torch.no_grad():
        model.lm_head.weight.mul_(3)
    return model


def sentences(*lengths: int, seed: int = 0) -> list[torch.Tensor]:
    """Random sentences of so many tokens each."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(FIRST_WORD_ID, VOCAB_SIZE, (length,), generator=generator) for length in lengths]


def pad(rows: list[torch.Tensor], side: str = "right", extra: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask, `(batch, length)`, padded with id 0 to the longest row and by `extra` more."""
    length = max(len(row) for row in rows) + extra
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.zeros(len(rows), length, dtype=torch.long)
    for index, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
        ids[index, place] = row
        mask[index, place] = 1
    return ids, mask


def normalizer() -> normalizers.Normalizer:
    """NFC without invisible characters, spaces of other kinds, runs of them, and spaces at the ends."""
    replaced = {r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200b\u2060\ufeff]": "", r"\s+": " "}
    steps = [normalizers.Replace(Regex(old), new) for old, new in replaced.items()]
    return normalizers.Sequence([steps[0], normalizers.NFC(), steps[1], normalizers.Strip()])


def patch_everywhere(monkeypatch, name, value):
    """Replace a function of the model's files wherever one of them has imported it."""
    modules = (
        attention_module,
        fast_path_checks,
        input_checks,
        linear_and_dropout,
        chunked_loss,
        position_tables,
        prepacked_weights,
    )
    for module in modules:
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
