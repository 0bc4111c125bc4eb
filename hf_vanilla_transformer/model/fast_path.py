"""May this tensor or module bypass torch's usual way, and what can this CPU compute?"""

from functools import cache
from typing import Any

import torch
from torch import nn


def is_plain_cpu_tensor(x: torch.Tensor) -> bool:
    """Whether x is an ordinary tensor on a CPU, in eager mode, outside of `torch.func`."""
    return (
        x.device.type == "cpu"
        and type(x) in (torch.Tensor, nn.Parameter)
        and not is_traced()
        and not torch._C._are_functorch_transforms_active()
    )


def is_traced() -> bool:
    """Whether operations are written down, to be done later with tensors of other sizes."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_unmodified(module: nn.Module) -> bool:
    """Whether calling a module does what its class says, and no more: no hooks, no other `forward`, not compiled, and
    outside of `torch.func`.
    """
    if is_traced() or torch._C._are_functorch_transforms_active():
        return False
    listening = [hook for hook in module._forward_hooks.values() if not _is_transformers_recorder(hook)]
    hooks = (listening, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return (
        not any(hooks)
        and not torch.nn.modules.module._has_any_global_hook()
        and module._compiled_call_impl is None
        # Methods of one module alone: accelerate sets `forward`, PEFT `prepare_inputs_for_generation`.
        and not any(callable(value) and hasattr(type(module), name) for name, value in module.__dict__.items())
        and all(type(parameter) is nn.Parameter for parameter in module._parameters.values() if parameter is not None)
    )


def _is_transformers_recorder(hook: Any) -> bool:
    # It stays when attentions were asked for once, and is silent when they are not.
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"


def is_plain_linear(module: nn.Module) -> bool:
    """Whether a module's weight can be used in its place: exactly `nn.Linear`, and nobody listens or changes it."""
    return type(module) is nn.Linear and type(module.weight) is nn.Parameter and is_unmodified(module)


@cache
def has_avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


@cache
def onednn_supports_matmul_in(dtype: torch.dtype) -> bool:
    """Whether oneDNN has products of matrices of a dtype for this CPU."""
    questions = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    if dtype not in questions:
        return dtype == torch.float32
    ask = getattr(torch.ops.mkldnn, questions[dtype], None)
    return ask is not None and bool(ask())


@cache
def cpu_supports_matmul_in(dtype: torch.dtype) -> bool:
    """Whether torch has products of matrices of a dtype that are made for this CPU.

    On x86 processors, what oneDNN does not compute in 16 bits is left to plain loops, which take many times as long as
    float32. Others are not known here, and said to have them.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        return True
    return torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512") or onednn_supports_matmul_in(dtype)


def lacks_matmul(x: torch.Tensor) -> bool:
    """Whether a product with x would be in 16 bits, on a CPU that has no such products."""
    if not is_plain_cpu_tensor(x) or x.dtype == torch.float64:
        return False
    return not cpu_supports_matmul_in(torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype)
