"""Count the rows that a decoder computes in a beam search: hypotheses times steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from transformers import MarianMTModel

from hf_vanilla_transformer.apps.conversion.ctranslate2_process import CTranslate2Process
from hf_vanilla_transformer.model.beam_search import BeamSearch


@contextmanager
def counting_rows(model: Any) -> Iterator[list[int]]:
    """A list that fills with the rows of each decoding step of a model, or with those of each sentence of an engine.

    CTranslate2 does not tell its steps. A sentence ends there with the last of its hypotheses, so it has as many steps
    as its longest hypothesis has tokens, `</s>` included.
    """
    counted: list[int] = []
    extend = BeamSearch.extend
    translate = CTranslate2Process.translate

    def count_extend(search: BeamSearch, log_probs: Any, *args: Any, **kwargs: Any) -> Any:
        counted.append(len(log_probs))
        return extend(search, log_probs, *args, **kwargs)

    def count_translate(process: CTranslate2Process, sources: Any, watch: Any = None, **options: Any) -> Any:
        seconds, results = translate(process, sources, watch, **options)
        for hypotheses, *_ in results:
            steps = max(len(tokens) for tokens in hypotheses)
            counted.append(options["beam_size"] * steps)
        return seconds, results

    def count_forward(_: MarianMTModel, args: Any, kwargs: dict[str, Any]) -> None:
        counted.append(len(kwargs["decoder_input_ids"]))

    if isinstance(model, MarianMTModel):
        hook = model.register_forward_pre_hook(count_forward, with_kwargs=True)
        try:
            yield counted
        finally:
            hook.remove()
        return
    # A hook on a model of ours would switch CPUDecoder off, so that finished sentences stay in the batch.
    with (
        mock.patch.object(BeamSearch, "extend", count_extend),
        mock.patch.object(CTranslate2Process, "translate", count_translate),
    ):
        yield counted
