"""What the model uses of transformers' private and renamed parts is listed, and the installed transformers has it.

Names that are imported are not listed, because Python itself raises an error if one is missing.
"""

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from tests import transformers_names as names


# Methods that the model overrides or calls, and functions, by their class or module, each with the parameters that
# it uses: by position those before the *, by name those after it.
PARAMETERS = {
    # `generate()` calls these, and the decoding loops call the last three.
    "transformers:GenerationMixin": {
        "adjust_generation_fn": "",
        "_extract_generation_mode_kwargs": "custom_generate, kwargs, synced_gpus, assistant_model, streamer",
        "_prepare_generation_config": "generation_config",
        "_prepare_model_inputs": "inputs, bos_token_id, model_kwargs",
        "_prepare_decoder_input_ids_for_generation": "*, model_kwargs",
        "prepare_inputs_for_generation": "input_ids, *, next_sequence_length, cache",
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
        "create_causal_mask": "config, inputs_embeds, attention_mask, cache",
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

# Attributes that the model sets for transformers or reads from it, by the class that has them.
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
        "_keys_to_ignore_on_save",
        "all_tied_weights_keys",
    ),
    "transformers.utils.output_capturing": ("_can_record_outputs",),
    "transformers:EncoderDecoderCache": ("is_updated", "self_attention_cache", "cross_attention_cache"),
    "transformers.cache_utils:StaticCache": ("is_compileable",),
    "transformers:Pipeline": ("_load_processor", "_load_image_processor", "_load_feature_extractor", "_load_tokenizer"),
    "transformers:PreTrainedTokenizerBase": ("_auto_class", "_switch_to_input_mode", "_switch_to_target_mode"),
}

PACKAGE = Path(__file__).parents[2] / "hf_vanilla_transformer"
# Triton's kernels need Triton, and use nothing of transformers.
FILES = [
    path
    for folder in ("model", "acceleration")
    for path in sorted((PACKAGE / folder).glob("[a-z]*.py"))
    if path.stem != "triton_loss"
]
MODULES = [import_module(f"hf_vanilla_transformer.{path.parent.name}.{path.stem}") for path in FILES]
LISTED = names.all_listed(PARAMETERS, ATTRIBUTES)


def test_transformers_has_the_listed_parameters():
    assert list(names.missing_parameters(PARAMETERS)) == []


def test_transformers_has_the_listed_attributes():
    assert list(names.missing_attributes(ATTRIBUTES)) == []


def test_overrides_accept_what_transformers_passes():
    assert list(names.refused_parameters(MODULES, PARAMETERS)) == []


def test_the_code_of_folders_says_what_an_earlier_release_lacks(monkeypatch):
    path = PACKAGE / "model" / "configuration_vanilla_transformer.py"
    monkeypatch.setattr("importlib.metadata.version", lambda name: "5.23.0")
    with pytest.raises(ImportError, match=r"transformers>=5\.24 is required .*but found transformers==5\.23\.0"):
        exec(compile(path.read_text(), path, "exec"), {"__name__": "hf_vanilla_transformer.model.again"})


def test_every_private_override_is_listed():
    assert names.private_overrides(MODULES) - LISTED == set()


def test_every_private_attribute_is_listed():
    assert names.private_uses(FILES, MODULES) - LISTED == set()


def test_every_listed_name_is_used():
    assert LISTED - names.identifiers(FILES) == set()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"_gone": ""}, "transformers:GenerationMixin has no _gone"),
        ({"_prefill": "input_ids, model_kwargs"}, r"_prefill takes \['input_ids', 'generation_config', .* first"),
        ({"_get_logits_processor": "generation_config, *, gone"}, "_get_logits_processor takes .*, not gone"),
    ],
)
def test_a_missing_parameter_is_named(parameters, message):
    (fault,) = names.missing_parameters({"transformers:GenerationMixin": parameters})
    assert re.search(message, fault)


def test_a_missing_attribute_is_named():
    listed = {"transformers:GenerationConfig": ("_gone", "_from_model_config")}
    assert list(names.missing_attributes(listed)) == ["transformers:GenerationConfig has no _gone"]


def test_names_that_are_not_listed_are_found(tmp_path):
    path = tmp_path / "other.py"
    path.write_text(
        "class Model(PreTrainedModel):\n"
        "    def forward(self):\n"
        "        self._own = self._tied_weights_keys\n"
        "        self._forward_hooks, torch._C._other\n"
        "        return getattr(self.generation_config, '_theirs', self._own)\n"
    )
    assert names.private_uses([path], MODULES) == {"_tied_weights_keys", "_theirs"}


def test_an_override_that_refuses_a_parameter_is_found():
    class Model(VanillaTransformerForConditionalGeneration):
        def _prefill(self, input_ids, generation_config, model_kwargs):
            """Without `is_first_iteration`, which transformers may pass."""

    module = ModuleType(Model.__module__)
    module.Model = Model
    (fault,) = names.refused_parameters([module], PARAMETERS)
    assert fault == "Model._prefill does not accept ['is_first_iteration']"
    assert names.private_overrides([module]) == {"_prefill"}
