"""Flash attention for sentences with padding, computed with the package flash-attn.

`flash_attention_with_padding` replaces the operation `flash_attention`, which has no plain formula. It is used if the
user loads a model with `attn_implementation="flash_attention_2"` or `"flash_attention_3"`. transformers' own function
applies one padding mask to both queries and keys. That is correct only in the decoder's self-attention. In the encoder
and in cross-attention, the mask must apply to the keys only, so this module removes the keys and values of padding
before it calls that function.

tests/ecosystem/test_attention.py compares models with flash attention and with the default attention. On CPUs, it
replaces flash-attn with functions that follow its documentation (tests/flash.py).
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
    """Compute attention with flash attention, ignoring the keys and values of padding.

    Flash attention supports only 16-bit dtypes. Without autocast, float32 input is therefore computed in bfloat16 and
    cast back. The Trainer passes such input when it generates with bfloat16.

    Args:
        module (`nn.Module`): the attention layer.
        query (`torch.Tensor` of shape `(batch, heads, target, d_k)`): Q.
        key (`torch.Tensor` of shape `(batch, heads, source, d_k)`): K.
        value (`torch.Tensor` of shape `(batch, heads, source, d_v)`): V.
        attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): True for real tokens.
        **kwargs: other arguments of transformers' flash attention, such as `scaling` and `dropout`.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None instead of attention weights.
    """
    must_cast = query.dtype == torch.float32 and not torch.is_autocast_enabled(query.device.type)
    if must_cast:
        heads = _attend(
            module, query.to(_FLASH_DTYPE), key.to(_FLASH_DTYPE), value.to(_FLASH_DTYPE), attention_mask, kwargs
        )
        return heads.to(query.dtype), None
    return _attend(module, query, key, value, attention_mask, kwargs), None


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """Compute attention for queries, keys and values in a dtype that flash attention supports.

    The arguments are the same as for [`flash_attention_with_padding`], with its keyword arguments as `options`. If
    these include `is_causal`, it takes precedence over the attribute of the layer. Returns the output,
    `(batch, target, heads, d_v)`.
    """
    # Flash attention needs equal d_k and d_v. If d_k is smaller, queries and keys are padded here with zeros, which do
    # not change a dot product. If d_v is smaller, `flash_attention_forward` of transformers pads the values.
    missing_channels = max(0, value.shape[-1] - query.shape[-1])
    padded_query = _pad_channels(query, missing_channels)
    padded_key = _pad_channels(key, missing_channels)

    # If `flash_attention_forward` gets a mask, it removes padding from the keys and, if there are several queries, by
    # the same mask from the queries. That is correct only in causal attention, i.e. the decoder's self-attention, where
    # the queries are the same tokens as the keys, or the newest of them. In cross-attention, the mask of the source
    # says nothing about the queries, which are target tokens. In the encoder, the outputs for padding would be zeros,
    # unlike those of the other implementations. These two are computed by `_attend_to_real_tokens`. Without a mask,
    # nothing is removed, so every kind of attention may use this branch.
    if attention_mask is None or is_causal(module, options):
        # `heads` is the output of all heads, (batch, target, heads, d_v). The second result is always None.
        heads, _ = flash_attention_forward(module, padded_query, padded_key, value, attention_mask, **options)
        return heads
    return _attend_to_real_tokens(module, padded_query, padded_key, value, attention_mask, options)


def _pad_channels(x: Tensor, missing_channels: int) -> Tensor:
    """Append zeros to the last axis of a tensor, `(..., channels)`."""
    if missing_channels == 0:
        return x
    return nn.functional.pad(x, (0, missing_channels))


def _attend_to_real_tokens(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, options: dict[str, Any]
) -> Tensor:
    """Compute attention from every query to the real tokens of its sentence.

    Flash attention takes all sentences of a batch one after the other, as one long row. For example, two sentences have
    3 queries each, and the mask [[1, 1, 1, 1], [1, 1, 0, 0]]. The row of queries has the length 6, with sentences that
    begin at 0 and 3. The row of keys also has the length 6, with the 4 real tokens of the first sentence and the 2 of
    the second, which begin at 0 and 4.

    Args:
        module: the attention layer.
        query: `(batch, heads, target, d)`.
        key, value: `(batch, heads, source, d)`.
        attention_mask: `(batch, source)`, True for real tokens.
        options: keyword arguments of transformers' flash attention, such as `scaling` and `dropout`.

    Returns:
        The output, `(batch, target, heads, d)`.
    """
    batch_size, _, target_length, _ = query.shape
    source_length = attention_mask.shape[1]
    # Flash attention takes one long row that contains all sentences one after the other. The row of queries includes
    # padding, because the output must have a vector for every query. The rows of keys and values contain only real
    # tokens, so that no query attends to padding.
    queries = _join_sentences(query)  # (1, heads, batch * target, d)
    # The indices of the real tokens of all sentences in the axis batch * source, (tokens,).
    real_tokens = attention_mask.flatten().nonzero()[:, 0]
    keys = _join_sentences(key).index_select(2, real_tokens)  # (1, heads, tokens, d)
    values = _join_sentences(value).index_select(2, real_tokens)

    # For each row, flash attention needs the index at which each sentence begins, followed by the length of the row,
    # (batch + 1,). transformers calls these numbers `cu_seq_lens`, cumulative lengths. Every sentence has
    # `target_length` queries, so in the example, `query_starts` is [0, 3, 6].
    num_queries = batch_size * target_length
    query_starts = torch.arange(0, num_queries + 1, target_length, dtype=torch.int32, device=query.device)
    num_real_tokens = attention_mask.sum(dim=1)  # (batch,)
    key_ends = num_real_tokens.cumsum(dim=0, dtype=torch.int32)  # (batch,)
    # A sentence begins where the previous one ends, and the first one begins at 0. So a 0 is put before the ends,
    # (batch + 1,). In the example, the ends are [4, 6], and the starts are [0, 4, 6].
    key_starts = nn.functional.pad(key_ends, (1, 0))

    # There is no mask, because the keys of padding were removed above. The result is (1, batch * target, heads, d).
    heads, _ = flash_attention_forward(
        module,
        queries,
        keys,
        values,
        attention_mask=None,
        cu_seq_lens_q=query_starts,
        cu_seq_lens_k=key_starts,
        max_length_q=target_length,
        max_length_k=source_length,
        **options,
    )
    heads_by_sentence = heads.unflatten(1, (batch_size, target_length))  # (1, batch, target, heads, d)
    return heads_by_sentence[0]


def _join_sentences(x: Tensor) -> Tensor:
    """Concatenate a batch's sentences: `(batch, heads, length, d)` becomes `(1, heads, batch * length, d)`."""
    return x.transpose(0, 1).flatten(1, 2)[None]
