"""Load inference engines, which run a trained model with a library other than PyTorch, such as CTranslate2."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from transformers import GenerationConfig, PreTrainedConfig

from ..support.argument_checks import check_number
from ..support.lazy_functions import LazyFunctions
from ..support.user_errors import InputError


# Maps each engine name to a function `load(folder, compute_type, threads, revision, token)` that returns an engine.
# `registration.py` registers these functions.
ENGINES = LazyFunctions()


@runtime_checkable
class Engine(Protocol):
    """The interface of an inference engine, which runs a model outside PyTorch. [`load_engine`] returns an engine.

    `isinstance(model, Engine)` is False for PyTorch models, because they have neither `log_probs` nor
    `alignment_heads`. Only [`~.runtime.runtime_of`] makes this test; other code uses the runtime that it returns.

    An engine must be thread-safe, because `serve` calls it from two threads concurrently.

    Attributes:
        config (`PreTrainedConfig`): the model's configuration.
        generation_config (`GenerationConfig`): the default search settings.
        device (`torch.device`): the device of the tensors that `generate` takes.
        alignment_heads (`list[tuple[int, int]]`): the decoder layer and the head, both counted from 0, of each head
            that `attention` averages. Empty if the engine provides no attention weights.
    """

    config: PreTrainedConfig
    generation_config: GenerationConfig
    device: torch.device
    alignment_heads: list[tuple[int, int]]

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **kwargs: Any) -> Any:
        """Translate source token ids `(batch, source)` into token ids `(batch * num_return_sequences, target)`.

        Each returned sequence begins with the decoder's start token.

        `serve` passes `stopping_criteria` that observe the search but never end it by their return value; see
        `model/generation_settings.py: only_watches`. An engine should call them from time to time, and end the search
        if one of them raises an error. If an engine ignores them, it keeps working on requests whose clients are no
        longer waiting.
        """

    def log_probs(self, sources: list[list[int]], targets: list[list[int]]) -> list[list[float]]:
        """Return the log-probability of each target token, in nats, as one list per sentence pair."""

    def attention(self, sources: list[list[int]], targets: list[list[int]]) -> list[torch.Tensor]:
        """Return each sentence pair's cross-attention weights `(target, source)`, averaged over `alignment_heads`."""

    def modules(self) -> Iterator[Any]:
        """Yield the modules whose training mode is restored after evaluation. If there are none, yield nothing."""

    def eval(self) -> Any:
        """Switch to evaluation mode, in which dropout is off, as `torch.nn.Module.eval` does."""

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the tensor of each weight. If the engine does not expose its weights, yield nothing.

        The weights are checked for NaN if a translation is empty.
        """


def load_engine(
    folder: str,
    engine: str = "ctranslate2",
    compute_type: str | None = None,
    *,
    threads: int | None = None,
    revision: str | None = None,
    token: str | None = None,
) -> Engine:
    """Load a trained model into an inference engine, which you can pass to `translate` and `score` instead of a model.

    The first call converts the model with [`~hf_vanilla_transformer.to_ctranslate2`], and keeps the result in
    `HF_HOME/hf_vanilla_transformer`, under a hash of the model's files. An OPUS-MT model is first converted with
    [`~hf_vanilla_transformer.from_hf_marian`].

    Args:
        folder (`str`): the folder of a trained model, or its name on the Hub.
        engine (`str`): name of the engine; `"ctranslate2"` is the only one.
        compute_type (`str`, *optional*): one of `apps.conversion.ctranslate2.QUANTIZATIONS`. The default is float32.
        threads (`int`, *optional*): number of threads. The default is PyTorch's number of threads.
        revision (`str`, *optional*): branch, tag or commit on the Hub.
        token (`str`, *optional*): access token for the Hub.

    Raises:
        ImportError: if ctranslate2 is not installed.
        OSError: if the folder cannot be read.
        ValueError: if `engine` is unknown, if CTranslate2 does not support `compute_type` on this processor or does not
            support the model, or if the outputs of the converted model differ from those of the original model.
    """
    if engine not in ENGINES:
        raise InputError(f'engine is "{engine}"; choose one of {", ".join(ENGINES)}.')
    if threads is not None:
        check_number("threads", threads, 1)
    # The loader of each engine has these five parameters in this order.
    load: Any = ENGINES[engine]
    return load(folder, compute_type, threads, revision, token)
