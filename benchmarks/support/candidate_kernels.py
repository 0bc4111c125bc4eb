"""The loss, and residual sums with norms, by formula and by Triton: errors against float64, then time."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.support.gpu_timing import Budget, launches_of, milliseconds_of, relative_error
from benchmarks.support.timing import synchronize
from benchmarks.support.triton_support import missing_for_triton
from hf_vanilla_transformer.acceleration.chunked_loss import chunked_smoothed_cross_entropy
from hf_vanilla_transformer.acceleration.loss_of_states import smoothed_cross_entropy_of_matrix
from hf_vanilla_transformer.model.operations import drop


SMOOTHING = 0.1
# As in tests/device/checks.py: roots of mean squares, relative, in units of the dtype's precision.
ALLOWED_EPS = 16
# Of the end of a sub-layer: its values in float32, and, where dropout's output is rounded to 16 bits, with dropout. The
# share of elements that dropout keeps is counted in standard deviations.
ALLOWED_ERROR, ALLOWED_MASK_ERROR, ALLOWED_DEVIATIONS = 5e-6, 0.05, 4
# Rows of the comparison with float64, whose logits must fit in memory.
CHECKED_ROWS = 1500
EPS = 1e-6
RATE = 0.1
Loss = Callable[..., tuple[torch.Tensor, torch.Tensor]]
# Takes x, the sub-layer's output, and the norm's weight and bias; returns the normalized sum, and it in 16 bits.
BoundEnd = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    tuple[torch.Tensor, torch.Tensor],
]
# Makes such a function from epsilon, dropout rate, and the dtype of matmuls.
MakeEnd = Callable[[float, float, torch.dtype], BoundEnd]


@dataclass(frozen=True)
class Sizes:
    """Tokens, model dimension and vocabulary of what is measured."""

    tokens: int
    d_model: int
    vocab_size: int


def measure_losses(sizes: Sizes, device: torch.device, budget: Budget) -> Iterator[dict[str, Any]]:
    """Yield the figures of the losses after each: the loss in chunks, and what the package runs in its place."""
    losses: dict[str, Loss] = {
        "in chunks": chunked_smoothed_cross_entropy,
        "of the package": smoothed_cross_entropy_of_matrix,
    }
    entries: list[dict[str, Any]] = []
    not_measured: list[str] = []
    figures = {**asdict(sizes), "entries": entries, "not_measured": not_measured}
    for name, loss in losses.items():
        if budget.is_spent():
            not_measured.append(name)
            continue
        entries.append(_safely(name, partial(_figures_of_loss, loss, sizes, device), device))
        yield figures
    yield figures


def _safely(name: str, measure: Callable[[], dict[str, Any]], device: torch.device) -> dict[str, Any]:
    """Measure a candidate; an error is a figure, because the others can still be measured."""
    try:
        return {"name": name, **measure()}
    except Exception as error:
        # Raises if the GPU accepts no work any more, so that the next part gets a new process.
        synchronize(device)
        return {"name": name, "passes": False, "error": f"{type(error).__name__}: {error}"}


def _figures_of_loss(loss: Loss, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    start = time.perf_counter()
    errors = {}
    # A vocabulary of an odd size has rows that do not begin at multiples of 16 bytes.
    for vocab_size in (sizes.vocab_size, sizes.vocab_size - 1):
        errors[vocab_size] = _error_of_loss(loss, sizes, vocab_size, device)
    allowed = ALLOWED_EPS * torch.finfo(torch.bfloat16).eps
    states, weight, labels = _inputs_of_loss(sizes.tokens, sizes.d_model, sizes.vocab_size, device)
    run = partial(_loss_and_gradients, loss, states, weight, labels)
    run()
    seconds_to_start = time.perf_counter() - start
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    milliseconds = milliseconds_of(run, device)
    figures = {
        "passes": max(errors.values()) <= allowed,
        "errors": errors,
        "allowed_error": allowed,
        "milliseconds": milliseconds,
        "launches": asdict(launches_of(run, device)),
        "seconds_to_start": seconds_to_start,
    }
    if device.type == "cuda":
        figures["peak_megabytes"] = torch.cuda.max_memory_allocated() / 1e6
    return figures


def _inputs_of_loss(
    tokens: int, d_model: int, vocab_size: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return states, weight and labels, of which a tenth are missing; leaves for autograd, in float32."""
    generator = torch.Generator(device).manual_seed(0)
    states = torch.randn(1, tokens, d_model, generator=generator, device=device)
    weight = torch.randn(vocab_size, d_model, generator=generator, device=device) * d_model**-0.5
    labels = torch.randint(vocab_size, (1, tokens), generator=generator, device=device)
    is_missing = torch.rand(labels.shape, generator=generator, device=device) < 0.1
    return states.requires_grad_(), weight.requires_grad_(), labels.masked_fill(is_missing, -100)


def _loss_and_gradients(
    loss: Loss, states: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    with torch.autocast(states.device.type, torch.bfloat16):
        total, _ = loss(states, weight, labels, SMOOTHING)
    grad_states, grad_weight = torch.autograd.grad(total, [states, weight])
    return total.detach(), grad_states, grad_weight


def _error_of_loss(loss: Loss, sizes: Sizes, vocab_size: int, device: torch.device) -> float:
    """Return the largest relative error of the loss and its gradients, compared with the formula in float64."""
    rows = min(CHECKED_ROWS, sizes.tokens)
    states, weight, labels = _inputs_of_loss(rows, sizes.d_model, vocab_size, device)
    # The rounded inputs, so that only what is computed from them is compared.
    leaves = [tensor.detach().bfloat16().double().requires_grad_() for tensor in (states, weight)]
    total = nn.functional.cross_entropy(
        (leaves[0] @ leaves[1].T).flatten(0, 1), labels.flatten(), reduction="sum", label_smoothing=SMOOTHING
    )
    exact = [total.detach(), *torch.autograd.grad(total, leaves)]
    rounded = [tensor.detach().bfloat16().float().requires_grad_() for tensor in (states, weight)]
    actual = _loss_and_gradients(loss, rounded[0], rounded[1], labels)
    return max(relative_error(value, expected) for value, expected in zip(actual, exact, strict=True))


def measure_ends(all_sizes: list[Sizes], device: torch.device, budget: Budget) -> Iterator[dict[str, Any]]:
    """Yield the figures of the ends of sub-layers after each: residual sum, norm and cast, plain and by Triton."""
    makers: dict[str, MakeEnd] = {"plain": plain_end}
    if missing_for_triton(device) is None:
        makers["Triton"] = triton_end
    entries: list[dict[str, Any]] = []
    not_measured: list[str] = []
    figures = {"entries": entries, "not_measured": not_measured}
    for sizes in all_sizes:
        for name, make_end in makers.items():
            if budget.is_spent():
                not_measured.append(f"{name}, {sizes.d_model}")
                continue
            entry = _safely(name, partial(_figures_of_end, make_end, sizes, device), device)
            entries.append({"d_model": sizes.d_model, "tokens": sizes.tokens, **entry})
            yield figures
    yield figures


def plain_end(eps: float, rate: float, narrow_dtype: torch.dtype) -> BoundEnd:
    """Return the formula that the package's layers compute, with the cast that follows before the next matmul."""

    def end(
        x: torch.Tensor, sublayer_x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        residual_sum = x + drop(sublayer_x, rate).to(x.dtype)
        normalized = nn.functional.layer_norm(residual_sum, weight.shape, weight, bias, eps)
        return normalized, normalized.to(narrow_dtype)

    return end


def triton_end(eps: float, rate: float, narrow_dtype: torch.dtype) -> BoundEnd:
    """Return Triton's kernel, for any number of tokens."""
    from benchmarks.candidates.triton_add_and_norm import add_and_norm_in_triton

    return partial(add_and_norm_in_triton, eps=eps, rate=rate, narrow_dtype=narrow_dtype)


def _figures_of_end(make_end: MakeEnd, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    start = time.perf_counter()
    check = _check_of_end(make_end, sizes, device)
    inputs = _inputs_of_end(sizes.tokens, sizes.d_model, device)
    gradients = [torch.randn_like(inputs[0]), torch.randn_like(inputs[1])]
    end = make_end(EPS, RATE, torch.bfloat16)

    def run() -> None:
        torch.autograd.grad(end(*inputs), inputs, gradients)

    run()
    seconds_to_start = time.perf_counter() - start
    few = _inputs_of_end(8, sizes.d_model, device)
    few_gradients = [gradient[:, :8] for gradient in gradients]

    def run_few() -> None:
        torch.autograd.grad(end(*few), few, few_gradients)

    run_few()
    calls = 20 if device.type == "cuda" else 1
    return {
        **check,
        "milliseconds": milliseconds_of(run, device, calls),
        # With few tokens the GPU waits for the CPU, so this is the time that the CPU needs.
        "milliseconds_to_launch": milliseconds_of(run_few, device, calls),
        "launches": asdict(launches_of(run, device)),
        "seconds_to_start": seconds_to_start,
    }


def _inputs_of_end(tokens: int, d_model: int, device: torch.device) -> list[torch.Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(1, tokens, d_model, generator=generator, device=device)
    sublayer_x = torch.randn(1, tokens, d_model, generator=generator, device=device).bfloat16()
    weight = 1 + torch.randn(d_model, generator=generator, device=device) / 4
    bias = torch.randn(d_model, generator=generator, device=device)
    return [tensor.requires_grad_() for tensor in (x, sublayer_x, weight, bias)]


def _check_of_end(make_end: MakeEnd, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Compare values and gradients without dropout with float64, and count what dropout keeps."""
    inputs = _inputs_of_end(min(sizes.tokens, CHECKED_ROWS), sizes.d_model, device)
    precise = [tensor.detach().double().requires_grad_() for tensor in inputs]
    normalized, narrow = make_end(EPS, 0.0, torch.bfloat16)(*inputs)
    expected, _ = plain_end(EPS, 0.0, torch.float64)(*precise)
    error = float((normalized.double() - expected).detach().abs().max())
    grad = torch.randn_like(normalized)
    actual_gradients = torch.autograd.grad([normalized, narrow], inputs, [grad, grad.bfloat16()])
    exact_gradients = torch.autograd.grad(expected, precise, grad.double() + grad.bfloat16().double())
    gradient_errors = []
    for actual, exact in zip(actual_gradients, exact_gradients, strict=True):
        # The sub-layer's gradient is rounded to 16 bits, and the others are not.
        unit = torch.finfo(actual.dtype).eps
        gradient_errors.append(relative_error(actual, exact) / unit)

    # Equal outputs of the sub-layer, so that the gradient shows which of them dropout keeps.
    x, _, weight, bias = inputs
    equal = torch.full_like(inputs[1], 4.0).requires_grad_()
    dropped, _ = make_end(EPS, RATE, torch.bfloat16)(x, equal, weight, bias)
    (gradient,) = torch.autograd.grad(dropped, equal, torch.randn_like(dropped))
    is_kept = gradient != 0
    share = float(is_kept.double().mean())
    standard_deviation = (RATE * (1 - RATE) / equal.numel()) ** 0.5
    deviations = abs(share - (1 - RATE)) / standard_deviation
    masked = torch.where(is_kept, equal / (1 - RATE), 0)
    expected, _ = plain_end(EPS, 0.0, torch.float64)(x.double(), masked.double(), weight.double(), bias.double())
    mask_error = float((dropped.double() - expected).detach().abs().max())
    passes = (
        error <= ALLOWED_ERROR
        and max(gradient_errors) <= ALLOWED_EPS
        and deviations <= ALLOWED_DEVIATIONS
        and mask_error <= ALLOWED_MASK_ERROR
    )
    return {
        "passes": passes,
        "error": error,
        "allowed_error": ALLOWED_ERROR,
        "gradient_errors_in_eps": gradient_errors,
        "allowed_gradient_error_in_eps": ALLOWED_EPS,
        "deviations_of_kept_share": deviations,
        "allowed_deviations": ALLOWED_DEVIATIONS,
        "error_with_the_mask_of_the_gradient": mask_error,
        "allowed_error_with_the_mask": ALLOWED_MASK_ERROR,
    }
