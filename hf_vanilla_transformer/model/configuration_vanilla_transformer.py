"""The model's configuration, whose fields are named after the symbols of "Attention Is All You Need".

Throughout this package, sections, equations and tables are those of this paper (Vaswani et al. 2017,
arXiv:1706.03762v5).
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from os import PathLike
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.versions import require_version

from .input_checks import InputError


# Earlier releases use other names for the cache and for arguments of generate(), and would raise obscure errors.
require_version("transformers>=5.24", "The code of this model needs it; install a newer release.")

# The rows of Table 3, each with the fields in which it differs from the base model, which the defaults describe.
PAPER_ROWS: dict[str, dict[str, int | float | str]] = {
    "base": {},
    "A h=1": {"num_heads": 1},
    "A h=4": {"num_heads": 4},
    "A h=16": {"num_heads": 16},
    "A h=32": {"num_heads": 32},
    "B d_k=16": {"d_k": 16},
    "B d_k=32": {"d_k": 32},
    "C N=2": {"encoder_layers": 2, "decoder_layers": 2},
    "C N=4": {"encoder_layers": 4, "decoder_layers": 4},
    "C N=8": {"encoder_layers": 8, "decoder_layers": 8},
    "C d_model=256": {"d_model": 256},
    "C d_model=1024": {"d_model": 1024},
    "C d_ff=1024": {"d_ff": 1024},
    "C d_ff=4096": {"d_ff": 4096},
    "D P_drop=0.0": {"dropout": 0.0},
    "D P_drop=0.2": {"dropout": 0.2},
    "D eps_ls=0.0": {"label_smoothing": 0.0},
    "D eps_ls=0.2": {"label_smoothing": 0.2},
    "E": {"position_embedding_type": "learned"},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
}

# Without these limits, a damaged or malicious config.json could build layers endlessly, or cause overflows in torch.
_MOST_LAYERS = 1000
_LARGEST_SIZE = 2**31 - 1
_LAYER_FIELDS = ("encoder_layers", "decoder_layers")
_SIZE_FIELDS = (
    "vocab_size",
    "source_vocab_size",
    "d_model",
    "d_ff",
    "num_heads",
    "d_k",
    "d_v",
    "max_position_embeddings",
)
_RATE_FIELDS = ("dropout", "attention_dropout", "activation_dropout", "label_smoothing")
_TOKEN_ID_FIELDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# The special tokens that also occur in sources.
_SOURCE_TOKEN_ID_FIELDS = ("pad_token_id", "eos_token_id")
# transformers runs the code of saved folders as modules of a package with this name. Only that code uses the folder's
# pipeline, because the installed package registers its own.
_IS_REMOTE_CODE = __name__.startswith("transformers_modules.")


def _name_of_class(reference: object) -> str:
    """Return the class name at the end of an entry of `auto_map`. For example, "file.Class" gives "Class"."""
    return str(reference).rpartition(".")[-1]


def _describe_shipped_code() -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return the fields `auto_map` and `custom_pipelines` of config.json, which name the classes in a saved folder.

    When a model is saved, transformers copies the files of these classes, and those they import, into the folder.
    """
    # The model's file imports this one, so it can be imported only when the function is called.
    from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
    from .pipeline_vanilla_transformer import PlainTranslationPipeline

    auto_map = {
        "AutoConfig": _class_reference(VanillaTransformerConfig),
        "AutoModel": _class_reference(VanillaTransformerModel),
        "AutoModelForSeq2SeqLM": _class_reference(VanillaTransformerForConditionalGeneration),
    }
    # The pipeline's class, the classes that can load its model, and its input.
    translation_pipeline = {
        "impl": _class_reference(PlainTranslationPipeline),
        "pt": ["AutoModelForSeq2SeqLM"],
        "type": "text",
    }
    return auto_map, {"translation": translation_pipeline}


def _class_reference(shipped_class: type) -> str:
    """Return the name of a class in config.json, such as "modeling_vanilla_transformer.VanillaTransformerModel"."""
    module_name = shipped_class.__module__.rpartition(".")[-1]
    return f"{module_name}.{shipped_class.__name__}"


@strict
class VanillaTransformerConfig(PreTrainedConfig):
    """The model's hyperparameters. The default values describe the paper's base model (Table 3).

    Names that are usual in transformers, such as `hidden_size`, are aliases of the fields below. `num_hidden_layers` is
    an alias of `encoder_layers`.

    Args:
        vocab_size (`int`, defaults to 37000): size of the target vocabulary, or of the joint vocabulary. The paper has
            "about 37000" tokens for English-German (section 5.1).
        source_vocab_size (`int`, *optional*): size of a separate source vocabulary; `None` for one joint vocabulary.
        encoder_layers, decoder_layers (`int`, default to 6): N, the number of layers of each stack (section 3.1).
        d_model (`int`, defaults to 512): width of the embeddings and of every sub-layer's output (section 3.1).
        d_ff (`int`, defaults to 2048): inner width of the feed-forward networks (section 3.3).
        num_heads (`int`, defaults to 8): h, the number of attention heads (section 3.2.2).
        d_k, d_v (`int`, *optional*): width of the queries and keys of a head, and of its values; `None` for d_model /
            num_heads (section 3.2.2; row B of Table 3 varies d_k).
        dropout (`float`, defaults to 0.1): P_drop, the dropout rate for the output of each sub-layer and for the sums
            of embeddings and positions (section 5.4).
        attention_dropout, activation_dropout (`float`, default to 0.0): dropout rates for the attention weights and for
            the output of the activation function. The paper does not mention them for translation.
        label_smoothing (`float`, defaults to 0.1): epsilon_ls (section 5.4). It applies in training mode only.
        initializer_factor (`float`, defaults to 1.0): factor by which the initial weights of the value projections,
            output projections and feed-forward networks are multiplied. A factor below 1 makes deep stacks trainable
            with small batches (Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers").
        position_embedding_type (`str`, defaults to `"sinusoidal"`): `"sinusoidal"` (section 3.5), `"learned"` (row E of
            Table 3), or `"sinusoidal_tensor2tensor"` for the frequencies in the authors' code, fairseq and Marian.
        position_offset (`int`, defaults to 0): position of the first token, for sinusoids only. fairseq weights need 2.
        max_position_embeddings (`int`, defaults to 1024): number of learned positions. Sinusoids have no limit.
        tie_word_embeddings (`bool`, defaults to `True`): whether both embeddings and the output projection share one
            matrix (section 3.4). With `source_vocab_size`, the source embedding has its own.
        lm_head_bias (`bool`, defaults to `False`): whether the output projection has a bias, as in Marian models.
        stack_layer_norm (`bool`, defaults to `False`): whether a norm follows each stack, as in `torch.nn.Transformer`.
        attention_bias (`bool`, defaults to `True`): whether the four attention projections have biases, as in the
            authors' code. The paper writes matrices only.
        layer_norm_eps (`float`, defaults to 1e-6): epsilon of every LayerNorm. The default is from the authors' code.
        activation_function (`str`, defaults to `"relu"`): activation between the two linear maps of Eq. 2.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id (`int`, default to 0, 1, 2, 1): special tokens.
        use_cache (`bool`, defaults to `True`): whether `forward` returns the KV cache.
        alignment_heads (`list` of pairs of `int`, *optional*): the cross-attention heads whose weights `align`
            averages, as pairs of a decoder layer and a head, both counted from 0. `None` selects all heads of the layer
            at five sixths of the stack (Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer
            Models").
        alignment_shift (`bool`, defaults to `False`): whether `align` reads a target token's attention in the step in
            which the token is the decoder's input (Chen et al. 2020, "Accurate Word Alignment Induction from Neural
            Machine Translation"), and not in the step that predicts it.

    Raises:
        ValueError: if a value is out of range, or if two names of one field have different values.
        huggingface_hub.errors.StrictDataclassFieldValidationError: if a field has the wrong type.
    """

    model_type = "vanilla_transformer"
    _auto_class: ClassVar[str | None] = "AutoConfig"
    keys_to_ignore_at_inference = ["past_key_values", "cache", "encoder_last_hidden_state"]
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "encoder_attention_heads": "num_heads",
        "decoder_attention_heads": "num_heads",
        "num_hidden_layers": "encoder_layers",
        "intermediate_size": "d_ff",
        "encoder_ffn_dim": "d_ff",
        "decoder_ffn_dim": "d_ff",
    }
    # The model classes have their own sharding plans. transformers' default for FSDP names a norm that is missing here.
    base_model_tp_plan = {}
    base_model_fsdp_plan = {}

    vocab_size: int = 37000
    source_vocab_size: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    label_smoothing: float | int = 0.1
    initializer_factor: float | int = 1.0
    position_embedding_type: Literal["sinusoidal", "learned", "sinusoidal_tensor2tensor"] = "sinusoidal"
    position_offset: int = 0
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True
    lm_head_bias: bool = False
    stack_layer_norm: bool = False
    attention_bias: bool = True
    layer_norm_eps: float | int = 1e-6
    activation_function: str = "relu"
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    is_encoder_decoder: bool = True
    # Some libraries treat a model without this field as a decoder, whose output begins with its input.
    is_decoder: bool = False
    use_cache: bool = True
    alignment_heads: list | None = None
    alignment_shift: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep derived classes out of `auto_map`, unless they are registered with `register_for_auto_class`."""
        super().__init_subclass__(**kwargs)
        if "_auto_class" not in cls.__dict__:
            cls._auto_class = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "VanillaTransformerConfig":
        """Raise ValueError if arguments set one field to different values, before its aliases overwrite each other."""
        cls._check_aliases(kwargs)
        return super().__new__(cls)

    def __post_init__(self, **kwargs: Any) -> None:
        """Set the arguments that are not fields, and raise ValueError if no model can be built."""
        if not _IS_REMOTE_CODE:
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)
        self.validate_architecture()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "VanillaTransformerConfig":
        """Create a configuration from a dictionary, but reject attention implementations that must be downloaded.

        Raises:
            ValueError: if the attention implementation is code on the Hub, which transformers could download and run.
        """
        for name in ("attn_implementation", "_attn_implementation"):
            implementation = config_dict.get(name)
            # Code on the Hub is named by its repository, such as "kernels-community/flash-attn2".
            if "/" in str(implementation):
                raise InputError(
                    f"config.json names {implementation}, code on the Hub, for its attention; remove it. If you trust "
                    "the code, give attn_implementation to from_pretrained."
                )
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory: str | PathLike, *args: Any, **kwargs: Any) -> None:
        """Save the configuration with a copy of the model's code, which `trust_remote_code=True` loads.

        The field `custom_pipelines` names the pipeline in the saved folder. It stays after saving only if this code was
        itself loaded from a saved folder (`_IS_REMOTE_CODE` is True), whose pipeline the model then uses.
        """
        self.validate()
        # The package does not ship the code of derived classes.
        if type(self) is VanillaTransformerConfig:
            self._add_shipped_code()
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            if not _IS_REMOTE_CODE:
                # With this field, which derived classes may lack, transformers would ask the user to trust remote code.
                self.__dict__.pop("custom_pipelines", None)

    def _add_shipped_code(self) -> None:
        """Set the fields `auto_map` and `custom_pipelines`, which say how to load the model with the shipped code.

        Entries of `auto_map` for other classes stay, such as those for a derived model.
        """
        auto_map, self.custom_pipelines = _describe_shipped_code()
        shipped_classes = {_name_of_class(reference) for reference in auto_map.values()}
        earlier_auto_map = getattr(self, "auto_map", None) or {}
        for name, reference in earlier_auto_map.items():
            if _name_of_class(reference) not in shipped_classes:
                auto_map[name] = reference
        self.auto_map = auto_map

    @classmethod
    def from_paper(cls, row: str, **overrides: Any) -> "VanillaTransformerConfig":
        """Create the configuration that a row of Table 3 describes.

        For example, `from_paper("big", dropout=0.1)` is the paper's big model for English-French (section 6.1).

        Args:
            row (`str`): a key of `PAPER_ROWS`, such as `"base"`, `"big"`, `"A h=4"` or `"E"`.
            **overrides: fields with different values.

        Raises:
            TypeError: if a field is unknown.
            ValueError: if the row is unknown.
        """
        if row not in PAPER_ROWS:
            rows = ", ".join(f'"{name}"' for name in PAPER_ROWS)
            raise InputError(f'"{row}" is no row of Table 3; choose one of: {rows}.')
        cls._check_field_names(overrides)
        # In the loop below, aliases of one field would overwrite each other.
        cls._check_aliases(overrides)
        fields: dict[str, Any] = dict(PAPER_ROWS[row])
        for name, value in overrides.items():
            field = cls.attribute_map.get(name, name)
            fields[field] = value
        return cls(**fields)

    @classmethod
    def _check_field_names(cls, names: Iterable[str]) -> None:
        """Raise TypeError if a name is not a field of the configuration, and suggest the most similar field."""
        # Its attributes include all fields and their aliases.
        defaults = cls()
        for name in names:
            # "attn_implementation" is an argument that is not stored under its own name.
            if hasattr(defaults, name) or name == "attn_implementation":
                continue
            advice = "give one of its fields"
            similar_names = get_close_matches(name, vars(defaults), 1)
            if similar_names:
                advice = f"give one of its fields, such as {similar_names[0]}"
            raise TypeError(f"{name} is no field of {cls.__name__}; {advice}.")

    @property
    def key_dim(self) -> int:
        """The width of each head's queries and keys: `d_k`, or d_model / num_heads if `d_k` is None."""
        if self.d_k is not None:
            return self.d_k
        return self.d_model // self.num_heads

    @property
    def value_dim(self) -> int:
        """The width of each head's values: `d_v`, or d_model / num_heads if `d_v` is None."""
        if self.d_v is not None:
            return self.d_v
        return self.d_model // self.num_heads

    @property
    def has_joint_vocabulary(self) -> bool:
        """True if source and target share one vocabulary, as they do if `source_vocab_size` is None."""
        return self.source_vocab_size is None

    @property
    def heads_for_alignment(self) -> list[tuple[int, int]]:
        """The cross-attention heads that `align` reads: pairs of a decoder layer and a head, both counted from 0."""
        if self.alignment_heads is not None:
            return [(layer, head) for layer, head in self.alignment_heads]
        # The index of the layer at five sixths of the height: 4 for 6 layers, 9 for 12, and 2 for 3.
        layer = (5 * self.decoder_layers - 1) // 6
        return [(layer, head) for head in range(self.num_heads)]

    @classmethod
    def _check_aliases(cls, arguments: Mapping[str, object]) -> None:
        """Raise ValueError if two arguments, such as `hidden_size` and `d_model`, set one field to different values."""
        # The name by which each field was given first.
        first_names: dict[str, str] = {}
        for name, value in arguments.items():
            field = cls.attribute_map.get(name, name)
            if field not in first_names:
                first_names[field] = name
                continue
            first_name = first_names[field]
            if arguments[first_name] != value:
                raise InputError(
                    f"{first_name}={arguments[first_name]!r} and {name}={value!r} disagree: this model has one "
                    f"{field}; give it once, as {field}."
                )

    def validate_architecture(self) -> None:
        """Raise ValueError if no model can be built from this configuration.

        transformers also calls this method after `__init__` and before saving, because of its prefix `validate_`.
        """
        self._check_ranges()
        self._check_heads()
        self._check_choices()
        self._check_token_ids()

    def _check_ranges(self) -> None:
        """Raise ValueError if a size, rate or factor is out of range."""
        for name in _LAYER_FIELDS:
            self._check_size(name, _MOST_LAYERS)
        for name in _SIZE_FIELDS:
            self._check_size(name, _LARGEST_SIZE)
        for name in _RATE_FIELDS:
            rate = getattr(self, name)
            if not 0 <= rate <= 1:
                raise InputError(f"{name} is {rate}; it must be a rate between 0 and 1.")
        for name in ("layer_norm_eps", "initializer_factor"):
            factor = getattr(self, name)
            # This also rejects NaN, for which every comparison is False.
            if not factor > 0:
                raise InputError(f"{name} is {factor}; it must be above 0.")

    def _check_size(self, name: str, largest: int) -> None:
        """Raise ValueError if a field is neither None nor a size from 1 to `largest`."""
        size = getattr(self, name)
        if size is not None and not 1 <= size <= largest:
            raise InputError(f"{name} is {size}; it must be from 1 to {largest}.")

    def _check_heads(self) -> None:
        """Raise ValueError if d_model cannot be split into heads, or if `alignment_heads` names an unknown head."""
        needs_default_width = self.d_k is None or self.d_v is None
        if needs_default_width and self.d_model % self.num_heads != 0:
            raise InputError(
                f"d_model ({self.d_model}) is not divisible by num_heads ({self.num_heads}); choose a number of heads "
                "that divides d_model, or set both d_k and d_v."
            )
        if self.alignment_heads is None:
            return
        # An alignment needs at least one head, so an empty list is rejected.
        names_known_heads = self.alignment_heads and all(self._is_decoder_head(pair) for pair in self.alignment_heads)
        if not names_known_heads:
            raise InputError(
                f"alignment_heads is {self.alignment_heads!r}; give None, or pairs of a decoder layer and a head, "
                f"counted from 0. There are {self.decoder_layers} layers with {self.num_heads} heads each."
            )

    def _is_decoder_head(self, pair: object) -> bool:
        """Return True if a value is a pair of a decoder layer's index and a head's index."""
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            return False
        layer, head = pair
        # isinstance() would accept True and False.
        if type(layer) is not int or type(head) is not int:
            return False
        return 0 <= layer < self.decoder_layers and 0 <= head < self.num_heads

    def _check_choices(self) -> None:
        """Raise ValueError if a field has a value that this architecture does not support."""
        if not self.is_encoder_decoder:
            raise InputError("is_encoder_decoder is False; this model has an encoder, so leave it out.")
        if self.is_decoder:
            raise InputError("is_decoder is True; this model has an encoder, so leave it out.")
        has_learned_positions = self.position_embedding_type == "learned"
        if self.position_offset < 0 or (self.position_offset > 0 and has_learned_positions):
            raise InputError(
                f"position_offset is {self.position_offset}; it must be at least 0, and 0 for learned positions."
            )
        if self.d_model % 2 != 0 and not has_learned_positions:
            raise InputError(
                f"d_model is {self.d_model}; sinusoids come in pairs of a sine and a cosine, so choose an even d_model "
                'or position_embedding_type="learned".'
            )
        if self.activation_function not in ACT2FN:
            raise InputError(
                f'activation_function is "{self.activation_function}"; the paper uses "relu", and transformers '
                f"supports: {', '.join(sorted(ACT2FN))}."
            )

    def _check_token_ids(self) -> None:
        """Raise ValueError if the id of a special token is outside a vocabulary that needs the token."""
        for name in _TOKEN_ID_FIELDS:
            size_name = "vocab_size"
            # A token that occurs on both sides must be in both vocabularies, so the smaller one sets the limit.
            if name in _SOURCE_TOKEN_ID_FIELDS and self._is_source_vocabulary_smaller():
                size_name = "source_vocab_size"
            last_id = getattr(self, size_name) - 1
            token_ids = getattr(self, name)
            if not isinstance(token_ids, list):
                token_ids = [token_ids]
            for token_id in token_ids:
                if token_id is not None and not 0 <= token_id <= last_id:
                    raise InputError(f"{name} is {token_id}; it must lie between 0 and {size_name} - 1 ({last_id}).")

    def _is_source_vocabulary_smaller(self) -> bool:
        """Return True if source and target have separate vocabularies, and the source has fewer tokens."""
        return self.source_vocab_size is not None and self.source_vocab_size < self.vocab_size
