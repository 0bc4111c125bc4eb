"""Functions that do on a CPU what the documentation of the package flash-attn says of its own, which need a GPU."""

import pytest
import torch
from transformers import PreTrainedModel, modeling_flash_attention_utils, modeling_utils

from hf_vanilla_transformer.acceleration import flash_attention


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False
):
    """Attention of sentences that lie one behind the other, `(tokens, heads, d)`, each from one end to the next.

    The last query looks at all keys if causal, the one before at all but the last, and so on.
    """
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert q.shape[2] == k.shape[2] == v.shape[2] <= 256
    assert (int(cu_seqlens_q[-1]), int(cu_seqlens_k[-1])) == (len(q), len(k)) == (len(q), len(v))
    assert int(cu_seqlens_q.diff().max()) <= max_seqlen_q
    assert int(cu_seqlens_k.diff().max()) <= max_seqlen_k
    lengths = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    sentences = zip(q.split(lengths[0]), k.split(lengths[1]), v.split(lengths[1]), strict=True)
    return torch.cat([_of_sentence(*sentence, dropout_p, softmax_scale, causal) for sentence in sentences])


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False):
    """The same of `(batch, tokens, heads, d)`."""
    assert q.shape[3] == k.shape[3] == v.shape[3] <= 256
    return torch.stack(
        [_of_sentence(*sentence, dropout_p, softmax_scale, causal) for sentence in zip(q, k, v, strict=True)]
    )


def _of_sentence(q, k, v, dropout_p, softmax_scale, causal):
    if len(k) == 0:
        return torch.zeros_like(q)
    scores = torch.einsum("thd,shd->hts", q, k) * softmax_scale
    if causal:
        earlier = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        scores = scores.masked_fill(~earlier, -torch.inf)
    weights = torch.nn.functional.dropout(scores.softmax(dim=-1), dropout_p)
    return torch.einsum("hts,shd->thd", weights, v)


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have transformers find these functions, and a device for them; and nothing be rounded, unlike on a GPU."""
    utils = modeling_flash_attention_utils
    functions = flash_attn_func, flash_attn_varlen_func, None, utils._pad_input, utils._unpad_input
    monkeypatch.setattr(utils, "_lazy_imports", lambda *args, **kwargs: functions)
    # What transformers has loaded, and comes back after the test.
    for name in [name for name in vars(utils) if name.endswith("_fn")]:
        monkeypatch.setattr(utils, name, None)
    monkeypatch.setattr(utils, "_loaded_implementation", None)
    monkeypatch.setattr(modeling_utils, "is_kernels_available", lambda: False)
    monkeypatch.setattr(PreTrainedModel, "_flash_attn_can_dispatch", lambda *args, **kwargs: True)
    monkeypatch.setattr(flash_attention, "_FLASH_DTYPE", torch.float32)
