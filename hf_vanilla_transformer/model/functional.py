"""The paper's functions, computed fast. Each equals the one-line formula that its docstring states.

What is fast depends on device, dtype and length, and is chosen by them; nothing here is an option. Shapes have named
axes, as in the model's file.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.flash_attention import flash_attention_forward
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask


# The name under which transformers knows `attention`.
ATTENTION = "vanilla_transformer"
# Up to so many keys, plain products are faster on CPUs with AVX-512 than torch's fused attention. That one is slower
# still where torch has oneDNN make its products.
_LONGEST_FOR_PRODUCTS = {torch.float32: 64, torch.bfloat16: 256, torch.float16: 256}
_LONGEST_WITH_ONEDNN = 256
# On other CPUs, in float32 and in training: there the backward pass is the faster one, and not the forward pass alone.
_LONGEST_WITHOUT_AVX512 = 32
# In which flash attention computes what is in float32.
_FLASH_DTYPE = torch.bfloat16
# On CPUs, torch's softmax of fewer numbers takes ten times as long.
_NARROWEST_SOFTMAX = 16
# Multiplications of the smallest matrix product for which oneDNN's longer start pays.
_SMALLEST_FOR_ONEDNN = 2**21
# With fewer rows than this, turning a matrix into float32 takes longer than a slow product with it.
_FEWEST_ROWS_TO_WIDEN = 8
# Integers as wide as floating-point numbers, by bytes.
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# Rows of logits in memory at one time, at least, and in multiples of d_model: with fewer, adding up the gradients of
# the (V, d_model) matrix would take longer than the (rows, V) logits themselves.
_ROWS_AT_ONCE, _ROWS_BY_D_MODEL = 512, 2


def attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Section 3.2.1, Eq. 1: softmax(Q K^T / sqrt(d_k)) V, as two products of short sentences where that is faster.

    Elsewhere it is torch's `scaled_dot_product_attention`, which never has the whole matrix of weights in memory, and
    cannot be differentiated twice on CPUs.

    Args:
        module (`nn.Module`): the attention that asks; its `is_causal` tells what no mask means, unless an argument of
            that name does.
        query, key, value: `(batch, heads, target, d_k)`, `(batch, heads, source, d_k)`, `(batch, heads, source, d_v)`.
        attention_mask (`torch.Tensor` of shape `(batch, 1, target, source)`, *optional*): True, or another integer than
            0, where a query may look; or floating-point numbers to add to the scores.
        scaling (`float`): 1 / sqrt(d_k).
        dropout (`float`): rate of dropout on the weights.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None for the weights.
    """
    if attention_mask is not None and not attention_mask.is_floating_point():
        attention_mask = attention_mask.bool()
    if _lacks_products(query):
        wide = query.float(), key.float(), value.float()
        with torch.autocast("cpu", enabled=False):
            heads, _ = attention(module, *wide, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
        return heads.to(query.dtype), None
    if not _products_are_faster(module, query, key):
        if attention_mask is not None and is_plain(query):
            # torch's answer to a query that may look nowhere is 0; that of products is the mean.
            attention_mask = additive(attention_mask, query.dtype)
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    scores = torch.matmul(query * scaling, key.transpose(-2, -1))
    if attention_mask is None and _is_causal(module, kwargs) and query.shape[2] > 1:
        attention_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attention_mask is not None:
        scores = scores + additive(attention_mask, scores.dtype)
    weights = drop(_softmax(scores).to(value.dtype), dropout)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), None


def _is_causal(module: nn.Module, arguments: dict[str, Any]) -> bool:
    asked_for = arguments.get("is_causal")
    return bool(module.is_causal if asked_for is None else asked_for)


def flash_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Section 3.2.1, Eq. 1, by the function of transformers for flash attention.

    That one takes the mask of the last keys for that of the queries, which holds for the decoder's attention to itself.
    Elsewhere it is given the keys and values of real tokens alone, and told where each sentence's begin. What is in
    float32, as where the Trainer generates with bfloat16, is computed in bfloat16: flash attention knows 16 bits alone.

    Args:
        module, query, key, value: as [`attention`] takes them.
        attention_mask (`torch.Tensor` of shape `(batch, source)`, *optional*): True for real tokens.

    Returns:
        The output, `(batch, target, heads, d_v)`, and None for the weights.
    """
    dtype, is_wide = query.dtype, query.dtype == torch.float32 and not torch.is_autocast_enabled(query.device.type)
    if is_wide:
        query, key, value = (each.to(_FLASH_DTYPE) for each in (query, key, value))
    more_in_value = value.shape[-1] - query.shape[-1]
    if more_in_value > 0:
        # Heads are of one width there. Zeros add nothing to a product.
        query, key = (nn.functional.pad(each, (0, more_in_value)) for each in (query, key))
    if attention_mask is None or _is_causal(module, kwargs):
        heads, _ = flash_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return heads.to(dtype) if is_wide else heads, None
    batch, _, target, _ = query.shape
    places: dict[str, Any] = {
        "cu_seq_lens_q": torch.arange(0, (batch + 1) * target, target, dtype=torch.int32, device=query.device),
        "cu_seq_lens_k": nn.functional.pad(attention_mask.sum(dim=1).cumsum(dim=0, dtype=torch.int32), (1, 0)),
        "max_length_q": target,
        "max_length_k": attention_mask.shape[1],
    }
    real = attention_mask.flatten().nonzero()[:, 0]
    # As one sentence, (1, heads, tokens, d).
    query, key, value = (each.transpose(0, 1).flatten(1, 2)[None] for each in (query, key, value))
    key, value = key.index_select(2, real), value.index_select(2, real)
    heads, _ = flash_attention_forward(module, query, key, value, None, **places, **kwargs)
    heads = heads.unflatten(1, (batch, target))[0]
    return heads.to(dtype) if is_wide else heads, None


@cache
def _has_avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """softmax(scores), `(batch, heads, target, source)`, in float32 at least."""
    source = scores.shape[-1]
    if source < _NARROWEST_SOFTMAX:
        scores = nn.functional.pad(scores, (0, _NARROWEST_SOFTMAX - source), value=-math.inf)
    return torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))[..., :source]


def _products_are_faster(module: nn.Module, query: torch.Tensor, key: torch.Tensor) -> bool:
    # A compiled or exported model must not depend on the lengths that it was traced with.
    if query.device.type != "cpu" or _is_traced():
        return False
    if not _has_avx512():
        # Not by gradients: reentrant checkpointing computes without them first, and is to drop the same later.
        return module.training and query.dtype == torch.float32 and key.shape[2] <= _LONGEST_WITHOUT_AVX512
    longest = _LONGEST_FOR_PRODUCTS.get(query.dtype, 0)
    if query.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        longest = _LONGEST_WITH_ONEDNN
    return key.shape[2] <= longest


def additive(attention_mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where a query may look, and, for the paper's minus infinity, a number to which a score can still be added.

    Args:
        attention_mask (`torch.Tensor` of shape `(..., target, source)`): booleans, or numbers to add already.
        dtype (`torch.dtype`): of the result, which has one row for all queries where the mask shows one to all.
    """
    lowest = torch.finfo(dtype).min / 2
    if attention_mask.stride(-2) == 0:
        attention_mask = attention_mask[..., :1, :]
    if attention_mask.dtype != torch.bool:
        return attention_mask.to(dtype).clamp(min=lowest)
    zeros = torch.zeros(attention_mask.shape, dtype=dtype, device=attention_mask.device)
    return zeros.masked_fill_(~attention_mask, lowest)


def drop(x: torch.Tensor, rate: float, training: bool = True) -> torch.Tensor:
    """Section 5.4, dropout: x * keep / (1 - rate), where each number of `keep` is 0 with probability `rate`, or else 1.

    On CPUs `keep` comes from 16 random bits a number, which torch's generator gives many times faster than Bernoulli's
    zeros and ones. The rate is then the multiple of 2^-16 next to the one asked for, and x is divided by what that rate
    keeps. Rates of 0 and 1 are exact.

    Args:
        x (`torch.Tensor`, of any shape).
        rate (`float`): from 0 to 1.
        training (`bool`): without it, x is returned as it is.

    Returns:
        `torch.Tensor`, of the shape and dtype of x.
    """
    dropped = round(rate * 2**16)
    if not training:
        return x
    if not 0 < dropped < 2**16 or not is_plain(x) or x.element_size() not in _INTEGERS:
        return nn.functional.dropout(x, p=rate)
    return _Dropout.apply(x, _random_keep(x, dropped), 2**16 / (2**16 - dropped))


def is_plain(x: torch.Tensor) -> bool:
    """Whether x is an ordinary tensor on a CPU, in eager mode, outside of `torch.func`."""
    return (
        x.device.type == "cpu"
        and type(x) in (torch.Tensor, nn.Parameter)
        and not _is_traced()
        and not torch._C._are_functorch_transforms_active()
    )


def _is_traced() -> bool:
    """Whether operations are written down, to be done later with tensors of other sizes."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def _random_keep(x: torch.Tensor, dropped: int) -> torch.Tensor:
    """Integers in the shape of x and as wide as its numbers: 0 with probability `dropped` / 2^16, or else 1."""
    count = x.numel()
    # Without bounds, random_() leaves the highest of the 64 bits 0.
    bits = x.new_empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    integers = _INTEGERS[x.element_size()]
    out = bits if integers == torch.int16 else x.new_empty(count, dtype=integers)
    return torch.ge(bits, dropped - 2**15, out=out).view(x.shape)


class _Dropout(torch.autograd.Function):
    """x * keep * scale. Integers are multiplied in place of x's numbers: mixed dtypes are slow, and 0 and 1 exact."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, keep: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(keep)
        ctx.scale = scale
        return (x.view(keep.dtype) * keep).view(x.dtype).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (keep,) = ctx.saved_tensors
        return _Dropout.apply(grad, keep, ctx.scale), None, None


def linear(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Section 3: layer(x) = x W^T + b, in float32 by oneDNN where that is faster than torch's default.

    Where 16 bits are asked for and the CPU has no products of such matrices, it is computed in float32, unless x has so
    few rows that this would not pay. The result is then in the dtype of x, under autocast, too.

    Args:
        layer (`nn.Linear`): or whatever stands in its place; it is called where it does more than this.
        x (`torch.Tensor` of shape `(..., in)`).

    Returns:
        `torch.Tensor`: `(..., out)`.
    """
    # On a GPU there is no other way, and to look at the layer would take longer than many a product.
    if not (is_plain(x) and reads_like_a_plain_linear(layer)):
        return layer(x)
    if _suits_onednn(x, layer.weight):
        return _Linear.apply(x, layer.weight, layer.bias)
    if _lacks_products(x) and _pays_to_widen(x, layer.weight):
        return _linear_in_float32(layer, x)
    return layer(x)


def _pays_to_widen(x: torch.Tensor, weight: torch.Tensor) -> bool:
    if torch.is_autocast_enabled("cpu") and weight.dtype == torch.float32:
        return True
    # Without autocast, torch raises an error where dtypes differ.
    is_allowed = torch.is_autocast_enabled("cpu") or x.dtype == weight.dtype
    return is_allowed and x.numel() >= _FEWEST_ROWS_TO_WIDEN * x.shape[-1]


def _linear_in_float32(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    x_wide, weight = x.float(), layer.weight.float()
    bias = None if layer.bias is None else layer.bias.float()
    with torch.autocast("cpu", enabled=False):
        product = _Linear.apply if _suits_onednn(x_wide, weight) else nn.functional.linear
        return product(x_wide, weight, bias).to(x.dtype)


@cache
def onednn_computes_in(dtype: torch.dtype) -> bool:
    """Whether oneDNN has products of matrices of a dtype for this CPU."""
    questions = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    if dtype not in questions:
        return dtype == torch.float32
    ask = getattr(torch.ops.mkldnn, questions[dtype], None)
    return ask is not None and bool(ask())


@cache
def cpu_has_products_in(dtype: torch.dtype) -> bool:
    """Whether torch has products of matrices of a dtype that are made for this CPU.

    On x86 processors, what oneDNN does not compute in 16 bits is left to plain loops, which take many times as long as
    float32. Others are not known here, and said to have them.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return True
    return torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512") or onednn_computes_in(dtype)


def _lacks_products(x: torch.Tensor) -> bool:
    """Whether a product with x would be in 16 bits, on a CPU that has no such products."""
    if not is_plain(x) or x.dtype == torch.float64:
        return False
    return not cpu_has_products_in(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype)


def _suits_onednn(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether x W^T is a product of plain float32 matrices that is large enough, and torch would leave it to MKL."""
    return (
        x.dtype == weight.dtype == torch.float32
        and _has_avx512()
        and x.numel() * weight.shape[0] >= _SMALLEST_FOR_ONEDNN
        and is_plain(x)
        and bool(torch.backends.mkldnn.enabled)
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and torch.get_float32_matmul_precision() == "highest"
        and not torch.is_autocast_enabled("cpu")
    )


def _onednn(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """x W^T + b, and its gradients, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        # A second derivative needs operations that torch can differentiate.
        product = nn.functional.linear if torch.is_grad_enabled() else _onednn
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            product(grad, weight.T) if wants_x else None,
            product(rows.T, x.flatten(0, -2).T) if wants_weight else None,
            rows.sum(dim=0) if wants_bias else None,
        )


def reads_like_a_plain_linear(module: nn.Module) -> bool:
    """Whether a module's weight can be used in its place: exactly `nn.Linear`, and nobody listens or changes it."""
    return type(module) is nn.Linear and type(module.weight) is nn.Parameter and is_untouched(module)


def is_untouched(module: nn.Module) -> bool:
    """Whether calling a module does what its class says, and no more: no hooks, no other `forward`, not compiled, and
    outside of `torch.func`.
    """
    if _is_traced() or torch._C._are_functorch_transforms_active():
        return False
    listening = [hook for hook in module._forward_hooks.values() if not _is_transformers_recorder(hook)]
    hooks = (listening, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return (
        not any(hooks)
        and not torch.nn.modules.module._has_any_global_hook()
        and module._compiled_call_impl is None
        # Methods of one module alone: accelerate sets `forward`, PEFT `prepare_inputs_for_generation`.
        and not any(callable(value) and hasattr(type(module), name) for name, value in module.__dict__.items())
        and all(type(parameter) is nn.Parameter for parameter in module._parameters.values() if parameter is not None)
    )


def _is_transformers_recorder(hook: Any) -> bool:
    # It stays when attentions were asked for once, and is silent when they are not.
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"


def smoothed_cross_entropy_of_states(
    states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, label_smoothing: float, ignore_index: int = -100
) -> torch.Tensor:
    """Section 5.4: sum of `cross_entropy(states @ weight.T, labels, label_smoothing)`, without all the logits.

    They are made for 2 d_model rows at a time, or 512, only where there is a label, and the gradients with them.

    Args:
        states (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's output.
        weight (`torch.Tensor` of shape `(vocabulary, d_model)`): of the linear transformation before the softmax.
        labels (`torch.LongTensor` of shape `(batch, target)`): `ignore_index` where there is no target.
        label_smoothing (`float`): epsilon.

    Returns:
        `torch.Tensor`: one number, in nats, in float32 at least. It can be differentiated once.
    """
    labels = labels.to(states.device).flatten()
    rows = (labels != ignore_index).nonzero()[:, 0]
    states, labels = states.flatten(0, 1)[rows], labels[rows]
    if not torch.is_grad_enabled():
        # A function of autograd is told that a parameter wants a gradient, also where there are none.
        states, weight = states.detach(), weight.detach()
    if not _lacks_products(states):
        return _SmoothedCrossEntropy.apply(states, weight, labels, label_smoothing)
    with torch.autocast("cpu", enabled=False):
        return _SmoothedCrossEntropy.apply(states.float(), weight.float(), labels, label_smoothing)


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The sum over rows, and its gradients, which the backward pass only scales.

    With z the logits and y the label of a row: log(sum(exp(z))) - (1 - epsilon) z_y - epsilon mean(z). The last term is
    linear in states and matrix, so its share needs no logits. That of the others in the gradient of z is the softmax,
    less 1 - epsilon at y.
    """

    @staticmethod
    def forward(
        ctx: Any, states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, label_smoothing: float
    ) -> torch.Tensor:
        precise = torch.promote_types(states.dtype, torch.float32)
        x, w = cast_for_products(states), cast_for_products(weight)
        right, everywhere = 1 - label_smoothing, label_smoothing / len(w)
        sum_of_x, sum_of_w = x.sum(dim=0, dtype=precise), w.sum(dim=0, dtype=precise)
        total = -everywhere * (sum_of_x * sum_of_w).sum()
        grad_states = (-everywhere * sum_of_w).to(x.dtype).repeat(len(x), 1)
        wants_states, wants_weight = ctx.needs_input_grad[:2]
        grad_weight = (-everywhere * sum_of_x).repeat(len(w) if wants_weight else 0, 1)
        of_part = torch.empty_like(grad_weight)
        rows = max(_ROWS_AT_ONCE, _ROWS_BY_D_MODEL * x.shape[1])
        # Made once, because fresh memory takes longer than what is computed in it.
        precise_logits = None if x.dtype == precise else x.new_empty(min(rows, len(x)), len(w), dtype=precise)
        product = _onednn if _suits_onednn(x[:rows], w) else nn.functional.linear
        for begin in range(0, len(x), rows):
            part = slice(begin, begin + rows)
            logits = product(x[part], w)
            precise_part = logits if precise_logits is None else precise_logits[: len(logits)].copy_(logits)
            loss, gradient = _loss_and_gradient(precise_part, labels[part], right)
            total += loss
            gradient = logits.copy_(gradient)
            if wants_states:
                grad_states[part] += product(gradient, w.T)
            if wants_weight:
                grad_weight += of_part.copy_(product(gradient.T, x[part].T))
        ctx.save_for_backward(grad_states if wants_states else None, grad_weight if wants_weight else None)
        ctx.dtypes = states.dtype, weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        grad_states, grad_weight = (None if value is None else (value * grad).to(dtype) for value, dtype in gradients)
        return grad_states, grad_weight, None, None


def _loss_and_gradient(logits: torch.Tensor, labels: torch.Tensor, right: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over rows of log(sum(exp(z))) - right * z_y, and its gradient, in the place of the logits, `(rows, V)`."""
    labels = labels.unsqueeze(-1)
    of_label, highest = logits.gather(-1, labels), logits.amax(dim=-1)
    softmax = torch.softmax(logits, dim=-1, out=logits)
    # The highest probability is at least 1 / V, so its logarithm is exact, and no second exponential is needed.
    log_sum = highest - softmax.amax(dim=-1).log()
    loss = log_sum.sum() - right * of_label.sum()
    return loss, softmax.scatter_add_(-1, labels, softmax.new_full(labels.shape, -right))


def cast_for_products(x: torch.Tensor) -> torch.Tensor:
    """x in the dtype in which autocast computes matrix products, so that several of x need one cast; x without it."""
    device = x.device.type
    # torch has no autocast for "meta", and raises where it is asked.
    if (
        device == "meta"
        or not torch.is_autocast_enabled(device)
        or not x.is_floating_point()
        or x.dtype == torch.float64
    ):
        return x
    if _lacks_products(x):
        return x
    return x.to(torch.get_autocast_dtype(device))


# Here, and not where a model is built, because a model that is unpickled is not built. Twice changes nothing.
AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
