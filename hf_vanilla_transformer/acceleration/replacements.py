"""What replaces which operation of the model."""

from ..model.linear_kernels import add_and_norm, cast_for_matmul
from ..model.loss_kernels import smoothed_cross_entropy_of_states
from ..model.operations import replace
from .gpu_add_and_norm import add_and_norm_on_gpus, cast_for_matmul_once
from .gpu_loss import smoothed_cross_entropy_on_gpus


def replace_operations() -> None:
    """Put the fast operations in the place of the plain ones. Repeating it changes nothing."""
    replace(add_and_norm, add_and_norm_on_gpus)
    replace(cast_for_matmul, cast_for_matmul_once)
    replace(smoothed_cross_entropy_of_states, smoothed_cross_entropy_on_gpus)
