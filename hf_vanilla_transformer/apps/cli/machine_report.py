"""Describe what this machine can compute, and which fast paths (optimized implementations) are on."""

import platform
from collections.abc import Callable
from typing import Any

import torch

from ...acceleration.fast_path_checks import cpu_is_faster_in_bfloat16, cpu_supports_matmul_in, has_avx512
from ...support.machine_and_versions import describe_environment, version_of


OPTIONAL_PACKAGES = (
    "num2words",
    "matplotlib",
    "peft",
    "onnxruntime",
    "torchao",
    "ctranslate2",
    "sentencepiece",
    "sacremoses",
)
# CPU features, each with the name of the function of `torch.cpu` that reports it. Some versions of PyTorch lack some of
# these functions.
_CPU_FEATURES = {
    "AVX2": "_is_avx2_supported",
    "AVX-512": "_is_avx512_supported",
    "bf16": "_is_avx512_bf16_supported",
    "VNNI": "_is_vnni_supported",
    "AMX": "_is_amx_tile_supported",
}


def describe_machine() -> dict[str, Any]:
    """Describe library versions, the machine, the CPU's instruction sets, and the fast paths.

    For each fast path, the description states whether it is on, and the reason if it is off.
    """
    description: dict[str, Any] = dict(describe_environment())
    description["optional_packages"] = {package: version_of(package) for package in OPTIONAL_PACKAGES}
    description["cpu_capabilities"] = _cpu_capabilities()
    path_states = {}
    for path, reason_against in fast_paths().items():
        # The reason is empty if the path is on.
        path_states[path] = {"on": reason_against == "", "reason": reason_against}
    description["fast_paths"] = path_states
    return description


def _cpu_capabilities() -> dict[str, bool]:
    """Return which features, such as `"AVX2"`, the CPU has, as a dict from feature names to booleans.

    PyTorch reports the features. A feature counts as missing if this version of PyTorch cannot report it.
    """
    capabilities = {}
    for feature, function_name in _CPU_FEATURES.items():
        is_supported = False
        report: Callable[[], bool] | None = getattr(torch.cpu, function_name, None)
        if report is not None:
            is_supported = bool(report())
        capabilities[feature] = is_supported
    return capabilities


def fast_paths() -> dict[str, str]:
    """Return the reason why each fast path is off on this machine, as a dict from the path's name to the reason.

    A fast path is an optimized implementation. An empty reason means that the path is on.
    """
    # Each of these is empty if a requirement is met, and otherwise says why not.
    accelerator_reason = _reason_against_cpu()
    onednn_reason = _reason_against_onednn()
    avx512_reason = _reason_against_avx512()
    allocator_reason = _reason_against_allocator()
    return {
        "CPU decoder for one token at a time": accelerator_reason,
        "prepacked weights for inference": _first_reason(accelerator_reason, onednn_reason),
        "large float32 matmuls by oneDNN": _first_reason(accelerator_reason, onednn_reason, avx512_reason),
        "bfloat16 matmuls on the CPU": _reason_against_matmul("bfloat16", torch.bfloat16),
        "float16 matmuls on the CPU": _reason_against_matmul("float16", torch.float16),
        "int8 matmuls with 8-bit activations": _reason_against_8_bit_activations(),
        "freed memory stays in the process": _first_reason(accelerator_reason, allocator_reason),
    }


def _first_reason(*reasons: str) -> str:
    """Return the first reason that is not empty; an empty string if all requirements are met."""
    for reason in reasons:
        if reason:
            return reason
    return ""


def _reason_against_cpu() -> str:
    """Return the reason why models do not run on the CPU by default, or an empty string if they do."""
    if torch.accelerator.is_available():
        return "models run on the accelerator by default; --device cpu selects it"
    return ""


def _reason_against_onednn() -> str:
    """Return the reason why torch does not use oneDNN, or an empty string if it does."""
    has_onednn = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if has_onednn:
        return ""
    return "torch was built without oneDNN, or oneDNN is disabled"


def _reason_against_avx512() -> str:
    """Return the reason why a path that needs AVX-512 is off, or an empty string if torch uses AVX-512."""
    if has_avx512():
        return ""
    capability = torch.backends.cpu.get_cpu_capability()
    return f"torch uses {capability} here, and the path needs AVX-512"


def _reason_against_8_bit_activations() -> str:
    """Return the reason why int8 matmuls have no 8-bit activations, or an empty string if they do.

    Without VNNI, x86 CPUs still compute int8 matmuls, but only with 7-bit activations.
    """
    if torch.cpu._is_vnni_supported():
        return ""
    return "the CPU has no VNNI, so activations are rounded to 7 bits instead of 8"


def _reason_against_allocator() -> str:
    """Return the reason why freed memory cannot be kept, or an empty string if it can."""
    libc, _version = platform.libc_ver()
    if libc == "glibc":
        return ""
    return "it needs glibc"


def _reason_against_matmul(name: str, dtype: torch.dtype) -> str:
    """Return the reason why matmuls in a dtype are slow on this CPU, or an empty string if they are fast."""
    if not cpu_supports_matmul_in(dtype):
        return f"the CPU has no instructions for {name}; float32 is faster"
    if dtype == torch.bfloat16 and not cpu_is_faster_in_bfloat16():
        return "float32 is faster on this CPU"
    return ""
