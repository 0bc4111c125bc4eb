"""The Triton kernels compile for an H100, without spilled registers; that needs Triton, and no GPU."""

import os
import re
import subprocess
from pathlib import Path

import pytest


triton = pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("Triton interprets its kernels, which it then does not compile.", allow_module_level=True)

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from benchmarks.candidates import triton_add_and_norm  # noqa: E402
from hf_vanilla_transformer.acceleration import triton_loss  # noqa: E402


H100 = GPUTarget("cuda", 90, 32)
FLOAT, BFLOAT, LONG, INT = "*fp32", "*bf16", "*i64", "*i32"


def compile_kernel(kernel, warps, constants, **types):
    """Compile for tensors that begin at multiples of 16 bytes; returns the PTX code and what the GPU code uses."""
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    aligned = [name for name, type_name in types.items() if type_name.startswith("*") or name == "width"]
    places = [list(kernel.arg_names).index(name) for name in aligned]
    source = ASTSource(
        fn=kernel,
        signature={name: signature[name] for name in kernel.arg_names},
        constexprs=constants,
        attrs={(place,): [["tt.divisibility", 16]] for place in places},
    )
    return triton.compile(source, target=H100, options={"num_warps": warps})


def usage(compiled, folder):
    path = folder / "kernel.cubin"
    path.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    shown = subprocess.run([tool, "-res-usage", path], capture_output=True, text=True, check=True)
    return {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", shown.stdout + shown.stderr)}


def assert_nothing_is_spilled(compiled, folder):
    used = usage(compiled, folder)
    assert 0 < used["REG"] < 255
    assert used["STACK"] == used["LOCAL"] == 0


@pytest.mark.parametrize("logits", [BFLOAT, FLOAT])
def test_loss(logits, tmp_path):
    compiled = compile_kernel(
        triton_loss._replace_row,
        triton_loss._WARPS,
        {"STRIDE_MULTIPLE": 8, "COLUMNS": triton_loss.COLUMNS_PER_BLOCK},
        logits=logits,
        labels=LONG,
        log_sums=FLOAT,
        label_logits=FLOAT,
        are_highest=FLOAT,
        row_stride="i32",
        vocabulary="i32",
        label_probability="fp32",
    )
    assert_nothing_is_spilled(compiled, tmp_path)
    # 16 bytes at once.
    assert "ld.global.v4.b32" in compiled.asm["ptx"]
    assert "st.global.v4.b32" in compiled.asm["ptx"]


@pytest.mark.parametrize("d_model", [512, 1024])
def test_add_and_norm(d_model, tmp_path):
    common = {"x": FLOAT, "sublayer_x": BFLOAT, "weight": FLOAT, "means": FLOAT, "inverse_deviations": FLOAT}
    forward = compile_kernel(
        triton_add_and_norm._forward,
        triton_add_and_norm._WARPS,
        {"RATE": 0.1, "WRITES_NARROW": True, "COLUMNS": d_model},
        **common,
        bias=FLOAT,
        normalized=FLOAT,
        narrow=BFLOAT,
        seed="i32",
        width="i32",
        eps="fp32",
    )
    backward = compile_kernel(
        triton_add_and_norm._backward,
        triton_add_and_norm._WARPS,
        {"RATE": 0.1, "HAS_NORMALIZED": True, "HAS_NARROW": True, "COLUMNS": d_model},
        **common,
        grad_normalized=FLOAT,
        grad_narrow=BFLOAT,
        grad_x=FLOAT,
        grad_sublayer_x=BFLOAT,
        grad_weights=FLOAT,
        grad_biases=FLOAT,
        seed="i32",
        rows="i32",
        width="i32",
    )
    for compiled in (forward, backward):
        assert_nothing_is_spilled(compiled, tmp_path)
        assert "ld.global.v4.b32" in compiled.asm["ptx"]
