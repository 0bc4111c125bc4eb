"""The label-smoothed loss (section 5.4), computed in chunks so that the logits of a batch are never all in memory.

`chunked_smoothed_cross_entropy` replaces the output projection, torch's cross-entropy and the sums of `token_sums`. It
is used on CPUs, and on GPUs that cannot use the Triton kernel (`fused_loss`). Only the logits of one chunk of tokens
are in memory at a time. For 25,000 tokens and a vocabulary of 37,000, all logits in float32 would take 3.7 GB, and
their gradients would take 3.7 GB more; a chunk of 1,024 tokens takes 150 MB. On CPUs, a training step takes as long as
with all logits in memory.

tests/acceleration/test_kernels.py (`TestLossOfStates`) compares the loss, its gradients and the sums with torch's
cross-entropy, and checks the memory. Axes of tensors are named as in `modeling_vanilla_transformer.py`; a row is one
target token of the batch.
"""

import math

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .autograd_context import LossContext, scale_saved_gradients
from .fast_path_checks import is_plain_cpu_tensor
from .linear_and_dropout import cast_to_matmul_dtype, is_faster_by_onednn, onednn_linear


# A chunk has max(512, 2 d_model) rows of logits. Every chunk adds a (vocabulary, d_model) matrix to the weight's
# gradient. With fewer rows, these additions would take longer than the matmuls that compute the logits.
_CHUNK_ROWS = 512
_CHUNK_ROWS_PER_D_MODEL = 2
_NO_LABEL = -100


def chunked_smoothed_cross_entropy(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    label_smoothing: float,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the label-smoothed cross-entropy (section 5.4), summed over all target tokens that have a label.

    The result equals torch's cross-entropy of the logits `states @ weight.T + bias`, with the reduction "sum".

    On CPUs, only rows with a label are computed. On accelerators, all rows are computed and rows without a label are
    masked, because selecting rows would wait for the device.

    Args:
        states (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's output.
        weight (`torch.Tensor` of shape `(vocabulary, d_model)`): the matrix of the output projection.
        labels (`torch.LongTensor` of shape `(batch, target)`): -100 where there is no target.
        label_smoothing (`float`): epsilon_ls.
        bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*): the bias of the output projection.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the loss, a scalar in nats, at least in float32, which can be
            differentiated once; and the sums of [`~.operations.token_sums`], added up over the batch, `(3,)`.
    """
    row_labels = labels.to(states.device).flatten()
    row_states = states.flatten(0, 1)
    lacks_label = None
    if is_plain_cpu_tensor(row_states):
        labelled_rows = (row_labels != _NO_LABEL).nonzero()[:, 0]
        row_states = row_states[labelled_rows]
        row_labels = row_labels[labelled_rows]
    else:
        lacks_label = (row_labels == _NO_LABEL)[:, None]
        # A state of zeros adds nothing to the weight's gradient, and masked_fill gives it a gradient of zero.
        row_states = row_states.masked_fill(lacks_label, 0)
        row_labels = row_labels.masked_fill(lacks_label[:, 0], 0)

    if not torch.is_grad_enabled():
        # Even in `no_grad` mode, an autograd function sees that a parameter has `requires_grad` set.
        row_states = row_states.detach()
        weight = weight.detach()
        if bias is not None:
            bias = bias.detach()
    return _SmoothedCrossEntropy.apply(row_states, weight, bias, row_labels, lacks_label, label_smoothing)


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The loss as an autograd function whose forward pass also computes the gradients.

    The backward pass only scales these gradients.

    A row with logits z and label y has the loss log(sum(exp(z))) - (1 - epsilon) z_y - epsilon mean(z). The last term
    is linear in states and weight, so it is computed without logits. The gradient of the other terms with respect to z
    is softmax(z), minus 1 - epsilon at y.
    """

    @staticmethod
    def forward(
        ctx: LossContext,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        lacks_label: Tensor | None,
        label_smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss and the token sums, and save the gradients for the backward pass.

        Args:
            ctx (`LossContext`): the context in which the gradients are saved.
            states (`torch.Tensor` of shape `(rows, d_model)`): zeros in rows without a label.
            weight (`torch.Tensor` of shape `(vocabulary, d_model)`).
            bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*).
            labels (`torch.LongTensor` of shape `(rows,)`): token ids; any id in rows without a label.
            lacks_label (`torch.BoolTensor` of shape `(rows, 1)`, *optional*): True for rows without a label; None if
                every row has a label.
            label_smoothing (`float`): epsilon.
        """
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        # Sums over many rows are at least in float32, because 16 bits would be imprecise.
        precise = torch.promote_types(states.dtype, torch.float32)
        x = cast_to_matmul_dtype(states)
        w = cast_to_matmul_dtype(weight)
        b = None if bias is None else cast_to_matmul_dtype(bias)
        num_rows = len(x)
        vocabulary = len(w)
        label_probability = 1 - label_smoothing
        probability_of_all = label_smoothing / vocabulary

        # The term - epsilon mean(z) of all rows, and its gradients.
        sum_of_x = x.sum(dim=0, dtype=precise)
        sum_of_w = w.sum(dim=0, dtype=precise)
        num_labels: int | Tensor = num_rows
        if lacks_label is not None:
            num_labels = (~lacks_label).sum().to(precise)
        total = -probability_of_all * (sum_of_x * sum_of_w).sum()
        if b is not None:
            total = total - probability_of_all * num_labels * b.sum(dtype=precise)
        grad_states = grad_weight = grad_bias = None
        if needs_states:
            grad_states = (-probability_of_all * sum_of_w).to(x.dtype).repeat(num_rows, 1)
        if needs_weight:
            grad_weight = (-probability_of_all * sum_of_x).repeat(vocabulary, 1)
        if needs_bias:
            grad_bias = x.new_zeros(vocabulary, dtype=precise) - probability_of_all * num_labels

        # The other terms need logits, one chunk of rows at a time.
        chunk_rows = max(_CHUNK_ROWS, _CHUNK_ROWS_PER_D_MODEL * x.shape[1])
        matmul = onednn_linear if is_faster_by_onednn(x[:chunk_rows], w) else nn.functional.linear
        precise_buffer = None
        if x.dtype != precise:
            # One buffer for all chunks, because allocating it takes longer than the computation in it.
            precise_buffer = x.new_empty(min(chunk_rows, num_rows), vocabulary, dtype=precise)
        # Each tensor is (rows, 1); log_sums holds log(sum(exp(z))).
        log_sums, label_logits, largest_logits = x.new_empty(3, num_rows, 1, dtype=precise)
        for begin in range(0, num_rows, chunk_rows):
            rows = slice(begin, begin + chunk_rows)
            label = labels[rows, None]
            logits = matmul(x[rows], w, b)
            if precise_buffer is None:
                precise_logits = logits
            else:
                precise_logits = precise_buffer[: len(logits)].copy_(logits)
            torch.gather(precise_logits, -1, label, out=label_logits[rows])
            torch.amax(precise_logits, dim=-1, keepdim=True, out=largest_logits[rows])

            # From here on, the memory of the logits holds their softmax.
            softmax = torch.softmax(precise_logits, dim=-1, out=precise_logits)
            # log(sum(exp(z))) = max(z) - log(max(softmax)), without a second exponential of each logit. The largest
            # probability is at least 1 / V, so its logarithm is accurate.
            torch.sub(largest_logits[rows], softmax.amax(dim=-1, keepdim=True).log(), out=log_sums[rows])
            softmax.scatter_add_(-1, label, softmax.new_full(label.shape, -label_probability))
            gradient = logits.copy_(softmax)
            if grad_states is not None:
                grad_states[rows] += matmul(gradient, w.T)
            if grad_weight is not None:
                # Rows without a label add nothing here, because their states are zero.
                grad_weight += matmul(gradient.T, x[rows].T)
            if grad_bias is not None:
                if lacks_label is not None:
                    gradient.masked_fill_(lacks_label[rows], 0)
                grad_bias += gradient.sum(dim=0, dtype=precise)

        # Add up the rows: chunk by chunk on CPUs, and all at once elsewhere, which launches fewer kernels.
        rows_per_sum = chunk_rows
        if lacks_label is not None:
            rows_per_sum = max(num_rows, 1)
            log_sums.masked_fill_(lacks_label, 0)
            label_logits.masked_fill_(lacks_label, 0)
            # No logit reaches infinity, so rows without a label do not count as predicted.
            largest_logits.masked_fill_(lacks_label, math.inf)
        unsmoothed, num_highest = total.new_zeros(2)
        for begin in range(0, num_rows, rows_per_sum):
            rows = slice(begin, begin + rows_per_sum)
            total += log_sums[rows].sum() - label_probability * label_logits[rows].sum()
            unsmoothed += (log_sums[rows] - label_logits[rows]).sum()
            num_highest += (label_logits[rows] >= largest_logits[rows]).sum()

        ctx.save_for_backward(grad_states, grad_weight, grad_bias)
        ctx.dtypes = (states.dtype, weight.dtype, None if bias is None else bias.dtype)
        token_sums = torch.stack([unsmoothed, num_highest, torch.as_tensor(num_labels, dtype=precise, device=x.device)])
        ctx.mark_non_differentiable(token_sums)
        return total, token_sums

    @staticmethod
    @once_differentiable
    def backward(ctx: LossContext, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that the forward pass has saved; the last three arguments of `forward` have none."""
        return (*scale_saved_gradients(ctx, grad), None, None, None)
