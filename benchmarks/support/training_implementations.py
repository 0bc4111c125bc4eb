"""The implementations that training.py compares: a model in a precision, and a training step of it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn
from transformers.utils import is_flash_attn_2_available

from benchmarks.peers.hyunwoongko import Hyunwoongko
from benchmarks.peers.marian import Marian
from benchmarks.peers.torch_nn import TorchNN
from benchmarks.peers.tunz import Tunz
from benchmarks.peers.x_transformers import XTransformers
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.support.user_errors import InputError


Batch = dict[str, torch.Tensor]


class Ours(nn.Module):
    """The public class, called through its public interface.

    By default it computes the loss without logits (`skip_logits=True`), as in `train`, in `TokenMetricsTrainer`, and in
    a Trainer with `TokenBudgetBatchSampler.use_in`.
    """

    def __init__(
        self, config: VanillaTransformerConfig, attn_implementation: str | None = None, skip_logits: bool = True
    ) -> None:
        super().__init__()
        self.config = config
        self.skip_logits = skip_logits
        if attn_implementation is None:
            self.model = VanillaTransformerForConditionalGeneration(config)
        else:
            self.model = VanillaTransformerForConditionalGeneration._from_config(
                config, attn_implementation=attn_implementation
            )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, labels=labels, skip_logits=self.skip_logits
        )
        return outputs.loss


MODELS: dict[str, Callable[[VanillaTransformerConfig], nn.Module]] = {
    "ours": Ours,
    "marian-sdpa": lambda config: Marian(config, "sdpa"),
    "marian-eager": lambda config: Marian(config, "eager"),
    "torch-nn": TorchNN,
    "x-transformers": lambda config: XTransformers(config, flash=torch.cuda.is_available()),
    "hyunwoongko": Hyunwoongko,
    "tunz": Tunz,
}
# Attention chosen by `attn_implementation`: measured by default on GPUs only.
MODELS_BY_ATTENTION: dict[str, Callable[[VanillaTransformerConfig], nn.Module]] = {
    "ours-sdpa": lambda config: Ours(config, "sdpa"),
    "ours-eager": lambda config: Ours(config, "eager"),
    "ours-flash": lambda config: Ours(config, "flash_attention_2"),
    "marian-flash": lambda config: Marian(config, "flash_attention_2"),
}
# Measured only if they are named.
MODELS_ON_REQUEST: dict[str, Callable[[VanillaTransformerConfig], nn.Module]] = {
    # The model's default, as in a training loop that does not pass `skip_logits`.
    "ours-logits": lambda config: Ours(config, skip_logits=False),
}
# Precision: torch's float32 matmul precision, and whether to use bfloat16 autocast.
PRECISIONS = {"fp32": ("highest", False), "fp32-medium": ("medium", False), "bf16": ("highest", True)}

# Given the same weights, these compute the same function up to rounding.
SAME_MODEL = ("ours", "marian-sdpa", "marian-eager", "torch-nn")


@dataclass(frozen=True)
class Implementation:
    """A model in a precision, such as `marian-eager-bf16`."""

    model: str
    precision: str

    @property
    def name(self) -> str:
        return f"{self.model}-{self.precision}"

    def build(self, config: VanillaTransformerConfig, device: torch.device) -> "Training":
        """The model, initialized from seed 0, with its optimizer."""
        torch.manual_seed(0)
        build = {**MODELS, **MODELS_BY_ATTENTION, **MODELS_ON_REQUEST}[self.model]
        return Training(build(config).to(device).train())

    def step(self, training: "Training", batch: Batch) -> torch.Tensor:
        """Take a training step in this precision; returns the loss, a scalar."""
        precision, bf16 = PRECISIONS[self.precision]
        with matmul_precision(precision):
            return training.step(batch, bf16)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set torch's global float32 matmul precision, and restore it at the end."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# Implementations in several precisions share one model. Updates this small leave its weights as initialized, and the
# cost of Adam does not depend on the rate.
LEARNING_RATE = 1e-9


class Training:
    """A model and its Adam optimizer (section 5.3)."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(self, batch: Batch, bf16: bool) -> torch.Tensor:
        """Forward, loss, backward, Adam; returns the loss, a scalar."""
        # Autocast caches 16-bit copies of the weights within one context, and Adam changes the weights.
        with torch.autocast(batch["labels"].device.type, torch.bfloat16, enabled=bf16):
            loss = self.model(**batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def in_all_precisions(models: Iterable[str]) -> list[Implementation]:
    """Models in each precision that they support."""
    found = [Implementation(model, precision) for model in models for precision in PRECISIONS]
    return [each for each in found if "flash" not in each.model or each.precision == "bf16"]


def choose_implementations(names: list[str] | None) -> list[Implementation]:
    """Implementations by name; a model's name stands for all its precisions. None chooses the device's default.

    Raises:
        ValueError: if a name is unknown.
    """
    if names is None:
        return in_all_precisions([*MODELS, *(MODELS_BY_ATTENTION if torch.cuda.is_available() else ())])
    found = in_all_precisions([*MODELS, *MODELS_BY_ATTENTION, *MODELS_ON_REQUEST])
    known = {each.name for each in found} | {each.model for each in found}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f'there is no implementation "{unknown[0]}"; choose among: {", ".join(sorted(known))}.')
    return [each for each in found if {each.name, each.model} & set(names)]


def missing_dependency(implementation: Implementation) -> str | None:
    """A sentence that names the missing library, or None if the implementation can run."""
    if implementation.model == "x-transformers" and find_spec("x_transformers") is None:
        return "x-transformers is not installed; pip install '.[benchmarks]' adds it."
    if "flash" in implementation.model and not is_flash_attn_2_available():
        return "flash-attn is not installed; pip install flash-attn adds it on machines with a GPU."
    return None
