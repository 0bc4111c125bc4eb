"""The part of the label-smoothed loss that depends on the mean logit, computed without any logits.

`chunked_loss` and `fused_loss` share this part. Label smoothing (section 5.4) adds the term - epsilon mean(z) to the
loss of each row with a label, where z are the logits of the row, i.e. of one target token.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class MeanLogitTerm(NamedTuple):
    """The sum of - epsilon mean(z) over all rows with a label, and the sums from which its gradients follow.

    Args:
        value (`torch.Tensor`): the term, a scalar.
        sum_of_states (`torch.Tensor` of shape `(d_model,)`): times the coefficient of the logits, this is the gradient
            with respect to each row of the weight.
        sum_of_weights (`torch.Tensor` of shape `(d_model,)`): times the coefficient of the logits, this is the gradient
            with respect to each state that has a label.
    """

    value: Tensor
    sum_of_states: Tensor
    sum_of_weights: Tensor


def compute_mean_logit_term(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    num_labels: int | Tensor,
    logit_coefficient: float,
    sum_dtype: torch.dtype,
) -> MeanLogitTerm:
    """Compute the sum of - epsilon mean(z) over all rows with a label, where z are the logits of a row.

    For a row, - epsilon mean(z) equals `logit_coefficient` * sum(z). The sum of the logits of all rows is the dot
    product of the sum of the states and the sum of the weight's rows, plus the sum of the bias for each label. So the
    logits themselves are not needed.

    Args:
        states (`torch.Tensor` of shape `(rows, d_model)`): zeros in rows without a label.
        weight (`torch.Tensor` of shape `(vocabulary, d_model)`): the matrix of the output projection.
        bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*): the bias of the output projection.
        num_labels (`int` or `torch.Tensor`): the number of rows with a label, as an int or a scalar tensor.
        logit_coefficient (`float`): - epsilon / vocabulary. The term is this coefficient times the sum of the logits,
            so the coefficient is also the term's derivative with respect to each logit.
        sum_dtype (`torch.dtype`): the dtype of sums over many rows.
    """
    sum_of_states = states.sum(dim=0, dtype=sum_dtype)  # (d_model,)
    sum_of_weights = weight.sum(dim=0, dtype=sum_dtype)  # (d_model,)
    value = logit_coefficient * (sum_of_states * sum_of_weights).sum()
    if bias is not None:
        value = value + logit_coefficient * num_labels * bias.sum(dtype=sum_dtype)
    return MeanLogitTerm(value, sum_of_states, sum_of_weights)
