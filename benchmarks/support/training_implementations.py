"""What is compared: implementations, each in several kinds of arithmetic, and one training step of any of them."""

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
from benchmarks.peers.x_transformers_pair import XTransformers
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration


Batch = dict[str, torch.Tensor]


class Ours(nn.Module):
    """The public class, called as its users call it."""

    def __init__(self, config: VanillaTransformerConfig, attn_implementation: str | None = None) -> None:
        super().__init__()
        self.config = config
        if attn_implementation is None:
            self.model = VanillaTransformerForConditionalGeneration(config)
        else:
            self.model = VanillaTransformerForConditionalGeneration._from_config(
                config, attn_implementation=attn_implementation
            )

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss


IMPLEMENTATIONS: dict[str, Callable[[VanillaTransformerConfig], nn.Module]] = {
    "ours": Ours,
    "marian-sdpa": lambda config: Marian(config, "sdpa"),
    "marian-eager": lambda config: Marian(config, "eager"),
    "torch-nn": TorchNN,
    "x-transformers": lambda config: XTransformers(config, flash=torch.cuda.is_available()),
    "hyunwoongko": Hyunwoongko,
    "tunz": Tunz,
}
# What transformers' users set by hand: on GPUs measured by default, and elsewhere where it is named.
BY_HAND: dict[str, Callable[[VanillaTransformerConfig], nn.Module]] = {
    "ours-sdpa": lambda config: Ours(config, "sdpa"),
    "ours-eager": lambda config: Ours(config, "eager"),
    "ours-flash": lambda config: Ours(config, "flash_attention_2"),
    "marian-flash": lambda config: Marian(config, "flash_attention_2"),
}
# The arithmetic of an entry: torch's float32 matmul precision, and whether under bfloat16 autocast.
ARITHMETIC = {"fp32": ("highest", False), "fp32-medium": ("medium", False), "bf16": ("highest", True)}

# With the same weights these compute the same, up to rounding.
SAME_MODEL = ("ours", "marian-sdpa", "marian-eager", "torch-nn")


@dataclass(frozen=True)
class Entry:
    """An implementation in a kind of arithmetic, such as `marian-eager-bf16`."""

    implementation: str
    arithmetic: str

    @property
    def name(self) -> str:
        return f"{self.implementation}-{self.arithmetic}"

    def build(self, config: VanillaTransformerConfig, device: torch.device) -> "Training":
        """A model with its optimizer, drawn from seed 0."""
        torch.manual_seed(0)
        build = {**IMPLEMENTATIONS, **BY_HAND}[self.implementation]
        return Training(build(config).to(device).train())

    def step(self, training: "Training", batch: Batch) -> torch.Tensor:
        """A training step in this entry's arithmetic. Returns the loss, a scalar."""
        precision, bf16 = ARITHMETIC[self.arithmetic]
        with matmul_precision(precision):
            return training.step(batch, bf16)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """torch's global precision of float32 matrix products, for a time."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# So low that the entries that share a model all have the weights it began with. Adam's work does not depend on it.
LEARNING_RATE = 1e-9


class Training:
    """A model and its Adam (section 5.3), ready to take steps."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(self, batch: Batch, bf16: bool) -> torch.Tensor:
        """Forward, loss, backward, Adam. Returns the loss, a scalar."""
        # For each step anew: within one context autocast keeps its copies of the weights, which Adam has changed since.
        with torch.autocast(batch["labels"].device.type, torch.bfloat16, enabled=bf16):
            loss = self.model(**batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def entries_of(implementations: Iterable[str]) -> list[Entry]:
    """Implementations in every kind of arithmetic that they have."""
    entries = [Entry(name, arithmetic) for name in implementations for arithmetic in ARITHMETIC]
    return [entry for entry in entries if "flash" not in entry.implementation or entry.arithmetic == "bf16"]


def choose_entries(names: list[str] | None) -> list[Entry]:
    """Entries by name, or the usual ones; a name may be an implementation, for all of its entries.

    Raises:
        ValueError: if there is no such entry.
    """
    if names is None:
        return entries_of([*IMPLEMENTATIONS, *(BY_HAND if torch.cuda.is_available() else ())])
    entries = entries_of([*IMPLEMENTATIONS, *BY_HAND])
    known = {entry.name for entry in entries} | {entry.implementation for entry in entries}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f'there is no entry "{unknown[0]}"; choose among: {", ".join(sorted(known))}.')
    return [entry for entry in entries if {entry.name, entry.implementation} & set(names)]


def why_left_out(entry: Entry) -> str | None:
    """A sentence if something that the entry needs is not there."""
    if entry.implementation == "x-transformers" and find_spec("x_transformers") is None:
        return "x-transformers is not installed; pip install '.[benchmarks]' adds it."
    if "flash" not in entry.implementation:
        return None
    if not is_flash_attn_2_available():
        return "flash-attn is not installed; pip install flash-attn adds it, where there is a GPU."
    return None
