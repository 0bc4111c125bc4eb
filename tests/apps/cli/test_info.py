"""`info`: what it prints about this machine, and reasons on machines that lack something."""

import json
from importlib.metadata import version

import pytest
import torch
import transformers

from hf_vanilla_transformer import __version__
from hf_vanilla_transformer.apps.cli import info, machine_report


def test_info_prints_text(capsys):
    description = info.main([])
    printed = capsys.readouterr().out
    for line in (
        f"hf_vanilla_transformer {__version__}",
        f"torch {version('torch')}",
        f"transformers {transformers.__version__}",
    ):
        assert f"{line}\n" in printed
    assert f"{torch.get_num_threads()} threads of torch" in printed
    assert f"; torch uses {torch.backends.cpu.get_cpu_capability()}\n" in printed
    assert "CPU capabilities: AVX2 " in printed
    assert f"\nOpenMP: GOMP_SPINCOUNT={description['openmp']['GOMP_SPINCOUNT'] or 'default'}, because " in printed
    assert "\nGPU: " in printed
    assert printed.partition("fast paths:\n")[2].count("\n  ") == len(machine_report.fast_paths()) - 1


def test_info_prints_json(capsys):
    description = info.main(["--json"])
    assert json.loads(capsys.readouterr().out) == description
    assert description["machine"]["threads"] == torch.get_num_threads()
    assert all(state["on"] == (state["reason"] == "") for state in description["fast_paths"].values())


@pytest.mark.parametrize(
    ("environment", "value", "reason"),
    [
        (
            {},
            "3000",
            "hf-vanilla-transformer sets it for verbs that compute (python -m hf_vanilla_transformer does not)",
        ),
        ({"GOMP_SPINCOUNT": "7"}, "7", "the user set GOMP_SPINCOUNT"),
        ({"OMP_WAIT_POLICY": "passive"}, None, "the user set OMP_WAIT_POLICY"),
        ({"OMP_NUM_THREADS": "1"}, None, "there is one thread"),
    ],
)
def test_describe_openmp_by_environment(monkeypatch, two_threads, environment, value, reason):
    for variable, text in environment.items():
        monkeypatch.setenv(variable, text)
    assert info.describe_openmp() == {"GOMP_SPINCOUNT": value, "reason": reason}


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_fast_paths_need_instructions_of_the_cpu(monkeypatch, has_bfloat16):
    monkeypatch.setattr(
        machine_report, "cpu_supports_matmul_in", lambda dtype: has_bfloat16 and dtype == torch.bfloat16
    )
    monkeypatch.setattr(machine_report, "cpu_is_faster_in_bfloat16", lambda: has_bfloat16)
    monkeypatch.setattr(machine_report, "has_avx512", lambda: has_bfloat16)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    paths = machine_report.fast_paths()
    assert (paths["bfloat16 matmuls on the CPU"] == "") == has_bfloat16
    assert "no instructions for float16" in paths["float16 matmuls on the CPU"]
    assert ("AVX-512" in paths["large float32 matmuls by oneDNN"]) == (not has_bfloat16)
    assert paths["CPU decoder for one token at a time"] == ""


def test_fast_paths_name_a_cpu_that_is_slower_in_bfloat16(monkeypatch):
    monkeypatch.setattr(machine_report, "cpu_supports_matmul_in", lambda dtype: True)
    monkeypatch.setattr(machine_report, "cpu_is_faster_in_bfloat16", lambda: False)
    paths = machine_report.fast_paths()
    assert paths["bfloat16 matmuls on the CPU"] == "float32 is faster on this CPU"
    assert paths["float16 matmuls on the CPU"] == ""


def test_fast_paths_are_off_with_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert "--device cpu" in machine_report.fast_paths()["CPU decoder for one token at a time"]
