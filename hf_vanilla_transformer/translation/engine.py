"""The protocol of engines: what `translate`, `score`, `align` and `serve` use of an object in the place of a model."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch


@runtime_checkable
class Engine(Protocol):
    """A model that another runtime than torch computes, such as `load_engine` returns.

    `isinstance(model, Engine)` is False for models of torch, which have neither `log_probs` nor `alignment_heads`.

    `serve` calls it from two threads at once.

    `config` and `generation_config` are the model's, `device` is where `generate` takes its tensors.
    """

    config: Any
    generation_config: Any
    device: torch.device
    # Decoder layer and head, from 0, that `attention` averages; empty if the engine gives no attention.
    alignment_heads: list[tuple[int, int]]

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """Token ids `(batch * num_return_sequences, target)` of sources `(batch, source)`, from the start token on."""

    def log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """For each pair of token ids, the log-probabilities `(target,)` of the target's tokens, in nats."""

    def attention(self, sources: list[list[int]], targets: list[list[int]]) -> list[torch.Tensor]:
        """For each pair of token ids, the cross-attention `(target, source)`, averaged over `alignment_heads`."""

    def modules(self) -> Iterator[Any]:
        """Modules with a mode `training` to restore, as of `torch.nn.Module`; there may be none."""

    def eval(self) -> Any:
        """Turn dropout off, as `torch.nn.Module.eval` does."""

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Names and weights, which are checked for NaN if a translation is empty; there may be none."""
