"""Whether Triton's kernels can compute with tensors."""

import logging
from collections.abc import Iterable
from functools import cache

import torch

from ..model.fast_path_checks import is_plain_tensor


logger = logging.getLogger(__name__)


def are_on_one_nvidia_gpu(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether these are ordinary tensors on the same GPU of NVIDIA, in eager mode and outside `torch.func`."""
    if torch.version.cuda is None:
        # AMD's GPUs are called cuda, too, and nobody has tried the kernels there.
        return False
    devices = set()
    for tensor in tensors:
        if tensor.device.type != "cuda" or not is_plain_tensor(tensor):
            return False
        devices.add(tensor.device)
    return len(devices) == 1


@cache
def triton_works() -> bool:
    """Return whether Triton computes the gradient of two rows of logits on the current GPU.

    It needs a C compiler, and is not installed with torch on Windows. If it does not work, this warns once.
    """
    logits = torch.zeros(2, 16, dtype=torch.float32, device="cuda")
    labels = torch.zeros(2, dtype=torch.long, device="cuda")
    try:
        from .triton_loss import replace_logits_by_gradient_in_triton

        replace_logits_by_gradient_in_triton(logits, labels, 1.0)
        # The softmax of equal logits is 1/16, and less by 1 at the label.
        works = logits[0].tolist() == [1 / 16 - 1] + [1 / 16] * 15
        reason = f"it computes {logits[0].tolist()}"
    except Exception as error:
        works = False
        reason = f"{type(error).__name__}: {error}"
    if not works:
        logger.warning("Triton does not work here, so that training takes longer (%s).", reason)
    return works
