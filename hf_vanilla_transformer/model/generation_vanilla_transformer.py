"""Decoding as in section 6.1 of "Attention Is All You Need", through transformers' `generate()`.

Beam search with 4 beams, the length penalty of Wu et al. 2016 (GNMT) with alpha = 0.6, and at most input length + 50
output tokens. These are the defaults of a new model's `generation_config`, and are saved with it.
"""

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from transformers import Cache, GenerationConfig, GenerationMixin, __version__
from transformers.generation import (
    GenerateBeamEncoderDecoderOutput,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)

from .beam_search import BeamSearch, exists
from .generation_settings import (
    SEARCH_SETTINGS,
    CandidateStops,
    SentenceForcedEOS,
    SentenceLengthLimit,
    SettingsToSave,
    check_search,
    check_token_ids,
    length_penalty_of,
    limits_length,
    paper_generation_config,
    warn_of_many_beams,
)
from .input_checks import InputError, as_encoder_output, either_cache
from .operations import cast_weights_once, replaceable


logger = logging.getLogger(__name__)

# Entries of `generation_config` that transformers lacks.
OWN_SETTINGS = [name for name, setting in SEARCH_SETTINGS.items() if setting.is_own]
# Finished sentences are pruned from the batch when at most this share of it is unfinished.
_MAX_SHARE_TO_PRUNE = 0.75


def move_padding(ids: torch.Tensor, mask: torch.Tensor, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Move padding to one side of each row, keeping the order of the real tokens.

    Args:
        ids, mask (`torch.Tensor` of shape `(batch, length)`): token ids; 1 for real tokens, 0 for padding.
        side (`str`): `"left"` or `"right"`.
    """
    order = mask.bool().long().argsort(dim=-1, stable=True, descending=side == "right")
    return ids.gather(-1, order), mask.gather(-1, order)


def requested_outputs(settings: Any) -> dict[str, tuple]:
    """The outputs of each decoding step besides tokens that the settings request, by name, before the first step."""
    requested = {
        "scores": settings.output_scores,
        "logits": settings.output_logits,
        "decoder_attentions": settings.output_attentions,
        "cross_attentions": settings.output_attentions,
        "decoder_hidden_states": settings.output_hidden_states,
    }
    return {name: () for name, wanted in requested.items() if wanted and settings.return_dict_in_generate}


def tokens_to_read(cache: Cache | None, length: int, tokens_of_step: int | None) -> int | None:
    """How many of the last target tokens the model must read; None for all.

    Args:
        cache (`Cache`, *optional*): of earlier tokens.
        length (`int`): target tokens so far.
        tokens_of_step (`int`, *optional*): the number that transformers' loop passes; None at the first step.

    Raises:
        ValueError: if the cache holds all tokens.
        RuntimeError: if transformers leaves out tokens, and gives no cache that holds them.
    """
    if cache is None:
        if tokens_of_step is not None and tokens_of_step < length:
            # A later release may give it another name, and the model would continue without the earlier tokens.
            raise RuntimeError(
                f"transformers {__version__} gives the cache by a name that this code does not know; install a release "
                "that the package hf_vanilla_transformer supports."
            )
        return None
    if tokens_of_step is not None:
        return tokens_of_step
    past_length = int(cache.get_seq_length())
    if length <= past_length:
        raise InputError(
            f"the cache holds {past_length} tokens, but decoder_input_ids has {length}; to continue, give all target "
            "tokens so far, at least one more than the cache holds."
        )
    return length - past_length


def new_beam_search(prompts: torch.Tensor, settings: Any) -> BeamSearch:
    """A search that continues prompts `(batch, length)`, with the settings of a call of `generate()`."""
    eos = settings._eos_token_tensor
    return BeamSearch(settings.num_beams, num_eos=0 if eos is None else len(eos), **search_options(prompts, settings))


def search_options(prompts: torch.Tensor, settings: Any) -> dict[str, Any]:
    """The arguments of [`BeamSearch`] that settings give for prompts `(batch, length)`, besides numbers of tokens."""
    warn_of_many_beams(settings.num_beams)
    limits = torch.full((len(prompts),), settings.max_length, device=prompts.device)
    if settings.sentence_max_lengths is not None:
        limits = limits.minimum(settings.sentence_max_lengths.to(prompts.device))
    pad = settings._pad_token_tensor
    return {
        "num_return_sequences": settings.num_return_sequences,
        "length_penalty": length_penalty_of(settings),
        "early_stopping": settings.early_stopping,
        "limits": limits - prompts.shape[1],
        "fill": -1 if pad is None else int(pad),
    }


class NextTokenSteps:
    """The logits of the next token by calling the model, as transformers' loops do, with inputs such as the cache.

    A replacement of [`next_token_steps`] may return an object of another class with `outputs`, `can_prune` and these
    methods. If `can_prune` is True, it also has `select(sentences)`, which keeps the given sentences of the batch. It
    needs `model_kwargs` only for calls with `return_dict_in_generate`.
    """

    can_prune = False

    def __init__(self, model: Any, settings: Any, model_kwargs: dict[str, Any]):
        self.model, self.settings, self.model_kwargs = model, settings, model_kwargs
        self.outputs: Any = None

    def __call__(self, input_ids: Any) -> torch.Tensor:
        """Logits of the next token, `(rows, vocabulary)` in float32, for hypotheses `(rows, length)`."""
        model, kwargs = self.model, self.model_kwargs
        if self.outputs is None:
            self.outputs = model._prefill(input_ids, self.settings, kwargs)
        else:
            step = 1 if kwargs["use_cache"] else None
            inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=step, **kwargs)
            self.outputs = model(**inputs, return_dict=True)
        self.model_kwargs = model._update_model_kwargs_for_generation(self.outputs, kwargs, is_encoder_decoder=True)
        return self.outputs.logits[:, -1].to(torch.float32, copy=True)

    def reorder(self, rows: torch.Tensor) -> None:
        """Make hypothesis i continue the hypothesis of row `rows[i]`; `rows` is `(rows,)`."""
        cache = self.model_kwargs.get("cache")
        if cache is not None:
            # The cross-attention's keys and values are the same for all hypotheses of a sentence.
            cache.self_attention_cache.reorder_cache(rows)


@replaceable
def next_token_steps(
    model: Any, input_ids: torch.Tensor, settings: Any, synced_gpus: bool, model_kwargs: dict[str, Any]
) -> Any:
    """What computes the logits of each step of a beam search.

    Args:
        model (`VanillaTransformerGenerationMixin`): decodes.
        input_ids (`torch.Tensor` of shape `(rows, length)`): the hypotheses before the first step.
        settings (`GenerationConfig`): of this call of `generate()`.
        synced_gpus (`bool`): whether processes take each step together.
        model_kwargs (`dict`): other inputs of the model, such as the encoder's output and the cache.

    Returns:
        [`NextTokenSteps`], or an object with its methods and attributes.
    """
    return NextTokenSteps(model, settings, model_kwargs)


@replaceable
def search_without_beams(
    model: Any,
    stock_search: Callable,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    settings: Any,
    synced_gpus: bool,
    streamer: Any,
    model_kwargs: dict[str, Any],
) -> Any:
    """Greedy search and sampling by transformers' own loop.

    Args:
        model (`VanillaTransformerGenerationMixin`): decodes.
        stock_search (`Callable`): the method `GenerationMixin._sample` of the model.
        input_ids (`torch.Tensor` of shape `(rows, length)`): the hypotheses before the first step.
        logits_processor, stopping_criteria, synced_gpus, streamer: arguments of `_sample`.
        settings (`GenerationConfig`): of this call of `generate()`.
        model_kwargs (`dict`): other inputs of the model, such as the encoder's output and the cache.

    Returns:
        What `_sample` returns.
    """
    return stock_search(input_ids, logits_processor, stopping_criteria, settings, synced_gpus, streamer, **model_kwargs)


def pays_to_prune(unfinished: int, active: int) -> bool:
    """Whether removing finished sentences from the batch takes less time than decoding them further."""
    return 0 < unfinished <= _MAX_SHARE_TO_PRUNE * active


class VanillaTransformerGenerationMixin(GenerationMixin):
    """`GenerationMixin` with more entries in `generation_config`, which are arguments of `generate()` too.

    - `length_penalty_type`: `"gnmt"` for the paper's length penalty, `"hf"` for transformers' `length ** alpha`.
    - `max_length_offset`: a sentence has at most this many generated tokens more than source tokens, counting `</s>`
      on both sides and no padding. `max_length` or `max_new_tokens` replace it where the caller gives them.

    The `cache` of an earlier `generate()` continues decoding: `decoder_input_ids` are then all target tokens so far, at
    least one more than the cache holds. `past_key_values` is its earlier name.

    A stopping criterion with the attribute `stops_hypotheses = False` only watches the search, which it may end by an
    error; see [`~.generation_settings.only_watches`].
    """

    config: Any
    generation_config: Any

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save as `PreTrainedModel.save_pretrained` does, also with `generation_config.num_beams = 1`."""
        settings = self.generation_config
        self.generation_config = SettingsToSave.of(settings)
        try:
            super().save_pretrained(*args, **kwargs)
        finally:
            self.generation_config = settings

    def adjust_generation_fn(self, *args: Any, **kwargs: Any) -> None:
        super().adjust_generation_fn(*args, **kwargs)
        if self.generation_config._from_model_config:
            self.generation_config = paper_generation_config(self.config)

    def _extract_generation_mode_kwargs(
        self, custom_generate: Any, kwargs: dict[str, Any], synced_gpus: Any, assistant_model: Any, streamer: Any
    ) -> dict[str, Any]:
        """Keep arguments that transformers drops where `custom_generate` is a function that has them as parameters.

        They are the tokenizer of stop strings, the streamer, and `synced_gpus`.
        """
        others = (synced_gpus, assistant_model, streamer)
        usual = super()._extract_generation_mode_kwargs(None, dict(kwargs), *others)
        extracted = super()._extract_generation_mode_kwargs(custom_generate, kwargs, *others)
        if callable(custom_generate):
            parameters = inspect.signature(custom_generate).parameters
            extracted.update({name: value for name, value in usual.items() if name in parameters})
        return extracted

    def _prepare_generation_config(self, generation_config: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        check_search(kwargs)  # Before transformers compares them.
        settings_of_call = generation_config or self.generation_config
        former = kwargs.pop("forced_phrases", None) or getattr(settings_of_call, "forced_phrases", None)
        if former is not None:
            raise InputError(
                "forced_phrases is not a setting of generate(); give custom_generate=ForcedPhrases(phrases), of the "
                "package hf_vanilla_transformer."
            )
        length_is_given = self._caller_limits_length(generation_config, kwargs)
        # transformers ignores arguments that neither the model's nor the caller's settings contain.
        own = {name: kwargs.pop(name) for name in OWN_SETTINGS if name in kwargs}
        kwargs["cache"] = either_cache(kwargs.pop("cache", None), kwargs.pop("past_key_values", None))
        generation_config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        for name, value in own.items():
            setattr(generation_config, name, value)
        length_penalty_of(generation_config)
        check_search(vars(generation_config))
        check_token_ids(generation_config, self.config.vocab_size)
        if getattr(generation_config, "prefill_chunk_size", None) is not None:
            # transformers would truncate the source's mask as if it were the target's.
            raise InputError("prefill_chunk_size is for decoder-only models; leave it out.")
        if length_is_given:
            generation_config.max_length_offset = None
        # Later hooks read this from the settings, whose copy lives for one call of generate().
        mask: Any = model_kwargs.get("attention_mask")
        has_lengths = mask is not None and mask.ndim == 2
        generation_config.source_lengths = mask.bool().sum(dim=-1) if has_lengths else None
        return generation_config, model_kwargs

    def _caller_limits_length(self, generation_config: GenerationConfig | None, kwargs: dict[str, Any]) -> bool:
        if any(kwargs.get(name) is not None for name in ("max_length", "max_new_tokens")):
            return True
        if kwargs.get("max_length_offset") is not None:
            return False
        if generation_config is not None and limits_length(generation_config):
            return True
        # The caller's settings override the model's.
        if getattr(generation_config, "max_length_offset", None) is not None:
            return False
        return limits_length(self.generation_config)

    @staticmethod
    def create_masks_for_generate(attention_mask: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor | None:
        """Return the decoder's mask `(batch, length)` unchanged: the decoder counts positions by it."""
        return attention_mask

    def _prepare_model_inputs(self, inputs: Any, bos_token_id: Any, model_kwargs: dict[str, Any]) -> Any:
        encoded = model_kwargs.get("encoder_outputs")
        if encoded is not None:
            # A copy, because transformers repeats the tensors for each beam in place.
            model_kwargs = {**model_kwargs, "encoder_outputs": as_encoder_output(encoded)}
        prepared = super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)
        if prepared[0].numel() == 0:
            shape = tuple(prepared[0].shape)
            raise InputError(f"the batch is empty; give at least one sentence of one token, not inputs of {shape}.")
        return prepared

    def _prepare_decoder_input_ids_for_generation(
        self, *args: Any, model_kwargs: dict[str, Any], **kwargs: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        prefix: Any = model_kwargs.get("decoder_input_ids")
        mask = model_kwargs.pop("decoder_attention_mask", None)
        if mask is not None:
            if prefix is None or mask.shape != prefix.shape:
                given = "is missing" if prefix is None else f"is of shape {tuple(prefix.shape)}"
                raise InputError(
                    f"decoder_attention_mask is of shape {tuple(mask.shape)}, but decoder_input_ids {given}; give a "
                    "column for each token, 1 for real tokens and 0 for padding."
                )
            # transformers expects `<s>` in the first column and appends the next token after the last column.
            prefix, mask = move_padding(prefix, mask, "right")
            model_kwargs.update(decoder_input_ids=prefix, decoder_attention_mask=mask)
        prefix, model_kwargs = super()._prepare_decoder_input_ids_for_generation(
            *args, model_kwargs=model_kwargs, **kwargs
        )
        if mask is not None:
            prefix, mask = move_padding(prefix, model_kwargs["decoder_attention_mask"], "left")
            model_kwargs["decoder_attention_mask"] = mask
        return prefix, model_kwargs

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.LongTensor,
        next_sequence_length: int | None = None,
        cache: Any = None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The model's inputs for one step: of the `(rows, target)` tokens so far, those that are not in the cache.

        Raises:
            ValueError: if the cache holds all of them.
        """
        cache = either_cache(cache, past_key_values)
        length = tokens_to_read(cache, input_ids.shape[1], next_sequence_length)
        return super().prepare_inputs_for_generation(input_ids, next_sequence_length=length, cache=cache, **kwargs)

    def _prepare_generated_length(
        self, generation_config: Any, inputs_tensor: torch.Tensor, input_ids_length: int, **kwargs: Any
    ) -> Any:
        offset = getattr(generation_config, "max_length_offset", None)
        generation_config.sentence_max_lengths = None
        if offset is not None:
            lengths = generation_config.source_lengths
            longest = inputs_tensor.shape[1] if lengths is None else int(lengths.max())
            most = longest + offset
            if self.config.position_embedding_type == "learned":
                # The last generated token is never an input, so it needs no position.
                most = max(1, min(most, self.config.max_position_embeddings + 1 - input_ids_length))
            generation_config.max_new_tokens = most
            if lengths is not None:
                generation_config.sentence_max_lengths = input_ids_length + (lengths + offset).clamp(max=most)
            kwargs["has_default_max_length"] = True
        return super()._prepare_generated_length(
            generation_config, inputs_tensor=inputs_tensor, input_ids_length=input_ids_length, **kwargs
        )

    def _get_stopping_criteria(self, generation_config: Any, *args: Any, **kwargs: Any) -> Any:
        criteria = super()._get_stopping_criteria(generation_config, *args, **kwargs)
        for criterion in criteria:
            if type(criterion) is MaxLengthCriteria and self.config.position_embedding_type != "learned":
                # transformers warns beyond max_position_embeddings, which limits learned positions only.
                criterion.max_position_embeddings = None
        max_lengths = generation_config.sentence_max_lengths
        if max_lengths is not None:
            limit = SentenceLengthLimit(max_lengths)
            if generation_config._pad_token_tensor is not None:
                # transformers pads finished sentences where a criterion has this attribute.
                limit.eos_token_id = generation_config._eos_token_tensor
            criteria.append(limit)
        return criteria

    def _get_logits_processor(self, generation_config: Any, *args: Any, **kwargs: Any) -> Any:
        max_lengths, eos = generation_config.sentence_max_lengths, generation_config.forced_eos_token_id
        if max_lengths is not None and eos is not None:
            generation_config.forced_eos_token_id = None
            kwargs["logits_processor"] = [*(kwargs.get("logits_processor") or []), SentenceForcedEOS(max_lengths, eos)]
        return super()._get_logits_processor(generation_config, *args, **kwargs)

    def log_probabilities(self, logits: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """The log-probabilities of logits `(..., vocabulary)`, in nats, written to `out` if it is given."""
        return torch.log_softmax(logits, dim=-1, out=out)

    def _sample(
        self: Any,
        input_ids: Any,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Greedy search and sampling, with the arguments and outputs of `GenerationMixin._sample`."""
        with cast_weights_once(self):
            return search_without_beams(
                self,
                super()._sample,
                input_ids,
                logits_processor,
                stopping_criteria,
                generation_config,
                synced_gpus,
                streamer,
                model_kwargs,
            )

    def _beam_search(
        self: Any,
        input_ids: Any,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: Any,
        synced_gpus: bool = False,
        new_search: Callable[[torch.Tensor, Any], BeamSearch] = new_beam_search,
        **model_kwargs: Any,
    ) -> Any:
        """The loop around [`BeamSearch`], with the arguments and outputs of `GenerationMixin._beam_search`.

        A function that is given as `custom_generate` may call it with another `new_search`, which makes the search from
        the prompts `(batch, length)` and the settings.
        """
        if model_kwargs.pop("streamer", None) is not None:
            raise InputError("beam search cannot stream, because the best beam is known at the end; give num_beams=1.")
        settings = generation_config
        if settings.low_memory:
            raise InputError("low_memory is not supported; leave it out, or give fewer num_beams.")
        prompts = input_ids[:: settings.num_beams]
        search, record = new_search(prompts, settings), requested_outputs(settings)
        stops = CandidateStops(stopping_criteria, settings)
        steps = next_token_steps(self, input_ids, settings, synced_gpus, model_kwargs)
        # Logits processors and sampling depend on the rows of the whole batch.
        can_prune = steps.can_prune and stops.are_plain and not (logits_processor or settings.do_sample)
        is_done = False
        with cast_weights_once(self):
            while self._has_unfinished_sequences(is_done, synced_gpus, device=input_ids.device):
                logits = steps(input_ids).to(dtype=torch.float32, device=input_ids.device)
                if is_done:  # Other processes are still decoding.
                    continue
                # In place, unless the logits are an output: a large vocabulary takes much memory.
                log_probs = self.log_probabilities(logits, out=None if "logits" in record else logits)
                log_probs = logits_processor(input_ids, log_probs).float()
                outputs = {**steps.outputs, "scores": log_probs, "logits": logits}
                for name in record:
                    record[name] += (outputs[name],)
                parents, candidates = search.extend(log_probs, do_sample=settings.do_sample)
                search.prune(*stops(input_ids, parents, candidates, search.are_full, record.get("scores")))
                steps.reorder(search.rows)
                input_ids = torch.cat([input_ids[search.rows], search.tokens], dim=1)
                running = search.num_running
                is_done = running == 0
                if can_prune and pays_to_prune(running, search.num_active):
                    kept = search.drop_finished()
                    steps.select(kept)
                    input_ids = input_ids.unflatten(0, (-1, settings.num_beams))[kept].flatten(0, 1)
        rows: Any
        generated, scores, rows = search.best()
        missing = int((~exists(scores[:: settings.num_return_sequences])).sum())
        if missing:
            logger.warning(
                "%d of %d sentences have no translation: scores are NaN, a logits processor forbids every token, or "
                "the search ended before the forced phrases.",
                missing,
                len(prompts),
            )
        prompts = prompts.repeat_interleave(settings.num_return_sequences, dim=0)
        sequences: Any = torch.cat([prompts, generated], dim=1)
        if not settings.return_dict_in_generate:
            return sequences
        return GenerateBeamEncoderDecoderOutput(
            cache=steps.model_kwargs.get("cache"),
            sequences=sequences,
            sequences_scores=scores if settings.output_scores else None,
            beam_indices=rows,
            encoder_attentions=model_kwargs["encoder_outputs"].attentions,
            encoder_hidden_states=model_kwargs["encoder_outputs"].hidden_states,
            **record,
        )
