"""This model's layers as those of `torch.nn.Transformer`, which has neither embeddings nor an output projection."""

from typing import Any

import torch

from hf_vanilla_transformer.apps.conversion.weight_transforms import require
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration


def torch_nn_state_dict(model: VanillaTransformerForConditionalGeneration) -> dict[str, torch.Tensor]:
    """The weights of both stacks under the names of a `torch.nn.Transformer` without norms after its stacks.

    torch keeps the projections of queries, keys and values in one matrix of shape (3 d_model, d_model).

    Args:
        model (`VanillaTransformerForConditionalGeneration`): the source; its tensors are shared where torch has the
            same ones.

    Raises:
        ValueError: if torch.nn.Transformer cannot hold the layers.
    """
    require(model.config, "torch.nn.Transformer", attention_bias=True, stack_layer_norm=False)
    state: dict[str, torch.Tensor] = {}
    for side, stack in (("encoder", model.model.encoder), ("decoder", model.model.decoder)):
        for index, layer in enumerate(stack.layers):
            state |= {f"{side}.layers.{index}.{name}": weight for name, weight in _layer_state_dict(layer).items()}
    return state


def _layer_state_dict(layer: Any) -> dict[str, torch.Tensor]:
    attentions, modules = {"self_attn": layer.self_attn}, {"linear1": layer.fc1, "linear2": layer.fc2}
    norms = [layer.self_attn_layer_norm, layer.final_layer_norm]
    if hasattr(layer, "encoder_attn"):
        attentions["multihead_attn"] = layer.encoder_attn
        norms.insert(1, layer.encoder_attn_layer_norm)
    modules |= {f"norm{number}": norm for number, norm in enumerate(norms, 1)}
    state = {}
    for name, attention in attentions.items():
        modules[f"{name}.out_proj"] = attention.out_proj
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        state[f"{name}.in_proj_weight"] = torch.cat([projection.weight for projection in projections])
        state[f"{name}.in_proj_bias"] = torch.cat([projection.bias for projection in projections])
    for name, module in modules.items():
        state |= {f"{name}.{key}": value for key, value in module.state_dict().items()}
    return state
