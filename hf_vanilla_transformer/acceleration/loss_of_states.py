"""The loss of section 5.4 from the decoder's output: by a Triton kernel on GPUs where Triton works, and else in chunks.

On an H200 with 25,000 tokens, d_model 512 and a vocabulary of 37,000, it takes 7.5 ms forward and backward, and the
loss in chunks 17.7 ms: `python -m benchmarks.gpu_candidates --parts loss`.
"""

from functools import cache

import torch
from torch import nn

from ..model.operations import plain, smoothed_cross_entropy_of_states
from .chunked_loss import chunked_smoothed_cross_entropy
from .fast_path_checks import is_plain_linear
from .fused_loss import ReplaceLogits, fused_smoothed_cross_entropy
from .gpu_conditions import are_on_one_nvidia_gpu, triton_works
from .linear_and_dropout import dtype_for_matmul


# Of the logits of a chunk: 14,500 rows in 16 bits with the paper's vocabulary of 37,000. Larger ones are not faster.
_MOST_CHUNK_BYTES = 2**30
# A chunk takes at most this part of a GPU's memory: 256 MiB of 16 GiB.
_CHUNK_PART_OF_MEMORY = 64
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def smoothed_cross_entropy_without_logits(
    states: torch.Tensor, lm_head: nn.Module, labels: torch.Tensor, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute [`~.operations.smoothed_cross_entropy_of_states`] from the matrix of the output projection.

    Other modules in the place of the output projection are called, by the plain operation.

    Args and results are those of the plain operation. The sum can be differentiated once.
    """
    if not is_plain_linear(lm_head):
        return plain(smoothed_cross_entropy_of_states)(states, lm_head, labels, label_smoothing)
    weight: torch.Tensor = lm_head.weight  # type: ignore[assignment]
    bias: torch.Tensor | None = lm_head.bias  # type: ignore[assignment]
    return smoothed_cross_entropy_of_matrix(states, weight, labels, label_smoothing, bias)


def smoothed_cross_entropy_of_matrix(
    states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    label_smoothing: float,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute [`chunked_smoothed_cross_entropy`], by Triton on GPUs of NVIDIA.

    Args and results are those of [`chunked_smoothed_cross_entropy`].
    """
    if _can_use_triton(states, weight, bias) and triton_works(states.device, dtype_for_matmul(states)):
        return fused_smoothed_cross_entropy(
            states,
            weight,
            labels,
            label_smoothing,
            bias,
            replace_logits=_import_triton_replacement(),
            chunk_bytes=choose_chunk_bytes(torch.cuda.get_device_properties(states.device).total_memory),
        )
    return chunked_smoothed_cross_entropy(states, weight, labels, label_smoothing, bias)


def choose_chunk_bytes(memory: int) -> int:
    """Return the size of the logits of a chunk on a GPU with so many bytes of memory."""
    return min(_MOST_CHUNK_BYTES, memory // _CHUNK_PART_OF_MEMORY)


def _can_use_triton(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Return whether these are ordinary tensors on a GPU of NVIDIA, in dtypes that the kernel computes with."""
    tensors = [states, weight]
    if bias is not None:
        tensors.append(bias)
    if not are_on_one_nvidia_gpu(tensors):
        return False
    dtypes = {dtype_for_matmul(tensor) for tensor in tensors}
    return len(dtypes) == 1 and dtypes <= set(_DTYPES)


@cache
def _import_triton_replacement() -> ReplaceLogits:
    from .triton_loss import replace_logits_by_gradient_in_triton

    return replace_logits_by_gradient_in_triton
