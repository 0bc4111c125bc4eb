"""Training arguments describe their precision."""

import pytest
import torch

from hf_vanilla_transformer import PaperTrainingArguments
from hf_vanilla_transformer.training import arguments
from hf_vanilla_transformer.training.arguments import describe_precision


BF16 = "bfloat16 autocast"
NO_BF16 = "float32, because the CPU has no matmuls in bfloat16"
NO_FP16 = "float32, because accelerate does not use float16 on CPUs"


@pytest.mark.parametrize(
    ("wanted", "with_matmuls", "without"),
    [
        ({}, "float32", "float32"),
        ({"bf16": True}, BF16, NO_BF16),
        ({"bf16": True, "torch_compile": True}, BF16, BF16),
        ({"fp16": True}, NO_FP16, NO_FP16),
    ],
    ids=str,
)
def test_precision_on_cpus(tmp_path, monkeypatch, wanted, with_matmuls, without):
    args = PaperTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **wanted)
    monkeypatch.setattr(arguments, "cpu_supports_matmul_in", lambda dtype: True)
    assert describe_precision(args) == with_matmuls
    monkeypatch.setattr(arguments, "cpu_supports_matmul_in", lambda dtype: dtype != torch.bfloat16)
    assert describe_precision(args) == without


def test_precision_that_accelerate_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.setattr(arguments, "cpu_supports_matmul_in", lambda dtype: True)
    assert describe_precision(PaperTrainingArguments(output_dir=str(tmp_path), use_cpu=True)) == BF16
