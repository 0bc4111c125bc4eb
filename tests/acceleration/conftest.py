"""What tests of GPU kernels share."""

import pytest
import torch

from hf_vanilla_transformer.acceleration import gpu_conditions
from tests.acceleration.gpu_tensors import GpuTensor


@pytest.fixture
def as_with_cuda(monkeypatch):
    """`GpuTensor` stands for a plain tensor on a GPU of NVIDIA."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gpu_conditions, "is_plain_tensor", lambda tensor: type(tensor) is GpuTensor)
