"""Print versions, what the CPU and the GPU can compute, threads, which fast paths are on, and the faster engine."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from hf_vanilla_transformer_launcher import VALUE, VARIABLE, reason_against

from ..model.fast_path import cpu_supports_matmul_in, has_avx512
from .parsing import parse


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


@dataclass
class InfoArguments:
    """How to print."""

    json: bool = field(default=False, metadata={"help": "Print one JSON object instead of text."})


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Print the description; returns it."""
    (args,) = parse([InfoArguments], __doc__, arguments, verb="info")
    from ..evaluation.environment import describe_environment

    info = {
        **describe_environment(),
        "optional_packages": {package: version_of(package) for package in OPTIONAL_PACKAGES},
        "cpu_capabilities": cpu_capabilities(),
        "fast_paths": {path: {"on": not reason, "reason": reason} for path, reason in fast_paths().items()},
        "faster_engine": faster_engine(),
        "openmp": openmp(),
    }
    print(json.dumps(info, indent=2) if args.json else as_text(info))
    return info


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


def openmp() -> dict[str, str | None]:
    """What makes OpenMP's threads wait in verbs that compute: the variable, None if it is not set, and why."""
    reason = reason_against(["train"])
    value = os.environ.get(VARIABLE) if reason else VALUE
    return {VARIABLE: value, "reason": reason or "the command line sets it for verbs that compute"}


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


def as_text(info: dict[str, Any]) -> str:
    """The description as lines of text."""
    machine = info["machine"]
    versions = {**info["versions"], **{name: found or "-" for name, found in info["optional_packages"].items()}}
    lines = [f"{name} {found}" for name, found in versions.items()]
    lines += ["", f"CPU: {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads of torch"]
    has = [f"{name} {'yes' if found else 'no'}" for name, found in info["cpu_capabilities"].items()]
    lines += [f"CPU capabilities: {', '.join(has)}; torch uses {machine['instructions']}"]
    lines += [f"OpenMP: {VARIABLE}={info['openmp'][VARIABLE] or 'default'}, because {info['openmp']['reason']}"]
    lines += [f"GPU: {machine['accelerator'] or 'none'}", "", "fast paths:"]
    for path, state in info["fast_paths"].items():
        lines.append(f"  {path}: {'on' if state['on'] else 'off, because ' + state['reason']}")
    lines += ["", "faster engine for translation (--engine):"]
    lines += [f"  {precision}: {engine}" for precision, engine in info["faster_engine"].items()]
    return "\n".join(lines)
