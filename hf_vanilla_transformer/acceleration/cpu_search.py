"""Searches on CPUs by [`CPUDecoder`], in the place of the loops that call the model's modules."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import EncoderDecoderCache
from transformers.generation import LogitsProcessorList, StoppingCriteriaList

from ..model.beam_search import top_tokens
from ..model.generation_vanilla_transformer import next_token_steps, pays_to_prune, search_without_beams
from ..model.operations import plain
from .cpu_decoder import CPUDecoder, supports_cpu_decoder


# Inputs that `generate()` passes to the loop when it returns only token ids. Those of the second line are used up by
# then; `Seq2SeqTrainer` passes labels.
_KNOWN_INPUTS = {
    *("attention_mask", "encoder_outputs", "cache", "use_cache", "logits_to_keep"),
    *("inputs_embeds", "labels", "tokenizer", "assistant_tokenizer", "assistant_model"),
}


def next_token_steps_on_cpus(
    model: Any, input_ids: torch.Tensor, settings: Any, synced_gpus: bool, model_kwargs: dict[str, Any]
) -> Any:
    """Compute the steps of a beam search by [`CPUDecoder`] where it suffices, and else by the plain operation."""
    decoder = _decoder_for(model, input_ids, settings, synced_gpus, model_kwargs)
    if decoder is None:
        return plain(next_token_steps)(model, input_ids, settings, synced_gpus, model_kwargs)
    return decoder


def new_cpu_decoder(model: Any, states: torch.Tensor, mask: torch.Tensor | None, num_beams: int) -> Any:
    """Return a [`CPUDecoder`] with these arguments; None if it would not compute what the modules do.

    A model that has other models, such as an ensemble, has a method of this name that makes their decoders.
    """
    decoder_of_models = getattr(model, "new_cpu_decoder", None)
    if decoder_of_models is not None:
        return decoder_of_models(states, mask, num_beams)
    if not supports_cpu_decoder(model):
        return None
    return CPUDecoder(model, states, mask, num_beams)


def _decoder_for(
    model: Any, input_ids: torch.Tensor, settings: Any, synced_gpus: bool, model_kwargs: dict[str, Any]
) -> Any:
    """The decoder of a call that returns only token ids after `<s>`; None if the modules must be called."""
    cache = model_kwargs.get("cache")
    mask = model_kwargs.get("attention_mask")
    states = model_kwargs["encoder_outputs"].last_hidden_state
    begins_on_a_cpu = input_ids.shape[1] == 1 and input_ids.device.type == "cpu"
    has_own_cache = (
        model_kwargs["use_cache"]
        and settings.cache_implementation is None
        and type(cache) is EncoderDecoderCache
        and not getattr(cache, "_is_user_defined", False)
    )
    returns_more = settings.return_dict_in_generate or settings.is_assistant or synced_gpus
    inputs = {name for name, value in model_kwargs.items() if value is not None}
    fits_source = mask is None or mask.shape == states.shape[:2]
    if not (begins_on_a_cpu and has_own_cache and fits_source and inputs <= _KNOWN_INPUTS) or returns_more:
        return None
    num_beams = settings.num_beams or 1
    # transformers has repeated the source for each beam.
    mask_of_sentences = None if mask is None else mask[::num_beams]
    return new_cpu_decoder(model, states[::num_beams], mask_of_sentences, num_beams)


def search_without_beams_on_cpus(
    model: Any,
    stock_search: Callable,
    input_ids: Any,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    settings: Any,
    synced_gpus: bool,
    streamer: Any,
    model_kwargs: dict[str, Any],
) -> Any:
    """Greedy search and sampling by [`CPUDecoder`] where it suffices, and else by the plain operation.

    Args and results are those of [`~.generation_vanilla_transformer.search_without_beams`].
    """
    decoder = _decoder_for(model, input_ids, settings, synced_gpus, model_kwargs)
    if decoder is None:
        return plain(search_without_beams)(
            model,
            stock_search,
            input_ids,
            logits_processor,
            stopping_criteria,
            settings,
            synced_gpus,
            streamer,
            model_kwargs,
        )
    pads = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    # Logits processors and sampling depend on the rows of the whole batch.
    can_prune = pads and not (logits_processor or settings.do_sample)
    unfinished = input_ids.new_ones(len(input_ids), dtype=torch.bool)
    # The rows of the sentences that are still in the decoder's batch.
    active = unfinished.nonzero()[:, 0]
    num_running = len(input_ids)
    while num_running:
        logits: Any = decoder(input_ids[active, -1:]).float()
        scores = logits_processor(input_ids, logits)
        if settings.do_sample:
            tokens = scores.softmax(dim=-1).multinomial(1)[:, 0]
        else:
            tokens = top_tokens(scores, 1)[1][:, 0]
        if len(active) < len(input_ids):
            tokens = tokens.new_zeros(len(input_ids)).index_copy(0, active, tokens)
        if pads:
            tokens = tokens.where(unfinished, settings._pad_token_tensor)
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=1)
        if streamer is not None:
            streamer.put(tokens)
        unfinished &= ~stopping_criteria(input_ids, None)
        num_running = int(unfinished.sum())
        if can_prune and pays_to_prune(num_running, len(active)):
            decoder.select(unfinished[active].nonzero()[:, 0])
            active = unfinished.nonzero()[:, 0]
    if streamer is not None:
        streamer.end()
    return input_ids
