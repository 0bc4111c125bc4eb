"""Engines, which stand in the place of a model: `load_engine()`, and what the package needs of an engine."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch

from ..support.argument_checks import check_number
from ..support.lazy_functions import LazyFunctions
from ..support.user_errors import InputError


# Functions `load(folder, compute_type, threads, revision, token)` that return an `Engine`, by the engine's name.
# `registration.py` registers them.
ENGINES = LazyFunctions()


@runtime_checkable
class Engine(Protocol):
    """A model that another runtime than torch computes, such as `load_engine` returns.

    `isinstance(model, Engine)` is False for models of torch, which have neither `log_probs` nor `alignment_heads`. Only
    [`~.runtime.runtime_of`] asks this; other code asks the runtime that it returns.

    `serve` calls it from two threads at once.

    `config` and `generation_config` are the model's, `device` is where `generate` takes its tensors.
    """

    config: Any
    generation_config: Any
    device: torch.device
    # Decoder layer and head, from 0, that `attention` averages; empty if the engine gives no attention.
    alignment_heads: list[tuple[int, int]]

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """Token ids `(batch * num_return_sequences, target)` of sources `(batch, source)`, from the start token on.

        `serve` passes `stopping_criteria` that only watch the search, see `model/generation_settings.py: only_watches`.
        An engine calls them from time to time, and ends the search if one raises an error. An engine that ignores them
        goes on with work that nobody waits for.
        """

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


def load_engine(
    folder: str,
    engine: str = "ctranslate2",
    compute_type: str | None = None,
    *,
    threads: int | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> Engine:
    """Load a trained folder into another runtime, to be given to `translate` and `score` in the place of a model.

    A folder is converted once, by [`~hf_vanilla_transformer.to_ctranslate2`], into
    `HF_HOME/hf_vanilla_transformer`, under the hash of its files. The folder of an OPUS-MT model is converted by
    [`~hf_vanilla_transformer.from_hf_marian`] first.

    Args:
        folder (`str`): a trained folder, or a name on the Hub.
        engine (`str`): `"ctranslate2"`.
        compute_type (`str`, *optional*): one of `apps.conversion.ctranslate2.QUANTIZATIONS`; float32 by default.
        threads (`int`, *optional*): number of threads; by default torch's.
        revision, token (`str`, *optional*): branch, tag or commit, and access token of the Hub.

    Raises:
        ImportError: if ctranslate2 is not installed.
        OSError: if the folder cannot be read.
        ValueError: if `engine` is unknown, CTranslate2 lacks `compute_type` on this processor or cannot hold the model,
            or the converted model is not equal to it.
    """
    if engine not in ENGINES:
        raise InputError(f'engine is "{engine}"; choose one of {", ".join(ENGINES)}.')
    if threads is not None:
        check_number("threads", threads, 1)
    load: Any = ENGINES[engine]
    return load(folder, compute_type, threads, revision, token)
