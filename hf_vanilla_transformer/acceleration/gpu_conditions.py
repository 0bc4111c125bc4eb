"""Check whether a Triton GPU kernel can run on given tensors.

`loss_of_states` calls these checks before it uses the kernel in `triton_loss`.
tests/acceleration/test_gpu_conditions.py tests them without a GPU.
"""

import logging
from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from .fast_path_checks import is_plain_tensor
from .fused_loss import replace_logits_by_gradient


logger = logging.getLogger(__name__)


def are_on_one_nvidia_gpu(tensors: Iterable[Tensor]) -> bool:
    """Return True if all tensors are plain tensors, as defined by [`is_plain_tensor`], on a single NVIDIA GPU."""
    if torch.version.cuda is None:
        # torch calls AMD's GPUs "cuda" as well, and the kernels were never tested there.
        return False
    devices = set()
    for tensor in tensors:
        if tensor.device.type != "cuda" or not is_plain_tensor(tensor):
            return False
        devices.add(tensor.device)
    return len(devices) == 1


@cache
def triton_works(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if the Triton loss kernel gives correct results on this GPU for logits in the given dtype.

    The kernel may fail, for example, if there is no C compiler, if Triton is not installed (as on Windows), or if the
    GPU does not support bfloat16. The first call for each device and dtype runs the kernel on two rows, and logs a
    warning if it does not work.
    """
    failure = None
    try:
        if not _loss_kernel_is_correct(device, dtype):
            failure = "its results are wrong"
    except Exception as error:
        # Triton, its compiler and the GPU's driver raise errors of many classes.
        failure = f"{type(error).__name__}: {error}"
    if failure is None:
        return True
    dtype_name = str(dtype).removeprefix("torch.")
    logger.warning("Triton does not work here in %s, so training takes longer (%s).", dtype_name, failure)
    return False


def _loss_kernel_is_correct(device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if the kernel agrees with the plain formula on two rows, one of which has no label."""
    # Triton is imported only here and where the kernel is used, because it may be missing.
    from .triton_loss import COLUMNS_PER_BLOCK, replace_logits_by_gradient_in_triton

    # The kernel computes one whole block of columns and a part of a second one.
    vocabulary = COLUMNS_PER_BLOCK + 8
    logits = torch.linspace(-1, 1, vocabulary, device=device).expand(2, -1).to(dtype).contiguous()
    labels = torch.tensor([3, -100], device=device)
    # Both functions overwrite their logits with the gradient, so the formula gets a copy.
    expected = logits.clone()
    replace_logits_by_gradient(expected, labels, label_probability=1.0)
    replace_logits_by_gradient_in_triton(logits, labels, label_probability=1.0)
    # 2 % is more than the rounding error of bfloat16. The absolute tolerance is for probabilities near 0.
    return torch.allclose(logits, expected, rtol=0.02, atol=1e-6)
