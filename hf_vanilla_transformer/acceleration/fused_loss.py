"""The smoothed loss of section 5.4 with few kernel launches, and few passes over the logits.

`chunked_loss` computes logits in chunks of about 1,024 rows, with seven passes over the logits of each chunk. Here
chunks are as large as memory allows, and one function replaces the logits of a chunk by their gradient in place. Rows
without a label are computed, too, with a gradient of 0, because selecting rows would wait for the device.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from .linear_and_dropout import cast_to_matmul_dtype


# cuBLAS has fast kernels for matrices whose rows begin at multiples of 16 bytes.
_ALIGNED_ROWS = 8
_PADDED_ROWS = 64
_NO_LABEL = -100


class RowTerms(NamedTuple):
    """Three values for each row of logits, `(rows,)`, in float32 at least; all are 0 where a row has no label.

    `log_sum` is log(sum(exp(logits))), `of_label` the logit of the label, and `is_highest` 1 if no logit is higher.
    """

    log_sum: torch.Tensor
    of_label: torch.Tensor
    is_highest: torch.Tensor


ReplaceLogits = Callable[[torch.Tensor, torch.Tensor, float], RowTerms]


def replace_logits_by_gradient(logits: torch.Tensor, labels: torch.Tensor, label_probability: float) -> RowTerms:
    """Replace logits by softmax(logits), minus `label_probability` at the label; by 0 in rows without a label.

    Args:
        logits (`torch.Tensor` of shape `(rows, vocabulary)`): changed in place.
        labels (`torch.LongTensor` of shape `(rows,)`): -100 where there is no label.
        label_probability (`float`): 1 - epsilon_ls.
    """
    has_label = labels != _NO_LABEL
    label = labels.clamp(min=0).unsqueeze(-1)
    precise_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest = precise_logits.amax(dim=-1, keepdim=True)
    exponentials = (precise_logits - largest).exp()
    sum_of_exponentials = exponentials.sum(dim=-1, keepdim=True)
    of_label = precise_logits.gather(-1, label)

    softmax = exponentials / sum_of_exponentials
    # A comparison instead of a scatter, because a compiler fuses it with the division.
    columns = torch.arange(logits.shape[-1], device=logits.device)
    gradient = torch.where(columns == label, softmax - label_probability, softmax)
    logits.copy_(gradient.masked_fill(~has_label.unsqueeze(-1), 0))

    log_sum = largest + sum_of_exponentials.log()
    is_highest = (of_label >= largest).to(log_sum.dtype)
    return RowTerms(
        log_sum.squeeze(-1).masked_fill(~has_label, 0),
        of_label.squeeze(-1).masked_fill(~has_label, 0),
        is_highest.squeeze(-1).masked_fill(~has_label, 0),
    )


def fused_smoothed_cross_entropy(
    states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float,
    bias: torch.Tensor | None = None,
    *,
    replace_logits: ReplaceLogits,
    chunk_bytes: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum `cross_entropy(states @ weight.T + bias, labels, label_smoothing)` over the rows that have a label.

    Arguments and results are those of `chunked_smoothed_cross_entropy`, and two arguments more.

    Args:
        states (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's output; finite where there is a
            label.
        weight (`torch.Tensor` of shape `(vocabulary, d_model)`): of the output projection.
        labels (`torch.LongTensor` of shape `(batch, target)`): -100 where there is no target.
        label_smoothing (`float`): epsilon_ls.
        bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*): of the output projection.
        replace_logits (`Callable`): `replace_logits_by_gradient`, or a faster function that does the same.
        chunk_bytes (`int`): size of the logits that are in memory at the same time.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the sum, a scalar in nats, at least in float32, which can be differentiated
            once; and three sums over all rows, `(3,)`: the cross-entropy without label smoothing, the number of labels
            that have the highest logit, and the number of labels.
    """
    states = states.flatten(0, 1)
    # Kernels read labels one after the other in memory, and those of a slice are not.
    labels = labels.to(states.device).flatten().contiguous()
    if not torch.is_grad_enabled():
        # An autograd function sees `requires_grad` of a parameter also in `no_grad` mode.
        states, weight = states.detach(), weight.detach()
        if bias is not None:
            bias = bias.detach()
    return _FusedSmoothedCrossEntropy.apply(states, weight, bias, labels, label_smoothing, replace_logits, chunk_bytes)


class _FusedSmoothedCrossEntropy(torch.autograd.Function):
    """The sum over rows, and its gradients, which the backward pass only scales.

    A row with logits z and label y has the loss log(sum(exp(z))) - (1 - epsilon) z_y - epsilon mean(z). The last term
    is linear in states and weight, so it is computed without logits: rounding epsilon / V together with each softmax to
    16 bits would give it the same error in every row.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        label_smoothing: float,
        replace_logits: ReplaceLogits,
        chunk_bytes: int,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        vocabulary = len(weight)
        precise = torch.promote_types(states.dtype, torch.float32)
        label_probability = 1 - label_smoothing
        probability_of_all = label_smoothing / vocabulary

        has_label = labels != _NO_LABEL
        num_labels = has_label.sum().to(precise)
        # States of padding add nothing to the weight's gradient, not even if they are infinite.
        x = cast_to_matmul_dtype(states).masked_fill(~has_label.unsqueeze(-1), 0)
        w = _with_aligned_rows(cast_to_matmul_dtype(weight))
        b = None if bias is None else _with_aligned_rows(cast_to_matmul_dtype(bias))
        sum_of_x = x.sum(dim=0, dtype=precise)
        sum_of_w = w.sum(dim=0, dtype=precise)

        total = -probability_of_all * (sum_of_x * sum_of_w).sum()
        if b is not None:
            total = total - probability_of_all * num_labels * b.sum(dtype=precise)
        unsmoothed = total.new_zeros(())
        highest = total.new_zeros(())
        state_offset = (-probability_of_all * sum_of_w).to(x.dtype)
        grad_states = torch.empty_like(x) if needs_states else None
        grad_weight = (-probability_of_all * sum_of_x).repeat(vocabulary, 1) if needs_weight else None
        grad_bias = (-probability_of_all * num_labels).repeat(vocabulary) if needs_bias else None

        chunk_rows = max(chunk_bytes // (len(w) * x.element_size()), 1)
        for begin in range(0, len(x), chunk_rows):
            rows = slice(begin, begin + chunk_rows)
            logits = nn.functional.linear(x[rows], w, b)
            terms = replace_logits(logits[:, :vocabulary], labels[rows], label_probability)
            # In the same memory.
            gradient = logits
            del logits
            total += terms.log_sum.sum() - label_probability * terms.of_label.sum()
            unsmoothed += (terms.log_sum - terms.of_label).sum()
            highest += terms.is_highest.sum()
            if grad_states is not None:
                torch.addmm(state_offset, gradient, w, out=grad_states[rows])
            if grad_weight is not None:
                grad_weight += _precise_matmul(gradient.T, x[rows], precise)[:vocabulary]
            if grad_bias is not None:
                grad_bias += gradient.sum(dim=0, dtype=precise)[:vocabulary]
            # Before the next chunk takes as much memory.
            del gradient
        if grad_states is not None:
            grad_states.masked_fill_(~has_label.unsqueeze(-1), 0)

        ctx.save_for_backward(grad_states, grad_weight, grad_bias)
        ctx.dtypes = (states.dtype, weight.dtype, None if bias is None else bias.dtype)
        sums = torch.stack([unsmoothed, highest, num_labels])
        ctx.mark_non_differentiable(sums)
        return total, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gradients: list[torch.Tensor | None] = []
        for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            if gradient is None:
                gradients.append(None)
            else:
                gradients.append((gradient * grad).to(dtype))
        return (*gradients, None, None, None, None)


def _with_aligned_rows(matrix: torch.Tensor) -> torch.Tensor:
    """Append zeros along the vocabulary, unless its size suits cuBLAS; logits of these rows and their gradients are 0.

    On CPUs too, so that the tests compute what GPUs compute.
    """
    vocabulary = len(matrix)
    if vocabulary % _ALIGNED_ROWS == 0:
        return matrix
    added_rows = -vocabulary % _PADDED_ROWS
    padding = matrix.new_zeros((added_rows, *matrix.shape[1:]))
    return torch.cat([matrix, padding])


def _precise_matmul(a: torch.Tensor, b: torch.Tensor, precise: torch.dtype) -> torch.Tensor:
    """Return a @ b in at least float32. GPUs can write it without rounding to 16 bits; CPUs cannot."""
    if a.device.type == "cuda" and a.dtype != precise:
        return torch.mm(a, b, out_dtype=precise)
    return (a @ b).to(precise)
