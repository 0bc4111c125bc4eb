"""What this machine can compute, and which fast paths are on."""

import platform
from typing import Any

import torch

from ...acceleration.fast_path_checks import cpu_supports_matmul_in, has_avx512
from ...support.machine_and_versions import describe_environment, version_of


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


def describe_machine() -> dict[str, Any]:
    """Versions, the machine, the CPU's instructions, and the fast paths with the reason why one is off."""
    return {
        **describe_environment(),
        "optional_packages": {package: version_of(package) for package in OPTIONAL_PACKAGES},
        # Those that torch knows.
        "cpu_capabilities": {name: bool(getattr(torch.cpu, has, bool)()) for name, has in _CAPABILITIES.items()},
        "fast_paths": {path: {"on": not reason, "reason": reason} for path, reason in fast_paths().items()},
    }


def fast_paths() -> dict[str, str]:
    """Why each fast path is off on this machine; an empty reason if it is on."""
    has_onednn = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
    no_onednn = "" if has_onednn else "torch was built without oneDNN, or oneDNN is disabled"
    has_accelerator = torch.accelerator.is_available()
    on_gpu = "models run on the accelerator by default; --device cpu selects it" if has_accelerator else ""
    no_avx512 = f"torch uses {torch.backends.cpu.get_cpu_capability()} here, and the path needs AVX-512"
    no_vnni = "the CPU has no VNNI, so activations are rounded to 7 bits instead of 8"
    return {
        "CPU decoder for one token at a time": on_gpu,
        "prepacked weights for inference": on_gpu or no_onednn,
        "large float32 matmuls by oneDNN": on_gpu or no_onednn or ("" if has_avx512() else no_avx512),
        **{
            f"{name} matmuls on the CPU": ""
            if cpu_supports_matmul_in(dtype)
            else f"the CPU has no instructions for {name}; float32 is faster"
            for name, dtype in (("bfloat16", torch.bfloat16), ("float16", torch.float16))
        },
        "int8 matmuls with 8-bit activations": "" if torch.cpu._is_vnni_supported() else no_vnni,
        "freed memory stays in the process": on_gpu or ("" if platform.libc_ver()[0] == "glibc" else "it needs glibc"),
    }
