"""Choose the fastest implementation of the label-smoothed loss (section 5.4) for the device.

`smoothed_cross_entropy_without_logits` replaces the operation `smoothed_cross_entropy_of_states`, whose plain formula
holds all logits in memory. NVIDIA GPUs on which Triton works use `fused_loss` with the kernel of `triton_loss`; every
other device uses `chunked_loss`. On an H200 with 25,000 tokens, d_model 512 and a vocabulary of 37,000, the forward and
backward passes take 7.5 ms with Triton and 17.7 ms in chunks (`python -m benchmarks.gpu_candidates --parts loss`).

tests/acceleration/test_gpu_loss.py tests the choice and compares it with the plain operation.
"""

from functools import cache

import torch
from torch import Tensor, nn

from ..model.operations import plain, smoothed_cross_entropy_of_states
from .chunked_loss import chunked_smoothed_cross_entropy
from .fast_path_checks import is_plain_linear
from .fused_loss import ReplaceLogits, fused_smoothed_cross_entropy
from .gpu_conditions import are_on_one_nvidia_gpu, triton_works
from .linear_and_dropout import dtype_for_matmul


# The largest chunk of logits: 14,500 rows in 16 bits with the paper's vocabulary of 37,000. `python -m
# benchmarks.gpu_candidates --parts loss` showed on an H200 that larger chunks are not faster.
_MOST_CHUNK_BYTES = 2**30
# A chunk takes at most 1 / _CHUNK_PART_OF_MEMORY of a GPU's memory, for example 256 MiB of 16 GiB, so that small GPUs
# have room for everything else in training.
_CHUNK_PART_OF_MEMORY = 64
# The dtypes of logits that the Triton kernel can read and write.
_TRITON_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def smoothed_cross_entropy_without_logits(
    states: Tensor, lm_head: nn.Module, labels: Tensor, label_smoothing: float
) -> tuple[Tensor, Tensor]:
    """Compute the label-smoothed loss from the decoder's output, without holding all logits in memory.

    This function replaces the operation `smoothed_cross_entropy_of_states`. It passes the matrix of the output
    projection to `smoothed_cross_entropy_of_matrix`, which computes the loss. If a different module, such as a PEFT
    adapter, has replaced the output projection, the plain operation is used, which calls that module.

    Args:
        states (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's output.
        lm_head (`nn.Module`): the output projection.
        labels (`torch.LongTensor` of shape `(batch, target)`): -100 where there is no target.
        label_smoothing (`float`): epsilon_ls.

    Returns:
        The loss, summed over all target tokens, in nats, which can be differentiated once; and the sums of
        [`~.operations.token_sums`], added up over the batch, `(3,)`.
    """
    if not is_plain_linear(lm_head):
        # Calling the operation itself would call this function again. `plain` returns the formula that it replaces.
        return plain(smoothed_cross_entropy_of_states)(states, lm_head, labels, label_smoothing)
    weight: Tensor = lm_head.weight  # type: ignore[assignment]
    bias: Tensor | None = lm_head.bias  # type: ignore[assignment]
    return smoothed_cross_entropy_of_matrix(states, weight, labels, label_smoothing, bias)


def smoothed_cross_entropy_of_matrix(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    label_smoothing: float,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the label-smoothed loss with Triton if it works on the GPU, and otherwise in chunks.

    Args:
        states (`torch.Tensor` of shape `(batch, target, d_model)`): the decoder's output.
        weight (`torch.Tensor` of shape `(vocabulary, d_model)`): the matrix of the output projection.
        labels (`torch.LongTensor` of shape `(batch, target)`): -100 where there is no target.
        label_smoothing (`float`): epsilon_ls.
        bias (`torch.Tensor` of shape `(vocabulary,)`, *optional*): the bias of the output projection.

    Returns:
        The loss, summed over all target tokens, in nats, which can be differentiated once; and the sums of
        [`~.operations.token_sums`], added up over the batch, `(3,)`.
    """
    if _can_use_triton(states, weight, bias) and triton_works(states.device, dtype_for_matmul(states)):
        gpu_memory = torch.cuda.get_device_properties(states.device).total_memory
        return fused_smoothed_cross_entropy(
            states,
            weight,
            labels,
            label_smoothing,
            bias,
            replace_logits=_import_triton_replacement(),
            chunk_bytes=choose_chunk_bytes(gpu_memory),
        )
    return chunked_smoothed_cross_entropy(states, weight, labels, label_smoothing, bias)


def choose_chunk_bytes(gpu_memory: int) -> int:
    """Return how many bytes a chunk of logits may take on a GPU with `gpu_memory` bytes of memory."""
    return min(_MOST_CHUNK_BYTES, gpu_memory // _CHUNK_PART_OF_MEMORY)


def _can_use_triton(states: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return True if these are ordinary tensors on one NVIDIA GPU, in one dtype that the kernel supports."""
    tensors = [states, weight]
    if bias is not None:
        tensors.append(bias)
    if not are_on_one_nvidia_gpu(tensors):
        return False
    # Under autocast, this is autocast's dtype for most tensors.
    dtype = dtype_for_matmul(states)
    for tensor in tensors:
        if dtype_for_matmul(tensor) != dtype:
            return False
    return dtype in _TRITON_DTYPES


@cache
def _import_triton_replacement() -> ReplaceLogits:
    """Import the Triton kernel when it is first used, because Triton may be missing."""
    from .triton_loss import replace_logits_by_gradient_in_triton

    return replace_logits_by_gradient_in_triton
