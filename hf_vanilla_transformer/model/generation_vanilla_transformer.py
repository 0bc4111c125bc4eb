"""Translate with transformers' `generate()`, using the paper's decoding settings (section 6.1) by default.

The settings of a new model are saved with it, in its `generation_config`. They are beam search with 4 beams, the length
penalty of Wu et al. 2016 (GNMT) with alpha = 0.6, and at most 50 more generated tokens than source tokens.

Docstrings name the axes of tensors: batch (sentences), rows (the hypotheses of all sentences, where hypotheses of the
same sentence are adjacent), source, target and length (in tokens), vocabulary, and the axes of `beam_search.py`.
"""

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationConfig, GenerationMixin, PreTrainedModel, __version__
from transformers.generation import (
    BaseStreamer,
    GenerateBeamEncoderDecoderOutput,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
)
from transformers.utils import ModelOutput

from .beam_search import BeamSearch, exists
from .generation_settings import (
    SEARCH_SETTINGS,
    CallSettings,
    CandidateStops,
    SentenceForcedEOS,
    SentenceLengthLimit,
    SettingsToSave,
    check_no_forced_phrases,
    check_search,
    check_token_ids,
    create_default_generation_config,
    length_penalty_of,
    limits_length,
    warn_of_many_beams,
)
from .input_checks import InputError, as_encoder_output, either_cache
from .operations import cast_weights_once, replaceable


logger = logging.getLogger(__name__)

# All inputs of the model except the hypotheses, such as the encoder's output and the cache.
ModelKwargs = dict[str, Any]
# The entries of `generation_config` that this package adds.
OWN_SETTINGS = [name for name, setting in SEARCH_SETTINGS.items() if setting.is_own]
# Finished sentences are pruned when at most this share of the batch is unfinished. Pruning copies the cache, so it
# costs more than it saves if only a few sentences are finished.
_MAX_SHARE_TO_PRUNE = 0.75


def move_padding(ids: Tensor, mask: Tensor, side: str) -> tuple[Tensor, Tensor]:
    """Move the padding of each row to one side, and keep the order of the real tokens.

    Args:
        ids (`torch.LongTensor` of shape `(batch, length)`): token ids.
        mask (`torch.Tensor` of shape `(batch, length)`): 1 for real tokens, 0 for padding.
        side (`str`): `"left"` or `"right"`.

    Returns:
        The ids and the mask in the new order.
    """
    is_token = mask.bool().long()
    # Padding, 0, comes last in a descending sort, and first in an ascending one. A stable sort keeps the order of the
    # real tokens.
    puts_padding_last = side == "right"
    order = is_token.argsort(dim=-1, stable=True, descending=puts_padding_last)
    return ids.gather(-1, order), mask.gather(-1, order)


def requested_outputs(settings: GenerationConfig) -> dict[str, tuple]:
    """Create the dictionary that collects those outputs of each step, such as scores, that the settings request.

    Each requested output has an empty tuple, to which the caller adds one entry per decoding step. The keys are fields
    of transformers' output classes.
    """
    requests = {
        "scores": settings.output_scores,
        "logits": settings.output_logits,
        "decoder_attentions": settings.output_attentions,
        "cross_attentions": settings.output_attentions,
        "decoder_hidden_states": settings.output_hidden_states,
    }
    if not settings.return_dict_in_generate:
        return {}
    return {name: () for name, is_requested in requests.items() if is_requested}


def tokens_to_read(cache: Cache | None, length: int, tokens_of_step: int | None) -> int | None:
    """Return how many tokens at the end of the target the model must read next, or None for all of them.

    The model need not read the tokens that are in the cache. There are three cases:

    - Without a cache, the model reads all tokens in every step, so the result is None.
    - In the first step with a cache, the model reads the tokens that the cache does not hold. For example, if there are
      5 tokens, and an earlier `generate()` call has put 3 of them into the cache, the result is 2.
    - In later steps with a cache, transformers has counted the new tokens, and the result is `tokens_of_step`.

    Args:
        cache (`Cache`, *optional*): the keys and values of earlier tokens.
        length (`int`): the number of target tokens so far.
        tokens_of_step (`int`, *optional*): the number that transformers' loop passes, which is None in the first step.

    Raises:
        ValueError: if the cache holds all tokens, so that there is nothing to read.
        RuntimeError: if transformers omits earlier tokens without passing the cache that holds them.
    """
    if cache is None:
        # `tokens_of_step` does not change the result here, but it shows whether transformers uses a cache after all.
        _check_no_token_is_omitted(length, tokens_of_step)
        return None
    if tokens_of_step is not None:
        # This is a later step.
        return tokens_of_step
    # In the first step, the caller's cache may hold the tokens of an earlier `generate()` call.
    past_length = int(cache.get_seq_length())
    _check_new_tokens(length, past_length)
    return length - past_length


def _check_no_token_is_omitted(length: int, tokens_of_step: int | None) -> None:
    """Raise RuntimeError if transformers omits some of the `length` tokens although the model gets no cache.

    A later release of transformers may rename the cache. Without this error, the model would ignore earlier tokens.
    """
    if tokens_of_step is not None and tokens_of_step < length:
        raise RuntimeError(
            f"transformers {__version__} passes the cache by a name that this code does not know; install a "
            "release that the package hf_vanilla_transformer supports."
        )


def _check_new_tokens(length: int, past_length: int) -> None:
    """Raise ValueError if none of the `length` target tokens is new, because the cache holds `past_length` tokens."""
    if length <= past_length:
        raise InputError(
            f"the cache holds {past_length} tokens, but decoder_input_ids has {length}; to continue, give all target "
            "tokens so far, at least one more than the cache holds."
        )


def _check_mask_of_prefix(mask: Tensor, prefix: Tensor | None) -> None:
    """Raise ValueError if the mask of a forced prefix has a different shape than the prefix, or if there is no prefix.

    A forced prefix consists of the target tokens that the caller passes as `decoder_input_ids`.
    """
    if prefix is not None and prefix.shape == mask.shape:
        return
    if prefix is None:
        fault = "is missing"
    else:
        fault = f"is of shape {tuple(prefix.shape)}"
    raise InputError(
        f"decoder_attention_mask is of shape {tuple(mask.shape)}, but decoder_input_ids {fault}; give a "
        "column for each token, 1 for real tokens and 0 for padding."
    )


def new_beam_search(prompts: Tensor, settings: GenerationConfig) -> BeamSearch:
    """Create the beam search that continues the prompts, with the settings of a `generate()` call.

    The prompts, `(batch, length)`, are the target tokens before the first generated one, such as `<s>`.
    """
    eos = settings._eos_token_tensor
    num_eos = 0 if eos is None else len(eos)
    return BeamSearch(settings.num_beams, num_eos=num_eos, **search_options(prompts, settings))


def search_options(prompts: Tensor, settings: GenerationConfig) -> dict[str, Any]:
    """Return the arguments of [`BeamSearch`] that the settings determine, except `num_beams` and `num_eos`.

    Args:
        prompts (`torch.LongTensor` of shape `(batch, length)`): the tokens before the first generated one.
        settings (`GenerationConfig`): the settings of a `generate()` call.
    """
    warn_of_many_beams(settings.num_beams)
    # The maximum number of target tokens of each sentence, including its prompt, (batch,).
    max_lengths = torch.full((len(prompts),), settings.max_length, device=prompts.device)
    sentence_max_lengths = getattr(settings, "sentence_max_lengths", None)
    if sentence_max_lengths is not None:
        max_lengths = max_lengths.minimum(sentence_max_lengths.to(prompts.device))
    pad = settings._pad_token_tensor
    # Without a pad token, positions after the end of a hypothesis hold -1, which is no token.
    fill = -1 if pad is None else int(pad)
    return {
        "num_return_sequences": settings.num_return_sequences,
        "length_penalty": length_penalty_of(settings),
        "early_stopping": settings.early_stopping,
        # A search counts generated tokens only, without the prompt.
        "limits": max_lengths - prompts.shape[1],
        "fill": fill,
    }


def _warn_of_missing_translations(best_scores: Tensor) -> None:
    """Log a warning if some sentences have no translation.

    `best_scores`, of shape `(batch,)`, has the score of each sentence's best hypothesis.
    """
    num_missing = int((~exists(best_scores)).sum())
    if num_missing > 0:
        logger.warning(
            "%d of %d sentences have no translation: scores are NaN, a logits processor forbids every token, or "
            "the search ended before the forced phrases.",
            num_missing,
            len(best_scores),
        )


class NextTokenSteps:
    """A callable that runs the model for one step of beam search, and returns the logits of the next token.

    A replacement for [`next_token_steps`] may return an object of a different class:

    - The object needs `outputs`, `can_prune` and the methods of this class.
    - If its `can_prune` is True, it also needs a method `select(sentences)`, which keeps only the given sentences in
      the batch.
    - It needs `model_kwargs` only for calls with `return_dict_in_generate`.

    Args:
        model (`VanillaTransformerGenerationMixin`): the model that decodes.
        settings (`GenerationConfig`): the settings of this `generate()` call.
        model_kwargs (`dict`): all inputs of the model except the hypotheses. Each step updates the cache in it.

    Attributes:
        outputs (`ModelOutput`, *optional*): the model's output in the last step.
    """

    # This class has no method `select`, so finished sentences stay in the batch until the search ends.
    can_prune = False

    def __init__(
        self, model: "VanillaTransformerGenerationMixin", settings: GenerationConfig, model_kwargs: ModelKwargs
    ):
        # Type checkers do not know that a model's class combines this mixin with `nn.Module`.
        self.model: Any = model
        self.settings = settings
        self.model_kwargs = model_kwargs
        self.outputs: ModelOutput | None = None

    def __call__(self, input_ids: Tensor) -> Tensor:
        """Compute the logits of the next token, `(rows, vocabulary)` in float32, for hypotheses `(rows, length)`.

        Each call stores the model's output in `outputs`, and prepares `model_kwargs` for the next step. `outputs` is
        None until the first call.
        """
        is_first_step = self.outputs is None
        if is_first_step:
            # This method of transformers runs the model on all tokens of the prompts.
            outputs = self.model._prefill(input_ids, self.settings, self.model_kwargs)
        else:
            # With a cache, the model reads only the last token.
            tokens_of_step = 1 if self.model_kwargs["use_cache"] else None
            inputs = self.model.prepare_inputs_for_generation(
                input_ids, next_sequence_length=tokens_of_step, **self.model_kwargs
            )
            outputs = self.model(**inputs, return_dict=True)
        # From the next call on, `is_first_step` is False.
        self.outputs = outputs
        # This method of transformers changes the dictionary in place and returns it. The next step needs the cache of
        # this step, and a mask with one more column.
        self.model_kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self.model_kwargs, is_encoder_decoder=True
        )
        # The result is a copy, because the search overwrites it, and a view would keep all other positions in memory.
        return outputs.logits[:, -1].to(torch.float32, copy=True)

    def reorder(self, rows: Tensor) -> None:
        """Reorder the cache so that hypothesis i continues the hypothesis in row `rows[i]`."""
        cache = self.model_kwargs.get("cache")
        if cache is not None:
            # The cross-attention keys and values are the same for all hypotheses of a sentence.
            cache.self_attention_cache.reorder_cache(rows)


@replaceable
def next_token_steps(
    model: "VanillaTransformerGenerationMixin",
    input_ids: Tensor,
    settings: GenerationConfig,
    synced_gpus: bool,
    model_kwargs: ModelKwargs,
) -> Any:
    """Create the object that computes the logits for each step of beam search.

    Args:
        model (`VanillaTransformerGenerationMixin`): the model that decodes.
        input_ids (`torch.Tensor` of shape `(rows, length)`): the hypotheses before the first step.
        settings (`GenerationConfig`): the settings of this `generate()` call.
        synced_gpus (`bool`): whether several processes must run each step together.
        model_kwargs (`dict`): all inputs of the model except the hypotheses, such as the encoder's output and the
            cache.

    Returns:
        [`NextTokenSteps`], or an object with its methods and attributes.
    """
    return NextTokenSteps(model, settings, model_kwargs)


@replaceable
def search_without_beams(
    model: "VanillaTransformerGenerationMixin",
    stock_search: Callable,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    settings: GenerationConfig,
    synced_gpus: bool,
    streamer: BaseStreamer | None,
    model_kwargs: ModelKwargs,
) -> ModelOutput | Tensor:
    """Run greedy search or sampling with transformers' own decoding loop, unless a replacement is registered.

    Args:
        model (`VanillaTransformerGenerationMixin`): the model that decodes.
        stock_search (`Callable`): the model's inherited method `GenerationMixin._sample`.
        input_ids (`torch.Tensor` of shape `(rows, length)`): the hypotheses before the first step.
        logits_processor, stopping_criteria, synced_gpus, streamer: arguments of `_sample`.
        settings (`GenerationConfig`): the settings of this `generate()` call.
        model_kwargs (`dict`): all inputs of the model except the hypotheses, such as the encoder's output and the
            cache.

    Returns:
        The result of `_sample`.
    """
    return stock_search(input_ids, logits_processor, stopping_criteria, settings, synced_gpus, streamer, **model_kwargs)


def pays_to_prune(unfinished: int, active: int) -> bool:
    """Return True if pruning finished sentences is faster than continuing to decode them.

    Args:
        unfinished (`int`): the number of sentences that are not finished.
        active (`int`): the number of sentences in the batch, including finished ones.
    """
    # If all sentences are finished, the search ends without pruning.
    return 0 < unfinished <= _MAX_SHARE_TO_PRUNE * active


class VanillaTransformerGenerationMixin(GenerationMixin):
    """A `GenerationMixin` whose `generate()` implements the paper's beam search.

    It adds two entries to `generation_config`, which are also arguments of `generate()`:

    - `length_penalty_type`: `"gnmt"` for the paper's length penalty, or `"hf"` for transformers' `length ** alpha`.
    - `max_length_offset`: how many more tokens may be generated for a sentence than its source has. Both numbers
      include `</s>` and exclude padding. If the caller passes `max_length` or `max_new_tokens`, that limit replaces the
      offset.

    To continue decoding after an earlier `generate()` call, pass its `cache`, and pass all target tokens so far as
    `decoder_input_ids`. There must be at least one more token than the cache holds. The earlier name of `cache` is
    `past_key_values`.

    A stopping criterion with the attribute `stops_hypotheses = False` only watches the search. It may end the search by
    raising an error. See [`~.generation_settings.only_watches`].
    """

    config: Any
    generation_config: GenerationConfig

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model as `PreTrainedModel.save_pretrained` does, but accept any `generation_config.num_beams`.

        transformers raises an error if beam search has settings and `num_beams` is 1. Therefore, the settings are
        replaced by a copy that skips this check while the model is saved.
        """
        settings = self.generation_config
        self.generation_config = SettingsToSave.from_settings(settings)
        try:
            super().save_pretrained(*args, **kwargs)
        finally:
            self.generation_config = settings

    def adjust_generation_fn(self, *args: Any, **kwargs: Any) -> None:
        """Load `generation_config` from the model's folder, or use the paper's settings if the folder has none."""
        super().adjust_generation_fn(*args, **kwargs)
        # transformers sets this flag if the folder has no generation_config.json.
        if self.generation_config._from_model_config:
            self.generation_config = create_default_generation_config(self.config)

    def _extract_generation_mode_kwargs(
        self,
        custom_generate: str | Callable | None,
        kwargs: dict[str, Any],
        synced_gpus: bool | None,
        assistant_model: PreTrainedModel | None,
        streamer: BaseStreamer | None,
    ) -> dict[str, Any]:
        """Return the arguments for the decoding loop, including those that a `custom_generate` function accepts.

        transformers returns one of two dictionaries:

        - Without a function: the arguments of its own decoding loops, such as the tokenizer for stop strings, the
          streamer and `synced_gpus`.
        - With a function: only the function's additional arguments, and none of those above.

        For a function, this method returns the second dictionary, and adds those arguments from the first one for which
        the function has a parameter with the same name.
        """
        # This method of transformers removes arguments from the dictionary `kwargs`. With a function, it also removes
        # `tokenizer` and `assistant_tokenizer`, which it then does not return.
        pop_arguments = super()._extract_generation_mode_kwargs
        if not callable(custom_generate):
            return pop_arguments(custom_generate, kwargs, synced_gpus, assistant_model, streamer)

        # The None means that there is no function. This call gets a copy, so that the next one finds all arguments.
        arguments_of_stock_loops = pop_arguments(None, dict(kwargs), synced_gpus, assistant_model, streamer)
        arguments = pop_arguments(custom_generate, kwargs, synced_gpus, assistant_model, streamer)
        parameters = inspect.signature(custom_generate).parameters
        for name, argument in arguments_of_stock_loops.items():
            if name in parameters:
                arguments[name] = argument
        return arguments

    def _prepare_generation_config(
        self, generation_config: GenerationConfig | None, **kwargs: Any
    ) -> tuple[GenerationConfig, ModelKwargs]:
        """Merge the settings of the model and of the call, and check them.

        Args:
            generation_config (`GenerationConfig`, *optional*): the settings that the caller passes as an object.
            **kwargs: the other arguments of `generate()`, which are settings such as `num_beams`, and inputs of the
                model such as `attention_mask`.

        Returns:
            The merged settings, and those arguments of the call that are inputs of the model. The settings are a copy
            for this call. They have two fields for `_prepare_generated_length`, which transformers calls later:
            `max_length_offset`, which is None if a limit of the caller or of the model replaces it, and
            `source_lengths`.
        """
        # `kwargs` is this method's own dictionary, so entries can be removed without changing the caller's arguments.
        # Without this check, transformers would compare these numbers and raise an error that does not name the
        # argument.
        check_search(kwargs)
        check_no_forced_phrases(kwargs, generation_config or self.generation_config)
        # A caller may pass None for this former setting.
        kwargs.pop("forced_phrases", None)

        # This must come before `_merge_settings`, which removes `max_length_offset` from `kwargs`. In the merged
        # settings, limits of the call could no longer be told apart from limits of the model.
        caller_limits_length = self._caller_limits_length(generation_config, kwargs)
        # The cache of earlier tokens has two names, of which this method passes on only the current one.
        kwargs["cache"] = either_cache(kwargs.pop("cache", None), kwargs.pop("past_key_values", None))
        settings, model_kwargs = self._merge_settings(generation_config, kwargs)
        self._check_settings(settings)

        if caller_limits_length:
            # The limit of the caller takes the place of the offset.
            settings.max_length_offset = None
        # The number of source tokens of each sentence, (batch,). It is None without a 2D mask.
        settings.source_lengths = None
        source_mask = model_kwargs.get("attention_mask")
        if source_mask is not None and source_mask.ndim == 2:
            settings.source_lengths = source_mask.bool().sum(dim=-1)
        return settings, model_kwargs

    def _merge_settings(
        self, generation_config: GenerationConfig | None, arguments: dict[str, Any]
    ) -> tuple[CallSettings, ModelKwargs]:
        """Merge the arguments of a call into a copy of the settings.

        The settings that this package adds, such as `max_length_offset`, are removed from `arguments` and set
        afterwards, because transformers would ignore those that neither the model's nor the caller's settings contain.

        Returns:
            The merged settings, and those arguments that are inputs of the model.
        """
        own_settings: dict[str, Any] = {}
        for name in OWN_SETTINGS:
            if name in arguments:
                own_settings[name] = arguments.pop(name)
        settings, model_kwargs = super()._prepare_generation_config(generation_config, **arguments)
        for name, setting in own_settings.items():
            setattr(settings, name, setting)
        return cast(CallSettings, settings), model_kwargs

    def _check_settings(self, settings: GenerationConfig) -> None:
        """Raise ValueError if the settings of a `generate()` call have a value that this model does not support."""
        # This call checks the type and the alpha of the length penalty. Its result is not needed here.
        length_penalty_of(settings)
        check_search(vars(settings))
        check_token_ids(settings, self.config.vocab_size)
        if getattr(settings, "prefill_chunk_size", None) is not None:
            # transformers would truncate the source's mask as if it were the target's.
            raise InputError("prefill_chunk_size is for decoder-only models; leave it out.")

    def _caller_limits_length(self, generation_config: GenerationConfig | None, kwargs: Mapping[str, object]) -> bool:
        """Return True if `max_length` or `max_new_tokens` limits a `generate()` call, so that no offset applies.

        The offset is `max_length_offset`. Limits and offsets are looked for in three places: the arguments of the call,
        the caller's `generation_config`, and the settings of the model. The first place that has a limit or an offset
        decides: the result is True if it has a limit, even if it has an offset as well, and False otherwise.

        In settings, in contrast to arguments, a `max_length` of 20 may be a default that `Seq2SeqTrainer.predict` has
        written. `limits_length` does not count such a default as a limit.
        """
        # The first place: the arguments of the call.
        if kwargs.get("max_length") is not None or kwargs.get("max_new_tokens") is not None:
            return True
        if kwargs.get("max_length_offset") is not None:
            return False
        # The second place: the caller's settings.
        if generation_config is not None:
            if limits_length(generation_config):
                return True
            if getattr(generation_config, "max_length_offset", None) is not None:
                return False
        # The third place: the model's settings. If they have no limit, the result is False, with an offset or without.
        return limits_length(self.generation_config)

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
        """Return the decoder's padding mask `(batch, length)` unchanged, because token positions are counted from it.

        For a static cache, transformers would otherwise make a 4D mask.
        """
        return attention_mask

    def _prepare_model_inputs(
        self, inputs: Tensor | None, bos_token_id: Tensor | None, model_kwargs: ModelKwargs
    ) -> tuple[Tensor, str | None, ModelKwargs]:
        """Return the encoder's inputs, the name of their argument, and all other inputs of the model.

        Raises:
            ValueError: if the encoder's inputs contain no tokens.
        """
        encoder_outputs = model_kwargs.get("encoder_outputs")
        if encoder_outputs is not None:
            # The encoder's output is copied, because transformers modifies it in place to repeat tensors for each beam.
            model_kwargs = {**model_kwargs, "encoder_outputs": as_encoder_output(encoder_outputs)}
        source, source_name, model_kwargs = super()._prepare_model_inputs(inputs, bos_token_id, model_kwargs)
        if source.numel() == 0:
            raise InputError(
                "the batch is empty; give at least one sentence of one token, not inputs of shape "
                f"{tuple(source.shape)}."
            )
        return source, source_name, model_kwargs

    def _prepare_decoder_input_ids_for_generation(
        self, *args: Any, model_kwargs: ModelKwargs, **kwargs: Any
    ) -> tuple[Tensor, ModelKwargs]:
        """Return the target tokens that decoding continues: `<s>`, or the caller's prefix with padding on the left.

        transformers expects `<s>` in the first column, and appends the next token after the last column. Therefore,
        this method moves padding to the right before transformers looks for `<s>`, and to the left afterwards. For
        example, with the pad token 0 and `<s>` 1, the prefix `[0, 7, 8]` becomes `[7, 8, 0]`, then `[1, 7, 8, 0]`, and
        at last `[0, 1, 7, 8]`. The mask, which has 1 for real tokens and 0 for padding, changes in the same way.

        Like transformers' method, it changes `model_kwargs` in place and returns it: the prefix is removed, and its
        mask is replaced. All other arguments are passed on to transformers' method unchanged.
        """
        # This method of transformers removes the prefix from `model_kwargs` and returns it. If no sentence's
        # prefix begins with `<s>`, it adds `<s>` to the prefix, and a column to the mask in `model_kwargs`.
        prepare_prefix = super()._prepare_decoder_input_ids_for_generation
        mask = model_kwargs.pop("decoder_attention_mask", None)
        if mask is None:
            # Without a mask, there is no padding to move.
            return prepare_prefix(*args, model_kwargs=model_kwargs, **kwargs)

        _check_mask_of_prefix(mask, model_kwargs.get("decoder_input_ids"))
        prefix = model_kwargs["decoder_input_ids"]
        prefix_padded_right, mask_padded_right = move_padding(prefix, mask, "right")
        model_kwargs["decoder_input_ids"] = prefix_padded_right
        model_kwargs["decoder_attention_mask"] = mask_padded_right

        # The dictionary that is returned is the same object.
        prefix_with_start, model_kwargs = prepare_prefix(*args, model_kwargs=model_kwargs, **kwargs)
        mask_with_start = model_kwargs["decoder_attention_mask"]

        prefix_padded_left, mask_padded_left = move_padding(prefix_with_start, mask_with_start, "left")
        model_kwargs["decoder_attention_mask"] = mask_padded_left
        return prefix_padded_left, model_kwargs

    def prepare_inputs_for_generation(
        self,
        input_ids: torch.LongTensor,
        next_sequence_length: int | None = None,
        cache: Cache | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> ModelKwargs:
        """Return the model's inputs for one decoding step.

        `input_ids` holds all tokens so far, `(rows, target)`. The model reads only those that are not in the cache.

        Raises:
            ValueError: if the cache holds all tokens.
        """
        cache = either_cache(cache, past_key_values)
        num_tokens = tokens_to_read(cache, input_ids.shape[1], next_sequence_length)
        return super().prepare_inputs_for_generation(input_ids, next_sequence_length=num_tokens, cache=cache, **kwargs)

    def _prepare_generated_length(
        self, generation_config: CallSettings, inputs_tensor: Tensor, input_ids_length: int, **kwargs: Any
    ) -> GenerationConfig:
        """Compute the length limits from `max_length_offset`, if that setting applies, and then transformers' limits.

        transformers calls this method before `_get_logits_processor` and `_get_stopping_criteria`, and passes the same
        settings to all of them. So the field `sentence_max_lengths`, which this method adds to the settings, reaches
        the other two.

        Args:
            generation_config (`GenerationConfig`): the settings of this call, which are changed in place.
            inputs_tensor (`torch.Tensor` of shape `(batch, source, ...)`): the encoder's inputs.
            input_ids_length (`int`): the number of target tokens before the first generated one.
            **kwargs: other arguments of transformers' method.
        """
        # None means that all sentences have the same limit. It stays None if no offset applies.
        generation_config.sentence_max_lengths = None
        offset = getattr(generation_config, "max_length_offset", None)
        if offset is not None:
            padded_source_length = inputs_tensor.shape[1]
            # This sets `max_new_tokens`, from which transformers' method below computes `max_length`. If the lengths of
            # the sources are known, it also sets `sentence_max_lengths`.
            self._set_limits_from_offset(generation_config, offset, padded_source_length, input_ids_length)
            # With `max_new_tokens`, transformers reads this argument only to decide about a warning, which says that
            # the caller has set both max_length and max_new_tokens. Here, `max_new_tokens` comes from the offset.
            kwargs["has_default_max_length"] = True
        return super()._prepare_generated_length(
            generation_config, inputs_tensor=inputs_tensor, input_ids_length=input_ids_length, **kwargs
        )

    def _set_limits_from_offset(
        self, settings: CallSettings, offset: int, padded_source_length: int, prompt_length: int
    ) -> None:
        """Set `max_new_tokens` and `sentence_max_lengths` of the settings according to `max_length_offset`.

        `max_new_tokens`, one number for the batch, counts only generated tokens. `sentence_max_lengths`, (batch,), also
        counts the tokens of the prompt.

        Args:
            settings (`CallSettings`): the settings of a call, which are changed in place.
            offset (`int`): how many more tokens may be generated for a sentence than its source has.
            padded_source_length (`int`): the length of all sources with padding.
            prompt_length (`int`): the number of target tokens before the first generated one.
        """
        source_lengths = settings.source_lengths
        if source_lengths is None:
            longest_source = padded_source_length
        else:
            longest_source = int(source_lengths.max())
        max_new_tokens = longest_source + offset
        if self.config.position_embedding_type == "learned":
            # Every token is an input of the decoder, and needs a position, except the last generated one.
            most_new_tokens = self.config.max_position_embeddings + 1 - prompt_length
            # A prompt that is too long for the table raises an error when its positions are looked up. Here, the limit
            # only has to be positive.
            max_new_tokens = max(1, min(max_new_tokens, most_new_tokens))

        settings.max_new_tokens = max_new_tokens
        if source_lengths is not None:
            # The number of tokens that may be generated for each sentence, (batch,).
            new_tokens = (source_lengths + offset).clamp(max=max_new_tokens)
            settings.sentence_max_lengths = prompt_length + new_tokens

    def _get_stopping_criteria(
        self, generation_config: CallSettings, *args: Any, **kwargs: Any
    ) -> StoppingCriteriaList:
        """Return transformers' stopping criteria, and a criterion that ends each sentence at its own length limit."""
        criteria = super()._get_stopping_criteria(generation_config, *args, **kwargs)
        if self.config.position_embedding_type != "learned":
            # Sinusoidal positions have no limit. Without this, transformers would warn beyond max_position_embeddings.
            for criterion in criteria:
                if type(criterion) is MaxLengthCriteria:
                    criterion.max_position_embeddings = None
        max_lengths = generation_config.sentence_max_lengths
        if max_lengths is not None:
            limit = SentenceLengthLimit(max_lengths)
            if generation_config._pad_token_tensor is not None:
                # transformers pads finished sentences if a criterion has this attribute, whatever its value. Without a
                # pad token, it could not pad them, so the attribute must be missing.
                limit.eos_token_id = generation_config._eos_token_tensor
            criteria.append(limit)
        return criteria

    def _get_logits_processor(self, generation_config: CallSettings, *args: Any, **kwargs: Any) -> LogitsProcessorList:
        """Return transformers' logits processors. `forced_eos_token_id` applies at each sentence's own length limit.

        The inherited method makes a processor for each setting, and adds the processors that the caller passes. If each
        sentence has its own limit, its arguments are changed so that `SentenceForcedEOS` takes the place of its own
        processor for `forced_eos_token_id`.
        """
        max_lengths = generation_config.sentence_max_lengths
        forced_eos = generation_config.forced_eos_token_id
        if max_lengths is not None and forced_eos is not None:
            # transformers' own processor would use one limit for all sentences. Without the setting, it is not made.
            # The settings are a copy for this `generate()` call, so they may be changed.
            generation_config.forced_eos_token_id = None
            # The caller's list stays as it is, because the new processor is appended to a copy.
            processors = list(kwargs.get("logits_processor") or [])
            processors.append(SentenceForcedEOS(max_lengths, forced_eos))
            kwargs["logits_processor"] = processors
        return super()._get_logits_processor(generation_config, *args, **kwargs)

    def log_probabilities(self, logits: Tensor, out: Tensor | None = None) -> Tensor:
        """Compute log-probabilities, in nats, from logits of shape `(..., vocabulary)`.

        If `out` is passed, the result is written to it. An ensemble overrides this method, because its logits are
        already log-probabilities.
        """
        return torch.log_softmax(logits, dim=-1, out=out)

    def _sample(
        self,
        input_ids: torch.LongTensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        **model_kwargs: Any,
    ) -> ModelOutput | Tensor:
        """Run greedy search or sampling. Arguments and results are the same as for `GenerationMixin._sample`."""
        with cast_weights_once(cast(nn.Module, self)):
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
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        new_search: Callable[[Tensor, GenerationConfig], BeamSearch] = new_beam_search,
        **model_kwargs: Any,
    ) -> ModelOutput | Tensor:
        """Run beam search. Arguments and results are the same as for `GenerationMixin._beam_search`.

        Every step

        - calls the model to compute the logits of the next token;
        - lets [`BeamSearch`] extend the hypotheses by the best tokens;
        - evaluates the stopping criteria, which decide which of these candidates have ended;
        - reorders the cache to match the hypotheses that continue.

        A function that is passed as `custom_generate` may call this method with a different `new_search`, which creates
        the search from the prompts, `(batch, length)`, and the settings.
        """
        settings = generation_config
        num_beams = settings.num_beams
        if model_kwargs.pop("streamer", None) is not None:
            raise InputError("beam search cannot stream, because the best beam is known at the end; give num_beams=1.")
        if settings.low_memory:
            raise InputError("low_memory is not supported; leave it out, or give fewer num_beams.")

        # The hypotheses of all sentences, (active * beams, length). At first, all beams of a sentence have its prompt,
        # so every `num_beams`-th row is the prompt of a different sentence.
        hypotheses = input_ids
        prompts = hypotheses[::num_beams]
        search = new_search(prompts, settings)
        # For each output that the caller requests, such as "scores", a tuple with one entry per step.
        outputs_by_step = requested_outputs(settings)
        stops = CandidateStops(stopping_criteria, settings)
        # A callable that runs the model on the hypotheses, and holds the outputs of its last step.
        steps = next_token_steps(self, hypotheses, settings, synced_gpus, model_kwargs)
        # Logits processors and sampling depend on the rows of the whole batch, so no row may be removed.
        needs_all_rows = bool(logits_processor) or settings.do_sample
        can_prune = steps.can_prune and stops.follow_from_settings and not needs_all_rows

        # True when the search of every sentence is done.
        is_done = False
        with cast_weights_once(cast(nn.Module, self)):
            while self._has_unfinished_sequences(is_done, synced_gpus, device=input_ids.device):
                logits = steps(hypotheses)
                if is_done:
                    # This process has finished, but all processes must call the model until the last one has.
                    continue
                # (active * beams, vocabulary)
                log_probs = self._log_probs_of_step(
                    hypotheses, logits, logits_processor, steps.outputs, outputs_by_step
                )

                # The rows of `hypotheses` that the candidates extend, and their last tokens, (active, candidates).
                rows, tokens = search.extend(log_probs, do_sample=settings.do_sample)
                # `are_full` is read between `extend`, which has counted the candidates' last tokens, and `prune`.
                scores_by_step = outputs_by_step.get("scores")
                is_finished, is_truncated = stops(hypotheses, rows, tokens, search.are_full, scores_by_step)
                search.prune(is_finished, is_truncated)

                # The rows that the new running hypotheses continue, and their last tokens, are in `search.rows` and
                # `search.tokens`. These rows are counted in the batch before finished sentences are removed, so the
                # cache and the hypotheses are reordered first, and then pruned.
                steps.reorder(search.rows)
                hypotheses = torch.cat([hypotheses[search.rows], search.tokens], dim=1)
                num_running = search.num_running
                is_done = num_running == 0
                if can_prune and pays_to_prune(num_running, search.num_active):
                    # The search, the cache and the hypotheses must keep the same sentences, in the same order.
                    remaining = search.drop_finished()
                    steps.select(remaining)
                    # (active, beams, length)
                    hypotheses_by_sentence = hypotheses.unflatten(0, (-1, num_beams))
                    hypotheses = hypotheses_by_sentence[remaining].flatten(0, 1)

        # All of these tensors have batch * num_return_sequences rows.
        generated, scores, beam_indices = search.best()
        repeated_prompts = prompts.repeat_interleave(settings.num_return_sequences, dim=0)
        sequences = torch.cat([repeated_prompts, generated], dim=1)
        # The hypotheses of a sentence are sorted, so it has none if the first one is empty.
        _warn_of_missing_translations(scores[:: settings.num_return_sequences])
        if not settings.return_dict_in_generate:
            return sequences
        encoder_outputs = model_kwargs["encoder_outputs"]
        return GenerateBeamEncoderDecoderOutput(
            cache=steps.model_kwargs.get("cache"),
            sequences=sequences,  # type: ignore[arg-type]
            sequences_scores=scores if settings.output_scores else None,
            beam_indices=beam_indices,  # type: ignore[arg-type]
            encoder_attentions=encoder_outputs.attentions,
            encoder_hidden_states=encoder_outputs.hidden_states,
            **outputs_by_step,
        )

    def _log_probs_of_step(
        self,
        hypotheses: Tensor,
        logits: Tensor,
        logits_processor: LogitsProcessorList,
        model_outputs: Mapping[str, Any],
        outputs_by_step: dict[str, tuple],
    ) -> Tensor:
        """Compute the log-probabilities of the next token from `logits`, which may be overwritten.

        `outputs_by_step` is changed in place. It has a tuple for each output that the caller requests: the scores, the
        logits, or outputs of the model such as attention weights. The output of this step is added to each tuple.

        Hypotheses have the shape `(rows, length)`. The logits and the result have the shape `(rows, vocabulary)`.
        """
        precise_logits = logits.to(dtype=torch.float32, device=hypotheses.device)
        if "logits" in outputs_by_step:
            log_probs = self.log_probabilities(precise_logits)
        else:
            # With a large vocabulary, logits take much memory. The caller does not request them, so the result
            # overwrites them: from here on, `precise_logits` and `log_probs` are the same tensor.
            log_probs = self.log_probabilities(precise_logits, out=precise_logits)
        processed_log_probs = logits_processor(hypotheses, log_probs).float()  # type: ignore[arg-type]

        # If logits were overwritten, the entry "logits" is wrong, but the loop below does not read it.
        outputs_of_step = {**model_outputs, "scores": processed_log_probs, "logits": precise_logits}
        # Only requested outputs have a key. The loop replaces their values, and adds no key during the iteration.
        for name, earlier_outputs in outputs_by_step.items():
            outputs_by_step[name] = (*earlier_outputs, outputs_of_step[name])
        return processed_log_probs
