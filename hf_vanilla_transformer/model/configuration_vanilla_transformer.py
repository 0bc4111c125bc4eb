"""Configuration of the Transformer of "Attention Is All You Need" (Vaswani et al. 2017), in the paper's symbols.

The paper is arXiv:1706.03762v5; sections, equations and tables are cited from it throughout this package.
"""

from difflib import get_close_matches
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.versions import require_version

from .input_checks import InputError


# Earlier releases have other names for the cache and for arguments of generate(), and would fail somewhere else.
require_version("transformers>=5.24", "The code of this model needs it; install a newer release.")

# Table 3: what each row changes from the base model, whose values are the fields' defaults.
PAPER_ROWS: dict[str, dict[str, Any]] = {
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

_LAYERS = ("encoder_layers", "decoder_layers")
_SIZES = ("vocab_size", "source_vocab_size", "d_model", "d_ff", "num_heads", "d_k", "d_v", "max_position_embeddings")
# A damaged or malicious config.json would have Python build layers without end, or torch overflow.
_MOST_LAYERS, _LARGEST_SIZE = 1000, 2**31 - 1
_RATES = ("dropout", "attention_dropout", "activation_dropout", "label_smoothing")
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_SOURCE_TOKEN_IDS = ("pad_token_id", "eos_token_id")
# transformers runs the code of saved folders as modules of a package with this name. The installed package registers
# its own pipeline and ignores a saved folder's, which transformers would prefer.
_IS_REMOTE_CODE = __name__.startswith("transformers_modules.")


def _code_to_ship() -> tuple[dict[str, str], dict[str, Any]]:
    """The entries `auto_map` and `custom_pipelines` of a saved configuration, for `trust_remote_code=True`.

    transformers copies the files of these classes, and the files that they import, into every saved folder.
    """
    from .modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration, VanillaTransformerModel
    from .pipeline_vanilla_transformer import PlainTranslationPipeline

    classes = {
        "AutoConfig": VanillaTransformerConfig,
        "AutoModel": VanillaTransformerModel,
        "AutoModelForSeq2SeqLM": VanillaTransformerForConditionalGeneration,
    }
    auto_map = {name: _reference(shipped) for name, shipped in classes.items()}
    translation = {"impl": _reference(PlainTranslationPipeline), "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
    return auto_map, {"translation": translation}


def _reference(shipped: type) -> str:
    return f"{shipped.__module__.rpartition('.')[-1]}.{shipped.__name__}"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InputError(message)


def _are_below(pair: Any, sizes: tuple[int, int]) -> bool:
    is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2
    return is_pair and all(type(value) is int and 0 <= value < size for value, size in zip(pair, sizes, strict=True))


@strict
class VanillaTransformerConfig(PreTrainedConfig):
    """The hyper-parameters of the model, with the base model of Table 3 as defaults.

    transformers' usual names (`hidden_size`, `num_attention_heads`, `num_hidden_layers`, `intermediate_size`,
    `encoder_ffn_dim`, ...) are accepted and readable as aliases of the fields below; `num_hidden_layers` is the depth
    of the encoder only.

    Args:
        vocab_size (`int`, defaults to 37000): size of the target vocabulary, so of the output projection; "about
            37000" for English-German (section 5.1).
        source_vocab_size (`int`, *optional*): size of the source vocabulary where source and target have separate
            vocabularies; `None` for one joint vocabulary (section 5.1).
        encoder_layers, decoder_layers (`int`, default to 6): N of each stack (section 3.1).
        d_model (`int`, defaults to 512): width of embeddings and of every sub-layer's output (section 3.1).
        d_ff (`int`, defaults to 2048): inner width of the feed-forward networks (section 3.3).
        num_heads (`int`, defaults to 8): h, the number of attention heads (section 3.2.2).
        d_k, d_v (`int`, *optional*): width of a head's keys and queries, and of its values; `None` for
            d_model / num_heads (section 3.2.2; Table 3 row B varies d_k).
        dropout (`float`, defaults to 0.1): P_drop, on the output of each sub-layer and on the sums of embeddings and
            positions (section 5.4).
        attention_dropout, activation_dropout (`float`, default to 0.0): dropout on attention weights and after the
            ReLU; the paper names neither for translation.
        label_smoothing (`float`, defaults to 0.1): epsilon_ls (section 5.4), applied in training mode only.
        initializer_factor (`float`, defaults to 1.0): factor of the initial weights of the projections of values and
            outputs and of the feed-forward networks. Below 1, each layer of a new model changes its input less, so that
            deep stacks learn in small batches (Wang et al. 2022, "DeepNet: Scaling Transformers to 1,000 Layers").
        position_embedding_type (`str`, defaults to `"sinusoidal"`): `"sinusoidal"` (section 3.5), `"learned"` (Table 3
            row E), or `"sinusoidal_tensor2tensor"`, the frequencies of the authors' code, fairseq and Marian.
        position_offset (`int`, defaults to 0): position of the first token, for sinusoids; weights of fairseq need 2.
        max_position_embeddings (`int`, defaults to 1024): number of learned positions. Sinusoids have no limit.
        tie_word_embeddings (`bool`, defaults to `True`): both embeddings and the output projection share one matrix
            (section 3.4); with `source_vocab_size`, only the target's embedding and the output projection do.
        lm_head_bias (`bool`, defaults to `False`): a bias on the output projection, which weights of Marian have.
        stack_layer_norm (`bool`, defaults to `False`): a LayerNorm after each stack, as in `torch.nn.Transformer`.
        attention_bias (`bool`, defaults to `True`): biases in the four attention projections, as in the authors' code;
            the paper writes matrices only.
        layer_norm_eps (`float`, defaults to 1e-6): as in the authors' code.
        activation_function (`str`, defaults to `"relu"`): between the two linear maps of Eq. 2.
        pad_token_id, bos_token_id, eos_token_id, decoder_start_token_id (`int`, default to 0, 1, 2, 1): special
            tokens; decoding starts from `<s>`.
        use_cache (`bool`, defaults to `True`): whether `forward` returns the KV cache.
        alignment_heads (`list` of pairs of `int`, *optional*): decoder layer and head, from 0, of the cross-attention
            whose average `align` reads; `None` for all heads of the fifth of six layers (Garg et al. 2019, "Jointly
            Learning to Align and Translate with Transformer Models"), or of the layer at that height.
        alignment_shift (`bool`, defaults to `False`): whether `align` reads the attention of a target token in the step
            whose input it is (Chen et al. 2020, "Accurate Word Alignment Induction from Neural Machine Translation"),
            and not in the step that predicts it.

    Raises:
        ValueError: if a value is out of range, or two aliases of one field disagree.
        huggingface_hub.errors.StrictDataclassFieldValidationError: if a field has a wrong type, as in
            every transformers configuration.
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
    # The model's classes have their own sharding plans. transformers' default for FSDP names a final norm, which this
    # model lacks, and gathers a tied matrix once per use.
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
    # Libraries read it, and take a model without it for a decoder, whose output repeats the input.
    is_decoder: bool = False
    use_cache: bool = True
    alignment_heads: list | None = None
    alignment_shift: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_auto_class" not in cls.__dict__:
            cls._auto_class = None

    def __new__(cls, *args: Any, **kwargs: Any) -> "VanillaTransformerConfig":
        # Only here are the caller's names visible: once set, aliases of one field overwrite each other.
        cls._check_aliases(kwargs)
        return super().__new__(cls)

    def __post_init__(self, **kwargs: Any) -> None:
        if not _IS_REMOTE_CODE:
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)
        self.validate_architecture()

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Make a configuration, as `PreTrainedConfig.from_dict` does, but do not let a file choose compiled code."""
        for name in ("attn_implementation", "_attn_implementation"):
            given = config_dict.get(name)
            # With the package kernels, transformers would fetch and run it.
            _require(
                "/" not in str(given),
                f"config.json names {given}, code on the Hub, for its attention; remove it, and if you trust the code "
                "give attn_implementation to from_pretrained.",
            )
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save as `PreTrainedConfig.save_pretrained` does, with the code for `trust_remote_code=True`."""
        self.validate()
        if type(self) is VanillaTransformerConfig:
            ours, self.custom_pipelines = _code_to_ship()
            shipped = {reference.rpartition(".")[-1] for reference in ours.values()}
            entries = (getattr(self, "auto_map", None) or {}).items()
            # Entries of other classes stay, such as those of a derived model.
            others = {name: entry for name, entry in entries if str(entry).rpartition(".")[-1] not in shipped}
            self.auto_map = {**ours, **others}
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            if not _IS_REMOTE_CODE:
                self.__dict__.pop("custom_pipelines", None)

    @classmethod
    def from_paper(cls, row: str, **overrides: Any) -> "VanillaTransformerConfig":
        """The configuration of a row of Table 3.

        The big model of English-French had P_drop = 0.1 (section 6.1): `from_paper("big", dropout=0.1)`.

        Args:
            row (`str`): `"base"`, `"big"`, or the letter and the change of a row: `"A h=4"`, `"B d_k=16"`, `"C N=2"`,
                `"D P_drop=0.2"`, `"E"`, ...
            **overrides: fields with other values, for example `vocab_size`.

        Raises:
            TypeError: if a field is unknown; the message names the one that may be meant.
            ValueError: if the row is unknown; the message lists all rows.
        """
        if row not in PAPER_ROWS:
            names = ", ".join(f'"{name}"' for name in PAPER_ROWS)
            raise InputError(f'"{row}" is no row of Table 3; choose one of: {names}.')
        defaults = cls()
        for name in overrides:
            if not hasattr(defaults, name) and name != "attn_implementation":
                near = "".join(f", such as {field}" for field in get_close_matches(name, vars(defaults), 1))
                raise TypeError(f"{name} is no field of {cls.__name__}; give one of its fields{near}.")
        cls._check_aliases(overrides)
        fields = {cls.attribute_map.get(name, name): value for name, value in overrides.items()}
        return cls(**{**PAPER_ROWS[row], **fields})

    @property
    def key_dim(self) -> int:
        """Width of a head's queries and keys: `d_k`, or d_model / num_heads where it is None."""
        return self.d_k if self.d_k is not None else self.d_model // self.num_heads

    @property
    def value_dim(self) -> int:
        """Width of a head's values: `d_v`, or d_model / num_heads where it is None."""
        return self.d_v if self.d_v is not None else self.d_model // self.num_heads

    @property
    def has_joint_vocabulary(self) -> bool:
        """Whether source and target share one vocabulary."""
        return self.source_vocab_size is None

    @property
    def heads_for_alignment(self) -> list[tuple[int, int]]:
        """`alignment_heads`, or the default where it is None."""
        if self.alignment_heads is not None:
            return [(layer, head) for layer, head in self.alignment_heads]
        return [((5 * self.decoder_layers - 1) // 6, head) for head in range(self.num_heads)]

    @classmethod
    def _check_aliases(cls, given: dict[str, Any]) -> None:
        names_of: dict[str, list[str]] = {}
        for name in given:
            names_of.setdefault(cls.attribute_map.get(name, name), []).append(name)
        for field, names in names_of.items():
            agree = all(given[name] == given[names[0]] for name in names[1:])
            settings = " and ".join(f"{name}={given[name]!r}" for name in names)
            _require(agree, f"{settings} disagree: this model has one {field}; give it once, as {field}.")

    def validate_architecture(self) -> None:
        """Check that a model can be built; transformers also calls this after `__init__` and before saving."""
        self._check_ranges()
        self._check_heads()
        self._check_choices()
        self._check_token_ids()

    def _check_ranges(self) -> None:
        for name in (*_LAYERS, *_SIZES):
            value, most = getattr(self, name), _MOST_LAYERS if name in _LAYERS else _LARGEST_SIZE
            _require(value is None or 1 <= value <= most, f"{name} is {value}; it must be from 1 to {most}.")
        for name in _RATES:
            value = getattr(self, name)
            _require(0 <= value <= 1, f"{name} is {value}; it must be a rate between 0 and 1.")
        for name in ("layer_norm_eps", "initializer_factor"):
            value = getattr(self, name)
            _require(value > 0, f"{name} is {value}; it must be above 0.")

    def _check_heads(self) -> None:
        divisible = self.d_model % self.num_heads == 0
        _require(
            divisible or (self.d_k is not None and self.d_v is not None),
            f"d_model ({self.d_model}) is not divisible by num_heads ({self.num_heads}); choose a number of heads "
            "that divides d_model, or set both d_k and d_v.",
        )
        sizes = (self.decoder_layers, self.num_heads)
        _require(
            self.alignment_heads is None
            or (self.alignment_heads != [] and all(_are_below(pair, sizes) for pair in self.alignment_heads)),
            f"alignment_heads is {self.alignment_heads!r}; give None, or pairs of a decoder layer and a head, from 0, "
            f"of {sizes[0]} layers with {sizes[1]} heads.",
        )

    def _check_choices(self) -> None:
        _require(self.is_encoder_decoder, "is_encoder_decoder is False; this model has an encoder, so leave it out.")
        _require(not self.is_decoder, "is_decoder is True; this model has an encoder, so leave it out.")
        _require(
            self.position_offset == 0 or (self.position_offset > 0 and self.position_embedding_type != "learned"),
            f"position_offset is {self.position_offset}; it must be at least 0, and 0 for learned positions.",
        )
        _require(
            self.position_embedding_type == "learned" or self.d_model % 2 == 0,
            f"d_model is {self.d_model}; sinusoids come in pairs of a sine and a cosine, so choose an even d_model, "
            'or position_embedding_type="learned".',
        )
        _require(
            self.activation_function in ACT2FN,
            f'activation_function is "{self.activation_function}"; the paper uses "relu", and transformers supports: '
            f"{', '.join(sorted(ACT2FN))}.",
        )

    def _check_token_ids(self) -> None:
        sizes = {"vocab_size": self.vocab_size}
        if self.source_vocab_size is not None:
            sizes["source_vocab_size"] = self.source_vocab_size
        for name in _TOKEN_IDS:
            value = getattr(self, name)
            ids = value if isinstance(value, list) else [value]
            smallest = min(sizes, key=lambda field: sizes[field]) if name in _SOURCE_TOKEN_IDS else "vocab_size"
            last = sizes[smallest] - 1
            for token_id in ids:
                _require(
                    token_id is None or 0 <= token_id <= last,
                    f"{name} is {token_id}; it must lie between 0 and {smallest} - 1 ({last}).",
                )
