"""Check tensors, modules and the CPU to decide whether a call may use a fast implementation.

A fast implementation reads tensors and weights directly. That is correct only if calling the module would do nothing
more, for example because it has no hooks.
tests/acceleration/test_kernels.py (`TestSkippingLogits`, `TestLinear`) and tests/generation/test_step.py compare the
results with and without fast paths for hooked, patched, parametrized and replaced modules.
"""

import logging
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn


logger = logging.getLogger(__name__)


def is_plain_cpu_tensor(x: Tensor) -> bool:
    """Return True if x is a plain tensor on a CPU. [`is_plain_tensor`] defines plain tensors."""
    return x.device.type == "cpu" and is_plain_tensor(x)


def is_plain_tensor(x: Tensor) -> bool:
    """Return True if x is a plain tensor on any device, and torch runs in eager mode and outside `torch.func`.

    A plain tensor is a `torch.Tensor` or an `nn.Parameter`. Other subclasses, such as sharded or quantized tensors, may
    compute something else.
    """
    # The exact class is compared, because `isinstance` would accept subclasses.
    if type(x) not in (Tensor, nn.Parameter):
        return False
    return not is_traced() and not torch._C._are_functorch_transforms_active()


def is_traced() -> bool:
    """Return True while torch compiles or traces code. The resulting program may later get tensors of other sizes."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_unmodified(module: nn.Module) -> bool:
    """Return True if calling a module runs the `forward` method of its class and nothing else.

    Such a module has no hooks, no parametrizations and no methods that were set on the object. It is not compiled, and
    runs outside `torch.func`. Monkeypatched classes are not detected.
    """
    # Each condition is one reason why a call would do something else than `forward` of the class.
    if is_traced() or torch._C._are_functorch_transforms_active():
        return False
    # `module.compile()` sets `_compiled_call_impl`, which is None otherwise.
    if module._compiled_call_impl is not None:
        return False
    if _has_hooks(module) or _hides_methods(module):
        return False
    # Sharded and quantized weights, for example, are not plain.
    return _has_plain_parameters(module)


def _hides_methods(module: nn.Module) -> bool:
    """Return True if a method was set on the object, so that it hides the method of the class.

    For example, accelerate sets `forward`, and PEFT sets `prepare_inputs_for_generation`.
    """
    # The `__dict__` of an object does not have the methods of its class, only what was set on the object.
    names_of_callables = [name for name, value in module.__dict__.items() if callable(value)]
    return any(hasattr(type(module), name) for name in names_of_callables)


def _has_plain_parameters(module: nn.Module) -> bool:
    """Return True if all parameters of a module, without its submodules, are exactly of the class `nn.Parameter`.

    Sharded and quantized weights belong to other classes. Parametrized weights are not in `_parameters`, but torch
    changes the class of their module, which the callers of [`is_unmodified`] check.
    """
    for parameter in module._parameters.values():
        # A parameter that is switched off, such as the bias with `bias=False`, is None.
        if parameter is not None and type(parameter) is not nn.Parameter:
            return False
    return True


def _has_hooks(module: nn.Module) -> bool:
    """Return True if hooks run when a module is called, or in its backward pass."""
    # `nn.Module` stores the hooks of a module in one dictionary for each kind of hook.
    if module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return True
    # The loop reads a copy of the forward hooks, because another thread may add a hook meanwhile.
    for hook in tuple(module._forward_hooks.values()):
        if not _is_transformers_recorder(hook):
            return True
    # Global hooks run for every module of the process.
    return torch.nn.modules.module._has_any_global_hook()


def _is_transformers_recorder(hook: Callable[..., object]) -> bool:
    """Return True for the hook that transformers leaves on modules after a call with `output_attentions=True`.

    The hook does nothing in calls without that argument.
    """
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"


def is_plain_linear(module: nn.Module) -> bool:
    """Return True if a module is exactly `nn.Linear` and unmodified, so that its weight can be read directly."""
    return type(module) is nn.Linear and is_unmodified(module)


@cache
def has_avx512() -> bool:
    """Return True if torch uses AVX-512 on this CPU."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def float32_matmuls_are_precise() -> bool:
    """Return True unless the user allows oneDNN to compute float32 matmuls faster in a lower precision.

    This reads oneDNN's own setting, because `torch.get_float32_matmul_precision()` raises an error after
    `torch.backends.cuda.matmul.fp32_precision` was set.
    """
    # "none" is the default, and "ieee" asks for full float32. Other values, such as "bf16", allow a lower precision.
    return torch.backends.mkldnn.matmul.fp32_precision in ("none", "ieee")  # type: ignore[attr-defined]


@cache
def cpu_supports_matmul_in(dtype: torch.dtype) -> bool:
    """Return True if oneDNN supports matmuls in the given dtype on this CPU.

    Without support for a 16-bit dtype, torch computes matmuls in slow plain loops. For any other dtype, this function
    returns True, because every CPU supports matmuls in float32 and float64.
    """
    # These are private operators of torch, which a later release may remove. A removed operator counts as no support.
    if dtype == torch.bfloat16:
        is_supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    elif dtype == torch.float16:
        is_supported = getattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", None)
    else:
        return True
    return is_supported is not None and bool(is_supported())


@cache
def cpu_is_faster_in_bfloat16() -> bool:
    """Return True if this CPU multiplies matrices faster in bfloat16 than in float32.

    This is a rule about CPUs instead of a measurement, so that each process and each resumed run gets the same answer.
    AMD CPUs with bfloat16 instructions (Zen 4) are faster in bfloat16 (docs/benchmarks.md). Intel CPUs need AMX for
    this: without AMX, as in some virtual machines, bfloat16 takes twice the time of float32 (docs/experiments.md, "How
    medium was chosen").
    """
    if not cpu_supports_matmul_in(torch.bfloat16):
        return False
    # These are private functions of torch, which a later release may remove.
    has_amx = getattr(torch.cpu, "_is_amx_tile_supported", None)
    if has_amx is not None and has_amx():
        return True
    has_bfloat16_instructions = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    if has_bfloat16_instructions is None or not has_bfloat16_instructions():
        # oneDNN emulates bfloat16 on such an x86 CPU. For other processors, torch does not report bfloat16 matmuls.
        return False
    # With these instructions and without AMX, AMD CPUs are faster in bfloat16, and Intel CPUs are slower.
    return not _is_intel_cpu()


def _is_intel_cpu() -> bool:
    """Return True if Intel made this CPU. This is known on Linux and Windows; elsewhere, the result is False."""
    linux_description = Path("/proc/cpuinfo")
    if linux_description.exists():
        return "GenuineIntel" in linux_description.read_text(encoding="utf-8")
    # On Windows, the text is for example "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel".
    return "GenuineIntel" in platform.processor()


@cache
def warn_of_slow_matmuls(dtype: torch.dtype) -> None:
    """Log a warning, once per process and dtype, if this CPU does not support matmuls in the given dtype."""
    if not cpu_supports_matmul_in(dtype):
        logger.warning(
            "This CPU has no matmuls in %s, so torch computes them slowly; float32 is faster: call model.float(), or "
            "train without bf16.",
            str(dtype).removeprefix("torch."),
        )
