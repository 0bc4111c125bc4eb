"""Private and renamed parts of transformers that this package uses, and the cache, which has two names.

A test compares [`PARAMETERS`] and [`ATTRIBUTES`] with the installed transformers, and another finds names that are
missing here. Names that are imported are not listed, because Python itself raises an error if one is missing.

The cache, the keys and values of earlier tokens, is `cache` since transformers 5.24, and `past_key_values` before.
"""

import warnings
from inspect import signature

import torch
from transformers import Cache, GenerationMixin, __version__


# The cache's name in the installed transformers, in `generate()` and in the outputs of models.
CACHE = "past_key_values"
if "cache" in signature(GenerationMixin.prepare_inputs_for_generation).parameters:
    CACHE = "cache"

# Methods that this package overrides or calls, and functions, by their class or module, each with the parameters that
# it uses: by position those before the *, by name those after it.
PARAMETERS = {
    # `generate()` calls these, and the decoding loops call the last three.
    "transformers:GenerationMixin": {
        "adjust_generation_fn": "",
        "_prepare_generation_config": "generation_config",
        "_prepare_model_inputs": "inputs, bos_token_id, model_kwargs",
        "_prepare_decoder_input_ids_for_generation": "*, model_kwargs",
        "prepare_inputs_for_generation": f"input_ids, *, next_sequence_length, {CACHE}",
        "_prepare_generated_length": "generation_config, *, inputs_tensor, input_ids_length, has_default_max_length",
        "_get_stopping_criteria": "generation_config",
        "_get_logits_processor": "generation_config, *, logits_processor",
        "_sample": "input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus, streamer",
        "_beam_search": "input_ids, logits_processor, stopping_criteria, generation_config, synced_gpus",
        "_prefill": "input_ids, generation_config, model_kwargs",
        "_update_model_kwargs_for_generation": "outputs, model_kwargs, *, is_encoder_decoder",
        "_has_unfinished_sequences": "this_peer_finished, synced_gpus, *, device",
    },
    "transformers:GenerationConfig": {"_get_default_generation_params": ""},
    "transformers:PreTrainedModel": {
        "_init_weights": "module",
        "get_correct_attn_implementation": "requested_attention, is_init_check",
        "maybe_distribute_model": "model, distributed_config",
        "save_pretrained": "save_directory, is_main_process, state_dict",
        "resize_token_embeddings": "new_num_tokens, pad_to_multiple_of, mean_resizing",
        "_get_resized_embeddings": "old_embeddings, new_num_tokens, pad_to_multiple_of, mean_resizing",
    },
    "transformers.masking_utils": {
        "create_causal_mask": f"config, inputs_embeds, attention_mask, {CACHE}",
        "create_bidirectional_mask": "config, inputs_embeds, attention_mask, encoder_hidden_states",
    },
    "transformers.cache_utils:DynamicLayer": {"prefetch": ""},
    "transformers.quantizers.base:HfQuantizer": {
        "_process_model_before_weight_loading": "model",
        "_process_model_after_weight_loading": "model",
        "_dequantize": "model, dtype",
        "get_state_dict_and_metadata": "model",
    },
    "transformers:Pipeline": {"_sanitize_parameters": "", "_forward": "input_tensors"},
    "transformers:TokenizersBackend": {
        "convert_to_native_format": "",
        "_encode_plus": "",
        "_decode": "",
        "_add_tokens": "new_tokens, special_tokens",
        "_save_pretrained": "save_directory, file_names, legacy_format, filename_prefix",
    },
}

# Attributes that this package sets for transformers or reads from it, by the class that has them.
ATTRIBUTES = {
    # An override that it looks up by name, a mark on caches, and the attribute of criteria that makes it pad.
    "transformers:GenerationMixin": ("create_masks_for_generate", "_is_user_defined", "eos_token_id"),
    "transformers:GenerationConfig": ("_from_model_config", "_eos_token_tensor", "_pad_token_tensor"),
    "transformers.generation:MaxLengthCriteria": ("max_position_embeddings",),
    "transformers:PreTrainedConfig": ("_attn_implementation", "_auto_class"),
    "transformers:PreTrainedModel": (
        "_can_compile_fullgraph",
        "_no_split_modules",
        "_skip_keys_device_placement",
        "_supports_flash_attn",
        "_supports_flex_attn",
        "_supports_sdpa",
        "_tied_weights_keys",
        "_tp_plan",
        "_fsdp_plan",
        "all_tied_weights_keys",
    ),
    "transformers.utils.output_capturing": ("_can_record_outputs",),
    "transformers:EncoderDecoderCache": ("is_updated", "self_attention_cache", "cross_attention_cache"),
    "transformers.cache_utils:StaticCache": ("is_compileable",),
    "transformers:Pipeline": ("_load_processor", "_load_image_processor", "_load_feature_extractor", "_load_tokenizer"),
    "transformers:PreTrainedTokenizerBase": ("_auto_class", "_switch_to_input_mode", "_switch_to_target_mode"),
}


def either_cache(cache: Cache | None, past_key_values: Cache | None) -> Cache | None:
    """The cache that a caller gave by one of its names; by the earlier one with a warning, as transformers gives it.

    Raises:
        ValueError: if both are given.
    """
    if past_key_values is None:
        return cache
    if cache is not None:
        raise ValueError("cache and past_key_values are two names of one argument; give one of them.")
    if CACHE == "cache" and not torch.compiler.is_compiling():
        message = "`past_key_values` is deprecated since transformers 5.24; call the argument `cache`."
        warnings.warn(message, FutureWarning, stacklevel=2)
    return past_key_values


def tokens_to_read(cache: Cache | None, length: int, given: int | None) -> int | None:
    """How many of the last target tokens the model must read; None for all.

    Args:
        cache (`Cache`, *optional*): of earlier tokens.
        length (`int`): target tokens so far.
        given (`int`, *optional*): the value that transformers' loop passes; None at the first step.

    Raises:
        ValueError: if the cache holds all tokens.
        RuntimeError: if transformers leaves out tokens, and gives no cache that holds them.
    """
    if cache is None:
        if given is not None and given < length:
            # Later releases may give it another name, and the model would continue without the earlier tokens.
            raise RuntimeError(
                f"transformers {__version__} gives the cache by a name that this code does not know; install a release "
                "from 5.17 to 5.24."
            )
        return None
    if given is not None:
        return given
    past_length = int(cache.get_seq_length())
    if length <= past_length:
        raise ValueError(
            f"the cache holds {past_length} tokens, but decoder_input_ids has {length}; to continue, give all target "
            "tokens so far, at least one more than the cache holds."
        )
    return length - past_length
