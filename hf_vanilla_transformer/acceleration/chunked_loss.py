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
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .autograd_context import LossContext, detach_in_no_grad_mode, save_gradients, scale_saved_gradients
from .fast_path_checks import is_plain_cpu_tensor
from .linear_and_dropout import cast_to_matmul_dtype, is_faster_by_onednn, onednn_linear
from .mean_logit_term import compute_mean_logit_term


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
    all_states = states.flatten(0, 1)  # (batch * target, d_model)
    all_labels = labels.to(states.device).flatten()  # (batch * target,)
    # The rows of which the loss is computed: their states, their labels, and which of them have no label. A row is one
    # target token.
    if is_plain_cpu_tensor(all_states):
        rows = _select_rows_with_label(all_states, all_labels)
    else:
        # Selecting rows on an accelerator would wait for the device, so all rows are computed there.
        rows = _mask_rows_without_label(all_states, all_labels)
    # `apply` takes arguments by position only, in the order of `_SmoothedCrossEntropy.forward`.
    projection_inputs = detach_in_no_grad_mode(rows.states, weight, bias)
    return _SmoothedCrossEntropy.apply(*projection_inputs, rows.labels, rows.lacks_label, label_smoothing)


class _Rows(NamedTuple):
    """The rows of which the loss is computed. A row is one target token of the batch.

    Args:
        states (`torch.Tensor` of shape `(rows, d_model)`): the decoder's output; zeros in rows without a label.
        labels (`torch.LongTensor` of shape `(rows,)`): token ids; token 0 in rows without a label.
        lacks_label (`torch.BoolTensor` of shape `(rows, 1)`, *optional*): True for rows without a label; None if every
            row has a label.
    """

    states: Tensor
    labels: Tensor
    lacks_label: Tensor | None


def _select_rows_with_label(states: Tensor, labels: Tensor) -> _Rows:
    """Return only the rows that have a label, where `states` is `(rows, d_model)` and `labels` is `(rows,)`."""
    rows_with_label = (labels != _NO_LABEL).nonzero()[:, 0]
    return _Rows(states[rows_with_label], labels[rows_with_label], lacks_label=None)


def _mask_rows_without_label(states: Tensor, labels: Tensor) -> _Rows:
    """Return all rows, with harmless values in those that have no label.

    Args:
        states: the decoder's output, `(rows, d_model)`.
        labels: token ids, `(rows,)`; -100 where there is no label.
    """
    lacks_label = (labels == _NO_LABEL)[:, None]  # (rows, 1)
    # Because of the zeros, these rows add nothing to the gradient of the weight. In the backward pass, masked_fill sets
    # the gradients of these states to zero.
    masked_states = states.masked_fill(lacks_label, 0)
    # gather and scatter need a valid index as label, such as token 0.
    valid_labels = labels.masked_fill(lacks_label[:, 0], 0)
    return _Rows(masked_states, valid_labels, lacks_label)


class _Projection(NamedTuple):
    """The output projection, in the dtype of its matmuls. It computes the logits `states @ weight.T + bias`.

    Args:
        weight (`torch.Tensor` of shape `(vocabulary, d_model)`).
        bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*).
    """

    weight: Tensor
    bias: Tensor | None


class _Gradients(NamedTuple):
    """The gradients of the loss with respect to states, weight and bias. A gradient is None if it is not needed."""

    states: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


class _RowTerms(NamedTuple):
    """Three values for each row of logits, from which the loss and the token sums are computed, each `(rows, 1)`.

    Args:
        log_sums (`torch.Tensor`): log(sum(exp(logits))).
        label_logits (`torch.Tensor`): the logit of the label.
        largest_logits (`torch.Tensor`): the largest logit.
    """

    log_sums: Tensor
    label_logits: Tensor
    largest_logits: Tensor

    def select(self, rows: slice) -> "_RowTerms":
        """Return views of the values of some rows."""
        return _RowTerms(self.log_sums[rows], self.label_logits[rows], self.largest_logits[rows])


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

        The token sums are three sums over all rows, `(3,)`: the cross-entropy without label smoothing, the number of
        labels that have the highest logit, and the number of labels.

        Steps 1 and 2 must come first, in this order: `gradients` and the values of the rows are complete only after
        step 2.

        1. `_compute_mean_term_and_gradients` creates `gradients`, which holds the gradients of one term of the loss.
        2. `_compute_row_terms_and_add_gradients` adds the gradients of the other terms to the same tensors.
        3. `_sum_rows` computes the loss from the values of the rows.
        4. `save_gradients` stores `gradients` for the backward pass.

        Args:
            ctx (`LossContext`): the context in which the gradients are saved.
            states (`torch.Tensor` of shape `(rows, d_model)`): zeros in rows without a label.
            weight (`torch.Tensor` of shape `(vocabulary, d_model)`).
            bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*).
            labels (`torch.LongTensor` of shape `(rows,)`): token ids; any id in rows without a label.
            lacks_label (`torch.BoolTensor` of shape `(rows, 1)`, *optional*): True for rows without a label; None if
                every row has a label, as with plain tensors on CPUs, where the caller has removed the other rows.
            label_smoothing (`float`): epsilon.
        """
        num_rows, d_model = states.shape
        # Sums over many rows are at least in float32, because 16 bits would be imprecise.
        sum_dtype = torch.promote_types(states.dtype, torch.float32)
        rows = _Rows(cast_to_matmul_dtype(states), labels, lacks_label)
        bias_for_matmul = None
        if bias is not None:
            bias_for_matmul = cast_to_matmul_dtype(bias)
        projection = _Projection(cast_to_matmul_dtype(weight), bias_for_matmul)
        # If every row has a label, their number is an int. Otherwise, it is a scalar tensor, because converting it to
        # an int would wait for the device. The functions below only multiply by it, so they accept both.
        num_labels: int | Tensor = num_rows
        if lacks_label is not None:
            num_labels = (~lacks_label).sum().to(sum_dtype)

        # A row with logits z and label y has the loss log(sum(exp(z))) - (1 - epsilon) z_y - epsilon mean(z). The last
        # term is computed without logits. It comes first, because it creates the gradients of states, weight and bias.
        needs_gradients = ctx.needs_input_grad[:3]  # whether states, weight and bias need one
        mean_term, gradients = _compute_mean_term_and_gradients(
            rows.states, projection, num_labels, label_smoothing, sum_dtype, needs_gradients
        )
        # The first two terms need logits. This returns their values, and adds their gradients to `gradients` in place,
        # so that `gradients` then holds the gradients of the whole loss.
        label_probability = 1 - label_smoothing
        # Each chunk adds a matrix (vocabulary, d_model) to the weight's gradient, so a wider model has larger chunks.
        chunk_rows = max(_CHUNK_ROWS, _CHUNK_ROWS_PER_D_MODEL * d_model)
        row_terms = _compute_row_terms_and_add_gradients(
            rows, projection, label_probability, chunk_rows, sum_dtype, gradients
        )
        # The number of rows that are added up at a time. It changes the sums only by rounding.
        rows_per_sum = chunk_rows
        if lacks_label is not None:
            # Only accelerators have rows without a label. There, adding up all rows at once launches fewer kernels.
            rows_per_sum = num_rows
        loss, unsmoothed, num_highest = _sum_rows(row_terms, mean_term, label_probability, rows_per_sum)

        # The backward pass scales these gradients, and casts them to the dtypes of the inputs.
        save_gradients(ctx, [gradients.states, gradients.weight, gradients.bias], [states, weight, bias])

        num_labels_tensor = torch.as_tensor(num_labels, dtype=sum_dtype, device=states.device)
        token_sums = torch.stack([unsmoothed, num_highest, num_labels_tensor])
        ctx.mark_non_differentiable(token_sums)
        return loss, token_sums

    @staticmethod
    @once_differentiable
    def backward(ctx: LossContext, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Scale the gradients that the forward pass has saved.

        The last three arguments of `forward` have no gradient.
        """
        return (*scale_saved_gradients(ctx, grad), None, None, None)


def _compute_mean_term_and_gradients(
    states: Tensor,
    projection: _Projection,
    num_labels: int | Tensor,
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
        states: the decoder's output, `(rows, d_model)`; zeros in rows without a label.
        projection: the output projection.
        num_labels: the number of rows with a label, as an int or a scalar tensor.
        label_smoothing: epsilon.
        sum_dtype: the dtype of sums over many rows.
        needs_gradients: whether states, weight and bias need a gradient.

    Returns:
        The term, a scalar, and its gradients. Other terms may be added to the gradients in place.
    """
    weight, bias = projection
    vocabulary = len(weight)
    # c in the formula above. The term of a row is c times the sum of the row's logits.
    logit_coefficient = -label_smoothing / vocabulary

    mean_term = compute_mean_logit_term(states, weight, bias, num_labels, logit_coefficient, sum_dtype)

    # `repeat` copies the gradient that all states have in common into each row, and likewise for the weight. Rows
    # without a label get it too; the backward pass of `_mask_rows_without_label` sets their gradients to 0.
    needs_states, needs_weight, needs_bias = needs_gradients
    grad_states = None
    if needs_states:
        grad_of_each_state = (logit_coefficient * mean_term.sum_of_weights).to(states.dtype)  # (d_model,)
        grad_states = grad_of_each_state.repeat(len(states), 1)
    grad_weight = None
    if needs_weight:
        grad_of_each_weight_row = logit_coefficient * mean_term.sum_of_states  # (d_model,)
        grad_weight = grad_of_each_weight_row.repeat(vocabulary, 1)
    grad_bias = None
    if needs_bias:
        # The product is a float if `num_labels` is an int, and a scalar tensor if it is a tensor. Adding it to zeros
        # makes a vector with this value in each element of either of them, without reading the tensor.
        zeros = states.new_zeros(vocabulary, dtype=sum_dtype)  # (vocabulary,)
        grad_bias = zeros + logit_coefficient * num_labels
    return mean_term.value, _Gradients(grad_states, grad_weight, grad_bias)


def _compute_row_terms_and_add_gradients(
    rows: _Rows,
    projection: _Projection,
    label_probability: float,
    chunk_rows: int,
    sum_dtype: torch.dtype,
    gradients: _Gradients,
) -> _RowTerms:
    """Compute the terms of the loss that need logits, and add their gradients to `gradients` in place.

    For a row with logits z and label y, these terms are log(sum(exp(z))) - (1 - epsilon) z_y. Only the logits of one
    chunk of rows are in memory at a time.

    Both results are written in place by two callees, one chunk at a time: `_replace_logits_by_gradient` writes the row
    terms, and `_add_gradients_of_chunk` adds to the gradients. At the end, `_clear_rows_without_label` overwrites the
    terms of rows without a label.

    Returns three values for each row, from which the caller computes the loss: log(sum(exp(z))), z_y, and the largest
    logit. In rows without a label, they are 0, 0 and infinity.

    Args:
        rows: the rows of the batch, in the dtype of matmuls.
        projection: the output projection.
        label_probability: 1 - epsilon.
        chunk_rows: the number of rows in a chunk.
        sum_dtype: the dtype of the row terms, and of sums over rows.
        gradients: the gradients of the third term of the loss, - epsilon mean(z). They are changed in place to the
            gradients of the whole loss.
    """
    num_rows = len(rows.states)
    linear = _choose_linear(rows.states[:chunk_rows], projection.weight)
    buffer_rows = min(chunk_rows, num_rows)
    precise_buffer = _allocate_precise_buffer(buffer_rows, projection.weight, sum_dtype)
    # Memory for three values per row, which `_replace_logits_by_gradient` fills in, each (rows, 1).
    log_sums, label_logits, largest_logits = rows.states.new_empty(3, num_rows, 1, dtype=sum_dtype)
    row_terms = _RowTerms(log_sums, label_logits, largest_logits)

    for begin in range(0, num_rows, chunk_rows):
        chunk = slice(begin, begin + chunk_rows)
        logits = linear(rows.states[chunk], projection.weight, projection.bias)  # (chunk_rows, vocabulary)
        chunk_labels = rows.labels[chunk, None]  # (chunk_rows, 1)
        # `select` returns views, so the values that the next line writes into `chunk_terms` are in `row_terms`.
        chunk_terms = row_terms.select(chunk)
        # This also overwrites `logits` with softmax(z), minus 1 - epsilon at the label, and returns the same tensor.
        grad_logits = _replace_logits_by_gradient(logits, chunk_labels, label_probability, chunk_terms, precise_buffer)
        # The chain rule turns it into gradients of the chunk's states, of the weight and of the bias. This must be the
        # last use of `grad_logits`, because it may overwrite rows without a label.
        _add_gradients_of_chunk(gradients, grad_logits, chunk, rows, projection.weight, linear)
    if rows.lacks_label is not None:
        # The loop has written values for rows without a label as well, so this must come after it.
        _clear_rows_without_label(row_terms, rows.lacks_label)
    return row_terms


def _choose_linear(states: Tensor, weight: Tensor) -> Callable[..., Tensor]:
    """Return the fastest function that computes linear(a, b, bias) = a b^T + bias.

    The transposition is there because a linear layer stores its weight as (out, in). The function may be without a
    gradient, because it runs in the forward pass of an autograd function.

    Args:
        states: the states of one chunk, `(chunk_rows, d_model)`, whose size decides which function is faster.
        weight: the matrix of the output projection, `(vocabulary, d_model)`.
    """
    if is_faster_by_onednn(states, weight):
        return onednn_linear
    return nn.functional.linear


def _allocate_precise_buffer(buffer_rows: int, weight: Tensor, sum_dtype: torch.dtype) -> Tensor | None:
    """Allocate memory for a chunk's logits in `sum_dtype`, `(buffer_rows, vocabulary)`.

    The result is None if matmuls with the weight, which is `(vocabulary, d_model)`, are computed in this dtype anyway.
    All chunks share one buffer, because allocating it takes longer than the computation in it.
    """
    if weight.dtype == sum_dtype:
        return None
    vocabulary = len(weight)
    return weight.new_empty(buffer_rows, vocabulary, dtype=sum_dtype)


def _add_gradients_of_chunk(
    gradients: _Gradients,
    grad_logits: Tensor,
    chunk: slice,
    rows: _Rows,
    weight: Tensor,
    linear: Callable[..., Tensor],
) -> None:
    """Add the gradients of one chunk to `gradients` in place, except those that are None.

    In rows without a label, `grad_logits` is arbitrary but finite. Such rows must not change the gradients that the
    user gets. Each gradient needs something else for this:

    - states: nothing here, because `masked_fill` in `_mask_rows_without_label` clears these rows in the backward pass.
    - weight: nothing here, because the states of these rows are zeros.
    - bias: the rows of `grad_logits` are set to 0 before they are added up.

    Args:
        gradients: the gradients so far.
        grad_logits: the gradient of the chunk's logits, `(chunk_rows, vocabulary)`, which may be overwritten.
        chunk: the rows of the chunk.
        rows: the rows of the batch.
        weight: the matrix of the output projection, `(vocabulary, d_model)`.
        linear: computes linear(a, b) = a @ b.T, so that a @ b is written as linear(a, b.T).
    """
    if gradients.states is not None:
        # This is grad_logits @ weight.
        grad_states = linear(grad_logits, weight.T)  # (chunk_rows, d_model)
        # A slice is a view, so this changes `gradients.states`.
        gradients.states[chunk].add_(grad_states)
    if gradients.weight is not None:
        # This is grad_logits.T @ states, because linear(a, b) computes a @ b.T.
        grad_weight = linear(grad_logits.T, rows.states[chunk].T)  # (vocabulary, d_model)
        gradients.weight.add_(grad_weight)
    if gradients.bias is not None:
        # The gradient of the bias is the sum of the rows. Clearing rows without a label is part of this block, because
        # the other two gradients do not need it. The order of the three blocks does not matter.
        if rows.lacks_label is not None:
            grad_logits.masked_fill_(rows.lacks_label[chunk], 0)
        grad_bias = grad_logits.sum(dim=0, dtype=gradients.bias.dtype)  # (vocabulary,)
        gradients.bias.add_(grad_bias)


def _replace_logits_by_gradient(
    logits: Tensor,
    labels: Tensor,
    label_probability: float,
    row_terms: _RowTerms,
    precise_buffer: Tensor | None,
) -> Tensor:
    """Overwrite a chunk of logits with their gradient, and return it. Write three values per row into `row_terms`.

    The gradient is softmax(logits), minus `label_probability` at the label. For example, a row with the softmax
    [0.25, 0.75], the label 1 and the label probability 0.9 has the gradient [0.25, -0.15].

    Args:
        logits: `(chunk_rows, vocabulary)`, overwritten.
        labels: token ids, `(chunk_rows, 1)`.
        label_probability: 1 - epsilon.
        row_terms: tensors `(chunk_rows, 1)` for the rows of this chunk, overwritten.
        precise_buffer: memory for the logits in the dtype of `row_terms`, with at least `chunk_rows` rows; None if the
            logits already have this dtype.
    """
    # `precise_logits`, `softmax` and `gradient` are names of the same memory, which is `precise_buffer`, or `logits` if
    # there is no buffer. It holds three things one after the other, so the statements must stay in this order:
    #
    # 1. the logits, from which `label_logits` and `largest_logits` are read;
    # 2. their softmax, from which `log_sums` are computed;
    # 3. the gradient, which is the result.
    precise_logits = logits
    if precise_buffer is not None:
        # The last chunk may have fewer rows than the buffer.
        precise_logits = precise_buffer[: len(logits)].copy_(logits)
    # Step 1. With `out`, torch writes a result, here (chunk_rows, 1), into existing memory.
    torch.gather(precise_logits, -1, labels, out=row_terms.label_logits)
    torch.amax(precise_logits, dim=-1, keepdim=True, out=row_terms.largest_logits)

    # Step 2. The softmax overwrites the logits. The input may be the output as well, because torch writes a probability
    # only after it has read the logit in this place for the last time.
    softmax = torch.softmax(precise_logits, dim=-1, out=precise_logits)
    # log(sum(exp(z))) = max(z) - log(max(softmax)), without a second exponential of each logit. The largest probability
    # is at least 1 / V, so its logarithm is accurate.
    log_of_largest_probability = softmax.amax(dim=-1, keepdim=True).log()
    torch.sub(row_terms.largest_logits, log_of_largest_probability, out=row_terms.log_sums)

    # Step 3. This changes one element in each row, in place: the probability of the label.
    subtracted = softmax.new_full(labels.shape, -label_probability)  # (chunk_rows, 1)
    gradient = softmax.scatter_add_(-1, labels, subtracted)
    # Without a buffer, `gradient` already is `logits`, and this changes nothing.
    return logits.copy_(gradient)


def _clear_rows_without_label(row_terms: _RowTerms, lacks_label: Tensor) -> None:
    """Overwrite the values of rows without a label in `row_terms`, so that these rows do not change any sum."""
    row_terms.log_sums.masked_fill_(lacks_label, 0)
    row_terms.label_logits.masked_fill_(lacks_label, 0)
    # No logit reaches infinity, so rows without a label do not count as predicted.
    row_terms.largest_logits.masked_fill_(lacks_label, math.inf)


def _sum_rows(
    row_terms: _RowTerms, mean_term: Tensor, label_probability: float, rows_per_sum: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the loss and two token sums from the values of all rows.

    A row with logits z and label y adds

    - log(sum(exp(z))) - (1 - epsilon) z_y to the loss; `mean_term` is the rest of it, - epsilon mean(z);
    - log(sum(exp(z))) - z_y to the cross-entropy without label smoothing, which is epsilon = 0;
    - 1 to the number of rows whose label has the highest logit, if z_y is the largest of z.

    Args:
        row_terms: for each row, log(sum(exp(logits))), the logit of the label, and the largest logit, each `(rows, 1)`.
            In rows without a label, they are 0, 0 and infinity, so that these rows do not change any sum.
        mean_term: the term - epsilon mean(z), summed over all rows, a scalar.
        label_probability: 1 - epsilon.
        rows_per_sum: the number of rows that are added up at a time.

    Returns:
        Three scalars: the loss, which includes `mean_term`; the cross-entropy without label smoothing; and the number
        of rows whose label has the highest logit.
    """
    num_rows = len(row_terms.log_sums)
    loss = mean_term
    unsmoothed, num_highest = mean_term.new_zeros(2)
    # The step of a range must be at least 1, even if there are no rows, of which 0 are added up at a time.
    for begin in range(0, num_rows, max(rows_per_sum, 1)):
        rows = slice(begin, begin + rows_per_sum)
        log_sums, label_logits, largest_logits = row_terms.select(rows)  # each (rows_per_sum, 1) or shorter
        # These are the three values of the docstring, each summed over some rows.
        loss = loss + (log_sums.sum() - label_probability * label_logits.sum())
        unsmoothed = unsmoothed + (log_sums - label_logits).sum()
        num_highest = num_highest + (label_logits >= largest_logits).sum()
    return loss, unsmoothed, num_highest
