"""Training arguments describe their precision."""

import pytest

from hf_vanilla_transformer import PaperTrainingArguments
from hf_vanilla_transformer.training.paper_arguments import describe_precision


BF16 = "bfloat16 autocast"
NO_FP16 = "float32, because accelerate does not use float16 on CPUs"


@pytest.mark.parametrize(
    ("wanted", "expected"), [({}, "float32"), ({"bf16": True}, BF16), ({"fp16": True}, NO_FP16)], ids=str
)
def test_precision_on_cpus(tmp_path, wanted, expected):
    assert describe_precision(PaperTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **wanted)) == expected


def test_precision_that_accelerate_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert describe_precision(PaperTrainingArguments(output_dir=str(tmp_path), use_cpu=True)) == BF16
