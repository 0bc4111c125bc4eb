"""Flash attention for all three uses of attention (section 3.2.3), by that of transformers."""

from typing import Any

import torch
from torch import nn
from transformers.integrations.flash_attention import flash_attention_forward

from .attention import is_causal


# Flash attention computes float32 input in this dtype.
_FLASH_DTYPE = torch.bfloat16


def flash_attention_with_padding(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute [`~.attention_masks.flash_attention`].

    For other attention than the decoder's self-attention, keys and values of real tokens only are passed, and where
    each sentence begins. Input in float32, as where the Trainer generates with bfloat16, is computed in bfloat16,
    because flash attention supports 16-bit dtypes only.
    """
    dtype, is_wide = query.dtype, query.dtype == torch.float32 and not torch.is_autocast_enabled(query.device.type)
    if is_wide:
        query, key, value = (each.to(_FLASH_DTYPE) for each in (query, key, value))
    wider_value = value.shape[-1] - query.shape[-1]
    if wider_value > 0:
        # Flash attention has one width for d_k and d_v. Zeros add nothing to a dot product.
        query, key = (nn.functional.pad(each, (0, wider_value)) for each in (query, key))
    if attention_mask is None or is_causal(module, kwargs):
        heads, _ = flash_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return heads.to(dtype) if is_wide else heads, None
    batch, _, target, _ = query.shape
    boundaries: dict[str, Any] = {
        "cu_seq_lens_q": torch.arange(0, (batch + 1) * target, target, dtype=torch.int32, device=query.device),
        "cu_seq_lens_k": nn.functional.pad(attention_mask.sum(dim=1).cumsum(dim=0, dtype=torch.int32), (1, 0)),
        "max_length_q": target,
        "max_length_k": attention_mask.shape[1],
    }
    real = attention_mask.flatten().nonzero()[:, 0]
    # All sentences in one row, (1, heads, tokens, d).
    query, key, value = (each.transpose(0, 1).flatten(1, 2)[None] for each in (query, key, value))
    key, value = key.index_select(2, real), value.index_select(2, real)
    heads, _ = flash_attention_forward(module, query, key, value, None, **boundaries, **kwargs)
    heads = heads.unflatten(1, (batch, target))[0]
    return heads.to(dtype) if is_wide else heads, None
