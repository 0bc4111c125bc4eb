"""Flash attention for sentences with padding, by transformers' function for the package flash-attn.

`flash_attention_with_padding` replaces the operation `flash_attention`, which has no plain formula. It is used if the
user loads a model with `attn_implementation="flash_attention_2"` or `"flash_attention_3"`. transformers' own function
applies one padding mask to queries and keys alike. That is right in the decoder's self-attention only: the encoder and
cross-attention need a mask of the keys, so here the keys and values of padding are removed before the call.

tests/ecosystem/test_attention.py compares models with flash attention and with the default attention, on CPUs by
functions that do what flash-attn documents (tests/flash.py).
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.flash_attention import flash_attention_forward

from .attention import is_causal


# Flash attention computes float32 input in this dtype.
_FLASH_DTYPE = torch.bfloat16


def flash_attention_with_padding(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention by flash attention, and leave out the keys and values of padding.

    Flash attention supports 16-bit dtypes only. Input in float32 without autocast, which the Trainer passes when it
    generates with bfloat16, is therefore computed in bfloat16 and cast back.

    The arguments and results are those of [`~.attention_masks.flash_attention`].
    """
    dtype = query.dtype
    is_wide = dtype == torch.float32 and not torch.is_autocast_enabled(query.device.type)
    if is_wide:
        query = query.to(_FLASH_DTYPE)
        key = key.to(_FLASH_DTYPE)
        value = value.to(_FLASH_DTYPE)

    # Flash attention has one width for d_k and d_v. Zeros add nothing to a dot product.
    missing_channels = value.shape[-1] - query.shape[-1]
    if missing_channels > 0:
        query = nn.functional.pad(query, (0, missing_channels))
        key = nn.functional.pad(key, (0, missing_channels))

    # transformers' own treatment of padding is right where queries and keys are the same tokens.
    if attention_mask is None or is_causal(module, kwargs):
        heads, _ = flash_attention_forward(module, query, key, value, attention_mask, **kwargs)
    else:
        heads = _attend_to_real_tokens(module, query, key, value, attention_mask, kwargs)
    if is_wide:
        heads = heads.to(dtype)
    return heads, None


def _attend_to_real_tokens(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, options: dict[str, Any]
) -> Tensor:
    """Compute attention of every query to the real tokens of its sentence; returns `(batch, target, heads, d)`.

    The arguments are those of [`flash_attention_with_padding`], with `options` for the others.
    """
    batch_size, _, target_length, _ = query.shape
    # Where each sentence begins among the queries, and among the keys without padding, (batch + 1,).
    query_starts = torch.arange(
        0, (batch_size + 1) * target_length, target_length, dtype=torch.int32, device=query.device
    )
    key_ends = attention_mask.sum(dim=1).cumsum(dim=0, dtype=torch.int32)
    key_starts = nn.functional.pad(key_ends, (1, 0))
    real_tokens = attention_mask.flatten().nonzero()[:, 0]

    # All sentences in one row, (1, heads, tokens, d).
    queries = _join_sentences(query)
    keys = _join_sentences(key).index_select(2, real_tokens)
    values = _join_sentences(value).index_select(2, real_tokens)
    heads, _ = flash_attention_forward(
        module,
        queries,
        keys,
        values,
        None,
        cu_seq_lens_q=query_starts,
        cu_seq_lens_k=key_starts,
        max_length_q=target_length,
        max_length_k=attention_mask.shape[1],
        **options,
    )
    return heads.unflatten(1, (batch_size, target_length))[0]


def _join_sentences(x: Tensor) -> Tensor:
    """Join the sentences of a batch: `(batch, heads, length, d)` to `(1, heads, batch * length, d)`."""
    return x.transpose(0, 1).flatten(1, 2)[None]
