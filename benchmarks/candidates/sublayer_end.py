"""The end of a sub-layer, LayerNorm(x + Dropout(Sublayer(x))), in one kernel, with a copy for the next matmuls.

Under autocast the package runs five kernels: dropout, a cast, the sum, the norm, and a cast before the next matmul.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import nn


# Takes x, the sub-layer's output, and the norm's weight and bias; returns the normalized sum, and it in 16 bits.
BoundEnd = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    tuple[torch.Tensor, torch.Tensor],
]


def end_of_sublayer(
    x: torch.Tensor,
    sublayer_x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    eps: float,
    rate: float,
    narrow_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute sections 3.1 and 5.4, LayerNorm(x + Dropout(Sublayer(x))), in training.

    Args:
        x (`torch.Tensor` of shape `(..., d_model)`): the sub-layer's input, at least in float32 under autocast.
        sublayer_x (`torch.Tensor` of shape `(..., d_model)`): its output, in any floating-point dtype.
        weight, bias (`torch.Tensor` of shape `(d_model,)`): of the norm.
        eps (`float`): of the norm.
        rate (`float`): dropout rate.
        narrow_dtype (`torch.dtype`): of the second result.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the normalized sum in the dtype of x, and in `narrow_dtype`.
    """
    dropped = nn.functional.dropout(sublayer_x, rate)
    residual_sum = x + dropped.to(x.dtype)
    normalized = nn.functional.layer_norm(residual_sum, weight.shape, weight, bias, eps)
    return normalized, normalized.to(narrow_dtype)


def plain_end(eps: float, rate: float, narrow_dtype: torch.dtype) -> BoundEnd:
    """Return `end_of_sublayer` with fixed numbers."""
    return partial(end_of_sublayer, eps=eps, rate=rate, narrow_dtype=narrow_dtype)


@cache
def compiled_end(eps: float, rate: float, narrow_dtype: torch.dtype, backend: str = "inductor") -> BoundEnd:
    """Return `end_of_sublayer` compiled once for any number of tokens.

    The numbers are fixed, because torch compiles again for each new value of an argument. For the same reason all
    dimensions except the last become one.

    Args:
        eps, rate, narrow_dtype: as `end_of_sublayer` takes them.
        backend (`str`): of `torch.compile`.
    """

    # A function, because torch counts the compilations of all partial functions together, and refuses the ninth.
    @torch.compile(fullgraph=True, backend=backend)
    def compiled(
        x: torch.Tensor, sublayer_x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return end_of_sublayer(x, sublayer_x, weight, bias, eps, rate, narrow_dtype)

    def end(
        x: torch.Tensor, sublayer_x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = x.flatten(0, -2)
        sublayer_rows = sublayer_x.flatten(0, -2)
        torch._dynamo.maybe_mark_dynamic(rows, 0)
        torch._dynamo.maybe_mark_dynamic(sublayer_rows, 0)
        # Otherwise a second model in the same process would have slower code, for a d_model of any size.
        for tensor in (rows, sublayer_rows):
            torch._dynamo.mark_static(tensor, 1)
        normalized, narrow = compiled(rows, sublayer_rows, weight, bias)
        return normalized.view_as(x), narrow.view_as(x)

    return end
