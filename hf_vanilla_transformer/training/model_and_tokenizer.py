"""Make the model and tokenizer that a run trains: load them from a checkpoint or a saved model, or create new ones."""

import logging
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import DatasetDict
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.sentencepiece_tokenizer import train_sentencepiece
from ..data.tokenizer import train_tokenizer
from ..hub.native_folder import IMPORTERS, native_folder
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.input_checks import check_vocabulary
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.tokenization_two_vocabularies import TwoVocabularyTokenizer
from ..support.user_errors import InputError
from ..translation.model_loading import explaining_missing_files, load_model
from .model_arguments import ModelArguments
from .run_checks import check_tokenizer


logger = logging.getLogger(__name__)


def make_model(
    model_args: ModelArguments, pairs: DatasetDict, checkpoint: Path | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load or create the tokenizer and the model of a run.

    A run that resumes loads both from its checkpoint. A run that fine-tunes a model loads both from that model.
    Otherwise the model is new, and the tokenizer is trained on the training pairs unless the arguments name one.
    """
    if checkpoint is not None or model_args.model_name_or_path is not None:
        return load_existing_model(model_args, checkpoint)
    tokenizer = make_tokenizer(model_args, pairs)
    config = model_args.make_config(tokenizer)
    model = VanillaTransformerForConditionalGeneration._from_config(config, **_attention_options(model_args))
    if config.decoder_start_token_id == config.pad_token_id:
        # Without a BOS token, decoding starts from the pad token. Its embedding is zero at first, as in Marian, and
        # `keep_zero_start` keeps it at zero during training.
        model.get_decoder().embed_tokens.weight.data[config.pad_token_id] = 0
    return tokenizer, model


class _SavedModel(NamedTuple):
    """The location and the configuration of a saved model, and the options for loading it.

    Args:
        location (`str` or `Path`): the model's folder, or its name on the Hub.
        config (`PreTrainedConfig`): the model's configuration.
        options (`dict`): keyword arguments of `from_pretrained`, such as a revision.
        is_converted (`bool`): True if the model is a converted copy of a model of a different system, such as Marian.
    """

    location: str | Path
    config: PreTrainedConfig
    options: dict[str, Any]
    is_converted: bool = False


def load_existing_model(
    model_args: ModelArguments, checkpoint: Path | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Load the tokenizer and the model from a checkpoint or, if it is None, from the model to fine-tune.

    A model of a different system, such as Marian, is converted first. Raises InputError if the architecture is not
    supported, or if the sizes differ from the given arguments.
    """
    saved = _find_saved_model(model_args, checkpoint)
    config = _check_architecture(saved)
    model_args.check_sizes(config, saved.location)
    if checkpoint is None:
        _log_fine_tuning(model_args, saved)

    with explaining_missing_files(saved.location):
        tokenizer = AutoTokenizer.from_pretrained(saved.location, padding_side="right", **saved.options)
        # The check comes before the weights are loaded, because loading takes longer.
        check_vocabulary(config, tokenizer)
        model = load_model(
            saved.location,
            # In 16-bit weights, small updates would be lost to rounding.
            dtype=torch.float32,
            **saved.options,
            **_attention_options(model_args),
            # These replace the values in the saved configuration.
            **model_args.get_regularization(),
        )
    return tokenizer, model


def _check_architecture(saved: _SavedModel) -> VanillaTransformerConfig:
    """Return the configuration of a saved model. Raise InputError if it is a model of another architecture."""
    model_type = saved.config.model_type
    if model_type != VanillaTransformerConfig.model_type:
        raise InputError(
            f"{saved.location} is a {model_type} model; this command trains {VanillaTransformerConfig.model_type}."
        )
    return cast("VanillaTransformerConfig", saved.config)


def _log_fine_tuning(model_args: ModelArguments, saved: _SavedModel) -> None:
    """Log which model is fine-tuned, and whether it was converted."""
    conversion = ""
    if saved.is_converted:
        conversion = ", converted into a model of this package"
    logger.info("fine-tuning %s%s, with its sizes and its tokenizer", model_args.model_name_or_path, conversion)


def _find_saved_model(model_args: ModelArguments, checkpoint: Path | None) -> _SavedModel:
    """Find the model to load: the checkpoint or, if it is None, the model to fine-tune."""
    if checkpoint is None:
        return _find_model_to_fine_tune(model_args)
    with explaining_missing_files(checkpoint):
        config = AutoConfig.from_pretrained(checkpoint)
    return _SavedModel(checkpoint, config, options={})


def _find_model_to_fine_tune(model_args: ModelArguments) -> _SavedModel:
    """Find the model to fine-tune. A model of a different system, such as Marian, is converted first."""
    name = str(model_args.model_name_or_path)
    # For example, the revision and the token for the Hub.
    options = model_args.options()
    with explaining_missing_files(name):
        config = AutoConfig.from_pretrained(name, **options)
        # `IMPORTERS` has an entry for each foreign model type that can be converted.
        if config.model_type in IMPORTERS:
            folder = native_folder(name, model_args.revision, model_args.token)
            # The converted copy is local, so it needs neither revision nor token.
            return _SavedModel(folder, AutoConfig.from_pretrained(folder), options={}, is_converted=True)
    return _SavedModel(name, config, options)


def _attention_options(model_args: ModelArguments) -> dict[str, str]:
    """Return the keyword argument that selects transformers' attention implementation, or {} if none is given."""
    if not model_args.attn_implementation:
        return {}
    return {"attn_implementation": model_args.attn_implementation}


def keep_zero_start(model: PreTrainedModel) -> None:
    """If the embedding of the decoder's start token is zero, keep it at zero during training.

    The embedding is zero in models that follow Marian. Other inference engines for such models always use a zero vector
    for the start token, whatever the weights are. Call this after the weights are loaded or initialized.
    """
    start_id = model.config.decoder_start_token_id
    # (vocabulary, d_model)
    weight = model.get_decoder().embed_tokens.weight
    if not weight[start_id].any():
        # The hook's result replaces the gradient. With a gradient of zero, Adam does not change a row of zeros.
        weight.register_hook(partial(_clear_row, start_id))


def _clear_row(row: int, gradient: torch.Tensor) -> torch.Tensor:
    """Return a copy of a gradient in which one row is set to zero."""
    # The arguments are the dimension, the index in this dimension, and the new value.
    return gradient.index_fill(0, torch.tensor(row, device=gradient.device), 0)


def make_tokenizer(model_args: ModelArguments, pairs: DatasetDict) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name. If they name none, the main process trains one for all processes."""
    if model_args.tokenizer_name is not None:
        return load_tokenizer(model_args)
    state = PartialState()
    if model_args.tokenizer_type == "sentencepiece" and state.num_processes > 1:
        raise InputError("several processes cannot train a SentencePiece model; train one first, for --tokenizer_name.")
    tokenizer = None
    if state.is_main_process:
        tokenizer = train_new_tokenizer(model_args, pairs)
    # Replace None in the other processes by the tokenizer of the main process.
    (shared_tokenizer,) = broadcast_object_list([tokenizer])
    return shared_tokenizer


def load_tokenizer(model_args: ModelArguments) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name, and check that it appends EOS and has a pad token."""
    name = str(model_args.tokenizer_name)
    # The given revision belongs to the model, not to the tokenizer.
    options = {**model_args.options(), "revision": None}
    with explaining_missing_files(name, ["tokenizer_config.json"]):
        tokenizer = AutoTokenizer.from_pretrained(name, padding_side="right", **options)
    check_tokenizer(name, tokenizer)
    return tokenizer


def train_new_tokenizer(model_args: ModelArguments, pairs: DatasetDict) -> PreTrainedTokenizerBase:
    """Train a tokenizer on the training pairs, with one vocabulary for both languages or with one for each."""
    sources = pairs["train"]["source"]
    targets = pairs["train"]["target"]
    if model_args.tokenizer_type == "sentencepiece":
        # SentencePiece has one vocabulary and its own normalization, so it does not need the other arguments.
        return train_sentencepiece(chain(sources, targets), model_args.vocab_size)
    options: dict[str, Any] = {
        "vocab_size": model_args.vocab_size,
        "whitespace_words": model_args.whitespace_words,
        "normalization": model_args.normalization,
        "characters": model_args.tokenizer_type == "char",
    }
    if model_args.joint_vocabulary:
        return train_tokenizer(chain(sources, targets), **options)
    source_tokenizer = train_tokenizer(sources, **options)
    target_tokenizer = train_tokenizer(targets, **options)
    return TwoVocabularyTokenizer.of(source_tokenizer, target_tokenizer)
