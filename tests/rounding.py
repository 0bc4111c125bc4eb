"""The error that rounding explains: a reference in float64 whose operations are rounded at random.

A bound on the error of a low-precision model must not come from one machine, because processors round in different
places. `RandomRounding` perturbs a float64 model at every place where some implementation rounds, by an independent
random number of the size of that rounding (Parker, Monte Carlo Arithmetic, 1997). The errors then pass through the
layers and accumulate as real ones do. Two kinds of rounding are modelled:

- dtypes: the result of every operation, by a factor from 1 - u to 1 + u, where u is the dtype's unit roundoff, half of
  its epsilon: 2^-8 for bfloat16, 2^-11 for float16. This is the error of a number just above a power of two; that of
  a number just below the next one is half as large.
- int8: the inputs of every matmul, by up to half a step, where one step is the range of all inputs, 0 included, over
  the number of steps.

`explained` compares root mean squares. An error vector of n independent draws has a root mean square with a relative
standard deviation of at most 1 / sqrt(2 n), so with 50 draws or more the quotient of two of them stays below
1 + 3 sqrt(2) / sqrt(100) = 1.43.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


# Three standard deviations of the quotient, see above.
FACTOR, _FEWEST = 1.43, 50
_aten = torch.ops.aten
_MATMULS = {_aten.addmm.default: 1, _aten.mm.default: 0}
_ROUNDED = {
    *_MATMULS,
    _aten.add.Tensor,
    _aten.bmm.default,
    _aten.mul.Tensor,
    _aten._softmax.default,
    _aten.native_layer_norm.default,
}


class RandomRounding(TorchDispatchMode):
    """A context in which float64 operations are rounded at random.

    Args:
        dtype (`torch.dtype`): whose rounding is imitated.
        levels (`int`, *optional*): number of values that int8 inputs are rounded to; None for no int8.
    """

    def __init__(self, dtype: torch.dtype, levels: int | None = None):
        super().__init__()
        self._unit, self._levels = torch.finfo(dtype).eps / 2, levels
        self._generator = torch.Generator().manual_seed(0)

    def _noise(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * torch.rand(x.shape, dtype=torch.float64, generator=self._generator) - 1

    def _round(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        assert x.dtype == torch.float64
        return x * (1 + self._unit * self._noise(x))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if self._levels and function in _MATMULS:
            place = _MATMULS[function]
            x = args[place]
            step = (x.max().clamp(min=0) - x.min().clamp(max=0)) / (self._levels - 1)
            args = (*args[:place], x + self._noise(x) * step / 2, *args[place + 1 :])
        result = function(*args, **(kwargs or {}))
        if function not in _ROUNDED:
            return result
        return (self._round(result[0]), *result[1:]) if isinstance(result, tuple) else self._round(result)


def rms(x: torch.Tensor) -> float:
    """The root mean square."""
    return x.double().square().mean().sqrt().item()


def explained(actual: torch.Tensor, exact: torch.Tensor, rounded: torch.Tensor) -> bool:
    """Whether rounding explains an error: `actual` and `rounded` are about equally far from `exact`, `(..., n)`."""
    assert exact.dtype == rounded.dtype == torch.float64
    assert exact[..., 0].numel() >= _FEWEST
    return 0 < rms(actual - exact) <= FACTOR * rms(rounded - exact)
