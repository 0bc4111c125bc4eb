"""Exact changes of weights between systems: the order of channels, and the inner width of the feed-forward networks."""

import torch


# Parts of the names of weights: (output, d_model) reads the residual stream, (d_model, ...) writes it.
_READ = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight", "shared", "embed_tokens", "lm_head.weight")
_WRITE = ("out_proj", "fc2", "layer_norm")

State = dict[str, torch.Tensor]


def interleaved_channels(d_model: int) -> torch.Tensor:
    """The channels of sinusoids that interleave sines and cosines, in the order of all sines, then all cosines."""
    return torch.cat([torch.arange(0, d_model, 2), torch.arange(1, d_model, 2)])


def permute_channels(state: State, channels: torch.Tensor) -> State:
    """The weights with channel `channels[i]` of the residual stream in place of channel i; `channels` is `(d_model,)`.

    Only sinusoids distinguish the channels, so a model whose sinusoids are permuted alike computes the same.
    """
    permuted = {}
    for name, weight in state.items():
        if any(part in name for part in _READ):
            weight = weight[:, channels]
        elif any(part in name for part in _WRITE):
            weight = weight[channels]
        permuted[name] = weight
    return permuted


def widen_feed_forward(state: State, d_ff: int) -> State:
    """The weights with feed-forward networks of inner width `d_ff`, at least their own: zeros add nothing to a sum.

    It is exact where the activation function maps 0 to 0, as ReLU and swish do, because the new biases are 0 too.
    """
    widened = {}
    for name, weight in state.items():
        if "fc1" in name:
            missing = d_ff - weight.shape[0]
            weight = torch.cat([weight, weight.new_zeros(missing, *weight.shape[1:])])
        elif "fc2.weight" in name:
            weight = torch.nn.functional.pad(weight, (0, d_ff - weight.shape[1]))
        widened[name] = weight
    return widened


def check_finite(state: State, name: str) -> None:
    """Raise ValueError if a weight of a checkpoint has values that are NaN or infinite."""
    for key, weight in state.items():
        if not weight.isfinite().all():
            raise ValueError(f"{key} in {name} has values that are NaN or infinite; convert another checkpoint.")
