"""What replaces which operation of the model."""

from ..model.loss_kernels import smoothed_cross_entropy_of_states
from ..model.operations import replace
from .gpu_loss import smoothed_cross_entropy_on_gpus


def replace_operations() -> None:
    """Put the fast operations in the place of the plain ones. Repeating it changes nothing."""
    replace(smoothed_cross_entropy_of_states, smoothed_cross_entropy_on_gpus)
