"""The `PreTrainedModel` around the layers: loading, saving, weight tying, initialization, resizing, parallel plans."""

import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .input_checks import InputError


# The name under which the installed package registers its attention with transformers.
ATTENTION = "vanilla_transformer"
# The quantization method that the installed package registers with transformers.
INT8 = "vanilla_transformer_int8"
# Tensor parallelism splits the vocabulary, the heads, and the inner channels of the feed-forward networks.
STACK_TP_PLAN = {
    "embed_tokens": "embedding_rowwise",
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.k_proj": "colwise",
    "layers.*.self_attn.v_proj": "colwise",
    "layers.*.self_attn.out_proj": "rowwise",
    "layers.*.fc1": "colwise",
    "layers.*.fc2": "rowwise",
}
DECODER_TP_PLAN = STACK_TP_PLAN | {
    name.replace("self_attn", "encoder_attn"): style for name, style in STACK_TP_PLAN.items()
}
# FSDP gathers the weights of one layer at a time, and frees them after use.
STACK_FSDP_PLAN = {"layers.*": "free_full_weight"}


def set_initial_gain(gain: float, *matrices: Any) -> None:
    """Have `_init_weights`, which transformers calls for each matrix alone, multiply these by a gain."""
    for matrix in matrices:
        matrix.initial_gain = gain


def give_weights_the_mode_of_config(folder: str | Path) -> None:
    """Give the weights in a folder the permissions of the `config.json` beside them, which follow the umask.

    safetensors 0.8 creates files that only their owner may read, so a server of another user could not load the model.
    """
    config = Path(folder, "config.json")
    if not config.is_file():
        # With several processes, those that do not write the configuration write no weights either.
        return
    mode = stat.S_IMODE(config.stat().st_mode)
    for weights in Path(folder).glob("*.safetensors"):
        is_own_file = not weights.is_symlink()
        if is_own_file and stat.S_IMODE(weights.stat().st_mode) != mode:
            # A mounted file system may have no permissions; the weights are written all the same.
            with suppress(OSError):
                weights.chmod(mode)


def check_quantizer(config: VanillaTransformerConfig) -> None:
    """Raise ValueError for int8 weights without the package: transformers would read them as floating-point numbers."""
    settings = getattr(config, "quantization_config", None)
    if not isinstance(settings, dict):
        settings = vars(settings) if settings is not None else {}
    if settings.get("quant_method") == INT8 and INT8 not in AUTO_QUANTIZER_MAPPING:
        raise InputError(
            "the weights of this model are int8, which the package hf_vanilla_transformer computes with; install it, "
            "and write `import hf_vanilla_transformer` before you load the model."
        )


class VanillaTransformerPreTrainedModel(PreTrainedModel):
    """Class attributes that transformers reads, and what the classes of this model share besides their layers."""

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
        """Weights that are tied to others, which files hold once (section 3.4).

        The Trainer's log does not count them as missing when it resumes or loads the best checkpoint.
        """
        if not self.config.tie_word_embeddings:
            return set()
        weights = dict(self.named_parameters(remove_duplicate=False))
        return {
            tied
            for tied, source in self.all_tied_weights_keys.items()
            if tied in weights and weights[tied] is weights.get(source)
        }

    @_keys_to_ignore_on_save.setter
    def _keys_to_ignore_on_save(self, keys: set[str]) -> None:
        """transformers collects the sets of all modules here, but weights may be untied later."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a saved model, as `PreTrainedModel.from_pretrained` does.

        `pytorch_model.bin`, a pickle, is read with `use_safetensors=False` only.
        """
        kwargs.setdefault("use_safetensors", True)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """The requested attention implementation; by default the package's where it is installed, and else sdpa.

        Both return no attention weights, so the default is eager attention with `config.output_attentions`.
        """
        if requested_attention is None:
            if self.config.output_attentions:
                requested_attention = "eager"
            elif ATTENTION in ALL_ATTENTION_FUNCTIONS:
                requested_attention = ATTENTION
            else:
                requested_attention = "sdpa"
        return super().get_correct_attn_implementation(requested_attention, is_init_check)

    @classmethod
    def maybe_distribute_model(cls, model: Any, distributed_config: Any, mesh_manager: Any) -> Any:
        """Shard a model over processes, for `from_pretrained(..., distributed_config=...)`.

        Raises:
            ValueError: if tensor parallelism would split a head.
        """
        tp_size, num_heads = getattr(distributed_config, "tp_size", 1), model.config.num_heads
        if num_heads % tp_size != 0:
            raise InputError(
                f"tp_size is {tp_size}, but num_heads is {num_heads}; tensor parallelism assigns whole heads to "
                "processes, so choose a tp_size that divides num_heads."
            )
        return super().maybe_distribute_model(model, distributed_config, mesh_manager)

    def save_pretrained(
        self,
        save_directory: Any,
        is_main_process: bool = True,
        state_dict: dict[str, torch.Tensor] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Save as `PreTrainedModel.save_pretrained` does, also if weights were untied or given a bias later.

        The files of weights get the permissions of `config.json`.
        """
        state_dict = self.state_dict_to_save(state_dict)
        head: Any = self.get_output_embeddings()
        if head is not None:
            self.config.lm_head_bias = getattr(head, "bias", None) is not None
        super().save_pretrained(save_directory, is_main_process, state_dict, *args, **kwargs)
        give_weights_the_mode_of_config(save_directory)

    def state_dict_to_save(self, state_dict: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor] | None:
        """The weights to write: those of `state_dict` or the model's; None if the model's need no change."""
        if not hasattr(self.base_model, "shared") or self.config.tie_word_embeddings:
            return state_dict
        # An untied model loads one matrix per use, so a shared matrix is written under each name.
        weights = (state_dict or self.state_dict()).items()
        return {name: weight.clone() for name, weight in weights if not name.endswith("shared.weight")}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot-uniform projections, and embeddings of standard deviation d_model^-0.5, as in the authors' code.

        The paper is silent. An untied LM head is initialized like the embeddings, to which section 3.4 ties it.
        """
        if isinstance(module, nn.Linear) and not module.weight.is_floating_point():
            raise InputError(
                "the file of weights lacks int8 matrices that this class has; load an int8 model with the class that "
                "saved it, or with a class without an LM head."
            )
        if isinstance(module, nn.Embedding) or module is self.get_output_embeddings():
            init.normal_(module.weight, mean=0.0, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight, gain=getattr(module, "initial_gain", 1.0))
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
        if isinstance(module, (nn.Linear, nn.LayerNorm)) and module.bias is not None:
            init.zeros_(module.bias)

    def get_input_embeddings(self: Any) -> nn.Module:
        """The source's embedding, which the encoder calls; with shared embeddings, the target's has the same matrix."""
        return self.encoder.embed_tokens if hasattr(self, "encoder") else super().get_input_embeddings()

    def get_submodule(self, target: str) -> nn.Module:
        """Return a submodule by its path, and the source's embedding for `embeddings.word_embeddings`.

        PEFT asks for that path, because its prompts stand before the source. Without an answer it takes the first
        weight with as many rows as the target's vocabulary has tokens, which may be another matrix.
        """
        if target == "embeddings.word_embeddings":
            return self.get_input_embeddings()
        return super().get_submodule(target)

    def set_input_embeddings(self: Any, value: Any) -> None:
        """Replace the source's embedding; with shared embeddings, also the target's.

        Args:
            value (`nn.Embedding`): `(vocabulary, d_model)`.
        """
        if not hasattr(self, "encoder"):
            super().set_input_embeddings(value)
            return
        self.encoder.embed_tokens = value
        if hasattr(self, "shared"):
            self.shared = self.decoder.embed_tokens = value

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """Change the size of the joint vocabulary, as `PreTrainedModel.resize_token_embeddings` does.

        Raises:
            ValueError: if source and target have separate vocabularies, or the weights are int8.
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
            decoder.embed_tokens = self._get_resized_embeddings(
                decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
            )
        return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Change the number of learned positions; sinusoids have no limit and stay as they are.

        Args:
            new_num_position_embeddings (`int`): the new `max_position_embeddings`; new rows are initialized.
        """
        if self.config.position_embedding_type != "learned":
            return
        stacks: list[Any] = [module for module in self.modules() if hasattr(module, "embed_positions")]
        for stack in stacks:
            stack.embed_positions = self._get_resized_embeddings(
                stack.embed_positions, new_num_position_embeddings, mean_resizing=False
            )
        self.config.max_position_embeddings = new_num_position_embeddings
