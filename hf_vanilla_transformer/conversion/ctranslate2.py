"""This model as a folder for CTranslate2.

The folder has no tokenizer: CTranslate2 reads and writes tokens as text, and here the text of a token is its id in
decimal digits, except for the special tokens.
"""

from pathlib import Path
from typing import Any

import torch

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .requirements import require


def token_text(token_id: int, config: VanillaTransformerConfig) -> str:
    """The text of a token in CTranslate2's vocabulary: `"<pad>"`, `"<s>"`, `"</s>"`, or its id."""
    special = {config.pad_token_id: "<pad>", config.bos_token_id: "<s>", config.eos_token_id: "</s>"}
    return special.get(token_id, str(token_id))


@torch.no_grad()
def write_ctranslate2(
    model: VanillaTransformerForConditionalGeneration, folder: Path, max_positions: int = 2048
) -> None:
    """Write a model for CTranslate2.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): in float32 on the CPU.
        folder (`Path`): the folder to make; it must not exist.
        max_positions (`int`, defaults to 2048): rows of the table of positions, so the longest sequence in tokens:
            CTranslate2 does not compute sinusoids.

    Raises:
        FileExistsError: if the folder exists.
        ImportError: if ctranslate2 is not installed.
        ValueError: if CTranslate2 cannot hold such a model.
    """
    config, base = model.config, model.model
    require(config, "CTranslate2", source_vocab_size=None, activation_function="relu", stack_layer_norm=False)
    try:
        from ctranslate2.specs import TransformerSpec
    except ImportError as error:
        raise ImportError("ctranslate2 is not installed; pip install ctranslate2 adds it.") from error

    spec = TransformerSpec.from_config((config.encoder_layers, config.decoder_layers), config.num_heads, pre_norm=False)
    no_embeddings, positions = torch.zeros(max_positions, config.d_model), torch.arange(max_positions)
    table = base.encoder.add_positions(no_embeddings, positions).numpy()
    for ours, theirs in ((base.encoder, spec.encoder), (base.decoder, spec.decoder)):
        embeddings = theirs.embeddings[0] if theirs is spec.encoder else theirs.embeddings
        embeddings.weight = ours.embed_tokens.weight.numpy()
        theirs.scale_embeddings = True
        theirs.position_encodings.encodings = table
        for layer, layer_spec in zip(ours.layers, theirs.layer, strict=True):
            own = layer.self_attn
            _set_linear(layer_spec.self_attention.linear[0], own.q_proj, own.k_proj, own.v_proj)
            _set_linear(layer_spec.self_attention.linear[1], own.out_proj)
            _set_norm(layer_spec.self_attention.layer_norm, layer.self_attn_layer_norm)
            _set_linear(layer_spec.ffn.linear_0, layer.fc1)
            _set_linear(layer_spec.ffn.linear_1, layer.fc2)
            _set_norm(layer_spec.ffn.layer_norm, layer.final_layer_norm)
            if theirs is spec.decoder:
                cross = layer.encoder_attn
                _set_linear(layer_spec.attention.linear[0], cross.q_proj)
                _set_linear(layer_spec.attention.linear[1], cross.k_proj, cross.v_proj)
                _set_linear(layer_spec.attention.linear[2], cross.out_proj)
                _set_norm(layer_spec.attention.layer_norm, layer.encoder_attn_layer_norm)
    _set_linear(spec.decoder.projection, model.lm_head)
    tokens = [token_text(token_id, config) for token_id in range(config.vocab_size)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<s>", "</s>", "<pad>"
    spec.config.decoder_start_token = token_text(config.decoder_start_token_id, config)
    spec.config.add_source_bos, spec.config.add_source_eos = False, False
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    folder.mkdir(parents=True)
    spec.save(str(folder))


def _set_linear(spec: Any, *layers: Any) -> None:
    """One linear map from layers that read the same input: a weight of shape (sum of outputs, input)."""
    spec.weight = torch.cat([layer.weight for layer in layers]).numpy()
    if layers[0].bias is not None:
        spec.bias = torch.cat([layer.bias for layer in layers]).numpy()


def _set_norm(spec: Any, layer_norm: Any) -> None:
    spec.gamma, spec.beta = layer_norm.weight.numpy(), layer_norm.bias.numpy()
