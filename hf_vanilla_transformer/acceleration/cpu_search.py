"""Use the fast [`CPUDecoder`] in `generate()` where it computes the same tokens as the model's modules.

This module replaces two operations of `generate()`: `next_token_steps`, which computes the logits for each step of beam
search, and `search_without_beams`, the loop of greedy search and sampling. [`CPUDecoder`] is used if the call returns
only token ids and all conditions in docs/decoding.md ("Fast decoding on CPUs") hold. Otherwise, the plain operations
call the modules. `cpu_decoder` reports the speedup. In addition, greedy search removes finished sentences from the
batch.

tests/generation/test_step.py tests when the decoder is used. Most tests in tests/generation run with and without it.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import EncoderDecoderCache, GenerationConfig
from transformers.generation import LogitsProcessorList, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from ..model.beam_search import top_tokens
from ..model.generation_vanilla_transformer import (
    VanillaTransformerGenerationMixin,
    next_token_steps,
    pays_to_prune,
    search_without_beams,
)
from ..model.operations import plain
from .cpu_decoder import CPUDecoder, supports_cpu_decoder


# The decoding loop may get these inputs if `generate()` returns only token ids. With any other input, the modules are
# called, because the input may change what they compute.
_KNOWN_INPUTS = {
    "attention_mask",
    "encoder_outputs",
    "cache",
    "use_cache",
    "logits_to_keep",
    # `generate()` reads these inputs only before the loop. `Seq2SeqTrainer` passes labels.
    "inputs_embeds",
    "labels",
    "tokenizer",
    "assistant_tokenizer",
    "assistant_model",
}


class StepDecoder(Protocol):
    """The interface of a decoder with its own KV cache, such as a [`CPUDecoder`] or the decoders of an ensemble."""

    can_prune: bool
    outputs: dict[str, object]

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Compute the logits of the next token, `(rows, vocabulary)`, for hypotheses `(rows, length)`."""

    def reorder(self, rows: Tensor) -> None:
        """Reorder the cache, so that hypothesis i continues the hypothesis in row `rows[i]`.

        Both hypotheses belong to the same sentence.
        """

    def select(self, sentences: Tensor) -> None:
        """Keep only the sentences with these indices, `(selected,)`, in the batch, and remove the others."""


def next_token_steps_on_cpus(
    model: VanillaTransformerGenerationMixin,
    input_ids: Tensor,
    settings: GenerationConfig,
    synced_gpus: bool,
    model_kwargs: dict[str, Any],
) -> Any:
    """Return a fast [`CPUDecoder`] for beam search if it supports the call. Otherwise, call the plain operation.

    Arguments and results are the same as for [`~.generation_vanilla_transformer.next_token_steps`].
    """
    decoder = _new_decoder_for_call(model, input_ids, settings, synced_gpus, model_kwargs)
    if decoder is None:
        return plain(next_token_steps)(model, input_ids, settings, synced_gpus, model_kwargs)
    return decoder


def new_cpu_decoder(
    model: VanillaTransformerGenerationMixin, states: Tensor, mask: Tensor | None, num_beams: int
) -> StepDecoder | None:
    """Create a [`CPUDecoder`], or return None if the model is not supported.

    An ensemble has a method with the same name as this function. It returns one decoder that combines the decoders of
    the ensemble's models.
    """
    make_decoders = getattr(model, "new_cpu_decoder", None)
    if make_decoders is not None:
        return make_decoders(states, mask, num_beams)
    # Type checkers know only the mixin, which is a part of the model's class.
    whole_model: Any = model
    if not supports_cpu_decoder(whole_model):
        return None
    return CPUDecoder(whole_model, states, mask, num_beams)


def _new_decoder_for_call(
    model: VanillaTransformerGenerationMixin,
    input_ids: Tensor,
    settings: GenerationConfig,
    synced_gpus: bool,
    model_kwargs: dict[str, Any],
) -> StepDecoder | None:
    """Create the decoder for a `generate()` call, or return None if the model's modules must be called.

    Args:
        model (`VanillaTransformerGenerationMixin`): the model, or an ensemble.
        input_ids (`torch.LongTensor` of shape `(rows, length)`): the first target tokens of each hypothesis.
        settings (`GenerationConfig`): the settings of the call.
        synced_gpus (`bool`): whether all processes must call the model equally often.
        model_kwargs (`dict`): the other inputs of the model, such as the encoder's output, by argument.
    """
    if not _decoder_can_run_call(input_ids, settings, synced_gpus, model_kwargs):
        return None
    # The encoder's output, (batch * beams, source, d_model).
    states = model_kwargs["encoder_outputs"].last_hidden_state
    mask = model_kwargs.get("attention_mask")
    if mask is not None and mask.shape != states.shape[:2]:
        # Only the modules support a mask with four dimensions.
        return None

    # transformers has repeated the source for each beam, but the decoder reads it once per sentence. The rows of a
    # sentence are adjacent, so its first row is kept. For example, with 4 beams, these are the rows 0, 4, 8 and so on.
    num_beams = settings.num_beams or 1
    sentence_states = states[::num_beams]
    sentence_mask = None
    if mask is not None:
        sentence_mask = mask[::num_beams]
    return new_cpu_decoder(model, sentence_states, sentence_mask, num_beams)


def _decoder_can_run_call(
    input_ids: Tensor, settings: GenerationConfig, synced_gpus: bool, model_kwargs: dict[str, Any]
) -> bool:
    """Return True if a [`CPUDecoder`] supports everything that a `generate()` call asks for.

    Args:
        input_ids (`torch.LongTensor` of shape `(rows, length)`): the first target tokens of each hypothesis.
        settings (`GenerationConfig`): the settings of the call.
        synced_gpus (`bool`): whether all processes must call the model equally often.
        model_kwargs (`dict`): the other inputs of the model, such as the encoder's output, by argument.
    """
    # Each of the following checks excludes calls for which the model's modules are needed.
    # The decoder begins with one token per hypothesis, so it cannot continue a prefix of several tokens.
    if input_ids.shape[1] != 1 or input_ids.device.type != "cpu":
        return False

    # The decoder has its own cache, so it cannot fill a cache that the caller wants to use afterwards.
    if not model_kwargs["use_cache"] or settings.cache_implementation is not None:
        return False
    cache = model_kwargs.get("cache")
    # transformers sets this attribute on a cache that the caller has passed to `generate()`.
    is_passed_by_user = getattr(cache, "_is_user_defined", False)
    if type(cache) is not EncoderDecoderCache or is_passed_by_user:
        return False

    # The decoder returns only tokens, and runs in a single process.
    if settings.return_dict_in_generate or settings.is_assistant or synced_gpus:
        return False
    # Inputs that are not in this set may change what the model computes.
    passed_inputs = {name for name, value in model_kwargs.items() if value is not None}
    return passed_inputs <= _KNOWN_INPUTS


def search_without_beams_on_cpus(
    model: VanillaTransformerGenerationMixin,
    stock_search: Callable[..., Any],
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    settings: GenerationConfig,
    synced_gpus: bool,
    streamer: BaseStreamer | None,
    model_kwargs: dict[str, Any],
) -> Any:
    """Run greedy search or sampling with a fast [`CPUDecoder`] if it supports the call, else with the plain operation.

    Arguments and results are the same as for [`~.generation_vanilla_transformer.search_without_beams`].
    """
    decoder = _new_decoder_for_call(model, input_ids, settings, synced_gpus, model_kwargs)
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
    return _decode(decoder, input_ids, logits_processor, stopping_criteria, settings, streamer)


def _decode(
    decoder: StepDecoder,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    settings: GenerationConfig,
    streamer: BaseStreamer | None,
) -> Tensor:
    """Run greedy search or sampling as transformers' `_sample` does, but prune finished sentences in greedy search.

    Args:
        decoder (`StepDecoder`): the decoder that computes the logits.
        input_ids (`torch.LongTensor` of shape `(batch, 1)`): the first token of each sentence.
        logits_processor, stopping_criteria, streamer: arguments of `_sample`.
        settings (`GenerationConfig`): the settings of this `generate()` call.

    Returns:
        `torch.LongTensor` of shape `(batch, length)`: the first token and the generated ones.
    """
    batch_size = len(input_ids)
    # As in transformers' loop, finished sentences get pad tokens only if a criterion has EOS tokens.
    pads_finished = any(hasattr(criterion, "eos_token_id") for criterion in stopping_criteria)
    # Logits processors and sampling depend on the rows of the whole batch.
    can_prune = pads_finished and not logits_processor and not settings.do_sample

    # The criteria below decide when a sentence is finished, for example because it has ended with `</s>`.
    is_unfinished = input_ids.new_ones(batch_size, dtype=torch.bool)  # (batch,)
    num_unfinished = batch_size
    # There are two numberings of sentences. The decoder's row i belongs to row active_rows[i] of the batch.
    #
    # - A row for each sentence of the batch: `input_ids`, `tokens`, `is_finished` and `is_unfinished`.
    # - A row for each active sentence, i.e. each sentence that was not pruned: the decoder, `newest_tokens`, `logits`,
    #   `scores` and `active_tokens`.
    #
    # Each step of the loop chooses tokens, appends them, finds out which sentences are finished, and prunes, in this
    # order. The criteria need the appended tokens, and pruning needs the new `is_unfinished`.
    active_rows = is_unfinished.nonzero()[:, 0]  # (active,)
    while num_unfinished:
        # The decoder has cached the earlier tokens, so it reads only the newest one.
        newest_tokens = input_ids[active_rows, -1:]  # (active, 1)
        logits = decoder(newest_tokens).float()  # (active, vocabulary)
        # If there are processors, nothing is pruned, so the batch and the decoder have the same rows here.
        scores = logits_processor(input_ids, logits)  # type: ignore[arg-type]
        active_tokens = _choose_tokens(scores, settings.do_sample)  # (active,)

        # Append the tokens. Pruned sentences get token 0, which the pad token then replaces, because a sentence is only
        # pruned after it is finished. This comes before the update of `is_unfinished`, so a sentence that ends in this
        # step keeps its last token.
        tokens = _expand_to_batch(active_tokens, active_rows, batch_size)  # (batch,)
        if pads_finished:
            tokens = tokens.where(is_unfinished, settings._pad_token_tensor)  # type: ignore[arg-type]
        input_ids = torch.cat([input_ids, tokens[:, None]], dim=1)  # (batch, length)
        if streamer is not None:
            streamer.put(tokens)

        # Find out which sentences are finished, and prune them if that pays.
        is_finished = stopping_criteria(input_ids, None)  # (batch,)
        is_unfinished &= ~is_finished
        num_unfinished = int(is_unfinished.sum())
        if can_prune and pays_to_prune(num_unfinished, len(active_rows)):
            # For example, if `active_rows` is [1, 4, 6], and sentence 4 has just finished, the decoder keeps its rows 0
            # and 2. They must be computed from the old `active_rows`, which then becomes [1, 6]. The decoder and
            # `active_rows` must change together, because they describe the same rows.
            unfinished_in_decoder = is_unfinished[active_rows].nonzero()[:, 0]
            decoder.select(unfinished_in_decoder)
            active_rows = is_unfinished.nonzero()[:, 0]
    if streamer is not None:
        streamer.end()
    return input_ids


def _expand_to_batch(active_tokens: Tensor, active_rows: Tensor, batch_size: int) -> Tensor:
    """Return a token for each row of the batch, `(batch,)`, with 0 for rows that were pruned.

    `active_tokens`, `(active,)`, are the tokens of the rows with the indices `active_rows`, `(active,)`.
    """
    if len(active_rows) == batch_size:
        return active_tokens
    return active_tokens.new_zeros(batch_size).index_copy(0, active_rows, active_tokens)


def _choose_tokens(scores: Tensor, do_sample: bool) -> Tensor:
    """Choose the next token of each row, `(rows,)`, from scores, `(rows, vocabulary)`.

    If `do_sample` is True, the token is drawn at random by its probability. Otherwise, it is the token with the highest
    score.
    """
    if do_sample:
        probabilities = scores.softmax(dim=-1)
        return probabilities.multinomial(1)[:, 0]
    _, best_tokens = top_tokens(scores, 1)
    return best_tokens[:, 0]
