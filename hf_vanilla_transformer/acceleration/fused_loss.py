"""The label-smoothed loss (section 5.4) for GPUs, with few kernel launches and few passes over the logits.

On NVIDIA GPUs, `fused_smoothed_cross_entropy` replaces `chunked_smoothed_cross_entropy` if `loss_of_states` finds that
Triton works. `chunked_loss` needs seven passes over the logits of each chunk, which has about 1,024 rows (target
tokens). This module uses larger chunks, and a single function (with Triton: a single kernel) overwrites a chunk's
logits with their gradient. Rows without a label are computed with a gradient of 0, because selecting rows would wait
for the device. On an H200, the loss takes 7.5 ms instead of 17.7 ms, and the speedup of a base-model training step is
1.16x (docs/benchmarks.md, "GPUs").

tests/acceleration/test_fused_loss.py compares the loss, its gradients and the sums with the plain formula. It uses
`replace_logits_by_gradient` on CPUs, and the kernel where Triton's interpreter or a GPU is available.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .autograd_context import LossContext, detach_in_no_grad_mode, save_gradients, scale_saved_gradients
from .linear_and_dropout import cast_to_matmul_dtype
from .mean_logit_term import compute_mean_logit_term


# cuBLAS has fast kernels for matrices whose rows begin at multiples of 16 bytes, i.e. of 8 16-bit elements.
_ALIGNED_ROWS = 8
# A vocabulary whose size is not a multiple of 8 is padded to a multiple of 64.
_PADDED_ROWS = 64
_NO_LABEL = -100


class RowTerms(NamedTuple):
    """Three values for each row of logits, from which the loss and the token sums are computed.

    They are at least in float32, and 0 for rows without a label.

    Args:
        log_sum (`torch.Tensor` of shape `(rows,)`): log(sum(exp(logits))).
        label_logit (`torch.Tensor` of shape `(rows,)`): the logit of the label.
        is_highest (`torch.Tensor` of shape `(rows,)`): 1 if no logit is higher than the label's logit, else 0.
    """

    log_sum: Tensor
    label_logit: Tensor
    is_highest: Tensor


ReplaceLogits = Callable[[Tensor, Tensor, float], RowTerms]


def replace_logits_by_gradient(logits: Tensor, labels: Tensor, label_probability: float) -> RowTerms:
    """Overwrite logits with the gradient of the loss, and return the terms from which the loss is computed.

    The gradient is softmax(logits), minus `label_probability` at the label. It is 0 in rows without a label. The kernel
    in `triton_loss` computes the same formula.

    Args:
        logits (`torch.Tensor` of shape `(rows, vocabulary)`): changed in place.
        labels (`torch.LongTensor` of shape `(rows,)`): -100 where there is no label.
        label_probability (`float`): 1 - epsilon_ls.
    """
    lacks_label = (labels == _NO_LABEL)[:, None]  # (rows, 1)
    # Token ids, (rows, 1). Rows without a label have -100 and get token 0, because gather needs a valid index.
    label_ids = labels.clamp(min=0)[:, None]
    # (rows, vocabulary). In 16 bits, this is a copy. In float32 or float64, `to` returns `logits` itself, so the values
    # must be read before `logits` is overwritten below.
    precise_logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    label_logit = precise_logits.gather(-1, label_ids)  # (rows, 1)

    # The softmax, (rows, vocabulary). The largest logit is subtracted, so that no exponential overflows.
    largest = precise_logits.amax(dim=-1, keepdim=True)  # (rows, 1)
    exponentials = (precise_logits - largest).exp()
    sum_of_exponentials = exponentials.sum(dim=-1, keepdim=True)  # (rows, 1)
    softmax = exponentials / sum_of_exponentials

    # The gradient is the softmax, minus `label_probability` at the label. It is computed by a comparison, because a
    # compiler can fuse that with the division, unlike a scatter.
    columns = torch.arange(logits.shape[-1], device=logits.device)  # (vocabulary,)
    is_label = columns == label_ids  # (rows, vocabulary)
    gradient = torch.where(is_label, softmax - label_probability, softmax)
    # This may overwrite `precise_logits` as well, so nothing below may read them. `label_logit`, `largest` and
    # `sum_of_exponentials`, which are read below, have their own memory.
    logits.copy_(gradient.masked_fill(lacks_label, 0))

    # The terms of the loss, each (rows, 1).
    log_sum = largest + sum_of_exponentials.log()
    is_highest = (label_logit >= largest).to(log_sum.dtype)
    return RowTerms(
        log_sum.masked_fill(lacks_label, 0)[:, 0],
        label_logit.masked_fill(lacks_label, 0)[:, 0],
        is_highest.masked_fill(lacks_label, 0)[:, 0],
    )


def fused_smoothed_cross_entropy(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    label_smoothing: float,
    bias: Tensor | None = None,
    *,
    replace_logits: ReplaceLogits,
    chunk_bytes: int,
) -> tuple[Tensor, Tensor]:
    """Compute the label-smoothed cross-entropy (section 5.4), summed over all target tokens that have a label.

    The result equals torch's cross-entropy of the logits `states @ weight.T + bias`, with the reduction "sum".

    Args:
        states (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's output, which must be finite where
            there is a label.
        weight (`torch.Tensor` of shape `(vocabulary, d_model)`): the matrix of the output projection.
        labels (`torch.LongTensor` of shape `(batch, target)`): -100 where there is no target.
        label_smoothing (`float`): epsilon_ls.
        bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*): the bias of the output projection.
        replace_logits (`Callable`): `replace_logits_by_gradient`, or a faster function with the same result.
        chunk_bytes (`int`): the size in bytes of the logits that are in memory at the same time.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the loss, a scalar in nats, at least in float32, which can be
            differentiated once; and three sums over all rows, `(3,)`: the cross-entropy without label smoothing, the
            number of labels that have the highest logit, and the number of labels.
    """
    row_states = states.flatten(0, 1)  # (rows, d_model)
    # The kernel needs labels that are adjacent in memory, unlike the labels of a slice.
    row_labels = labels.to(states.device).flatten().contiguous()
    # `apply` takes arguments by position only, in the order of `_FusedSmoothedCrossEntropy.forward`.
    projection_inputs = detach_in_no_grad_mode(row_states, weight, bias)
    return _FusedSmoothedCrossEntropy.apply(
        *projection_inputs, row_labels, label_smoothing, replace_logits, chunk_bytes
    )


class _Totals(NamedTuple):
    """Sums over the rows that have been processed so far, each a scalar.

    Args:
        loss (`torch.Tensor`): the label-smoothed loss.
        unsmoothed (`torch.Tensor`): the cross-entropy without label smoothing.
        num_highest (`torch.Tensor`): the number of labels that have the highest logit.
    """

    loss: Tensor
    unsmoothed: Tensor
    num_highest: Tensor

    def add(self, row_terms: RowTerms, label_probability: float) -> "_Totals":
        """Return the sums including further rows. `label_probability` is 1 - epsilon."""
        log_sum, label_logit, is_highest = row_terms  # each (chunk_rows,)
        return _Totals(
            loss=self.loss + (log_sum.sum() - label_probability * label_logit.sum()),
            unsmoothed=self.unsmoothed + (log_sum - label_logit).sum(),
            num_highest=self.num_highest + is_highest.sum(),
        )


class _FusedSmoothedCrossEntropy(torch.autograd.Function):
    """The loss as an autograd function whose forward pass also computes the gradients.

    The backward pass only scales these gradients.

    A row with logits z and label y has the loss log(sum(exp(z))) - (1 - epsilon) z_y - epsilon mean(z). The last term
    is linear in states and weight, so it is computed without logits. If epsilon / V were instead added to each softmax
    and rounded to 16 bits, it would get the same rounding error in every row.
    """

    @staticmethod
    def forward(
        ctx: LossContext,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        label_smoothing: float,
        replace_logits: ReplaceLogits,
        chunk_bytes: int,
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss and the three token sums, and save the gradients for the backward pass.

        The token sums are three sums over all rows, `(3,)`: the cross-entropy without label smoothing, the number of
        labels that have the highest logit, and the number of labels.

        Args:
            ctx (`LossContext`): the context in which the gradients are saved.
            states (`torch.Tensor` of shape `(rows, d_model)`): the decoder's output.
            weight (`torch.Tensor` of shape `(vocabulary, d_model)`).
            bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*).
            labels (`torch.LongTensor` of shape `(rows,)`): token ids; -100 where there is no label.
            label_smoothing (`float`): epsilon.
            replace_logits (`Callable`): a function that overwrites logits with their gradient, and returns the terms of
                the loss.
            chunk_bytes (`int`): the size in bytes of the logits that are in memory at the same time.
        """
        # Sums over many rows are at least in float32, because 16 bits would be imprecise.
        sum_dtype = torch.promote_types(states.dtype, torch.float32)
        has_label = labels != _NO_LABEL  # (rows,)
        lacks_label = ~has_label.unsqueeze(-1)  # (rows, 1)
        num_labels = has_label.sum().to(sum_dtype)
        projection = _prepare_projection(states, weight, bias, lacks_label)

        # A row with logits z and label y has the loss log(sum(exp(z))) - (1 - epsilon) z_y - epsilon mean(z). The last
        # term is computed without logits. It comes first, because it creates the tensors in `gradients`, which the loop
        # below fills in place. After it, the gradients of states without a label are set to 0:
        #
        # - `weight` and `bias` hold the gradient of the last term, to which each chunk adds its part.
        # - `states` has no values yet. Each chunk writes its own rows, including the gradient of the last term.
        #
        # A tensor is None if its input needs no gradient.
        needs_gradients = ctx.needs_input_grad[:3]  # whether states, weight and bias need one
        mean_term, gradients = _compute_mean_term_and_gradients(
            projection, num_labels, label_smoothing, sum_dtype, needs_gradients
        )

        # The first two terms need logits. `totals.loss` begins with the last term and the other sums with 0, and each
        # chunk adds its rows.
        totals = _Totals(loss=mean_term, unsmoothed=mean_term.new_zeros(()), num_highest=mean_term.new_zeros(()))
        label_probability = 1 - label_smoothing
        # A row has one logit for each row of the weight, including the rows that were added to pad the vocabulary, and
        # logits have the weight's dtype.
        bytes_per_row = len(projection.weight) * projection.weight.element_size()
        chunk_rows = max(chunk_bytes // bytes_per_row, 1)
        for begin in range(0, len(states), chunk_rows):
            rows = slice(begin, begin + chunk_rows)
            # This returns the terms of the chunk's rows, and changes only its last argument, `gradients`.
            row_terms = _compute_row_terms_and_write_gradients(
                projection, labels, rows, label_probability, replace_logits, sum_dtype, gradients
            )
            totals = totals.add(row_terms, label_probability)
        if gradients.states is not None:
            # Without this, rows without a label would keep the gradient of the term - epsilon mean(z).
            gradients.states.masked_fill_(lacks_label, 0)

        # The backward pass scales these gradients, and casts them to the dtypes of the inputs.
        save_gradients(ctx, [gradients.states, gradients.weight, gradients.bias], [states, weight, bias])
        token_sums = torch.stack([totals.unsmoothed, totals.num_highest, num_labels])
        ctx.mark_non_differentiable(token_sums)
        return totals.loss, token_sums

    @staticmethod
    @once_differentiable
    def backward(ctx: LossContext, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that the forward pass has saved.

        The last four arguments of `forward` have no gradient.
        """
        return (*scale_saved_gradients(ctx, grad), None, None, None, None)


class _Projection(NamedTuple):
    """The tensors of the output projection, in the dtype of its matmuls. Its logits are `states @ weight.T + bias`.

    Args:
        states (`torch.Tensor` of shape `(rows, d_model)`): zeros in rows without a label.
        weight (`torch.Tensor` of shape `(padded_vocabulary, d_model)`): the added rows at the end are zeros.
        bias (`torch.Tensor` of shape `(padded_vocabulary,)`, *optional*): the added elements at the end are zeros.
        vocabulary (`int`): the size of the vocabulary without the added rows.
    """

    states: Tensor
    weight: Tensor
    bias: Tensor | None
    vocabulary: int


class _Gradients(NamedTuple):
    """The gradients of the loss, without the rows that were added to weight and bias. Unneeded gradients are None.

    Args:
        states (`torch.Tensor` of shape `(rows, d_model)`, *optional*): filled chunk by chunk.
        weight (`torch.Tensor` of shape `(vocabulary, d_model)`, *optional*): the sum over all chunks so far.
        bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*): the sum over all chunks so far.
        mean_term_of_each_state (`torch.Tensor` of shape `(d_model,)`): the gradient of the term - epsilon mean(z) with
            respect to a state, which is the same for all rows.
    """

    states: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    mean_term_of_each_state: Tensor


def _prepare_projection(states: Tensor, weight: Tensor, bias: Tensor | None, lacks_label: Tensor) -> _Projection:
    """Cast the tensors to the dtype of matmuls, set states without a label to zero, and pad the vocabulary.

    Weight and bias, `(vocabulary, ...)`, get rows of zeros at the end, up to a number of rows for which matmuls are
    fast. `lacks_label`, `(rows, 1)`, is True for rows without a label.
    """
    # The states of padding add nothing to the weight's gradient, even if they are infinite.
    states_for_matmul = cast_to_matmul_dtype(states).masked_fill(lacks_label, 0)
    weight_for_matmul = _with_aligned_rows(cast_to_matmul_dtype(weight))
    bias_for_matmul = None
    if bias is not None:
        bias_for_matmul = _with_aligned_rows(cast_to_matmul_dtype(bias))
    return _Projection(states_for_matmul, weight_for_matmul, bias_for_matmul, vocabulary=len(weight))


def _compute_mean_term_and_gradients(
    projection: _Projection,
    num_labels: Tensor,
    label_smoothing: float,
    sum_dtype: torch.dtype,
    needs_gradients: Sequence[bool],
) -> tuple[Tensor, _Gradients]:
    """Compute the term - epsilon mean(z) of the loss, where z are the logits of a row, and its gradients.

    The term is summed over the N rows with a label. No logits are needed: with c = - epsilon / vocabulary, the sum s of
    the states, the sum u of the weight's rows, and the bias b, the term is c (dot(s, u) + N sum(b)). So its gradient is

    - c u for each state,
    - c s for each row of the weight,
    - c N for each element of the bias.

    Args:
        projection: the tensors of the output projection, with zeros as states of rows without a label.
        num_labels: the number of rows with a label, a scalar.
        label_smoothing: epsilon.
        sum_dtype: the dtype of sums over many rows.
        needs_gradients: whether states, weight and bias need a gradient.

    Returns:
        The term, a scalar, and its gradients. Instead of the gradients of all states, there is only the gradient that
        they have in common, as `mean_term_of_each_state`, and memory without values, `(rows, d_model)`.
    """
    states, weight, bias, vocabulary = projection
    # c in the formula above. The term of a row is c times the sum of the row's logits.
    logit_coefficient = -label_smoothing / vocabulary

    mean_term = compute_mean_logit_term(states, weight, bias, num_labels, logit_coefficient, sum_dtype)

    # c u, which is the same for all states. The gradients of weight and bias are also one value or row, repeated.
    grad_of_each_state = (logit_coefficient * mean_term.sum_of_weights).to(states.dtype)  # (d_model,)
    needs_states, needs_weight, needs_bias = needs_gradients
    grad_states = None
    if needs_states:
        # This memory has no values, and nobody may read it yet. `_compute_row_terms_and_write_gradients` writes the
        # rows of its chunk, and `forward` calls it for chunks that cover all rows: it writes the sum of
        # `grad_of_each_state` and the gradient of the other terms. Filling the memory here would take one more pass.
        grad_states = torch.empty_like(states)
    grad_weight = None
    if needs_weight:
        grad_of_each_weight_row = logit_coefficient * mean_term.sum_of_states  # (d_model,)
        grad_weight = grad_of_each_weight_row.repeat(vocabulary, 1)
    grad_bias = None
    if needs_bias:
        # c N in each element, because each of the N rows with a label adds the bias to its logits.
        grad_bias = (logit_coefficient * num_labels).repeat(vocabulary)
    return mean_term.value, _Gradients(grad_states, grad_weight, grad_bias, grad_of_each_state)


def _compute_row_terms_and_write_gradients(
    projection: _Projection,
    labels: Tensor,
    rows: slice,
    label_probability: float,
    replace_logits: ReplaceLogits,
    sum_dtype: torch.dtype,
    gradients: _Gradients,
) -> RowTerms:
    """Compute the logits of one chunk of rows and their gradients, and return the terms of the loss.

    The logits z of the chunk are first replaced with g, `(chunk_rows, vocabulary)`, the gradient of the first two terms
    of the loss, in the same memory. Then g W, g^T x and the sum of the rows of g, where W is the weight and x are the
    states, are the gradients of these terms with respect to the states, the weight and the bias. g W is written into
    `gradients` together with the gradient of the last term, and the other two are added.

    If the vocabulary was padded, g has more columns, which are 0. For example, 37,001 tokens are padded to 37,056, so
    the last 55 columns are 0.

    The memory of the logits is released when this function returns, before the next chunk needs the same amount.

    Args:
        projection: the tensors of the output projection, whose weight and bias may be padded.
        labels: the labels of all rows, `(rows,)`: -100 where there is no label.
        rows: the rows of this chunk.
        label_probability: 1 - epsilon.
        replace_logits: a function that overwrites logits with their gradient, and returns the terms of the loss.
        sum_dtype: the dtype of sums over many rows.
        gradients: changed in place. The gradients of the chunk's states are overwritten with the gradient of the whole
            loss. The gradients of weight and bias already hold other terms and chunks, to which this chunk is added.
    """
    states = projection.states[rows]  # (chunk_rows, d_model)
    vocabulary = projection.vocabulary
    logits = nn.functional.linear(states, projection.weight, projection.bias)  # (chunk_rows, padded_vocabulary)
    # The slice of the logits is a view, so this overwrites the columns of the vocabulary with their gradient.
    row_terms = replace_logits(logits[:, :vocabulary], labels[rows], label_probability)
    # From here on, the memory holds the gradient, and is read only by this name. The columns that padding has added
    # still hold their logits, which are 0 because the added rows of the weight and the bias are zeros. So they add
    # nothing to the gradients of the states. The slices `[:vocabulary]` below remove their rows from the other
    # gradients.
    grad_logits = logits

    if gradients.states is not None:
        # Computes mean_term_of_each_state + grad_logits @ weight, (chunk_rows, d_model), where the first term is added
        # to each row. `out` is a view, so the result is written into `gradients.states`.
        torch.addmm(gradients.mean_term_of_each_state, grad_logits, projection.weight, out=gradients.states[rows])
    if gradients.weight is not None:
        grad_weight = _precise_matmul(grad_logits.T, states, sum_dtype)  # (padded_vocabulary, d_model)
        gradients.weight.add_(grad_weight[:vocabulary])
    if gradients.bias is not None:
        grad_bias = grad_logits.sum(dim=0, dtype=sum_dtype)  # (padded_vocabulary,)
        gradients.bias.add_(grad_bias[:vocabulary])
    return row_terms


def _with_aligned_rows(matrix: Tensor) -> Tensor:
    """Pad a matrix or bias `(vocabulary, ...)` with zeros to a number of rows for which cuBLAS is fast.

    The caller ignores the logits of the added rows. The rows are added on CPUs as well, so that tests without a GPU run
    the same code.
    """
    vocabulary = len(matrix)
    # For a multiple of 8, cuBLAS is fast without padding. Any other number is padded to a multiple of 64.
    if vocabulary % _ALIGNED_ROWS == 0:
        return matrix
    # The number of rows that are missing to the next multiple, for example 55 for 37,001, which becomes 37,056.
    added_rows = -vocabulary % _PADDED_ROWS
    padding = matrix.new_zeros((added_rows, *matrix.shape[1:]))
    return torch.cat([matrix, padding])


def _precise_matmul(a: Tensor, b: Tensor, result_dtype: torch.dtype) -> Tensor:
    """Compute a @ b with a result in the given dtype, which is at least float32.

    Only on GPUs does torch compute it without first rounding the result to 16 bits.
    """
    if a.device.type == "cuda" and a.dtype != result_dtype:
        return torch.mm(a, b, out_dtype=result_dtype)
    return (a @ b).to(result_dtype)
