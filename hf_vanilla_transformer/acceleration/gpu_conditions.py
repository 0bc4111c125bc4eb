"""Whether Triton's kernels can compute with tensors."""

import logging
from collections.abc import Iterable
from functools import cache

import torch

from .fast_path_checks import is_plain_tensor
from .fused_loss import replace_logits_by_gradient


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
def triton_works(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether Triton's kernel of the loss computes correctly on a GPU, with logits in a dtype.

    Triton needs a C compiler, and is not installed with torch on Windows; older GPUs lack bfloat16. If the kernel does
    not work, this warns once.
    """
    try:
        is_correct = _loss_kernel_is_correct(device, dtype)
        reason = "its results are wrong"
    except Exception as error:
        is_correct = False
        reason = f"{type(error).__name__}: {error}"
    if not is_correct:
        logger.warning(
            "Triton does not work here in %s, so that training takes longer (%s).",
            str(dtype).removeprefix("torch."),
            reason,
        )
    return is_correct


def _loss_kernel_is_correct(device: torch.device, dtype: torch.dtype) -> bool:
    from .triton_loss import COLUMNS_PER_BLOCK, replace_logits_by_gradient_in_triton

    # A whole block of the kernel, and a part of one.
    vocabulary = COLUMNS_PER_BLOCK + 8
    logits = torch.linspace(-1, 1, vocabulary, device=device).expand(2, -1).to(dtype).contiguous()
    labels = torch.tensor([3, -100], device=device)
    expected = logits.clone()
    replace_logits_by_gradient(expected, labels, 1.0)
    replace_logits_by_gradient_in_triton(logits, labels, 1.0)
    return torch.allclose(logits, expected, rtol=0.02, atol=1e-6)
