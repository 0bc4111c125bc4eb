"""acceleration/gpu_conditions.py: where Triton's kernels run, and what a user learns where they do not work."""

import logging
import sys
from types import SimpleNamespace

import pytest
import torch

from hf_vanilla_transformer.acceleration import gpu_conditions
from hf_vanilla_transformer.acceleration.fused_loss import replace_logits_by_gradient
from hf_vanilla_transformer.acceleration.gpu_conditions import are_on_one_nvidia_gpu
from tests.acceleration.gpu_tensors import GpuTensor, on_gpu


def test_ordinary_tensors_on_one_gpu(as_with_cuda, monkeypatch):
    class OtherGpu(GpuTensor):
        device = torch.device("cuda:1")

    assert are_on_one_nvidia_gpu([on_gpu(2), on_gpu(3)])
    assert not are_on_one_nvidia_gpu([on_gpu(2), torch.zeros(2)])
    assert not are_on_one_nvidia_gpu([on_gpu(2), torch.zeros(2).as_subclass(OtherGpu)])
    monkeypatch.setattr(gpu_conditions, "is_plain_tensor", lambda tensor: True)
    assert not are_on_one_nvidia_gpu([on_gpu(2), torch.zeros(2).as_subclass(OtherGpu)])


def test_a_gpu_of_another_maker(as_with_cuda, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not are_on_one_nvidia_gpu([on_gpu(2)])


def give_kernel(monkeypatch, kernel):
    """Put a function in the place of the module that needs Triton."""
    module = SimpleNamespace(replace_logits_by_gradient_in_triton=kernel)
    monkeypatch.setitem(sys.modules, "hf_vanilla_transformer.acceleration.triton_loss", module)


@pytest.fixture
def without_gpu(monkeypatch):
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *args, device=None, **kwargs: zeros(*args, **kwargs))
    gpu_conditions.triton_works.cache_clear()
    yield
    gpu_conditions.triton_works.cache_clear()


@pytest.mark.usefixtures("without_gpu")
def test_triton_is_tried_once(monkeypatch):
    calls = []

    def replace_logits(logits, labels, label_probability):
        calls.append(logits.shape)
        return replace_logits_by_gradient(logits, labels, label_probability)

    give_kernel(monkeypatch, replace_logits)
    assert gpu_conditions.triton_works()
    assert gpu_conditions.triton_works()
    assert len(calls) == 1


def no_compiler(logits, labels, label_probability):
    raise RuntimeError("Failed to find C compiler.")


def wrong_kernel(logits, labels, label_probability):
    """Leave the logits as they are."""


@pytest.mark.usefixtures("without_gpu")
@pytest.mark.parametrize(
    ("kernel", "reason"),
    [(no_compiler, "RuntimeError: Failed to find C compiler."), (wrong_kernel, "it computes")],
)
def test_where_triton_does_not_work_a_warning_says_why(monkeypatch, caplog, kernel, reason):
    give_kernel(monkeypatch, kernel)
    with caplog.at_level(logging.WARNING):
        assert not gpu_conditions.triton_works()
        assert not gpu_conditions.triton_works()
    (record,) = caplog.records
    assert "training takes longer" in record.getMessage()
    assert reason in record.getMessage()
