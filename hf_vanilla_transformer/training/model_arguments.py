"""Define the options for the model and the tokenizer of a training run: a new model, or one to fine-tune."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from transformers import PreTrainedTokenizerBase

from ..data.tokenizer import Normalization
from ..data.vocabularies import vocabularies_of
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.input_checks import sides_of
from ..support.build_arguments import option
from ..support.user_errors import InputError
from ..translation.loading_arguments import LoadingArguments


# Arguments that apply only if the run trains its tokenizer.
NEW_TOKENIZER_ARGUMENTS = ("vocab_size", "tokenizer_type", "joint_vocabulary", "whitespace_words", "normalization")
# Those of these arguments that do not apply to SentencePiece.
_BPE_ARGUMENTS = ("joint_vocabulary", "whitespace_words", "normalization")
# Arguments that contradict fine-tuning, because an existing model already has sizes, weights and a tokenizer.
_NEW_MODEL_ARGUMENTS = ("preset", "tokenizer_name", "config_overrides", "initializer_factor")


@dataclass
class ModelArguments(LoadingArguments):
    """Options that define the model to train: a model of the paper, possibly with changes, or an existing model."""

    model_name_or_path: str | None = option(  # type: ignore[assignment]
        None, "Fine-tune this model, a folder or a name on the Hub, with its tokenizer and its sizes."
    )
    tokenizer_name: str | None = option(
        None, "Use this tokenizer, a folder or a name on the Hub, instead of training one."
    )
    preset: str = option("base", 'Row of Table 3: big, "C N=2", E, ...')
    vocab_size: int = option(37000, "Maximum size of the joint BPE vocabulary, or of each vocabulary.")
    tokenizer_type: Literal["bpe", "sentencepiece", "char"] = option(
        "bpe",
        "Byte-level BPE, characters, or SentencePiece as in OPUS-MT, for convert --to hf_marian.",
    )
    joint_vocabulary: bool = option(
        True, "Use one vocabulary for both languages, as in the paper, and not one for each."
    )
    whitespace_words: bool = option(False, "Split text into words at spaces only, for text that is tokenized already.")
    normalization: Normalization = option(
        "nfc", "How to normalize invisible characters, accents and spaces, and with nfkc also variants."
    )
    num_layers: int | None = option(None, "Layers of each stack (base: 6).")
    d_model: int | None = option(None, "Model width (base: 512).")
    d_ff: int | None = option(None, "Width of the feed-forward networks (base: 2048).")
    num_heads: int | None = option(None, "Attention heads (base: 8).")
    dropout: float | None = option(None, "P_drop (base: 0.1).")
    label_smoothing: float | None = option(None, "epsilon_ls (base: 0.1).")
    initializer_factor: float | None = option(None, "Factor of initial weights; below 1 from 6 layers on.")
    config_overrides: dict | str | None = option(
        None, "Other fields of VanillaTransformerConfig, as JSON: '{\"decoder_layers\": 2}'."
    )
    attn_implementation: str | None = option(None, "Attention of transformers, such as sdpa.")

    def __post_init__(self) -> None:
        """Parse `config_overrides`, and raise InputError if the arguments are wrong or contradict each other."""
        super().__post_init__()
        # The checks below need a dict.
        if isinstance(self.config_overrides, str):
            self.config_overrides = _parse_overrides(self.config_overrides)
        self._check_overrides()
        self._check_tokenizer_arguments()
        self._check_fine_tuning()

    def _check_overrides(self) -> None:
        """Raise InputError if `config_overrides` contains a field that `VanillaTransformerConfig` does not have."""
        known_names = {field.name for field in fields(VanillaTransformerConfig)}
        # Other names of the same fields, such as `hidden_size` for `d_model`.
        known_names.update(VanillaTransformerConfig.attribute_map)
        for name in sorted(self.config_overrides or {}):
            if name not in known_names:
                raise InputError(f"config_overrides has {name}, which is no field of VanillaTransformerConfig.")

    def _check_tokenizer_arguments(self) -> None:
        """Raise InputError if the arguments for training a tokenizer contradict each other or `tokenizer_name`."""
        # The arguments of this kind that differ from their defaults.
        changed_names = [name for name in NEW_TOKENIZER_ARGUMENTS if self._is_changed(name)]
        if self.tokenizer_type == "sentencepiece":
            for name in changed_names:
                if name in _BPE_ARGUMENTS:
                    raise InputError(
                        f"{name} is {getattr(self, name)}, but SentencePiece has one vocabulary and its own "
                        f"normalization; leave out --{name}."
                    )
        if self.tokenizer_type == "char" and self.whitespace_words:
            raise InputError("whitespace_words is True, but tokenizer_type is char, which has no words; leave one out.")
        if self.tokenizer_name is not None and changed_names:
            options = ", ".join(f"--{name}" for name in NEW_TOKENIZER_ARGUMENTS)
            raise InputError(
                f"tokenizer_name is {self.tokenizer_name}, so no tokenizer is trained; leave out {options}."
            )

    def _check_fine_tuning(self) -> None:
        """Raise InputError if an existing model is given together with arguments for a new model.

        Sizes such as `d_model` are allowed here. `check_sizes` compares them with the existing model.
        """
        if self.model_name_or_path is None:
            return
        for name in _NEW_MODEL_ARGUMENTS:
            if self._is_changed(name):
                raise InputError(
                    f"{name} is {getattr(self, name)}, but {self.model_name_or_path} has sizes and a tokenizer; leave "
                    "out one of the two."
                )

    def _is_changed(self, name: str) -> bool:
        default = getattr(type(self), name)
        return getattr(self, name) != default

    def get_regularization(self) -> dict[str, float]:
        """Return dropout and label smoothing, the only two configuration fields that fine-tuning may change.

        The keys are the names of the fields. A field that the user has not given is left out.
        """
        values = {}
        if self.dropout is not None:
            values["dropout"] = self.dropout
        if self.label_smoothing is not None:
            values["label_smoothing"] = self.label_smoothing
        return values

    def check_sizes(self, config: VanillaTransformerConfig, name: str | Path) -> None:
        """Raise InputError if a given size, such as `d_model`, differs from the same size of an existing model.

        Args:
            config: the configuration of the existing model.
            name: the existing model's folder or its name on the Hub, for the error message.
        """
        # Pairs of an argument and a configuration field that must be equal.
        arguments_and_fields = (
            ("num_layers", "encoder_layers"),
            ("num_layers", "decoder_layers"),
            ("d_model", "d_model"),
            ("d_ff", "d_ff"),
            ("num_heads", "num_heads"),
        )
        for argument, config_field in arguments_and_fields:
            # None if the user has not given the argument.
            size = getattr(self, argument)
            actual_size = getattr(config, config_field)
            if size is not None and size != actual_size:
                raise InputError(f"{argument} is {size}, but {name} has {actual_size}, which training does not change.")

    def make_config(self, tokenizer: PreTrainedTokenizerBase | None = None) -> VanillaTransformerConfig:
        """Make a new model's configuration. Raise InputError if `config_overrides` contradicts the tokenizer."""
        # Arguments that are not given are left to the preset.
        given_values: dict[str, object] = {**self.get_regularization(), **self._get_given_sizes()}
        overrides = self._get_overrides()
        # Without a tokenizer, the vocabulary has the default size, which is sufficient to check the sizes.
        tokenizer_values: dict[str, int] = {}
        if tokenizer is not None:
            # The overrides are passed only to be checked.
            tokenizer_values = _config_values_for(tokenizer, overrides)

        # The last value of a field counts, so the overrides have precedence.
        values: dict[str, object] = {**given_values, **tokenizer_values, **overrides}
        return VanillaTransformerConfig.from_paper(self.preset, **values)

    def _get_given_sizes(self) -> dict[str, object]:
        """Return the configuration fields of the sizes that are given, i.e. not None."""
        sizes = {
            "encoder_layers": self.num_layers,
            "decoder_layers": self.num_layers,
            "d_model": self.d_model,
            "d_ff": self.d_ff,
            "num_heads": self.num_heads,
            "initializer_factor": self.initializer_factor,
        }
        return {name: size for name, size in sizes.items() if size is not None}

    def _get_overrides(self) -> dict[str, object]:
        """Return `config_overrides`; an empty dict if it is not given."""
        # `__post_init__` has replaced a JSON string by a dict.
        if isinstance(self.config_overrides, dict):
            return self.config_overrides
        return {}


def _parse_overrides(text: str) -> dict[str, object]:
    """Parse the value of `config_overrides`. Raise InputError if it is not a JSON object."""
    try:
        overrides = json.loads(text)
    except json.JSONDecodeError:
        # None is not a dict, so the error below is raised.
        overrides = None
    if not isinstance(overrides, dict):
        raise InputError(
            f"config_overrides is {text!r}; give a JSON object of names and values, such as '{{\"d_k\": 32}}'."
        )
    return overrides


def _config_values_for(tokenizer: PreTrainedTokenizerBase, overrides: Mapping[str, object]) -> dict[str, int]:
    """Return the configuration fields that a tokenizer determines: vocabulary sizes and ids of special tokens.

    Raises InputError if an override contradicts them. Overrides may make a vocabulary larger than the tokenizer needs,
    and may choose any start token for decoding.
    """
    source_vocabulary, target_vocabulary = vocabularies_of(tokenizer)
    source_size = _count_ids(source_vocabulary)
    target_size = _count_ids(target_vocabulary)
    special_ids = get_special_token_ids(tokenizer)
    needed_sizes = {"source_vocab_size": source_size, "vocab_size": target_size}
    _check_overrides_fit_tokenizer(overrides, needed_sizes, special_ids)

    values = {"vocab_size": target_size, **special_ids}
    # A single tokenizer may also have two vocabularies, such as some tokenizers of Marian.
    if _consists_of_two(tokenizer) or source_vocabulary != target_vocabulary:
        # A model without this field has a single vocabulary for both languages.
        values["source_vocab_size"] = source_size
    return values


def _count_ids(vocabulary: Mapping[str, int]) -> int:
    """Return the size that a model needs for the ids of a vocabulary, which may have gaps."""
    return max(vocabulary.values()) + 1


def _consists_of_two(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if a tokenizer consists of two tokenizers, one for the sources and one for the targets."""
    # `sides_of` returns a single tokenizer itself, once for each side.
    source_tokenizer, _target_tokenizer = sides_of(tokenizer)
    return source_tokenizer is not tokenizer


def _check_overrides_fit_tokenizer(
    overrides: Mapping[str, object], needed_sizes: Mapping[str, int], special_ids: Mapping[str, int]
) -> None:
    """Raise InputError if overrides make a vocabulary too small for a tokenizer, or change the id of a special token.

    Args:
        overrides: values of configuration fields, by name.
        needed_sizes: the vocabulary sizes that the tokenizer needs, by configuration field.
        special_ids: the ids of the tokenizer's special tokens, by configuration field.
    """
    for name, needed_id in sorted(special_ids.items()):
        if name == "decoder_start_token_id":
            # Any token may be the start token.
            continue
        if name in overrides and overrides[name] != needed_id:
            raise InputError(f"config_overrides has {name} {overrides[name]}, but the tokenizer needs {needed_id}.")
    for name, needed_size in sorted(needed_sizes.items()):
        size = overrides.get(name)
        # A size of None or 0 means that it is not overridden.
        if isinstance(size, int) and size != 0 and size < needed_size:
            raise InputError(f"config_overrides has {name} {size}, but the tokenizer needs {needed_size}.")


def get_special_token_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the ids of a tokenizer's special tokens. The keys are configuration fields, such as `pad_token_id`.

    If the tokenizer has no BOS token, decoding starts from the pad token, as in Marian.
    """
    if tokenizer.bos_token_id is not None:
        ids = {"bos_token_id": tokenizer.bos_token_id, "decoder_start_token_id": tokenizer.bos_token_id}
    else:
        # The configuration needs an id for BOS, so it gets the id of EOS.
        ids = {"bos_token_id": tokenizer.eos_token_id, "decoder_start_token_id": tokenizer.pad_token_id}
    if tokenizer.pad_token_id is not None:
        ids["pad_token_id"] = tokenizer.pad_token_id
    if tokenizer.eos_token_id is not None:
        ids["eos_token_id"] = tokenizer.eos_token_id
    return ids
