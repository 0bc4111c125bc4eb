"""Tensors that stand for those on a GPU."""

import torch


class GpuTensor(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    device = torch.device("cuda")


def on_gpu(*shape: int, dtype: torch.dtype = torch.float32) -> GpuTensor:
    return torch.zeros(shape, dtype=dtype).as_subclass(GpuTensor)
