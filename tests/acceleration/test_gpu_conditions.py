"""acceleration/gpu_conditions.py: where Triton's kernels run, and what a user learns where they do not work."""

import logging
import sys
from types import SimpleNamespace

import pytest
import torch

from benchmarks.support.triton_support import missing_for_triton
from hf_vanilla_transformer.acceleration import gpu_conditions
from hf_vanilla_transformer.acceleration.fused_loss import replace_logits_by_gradient
from hf_vanilla_transformer.acceleration.gpu_conditions import are_on_one_nvidia_gpu, triton_works
from tests.acceleration.gpu_tensors import GpuTensor, on_gpu


CPU = torch.device("cpu")


def test_ordinary_tensors_on_one_gpu(as_with_cuda, monkeypatch):
    class OtherGpu(GpuTensor):
        device = torch.device("cuda:1")

    assert are_on_one_nvidia_gpu([on_gpu(2), on_gpu(3)])
    assert not are_on_one_nvidia_gpu([on_gpu(2), torch.zeros(2)])
    assert not are_on_one_nvidia_gpu([on_gpu(2), torch.zeros(2).as_subclass(OtherGpu)])
    monkeypatch.setattr(gpu_conditions, "is_plain_tensor", lambda tensor: True)
    assert not are_on_one_nvidia_gpu([on_gpu(2), torch.zeros(2).as_subclass(OtherGpu)])


def test_gpu_of_another_vendor(as_with_cuda, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not are_on_one_nvidia_gpu([on_gpu(2)])


def install_kernel(monkeypatch, kernel):
    """Put a function in the place of the module that needs Triton."""
    module = SimpleNamespace(replace_logits_by_gradient_in_triton=kernel, COLUMNS_PER_BLOCK=16)
    monkeypatch.setitem(sys.modules, "hf_vanilla_transformer.acceleration.triton_loss", module)


@pytest.fixture(autouse=True)
def forget_earlier_checks():
    triton_works.cache_clear()
    yield
    triton_works.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_triton_works_runs_the_kernel_once_per_dtype(monkeypatch, dtype):
    dtypes = []

    def kernel(logits, labels, label_probability):
        dtypes.append(logits.dtype)
        return replace_logits_by_gradient(logits, labels, label_probability)

    install_kernel(monkeypatch, kernel)
    assert triton_works(CPU, dtype)
    assert triton_works(CPU, dtype)
    assert dtypes == [dtype]


def no_compiler(logits, labels, label_probability):
    raise RuntimeError("Failed to find C compiler.")


def wrong_kernel(logits, labels, label_probability):
    """Leave the logits as they are."""


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [(no_compiler, "RuntimeError: Failed to find C compiler."), (wrong_kernel, "its results are wrong")],
)
def test_triton_works_warns_with_the_reason(monkeypatch, caplog, kernel, reason):
    install_kernel(monkeypatch, kernel)
    with caplog.at_level(logging.WARNING):
        assert not triton_works(CPU, torch.bfloat16)
        assert not triton_works(CPU, torch.bfloat16)
    (record,) = caplog.records
    assert "Triton does not work here in bfloat16, so training takes longer" in record.getMessage()
    assert reason in record.getMessage()


def test_triton_works_with_the_kernel():
    if missing_for_triton(CPU) is not None:
        pytest.skip(missing_for_triton(CPU))
    assert triton_works(CPU, torch.float32)
