"""The base class of all model classes, which loads, saves, initializes, ties, resizes and shards their weights."""

import stat
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .input_checks import InputError


# The name under which the installed package registers its attention with transformers.
ATTENTION = "vanilla_transformer"
# The quantization method that the installed package registers with transformers.
INT8 = "vanilla_transformer_int8"
# Tensor parallelism splits the vocabulary, the heads, and the inner dimension of the feed-forward networks.
STACK_TP_PLAN = {
    "embed_tokens": "embedding_rowwise",
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.out_proj": "rowwise",
    "layers.*.fc1": "colwise",
    "layers.*.fc2": "rowwise",
}
DECODER_TP_PLAN = {
    **STACK_TP_PLAN,
    "layers.*.encoder_attn.q_proj": "colwise",
    "layers.*.encoder_attn.k_proj": "colwise",
    "layers.*.encoder_attn.v_proj": "colwise",
    "layers.*.encoder_attn.out_proj": "rowwise",
}
# FSDP gathers the weights of one layer at a time, and frees them after use.
STACK_FSDP_PLAN = {"layers.*": "free_full_weight"}


def set_initial_gain(gain: float, *layers: nn.Linear) -> None:
    """Store the gain of initial weights on each layer, because transformers passes only layers to `_init_weights`."""
    for layer in layers:
        layer.initial_gain = gain  # type: ignore[assignment]


def give_weights_the_mode_of_config(folder: str | PathLike) -> None:
    """Give the weight files in a folder the same file permissions as `config.json`, which follow the user's umask.

    safetensors 0.8 creates files that only their owner may read, so a server run by another user could not load them.
    """
    config_path = Path(folder, "config.json")
    if not config_path.is_file():
        # Another process writes the files of this folder.
        return
    mode = stat.S_IMODE(config_path.stat().st_mode)
    for weights_path in Path(folder).glob("*.safetensors"):
        # A symbolic link points to a file in a cache, whose permissions stay unchanged.
        if weights_path.is_symlink() or stat.S_IMODE(weights_path.stat().st_mode) == mode:
            continue
        # A mounted file system may not support permissions.
        with suppress(OSError):
            weights_path.chmod(mode)


def check_quantizer(config: VanillaTransformerConfig) -> None:
    """Raise ValueError if the weights are int8, but the package hf_vanilla_transformer is not imported.

    Without the package, transformers would skip the unknown quantization method, and use the integers as weights.
    """
    # Most models lack this field. It is a dictionary, as in config.json, or an object of transformers.
    quantization = getattr(config, "quantization_config", None)
    if isinstance(quantization, dict):
        method = quantization.get("quant_method")
    else:
        method = getattr(quantization, "quant_method", None)
    if method == INT8 and INT8 not in AUTO_QUANTIZER_MAPPING:
        raise InputError(
            "the weights of this model are int8, which needs the package hf_vanilla_transformer; install it, and write "
            "`import hf_vanilla_transformer` before you load the model."
        )


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """The base class of the encoder, the decoder and the whole model."""

    config: VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VanillaTransformerEncoderLayer", "VanillaTransformerDecoderLayer"]
    _skip_keys_device_placement = ["cache", "past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any):
        # Fields may have been set after the configuration was validated.
        config.validate_architecture()
        check_quantizer(config)
        super().__init__(config, *args, **kwargs)

    @property
    def _keys_to_ignore_on_save(self) -> set[str]:
        """The names of tied weights, which are saved only under the name of the weight that they share (section 3.4).

        Without this property, the Trainer would log them as missing when it resumes or loads the best checkpoint.
        """
        tied_names: set[str] = set()
        if not self.config.tie_word_embeddings:
            return tied_names
        # By default, named_parameters() returns only one name of a tied weight.
        weights = dict(self.named_parameters(remove_duplicate=False))
        for name, source_name in self.all_tied_weights_keys.items():
            weight = weights.get(name)
            # Weights may have been untied since the model was created.
            is_tied = weight is not None and weight is weights.get(source_name)
            if is_tied:
                tied_names.add(name)
        return tied_names

    @_keys_to_ignore_on_save.setter
    def _keys_to_ignore_on_save(self, keys: set[str]) -> None:
        """Discard the set that transformers collects from all modules, because weights may be untied later."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike | None, *args: Any, **kwargs: Any) -> Self:
        """Load a saved model as `PreTrainedModel.from_pretrained` does, but only from safetensors files by default.

        A `pytorch_model.bin` file is a pickle, which can run code. It is read only with `use_safetensors=False`.
        """
        kwargs.setdefault("use_safetensors", True)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """Return the requested attention implementation, or the default: the package's, or sdpa without the package.

        Neither of these returns attention weights, so the default is "eager" if `config.output_attentions` is set.
        """
        if requested_attention is None:
            if self.config.output_attentions:
                requested_attention = "eager"
            elif ATTENTION in ALL_ATTENTION_FUNCTIONS:
                # Importing the package has registered its attention in this table of transformers.
                requested_attention = ATTENTION
            else:
                requested_attention = "sdpa"
        return super().get_correct_attn_implementation(requested_attention, is_init_check)

    @classmethod
    def maybe_distribute_model(cls, model: Any, distributed_config: Any, mesh_manager: Any) -> Any:
        """Distribute a model over processes; `from_pretrained(..., distributed_config=...)` calls this method.

        Raises:
            ValueError: if tensor parallelism would split an attention head.
        """
        # The number of processes among which each layer is split.
        tp_size = getattr(distributed_config, "tp_size", 1)
        num_heads = model.config.num_heads
        if num_heads % tp_size != 0:
            raise InputError(
                f"tp_size is {tp_size}, but num_heads is {num_heads}; tensor parallelism assigns whole heads to "
                "processes, so choose a tp_size that divides num_heads."
            )
        return super().maybe_distribute_model(model, distributed_config, mesh_manager)

    def save_pretrained(
        self,
        save_directory: str | PathLike,
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Save the model as `PreTrainedModel.save_pretrained` does, with changes made after loading.

        These are untied weights and the LM head's bias. The weight files get the file permissions of `config.json`.
        """
        # This comes first, because the call below writes the configuration.
        head = self.get_output_embeddings()
        if head is not None:
            self.config.lm_head_bias = getattr(head, "bias", None) is not None
        state_dict = self.state_dict_to_save(state_dict)
        super().save_pretrained(save_directory, is_main_process, state_dict, *args, **kwargs)
        give_weights_the_mode_of_config(save_directory)

    def state_dict_to_save(self, state_dict: dict[str, Tensor] | None = None) -> dict[str, Tensor] | None:
        """Return the weights to save: `state_dict`, where None stands for the model's own weights.

        If shared embeddings were untied, return a new dictionary without the shared matrix, because an untied model
        loads one matrix per embedding. In that case, an empty dictionary also stands for the model's own weights.
        """
        has_shared_matrix = hasattr(self.base_model, "shared")
        was_untied = has_shared_matrix and not self.config.tie_word_embeddings
        if not was_untied:
            return state_dict
        if not state_dict:
            state_dict = self.state_dict()
        weights_to_save = {}
        for name, weight in state_dict.items():
            # The name is "model.shared.weight", or "shared.weight" in a model without an LM head.
            if name.endswith("shared.weight"):
                continue
            # safetensors cannot save tensors that share memory.
            weights_to_save[name] = weight.clone()
        return weights_to_save

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize a module's weights as in the authors' code, because the paper does not describe initialization.

        An untied LM head is initialized like the embeddings, to which section 3.4 ties it.
        """
        # transformers calls this method for each module whose weights it has not loaded.
        if isinstance(module, nn.Linear) and not module.weight.is_floating_point():
            raise InputError(
                "the file of weights lacks int8 matrices that this class has; load an int8 model with the class that "
                "saved it, or with a class without an LM head."
            )
        # An LM head is also an nn.Linear, so the embeddings and the LM head come before the other linear layers.
        if isinstance(module, nn.Embedding) or module is self.get_output_embeddings():
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.Linear):
            # `set_initial_gain` sets this attribute on the layers whose weights the configuration scales.
            init.xavier_uniform_(module.weight, gain=getattr(module, "initial_gain", 1.0))
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            init.zeros_(module.bias)

    def get_submodule(self, target: str) -> nn.Module:
        """Return a submodule by its path. The path `embeddings.word_embeddings` returns the source embedding.

        PEFT requests that path for prompt tuning. Without it, PEFT would use the first weight with one row per target
        token, which may be a different matrix.
        """
        if target == "embeddings.word_embeddings":
            return self.get_input_embeddings()
        return super().get_submodule(target)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Resize the embeddings and the LM head, as `PreTrainedModel.resize_token_embeddings` does.

        Raises:
            ValueError: if source and target have separate vocabularies, or if the weights are int8.
        """
        head = self.get_output_embeddings()
        if head is not None and not head.weight.is_floating_point():
            raise InputError("the LM head is int8; call dequantize() and then resize the embeddings.")
        if not self.config.has_joint_vocabulary:
            raise InputError(
                "source and target have separate vocabularies, and resize_token_embeddings() does not name one; build "
                "a model of the new sizes and copy the weights."
            )
        decoder = getattr(self.base_model, "decoder", None)
        if decoder is not None and not self.config.tie_word_embeddings:
            # transformers resizes the source embedding and the LM head, but not the target embedding.
            decoder.embed_tokens = self._get_resized_embeddings(
                decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
            )
        return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Change the number of learned positions and initialize new rows. Sinusoids have no limit and do not change."""
        if self.config.position_embedding_type != "learned":
            return
        # The loop replaces modules, so it iterates over a list.
        for module in list(self.modules()):
            embed_positions = getattr(module, "embed_positions", None)
            if embed_positions is not None:
                module.embed_positions = self._get_resized_embeddings(
                    embed_positions, new_num_position_embeddings, mean_resizing=False
                )
        self.config.max_position_embeddings = new_num_position_embeddings
