"""Engines compute a model in a different runtime than torch: `load_engine()`, and the methods that an engine needs."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from transformers import GenerationConfig, PreTrainedConfig

from ..support.argument_checks import check_number
from ..support.lazy_functions import LazyFunctions
from ..support.user_errors import InputError


# For each name of an engine, a function `load(folder, compute_type, threads, revision, token)` that returns it.
# `registration.py` registers these functions.
ENGINES = LazyFunctions()


@runtime_checkable
class Engine(Protocol):
    """A model that is computed by a different runtime than torch, such as `load_engine` returns.

    `isinstance(model, Engine)` is False for models in torch, which have neither `log_probs` nor `alignment_heads`. Only
    [`~.runtime.runtime_of`] tests this; other code asks the runtime that it returns.

    `serve` calls an engine from two threads concurrently.

    Attributes:
        config (`PreTrainedConfig`): configuration of the model.
        generation_config (`GenerationConfig`): default settings of the search.
        device (`torch.device`): device of the tensors that `generate` takes.
        alignment_heads (`list[tuple[int, int]]`): decoder layer and head, from 0, of the heads that `attention`
            averages. Empty if the engine gives no attention.
    """

    config: PreTrainedConfig
    generation_config: GenerationConfig
    device: torch.device
    alignment_heads: list[tuple[int, int]]

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """Translate sources `(batch, source)` into token ids `(batch * num_return_sequences, target)`.

        The token ids begin with the start token of the decoder.

        `serve` passes `stopping_criteria` that only watch the search, see `model/generation_settings.py: only_watches`.
        An engine should call them from time to time, and end the search if one of them raises an error. An engine that
        ignores them continues requests whose clients are no longer waiting.
        """

    def log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """Return the log-probabilities `(target,)`, in nats, of the tokens of each target, given its source."""

    def attention(self, sources: list[list[int]], targets: list[list[int]]) -> list[torch.Tensor]:
        """Return the cross-attention `(target, source)` of each pair, averaged over `alignment_heads`."""

    def modules(self) -> Iterator[Any]:
        """Yield the modules whose attribute `training` must be restored, as `torch.nn.Module` does; possibly none."""

    def eval(self) -> Any:
        """Turn dropout off, as `torch.nn.Module.eval` does."""

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield names and weights, which are checked for NaN if a translation is empty; possibly none."""


def load_engine(
    folder: str,
    engine: str = "ctranslate2",
    compute_type: str | None = None,
    *,
    threads: int | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> Engine:
    """Load a trained folder into a different runtime. `translate` and `score` take the engine in the place of a model.

    The first call converts the folder by [`~hf_vanilla_transformer.to_ctranslate2`], and keeps the result in
    `HF_HOME/hf_vanilla_transformer`, under the hash of the folder's files. The folder of an OPUS-MT model is first
    converted by [`~hf_vanilla_transformer.from_hf_marian`].

    Args:
        folder (`str`): a trained folder, or a name on the Hub.
        engine (`str`): name of the runtime; `"ctranslate2"` is the only one.
        compute_type (`str`, *optional*): one of `apps.conversion.ctranslate2.QUANTIZATIONS`. The default is float32.
        threads (`int`, *optional*): number of threads. The default is the number of torch's threads.
        revision (`str`, *optional*): branch, tag or commit on the Hub.
        token (`str`, *optional*): access token of the Hub.

    Raises:
        ImportError: if ctranslate2 is not installed.
        OSError: if the folder cannot be read.
        ValueError: if `engine` is unknown, if CTranslate2 does not support `compute_type` on this processor or does not
            support the model, or if the converted model does not compute the same as the original one.
    """
    if engine not in ENGINES:
        raise InputError(f'engine is "{engine}"; choose one of {", ".join(ENGINES)}.')
    if threads is not None:
        check_number("threads", threads, 1)
    load: Any = ENGINES[engine]
    return load(folder, compute_type, threads, revision, token)
