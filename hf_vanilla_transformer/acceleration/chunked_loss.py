"""The smoothed loss of section 5.4 from the decoder's output, without all logits in memory."""

import math
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from .fast_path_checks import is_plain_cpu_tensor
from .linear_and_dropout import cast_to_matmul_dtype, is_faster_by_onednn, onednn_linear


# Rows of logits per chunk, at least, and in multiples of d_model: with smaller chunks, adding up the gradients of the
# (V, d_model) matrix would take longer than computing the (rows, V) logits.
_CHUNK_ROWS, _CHUNK_ROWS_PER_D_MODEL = 512, 2


def chunked_smoothed_cross_entropy(
    states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Section 5.4: sum of `cross_entropy(states @ weight.T + bias, labels, label_smoothing)`, without all logits.

    Logits and their gradients are computed in chunks of max(512, 2 d_model) rows. On CPUs only rows with a label are
    computed. On accelerators all rows are, and those without a label are masked, because selecting rows would wait for
    the device.

    Args:
        states (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's output.
        weight (`torch.Tensor` of shape `(vocabulary, d_model)`): of the output projection.
        labels (`torch.LongTensor` of shape `(batch, target)`): -100 where there is no target.
        label_smoothing (`float`): epsilon_ls.
        bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*): of the output projection.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the sum, a scalar in nats, at least in float32, which can be differentiated
            once; and the sums of [`~.operations.token_sums`] over all rows, `(3,)`.
    """
    labels = labels.to(states.device).flatten()
    states = states.flatten(0, 1)
    is_ignored = None
    if is_plain_cpu_tensor(states):
        rows = (labels != -100).nonzero()[:, 0]
        states, labels = states[rows], labels[rows]
    else:
        is_ignored = (labels == -100)[:, None]
        # Zeros add nothing to the weight's gradient, and their own gradient is zero.
        states = states.masked_fill(is_ignored, 0)
        labels = labels.masked_fill(is_ignored[:, 0], 0)
    if not torch.is_grad_enabled():
        # An autograd function sees `requires_grad` of a parameter also in `no_grad` mode.
        states, weight = states.detach(), weight.detach()
        bias = None if bias is None else bias.detach()
    return _SmoothedCrossEntropy.apply(states, weight, bias, labels, is_ignored, label_smoothing)


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The sum over rows, and its gradients, which the backward pass only scales; and the sums of `token_sums`.

    A row with logits z and label y has the loss log(sum(exp(z))) - (1 - epsilon) z_y - epsilon mean(z). The last term
    is linear in states and weight, so it needs no logits. The gradient of the others by z is the softmax, minus
    1 - epsilon at y.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        is_ignored: torch.Tensor | None,
        label_smoothing: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        precise = torch.promote_types(states.dtype, torch.float32)
        x, w = cast_to_matmul_dtype(states), cast_to_matmul_dtype(weight)
        b = None if bias is None else cast_to_matmul_dtype(bias)
        right, everywhere = 1 - label_smoothing, label_smoothing / len(w)
        sum_of_x, sum_of_w = x.sum(dim=0, dtype=precise), w.sum(dim=0, dtype=precise)
        total = -everywhere * (sum_of_x * sum_of_w).sum()
        num_targets: int | torch.Tensor = len(x)
        if is_ignored is not None:
            num_targets = (~is_ignored).sum().to(precise)
        grad_states = (-everywhere * sum_of_w).to(x.dtype).repeat(len(x), 1)
        needs = ctx.needs_input_grad[:3]
        needs_states, needs_weight, needs_bias = needs
        grad_weight = (-everywhere * sum_of_x).repeat(len(w) if needs_weight else 0, 1)
        grad_bias = grad_weight.new_zeros([len(w) if needs_bias else 0]) - everywhere * num_targets
        if b is not None:
            total = total - everywhere * num_targets * b.sum(dtype=precise)
        rows = max(_CHUNK_ROWS, _CHUNK_ROWS_PER_D_MODEL * x.shape[1])
        # One buffer for all chunks, because allocating memory takes longer than the computation in it.
        precise_logits = None if x.dtype == precise else x.new_empty(min(rows, len(x)), len(w), dtype=precise)
        log_sums, of_labels, largest = x.new_empty(3, len(x), 1, dtype=precise)
        matmul = onednn_linear if is_faster_by_onednn(x[:rows], w) else nn.functional.linear
        for begin in range(0, len(x), rows):
            part = slice(begin, begin + rows)
            logits = matmul(x[part], w, b)
            precise_part = logits if precise_logits is None else precise_logits[: len(logits)].copy_(logits)
            label = labels[part, None]
            torch.gather(precise_part, -1, label, out=of_labels[part])
            torch.amax(precise_part, dim=-1, keepdim=True, out=largest[part])
            softmax = torch.softmax(precise_part, dim=-1, out=precise_part)
            # The largest probability is at least 1 / V, so its logarithm is accurate and needs no second exponential.
            torch.sub(largest[part], softmax.amax(dim=-1, keepdim=True).log(), out=log_sums[part])
            gradient = logits.copy_(softmax.scatter_add_(-1, label, softmax.new_full(label.shape, -right)))
            if needs_states:
                grad_states[part] += matmul(gradient, w.T)
            if needs_weight:
                grad_weight += matmul(gradient.T, x[part].T)
            if needs_bias:
                if is_ignored is not None:
                    gradient.masked_fill_(is_ignored[part], 0)
                grad_bias += gradient.sum(dim=0, dtype=precise)
        rows_per_sum = rows
        if is_ignored is not None:
            log_sums.masked_fill_(is_ignored, 0)
            of_labels.masked_fill_(is_ignored, 0)
            # So that no row without a label counts as predicted.
            largest.masked_fill_(is_ignored, math.inf)
            # One sum over all rows launches fewer kernels than a sum for each chunk.
            rows_per_sum = max(len(x), 1)
        plain, highest = total.new_zeros(2)
        for begin in range(0, len(x), rows_per_sum):
            part = slice(begin, begin + rows_per_sum)
            total += log_sums[part].sum() - right * of_labels[part].sum()
            plain += (log_sums[part] - of_labels[part]).sum()
            highest += (of_labels[part] >= largest[part]).sum()
        gradients = zip((grad_states, grad_weight, grad_bias), needs, strict=True)
        ctx.save_for_backward(*(gradient if needed else None for gradient, needed in gradients))
        ctx.dtypes = states.dtype, weight.dtype, None if bias is None else bias.dtype
        sums = torch.stack([plain, highest, torch.as_tensor(num_targets, dtype=precise, device=x.device)])
        ctx.mark_non_differentiable(sums)
        return total, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients = zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        return (*(None if value is None else (value * grad).to(dtype) for value, dtype in gradients), None, None, None)
