"""What this machine can compute, which fast paths are on, and which engine is faster."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from ..model.fast_path_checks import cpu_supports_matmul_in, has_avx512
from ..support.machine_and_versions import describe_environment


OPTIONAL_PACKAGES = (
    *("num2words", "matplotlib", "peft", "onnxruntime", "torchao"),
    *("ctranslate2", "sentencepiece", "sacremoses"),
)
# Names that users know, and torch's questions.
_CAPABILITIES = {
    "AVX2": "_is_avx2_supported",
    "AVX-512": "_is_avx512_supported",
    "bf16": "_is_avx512_bf16_supported",
    "VNNI": "_is_vnni_supported",
    "AMX": "_is_amx_tile_supported",
}
# By torch's name of the instructions; docs/benchmarks.md has the figures.
_ENGINES = {
    "AVX2": {"float32": "ctranslate2", "int8": "torch"},
    "AVX512": {
        "float32": "ctranslate2 for small batches, torch for large ones",
        "int8": "torch for small batches, ctranslate2 for large ones",
    },
}


def describe_machine() -> dict[str, Any]:
    """Versions, the machine, the CPU's instructions, the fast paths with the reason why one is off, and the engines.

    Returns:
        `dict`: of `describe_environment`, and `optional_packages`, `cpu_capabilities`, `fast_paths`, `faster_engine`.
    """
    return {
        **describe_environment(),
        "optional_packages": {package: version_of(package) for package in OPTIONAL_PACKAGES},
        "cpu_capabilities": cpu_capabilities(),
        "fast_paths": {path: {"on": not reason, "reason": reason} for path, reason in fast_paths().items()},
        "faster_engine": faster_engine(),
    }


def version_of(package: str) -> str | None:
    """The version of an installed package; None without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_capabilities() -> dict[str, bool]:
    """The instructions that the CPU has and torch knows."""
    questions = {name: getattr(torch.cpu, question, None) for name, question in _CAPABILITIES.items()}
    return {name: question is not None and bool(question()) for name, question in questions.items()}


def fast_paths() -> dict[str, str]:
    """Why each fast path is off on this machine; an empty reason if it is on."""
    has_onednn = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
    no_onednn = "" if has_onednn else "torch was built without oneDNN, or oneDNN is disabled"
    on_gpu = "models run on the accelerator by default; --device cpu selects it" if _has_accelerator() else ""
    no_avx512 = f"torch uses {torch.backends.cpu.get_cpu_capability()} here, and the path needs AVX-512"
    no_vnni = "the CPU has no VNNI, so activations are rounded to 7 bits instead of 8"
    return {
        "CPU decoder for one token at a time": on_gpu,
        "prepacked weights for inference": on_gpu or no_onednn,
        "large float32 matmuls by oneDNN": on_gpu or no_onednn or ("" if has_avx512() else no_avx512),
        "bfloat16 matmuls on the CPU": _missing_matmul(torch.bfloat16),
        "float16 matmuls on the CPU": _missing_matmul(torch.float16),
        "int8 matmuls with 8-bit activations": "" if cpu_capabilities()["VNNI"] else no_vnni,
        "freed memory stays in the process": on_gpu or ("" if platform.libc_ver()[0] == "glibc" else "it needs glibc"),
    }


def faster_engine() -> dict[str, str]:
    """The value of `--engine` that is faster on this kind of machine, by precision, as docs/benchmarks.md measured it.

    It depends on the instructions of the CPU more than on the model, so nothing is timed here.
    """
    if _has_accelerator():
        return dict.fromkeys(_ENGINES["AVX2"], "torch, on the accelerator; ctranslate2 runs on the CPU here")
    instructions = torch.backends.cpu.get_cpu_capability()
    return _ENGINES.get(instructions) or dict.fromkeys(_ENGINES["AVX2"], f"not measured with {instructions}")


def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def _missing_matmul(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return "" if cpu_supports_matmul_in(dtype) else f"the CPU has no instructions for {name}; float32 is faster"
