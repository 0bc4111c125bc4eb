"""Export trained models to the inference engine CTranslate2, and compare the exports with the original models."""

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ...hub.model_folder import CERTIFICATE, staged
from ...hub.native_folder import source_folder
from ...hub.user_cache import hashes
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.modeling_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerForConditionalGeneration,
)
from ...support.argument_checks import check_number
from ...support.atomic_files import locked
from ...support.user_errors import InputError, needing
from ...support.version import __version__
from ...translation.words_of_tokens import TokenTexts
from .converted_folder import command
from .parity_certificate import (
    SENTENCES,
    TOLERANCES,
    Certificate,
    Rows,
    check_equal,
    count_equal,
    is_within_tolerances,
    log_probs,
    random_rows,
    translate_rows,
    truncate_rows,
)
from .source_folder import load_tokenizer, load_trained, weight_files
from .weight_transforms import require


QUANTIZATIONS = ("float32", "float16", "bfloat16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")
# CTranslate2's names for the activation functions, by their names in transformers.
_ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "swish": "SWISH", "silu": "SWISH"}
# Up to this position, the sinusoids are accurate to 1e-6. generate() has the same limit.
_MOST_POSITIONS = 100_000
# The beam size of the translations that are compared. The paper's beam search has 4 beams, too.
_NUM_BEAMS = 4
# The length limit of the translations that are compared, in tokens. It leaves room for all of `SENTENCES`, and bounds
# the time of the comparison if an untrained model never ends its sentences.
_MAX_LENGTH = 60
# The translations are compared with rules that both beam searches support. Hypotheses are ranked by log P divided by
# their length, and a sentence is finished when the number of its finished hypotheses reaches the number of beams.
_COMMON_RULES = {"length_penalty": 1.0, "length_penalty_type": "hf", "early_stopping": True}


def to_ctranslate2(
    folder: str,
    output: str,
    *,
    quantization: str = "float32",
    max_positions: int = 2048,
    sentences: Sequence[str] = SENTENCES,
    force: bool = False,
) -> Path:
    """Export a trained model to CTranslate2, and compare the exported model with the original.

    The exported model has the tokenizer's vocabulary, and the tokenizer's files are saved in the same folder. Every
    source must end in `</s>`, which the tokenizer appends.

    Args:
        folder (`str`): the folder of a trained model, or its name on the Hub.
        output (`str`): the folder to create.
        quantization (`str`): the data type of the weights, one of `QUANTIZATIONS`.
        max_positions (`int`, defaults to 2048): the longest sequence in tokens, between 64 and 100,000. CTranslate2
            reads sinusoids from a table of this length, and rejects longer sequences.
        sentences (`list` of `str`): source sentences for the comparison.
        force (`bool`): write the model even if it is not equal to its source.

    Returns:
        `Path`: the folder. Its `parity.json` states the largest difference, in nats per token, between the
            log-probabilities by both models, and counts the equal translations with greedy search and with 4 beams.
            Quantized models are compared in the same way, but need not be equal.

    Raises:
        ImportError: if ctranslate2 is not installed.
        OSError: if the source cannot be read, or if the output folder exists.
        ValueError: if CTranslate2 cannot represent the model, or if the float32 export is not equal to it.
    """
    _check_options(quantization, max_positions)
    output_folder = Path(output)
    ctranslate2 = import_library()
    if output_folder.exists():
        raise FileExistsError(f"{output_folder} exists; name another folder for the converted model.")

    # `folder` may be a name on the Hub.
    local_folder = source_folder(folder)
    tokenizer, model = load_trained(local_folder, folder)
    # The code below must use only `num_positions`, because a model may have fewer than `max_positions`.
    num_positions = table_length(model.config, max_positions)
    spec = _make_quantized_specification(model, tokenizer, quantization, num_positions)

    # `staged` deletes the temporary folder if a check in the block fails, and otherwise renames it.
    with locked(output_folder), staged(output_folder) as temporary_folder:
        spec.save(str(temporary_folder))
        tokenizer.save_pretrained(temporary_folder)
        # The comparison uses the files that were written, including the tokenizer's.
        saved_tokenizer = load_tokenizer(temporary_folder, f"the result for {folder}")
        is_exact = quantization == "float32"
        parity = compare(
            temporary_folder, model, saved_tokenizer, sentences, num_positions=num_positions, is_exact=is_exact
        )
        check_equal(parity, folder, force)
        certificate = {
            "source": folder,
            "system": "ctranslate2",
            "sha256": hashes(weight_files(local_folder)),
            "quantization": quantization,
            # `CTranslate2Engine` reads these two fields.
            "max_positions": num_positions,
            "alignment_heads": heads_in_one_layer(model.config),
            **parity,
            "versions": {"hf_vanilla_transformer": __version__, "ctranslate2": ctranslate2.__version__},
            "command": command(),
        }
        (temporary_folder / CERTIFICATE).write_text(json.dumps(certificate, indent=2) + "\n", encoding="utf-8")
    return output_folder


def _check_options(quantization: str, max_positions: int) -> None:
    """Raise ValueError if the data type of an export is unknown, or its number of positions is out of range."""
    if quantization not in QUANTIZATIONS:
        raise InputError(f'quantization is "{quantization}"; choose one of {", ".join(QUANTIZATIONS)}.')
    # The table must have room for the longest compared translation, a start token, and a few more tokens.
    check_number("max_positions", max_positions, _MAX_LENGTH + 4, _MOST_POSITIONS)


def _make_quantized_specification(
    model: VanillaTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    quantization: str,
    num_positions: int,
) -> Any:
    """Convert a model to a `TransformerSpec`, and convert its weights to the data type `quantization`.

    CTranslate2 can write the result to disk. `num_positions` is the number of rows in its position table.
    [`specification`] describes the `TransformerSpec` and the errors.
    """
    source_texts, target_texts = vocabularies(tokenizer, model.config)
    spec = specification(model, source_texts, target_texts, max_positions=num_positions)
    # optimize() stores tied weights only once, and quantizes the weights if it is asked to.
    if quantization == "float32":
        spec.optimize()
    else:
        spec.optimize(quantization=quantization)
    return spec


def import_library() -> ModuleType:
    """Import the optional library ctranslate2.

    Raises ImportError if it is missing. The message names the extra to install.
    """
    with needing("ctranslate2", "CTranslate2 needs"):
        import ctranslate2
        import ctranslate2.specs
    return ctranslate2


def vocabularies(tokenizer: PreTrainedTokenizerBase, config: VanillaTransformerConfig) -> tuple[list[str], list[str]]:
    """Return two lists: the texts of all source tokens, and the texts of all target tokens, in the order of their ids.

    CTranslate2 needs a text for each row of an embedding matrix. A row without a token gets a text such as `<unused7>`.
    """
    source_texts = TokenTexts(tokenizer, is_target=False).names
    target_texts = TokenTexts(tokenizer, is_target=True).names
    source_size = config.source_vocab_size or config.vocab_size
    return _fill_gaps(source_texts, source_size), _fill_gaps(target_texts, config.vocab_size)


def _fill_gaps(texts: dict[int, str], size: int) -> list[str]:
    """Return a text for each token id from 0 to `size - 1`. Missing texts become placeholders, such as `<unused7>`."""
    return [texts.get(token, f"<unused{token}>") for token in range(size)]


def compare(
    folder: Path,
    model: VanillaTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    num_positions: int,
    is_exact: bool,
) -> Certificate:
    """Compare an exported CTranslate2 model with the original model.

    Args:
        folder: the folder of the CTranslate2 model.
        model, tokenizer: the original model, and the tokenizer of both models.
        sentences: source sentences.
        num_positions: the number of rows in CTranslate2's position table.
        is_exact: True if the exported weights are in float32, so that both models must be equal.

    Returns:
        The results of the comparison, which [`to_ctranslate2`] writes to `parity.json`. `equal` and `tolerance` are
        None unless `is_exact`.
    """
    exported = _ExportedModel(folder, model, tokenizer)
    sources = truncate_rows(tokenizer(list(sentences)).input_ids, num_positions)
    # The longest translation without the start token, for which one row of the position table is left.
    max_length = min(_MAX_LENGTH, num_positions - 1)
    # With `_COMMON_RULES`, both beam searches rank and finish hypotheses alike. Greedy search ranks no hypotheses.
    beam_translations = _translate_by_original(model, sources, _NUM_BEAMS, max_length, **_COMMON_RULES)
    greedy_translations = _translate_by_original(model, sources, 1, max_length)
    translations = {
        "sentences": len(sources),
        "beam": exported.count_equal(beam_translations, sources, num_beams=_NUM_BEAMS, max_length=max_length),
        "greedy": exported.count_equal(greedy_translations, sources, num_beams=1, max_length=max_length),
    }

    random_sources = truncate_rows(random_rows(model, seed=0), max_length)
    random_targets = truncate_rows(random_rows(model, seed=1), max_length)
    differences = {
        "random": _largest_difference(model, exported, random_sources, random_targets),
        "real": _largest_difference(model, exported, sources, greedy_translations),
    }

    certificate: Certificate = {
        "log_probs": differences,
        "translations": translations,
        "tolerance": None,
        "equal": None,
        "translate_batch": exported.fixed_options,
    }
    # Quantized weights change the log-probabilities, so they have no tolerance.
    if is_exact:
        certificate["tolerance"] = TOLERANCES[torch.float32]
        certificate["equal"] = is_within_tolerances(certificate)
    return certificate


def _translate_by_original(
    model: VanillaTransformerForConditionalGeneration,
    sources: Rows,
    num_beams: int,
    max_length: int,
    **settings: object,
) -> Rows:
    """Translate the sources with the original model. `max_length` does not count the start token."""
    # `generate` counts the start token, too.
    max_length_of_generate = max_length + 1
    return translate_rows(model, sources, num_beams=num_beams, max_length=max_length_of_generate, **settings)


class _ExportedModel:
    """A wrapper around a CTranslate2 model that accepts token ids. CTranslate2 itself accepts only token texts.

    Args:
        folder: the folder of the CTranslate2 model.
        model, tokenizer: the original model, and the tokenizer of both models.
    """

    def __init__(
        self, folder: Path, model: VanillaTransformerForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
    ):
        self._source_texts, self._target_texts = vocabularies(tokenizer, model.config)
        self._eos_token = model.config.eos_token_id
        self._translator: Any = import_library().Translator(str(folder), device="cpu")
        self.fixed_options = fixed_translate_options(model.generation_config, self._target_texts)

    def count_equal(self, expected_translations: Rows, sources: Rows, num_beams: int, max_length: int) -> int:
        """Translate the sources, and count the translations that are equal to the expected ones."""
        results = self._translator.translate_batch(
            _to_texts(sources, self._source_texts),
            beam_size=num_beams,
            # Hypotheses are ranked by log P divided by their length, as in `_COMMON_RULES`.
            length_penalty=1,
            max_decoding_length=max_length,
            return_end_token=True,
            **self.fixed_options,
        )
        translations = [result.hypotheses[0] for result in results]
        return count_equal(_to_texts(expected_translations, self._target_texts), translations)

    def score(self, sources: Rows, targets: Rows) -> list[float]:
        """Return the log-probabilities of all target tokens, in nats, in one list in the order of the targets."""
        # CTranslate2 appends </s> to each target, so it is removed from the targets.
        targets_without_eos = []
        for target in targets:
            targets_without_eos.append([token for token in target if token != self._eos_token])
        source_texts = _to_texts(sources, self._source_texts)
        target_texts = _to_texts(targets_without_eos, self._target_texts)
        results = self._translator.score_batch(source_texts, target_texts)
        scores: list[float] = []
        for result, target in zip(results, targets, strict=True):
            # The last score belongs to </s>, which a translation at the length limit does not have.
            scores.extend(result.log_probs[: len(target)])
        return scores


def _largest_difference(
    model: VanillaTransformerForConditionalGeneration, exported: _ExportedModel, sources: Rows, targets: Rows
) -> float:
    """Return the largest difference, in nats, between the two models' log-probabilities of a target token."""
    # All targets are concatenated, in the same order as in the results of `log_probs` and `score`.
    target_tokens = [token for target in targets for token in target]
    all_log_probs = log_probs(model, sources, targets)  # (target tokens, vocabulary)
    # `gather` picks the log-probability of each target token.
    token_column = torch.tensor(target_tokens)[:, None]  # (target tokens, 1)
    original_scores = all_log_probs.gather(-1, token_column).squeeze(-1)  # (target tokens,)
    exported_scores = torch.tensor(exported.score(sources, targets))
    return float((original_scores - exported_scores).abs().max())


def _to_texts(rows: Rows, texts: Sequence[str]) -> list[list[str]]:
    """Convert token ids to token texts, which are the input of CTranslate2. `texts` has a text for each token id."""
    return [[texts[token] for token in row] for row in rows]


def fixed_translate_options(generation_config: GenerationConfig, target_texts: Sequence[str]) -> dict[str, Any]:
    """Return the `translate_batch` arguments that make CTranslate2 translate like the original model.

    By default, CTranslate2 truncates long sources, and generates tokens that `generation_config` suppresses. These
    arguments prevent both.
    """
    # 0 means that sources are not truncated.
    options: dict[str, Any] = {"max_input_length": 0}
    # Token ids that must not be generated in this order. A single suppressed token is a sequence of length 1.
    suppressed_sequences: Rows = []
    if generation_config.suppress_tokens:
        suppressed_sequences.extend([token] for token in generation_config.suppress_tokens)
    if generation_config.bad_words_ids:
        suppressed_sequences.extend(generation_config.bad_words_ids)
    if suppressed_sequences:
        options["suppress_sequences"] = _to_texts(suppressed_sequences, target_texts)
    return options


@torch.no_grad()
def specification(
    model: VanillaTransformerForConditionalGeneration,
    source_texts: list[str],
    target_texts: list[str],
    max_positions: int = 2048,
) -> Any:
    """Convert a model to a `TransformerSpec`, the object from which CTranslate2 writes its model files.

    Args:
        model: the model, in float32 on the CPU. It does not change.
        source_texts, target_texts: the texts of all source tokens and of all target tokens, in the order of their ids.
        max_positions: the largest number of rows in the position table.

    Raises:
        ImportError: if ctranslate2 is not installed.
        ValueError: if CTranslate2 cannot represent the model.
    """
    config = model.config
    _check_architecture(config)
    # The model is copied because its heads are reordered, and because CTranslate2 quantizes the weights in place.
    model_copy = copy.deepcopy(model)
    # This reorders heads of `model_copy`, so it must come before `_copy_weights`. Otherwise, CTranslate2 would align
    # words by the wrong heads.
    alignment_options = _move_alignment_heads(model_copy)

    spec = _make_empty_specification(config, alignment_options)
    _copy_weights(model_copy, spec, table_length(config, max_positions))
    spec.register_source_vocabulary(source_texts)
    spec.register_target_vocabulary(target_texts)
    _set_special_tokens(spec.config, config, target_texts)
    spec.config.layer_norm_epsilon = config.layer_norm_eps
    spec.validate()
    return spec


def _check_architecture(config: VanillaTransformerConfig) -> None:
    """Raise ValueError if CTranslate2 cannot represent a model with this configuration."""
    # This also rejects heads that do not have the usual width.
    require(config, "CTranslate2", stack_layer_norm=False)
    if config.activation_function not in _ACTIVATIONS:
        raise InputError(
            f"activation_function is {config.activation_function!r}, but CTranslate2 has {', '.join(_ACTIVATIONS)}."
        )


def _make_empty_specification(config: VanillaTransformerConfig, alignment_options: dict[str, int]) -> Any:
    """Build a `TransformerSpec` without weights. `alignment_options` is what `_move_alignment_heads` returns."""
    specs = import_library().specs
    activation = getattr(specs.Activation, _ACTIVATIONS[config.activation_function])
    return specs.TransformerSpec.from_config(
        (config.encoder_layers, config.decoder_layers),
        config.num_heads,
        pre_norm=False,
        activation=activation,
        **alignment_options,
    )


def _move_alignment_heads(model: VanillaTransformerForConditionalGeneration) -> dict[str, int]:
    """Reorder the attention heads of a decoder layer in place, so that the alignment heads are its first heads.

    CTranslate2 aligns words with the average of the first heads of one decoder layer. For example, the alignment heads
    1 and 3 of layer 2, in a model with 4 heads, give the new order [1, 3, 0, 2] in layer 2, and the result
    `{"alignment_layer": 2, "alignment_heads": 2}`. `model.config` keeps the old indices, 1 and 3, which are wrong now.

    Returns:
        The arguments of `TransformerSpec.from_config` that state the layer and the number of the alignment heads. If
        the heads are in several layers, the dict is empty, the model does not change, and the export does not support
        alignments.
    """
    alignment_heads = heads_in_one_layer(model.config)
    if not alignment_heads:
        return {}
    # All heads are in the same layer.
    layer_index, _ = alignment_heads[0]
    head_indices = [head for _, head in alignment_heads]
    # The reordered attention may be a copy, so it must take the place of the old one in the layer.
    decoder_layer: Any = model.model.decoder.layers[layer_index]
    decoder_layer.encoder_attn = with_heads_first(decoder_layer.encoder_attn, head_indices)
    return {"alignment_layer": layer_index, "alignment_heads": len(alignment_heads)}


def _copy_weights(model: VanillaTransformerForConditionalGeneration, spec: Any, num_positions: int) -> None:
    """Copy a model's weights to `spec`, the `TransformerSpec` of the exported model.

    `num_positions` is the number of rows in the position table.
    """
    from ctranslate2.converters.transformers import BartLoader

    # CTranslate2's loader for BART reads the attention, linear and normalization modules of this model, because their
    # parts have the same names as BART's.
    loader: Any = BartLoader()
    for stack, stack_spec in ((model.model.encoder, spec.encoder), (model.model.decoder, spec.decoder)):
        _copy_embeddings(stack, stack_spec, num_positions)
        for layer, layer_spec in zip(stack.layers, stack_spec.layer, strict=True):
            _copy_layer(loader, layer, layer_spec)
    loader.set_linear(spec.decoder.projection, model.lm_head)


def _copy_embeddings(stack: Any, stack_spec: Any, num_positions: int) -> None:
    """Copy the token embeddings and the positions of an encoder or decoder to the exported model.

    `stack` is the encoder or decoder, and `stack_spec` is the corresponding part of CTranslate2's `TransformerSpec`.
    `num_positions` is the number of rows in the position table.
    """
    embeddings_spec = stack_spec.embeddings
    if isinstance(embeddings_spec, list):
        # Encoders of CTranslate2 may embed several features of each token. This model's encoder embeds one.
        embeddings_spec = embeddings_spec[0]
    embeddings_spec.weight = stack.embed_tokens.weight
    # The embeddings are multiplied by the square root of d_model (section 3.4).
    stack_spec.scale_embeddings = True
    # Adding the positions to zeros gives their table, for sinusoids and for learned positions.
    zeros = torch.zeros(num_positions, stack.config.d_model)
    position_ids = torch.arange(num_positions)
    stack_spec.position_encodings.encodings = stack.add_positions(zeros, position_ids)


def _copy_layer(loader: Any, layer: Any, layer_spec: Any) -> None:
    """Copy the weights of an encoder or decoder layer to the exported model.

    `layer_spec` is the part of CTranslate2's `TransformerSpec` that corresponds to `layer`. `loader` is a `BartLoader`
    of CTranslate2, whose methods copy one module each.
    """
    loader.set_attention(layer_spec.self_attention, layer.self_attn, self_attention=True)
    loader.set_layer_norm(layer_spec.self_attention.layer_norm, layer.self_attn_layer_norm)
    # Only decoder layers have cross-attention.
    if hasattr(layer, "encoder_attn"):
        loader.set_attention(layer_spec.attention, layer.encoder_attn, self_attention=False)
        loader.set_layer_norm(layer_spec.attention.layer_norm, layer.encoder_attn_layer_norm)
    loader.set_linear(layer_spec.ffn.linear_0, layer.fc1)
    loader.set_linear(layer_spec.ffn.linear_1, layer.fc2)
    loader.set_layer_norm(layer_spec.ffn.layer_norm, layer.final_layer_norm)


def _set_special_tokens(spec_config: Any, config: VanillaTransformerConfig, target_texts: Sequence[str]) -> None:
    """Set the special tokens of an exported model, all of which CTranslate2 requires.

    `spec_config` is the part of a `TransformerSpec` that CTranslate2 writes to config.json. `config` is the
    configuration of the original model, and `target_texts` has the text of each target token.
    """
    pad_id: Any = config.pad_token_id
    start_id: Any = config.decoder_start_token_id
    bos_id: Any = config.bos_token_id
    eos_id: Any = config.eos_token_id
    pad_token = target_texts[pad_id]
    spec_config.bos_token = _text_or_pad(bos_id, target_texts, pad_token)
    spec_config.eos_token = _text_or_pad(eos_id, target_texts, pad_token)
    # The unknown token is never used.
    spec_config.unk_token = pad_token
    spec_config.decoder_start_token = target_texts[start_id]
    # The tokenizer already appends </s> to every source.
    spec_config.add_source_bos = False
    spec_config.add_source_eos = False


def _text_or_pad(token_id: int | None, target_texts: Sequence[str], pad_token: str) -> str:
    """Return the text of a special token, or the pad token if the model lacks the special token."""
    if token_id is None:
        return pad_token
    return target_texts[token_id]


def heads_in_one_layer(config: VanillaTransformerConfig) -> list[tuple[int, int]]:
    """Return the model's alignment heads as `(layer, head)` pairs, or an empty list if they are in different layers.

    CTranslate2 can only average the heads of one decoder layer.
    """
    heads = config.heads_for_alignment
    layers = {layer for layer, _ in heads}
    if len(layers) > 1:
        return []
    return heads


def with_heads_first(attention: VanillaTransformerAttention, first_heads: Sequence[int]) -> VanillaTransformerAttention:
    """Reorder the heads of an attention layer, so that the heads `first_heads` come before all other heads.

    The order of the heads does not change the layer's output. Returns a copy, or `attention` itself if its heads are
    already in this order. The caller must disable gradients, because the copy's parameters are overwritten.
    """
    old_order = list(range(attention.config.num_heads))
    other_heads = [head for head in old_order if head not in first_heads]
    new_order = [*first_heads, *other_heads]
    if new_order == old_order:
        return attention
    return _copy_with_order(attention, new_order)


def _copy_with_order(attention: VanillaTransformerAttention, new_order: list[int]) -> VanillaTransformerAttention:
    """Return a copy of an attention layer whose heads are in the new order."""
    reordered = copy.deepcopy(attention)
    # In the query, key and value projections, each head has a block of rows in the weight and in the bias.
    for projection in (reordered.q_proj, reordered.k_proj, reordered.v_proj):
        for parameter in projection.parameters():
            parameter.copy_(_reorder_blocks(parameter, new_order))
    # In the output projection, each head has a block of columns. The bias does not depend on the heads.
    output_weight = reordered.out_proj.weight  # (d_model, num_heads * head width)
    output_weight.copy_(_reorder_blocks(output_weight.T, new_order).T)
    return reordered


def _reorder_blocks(rows: torch.Tensor, new_order: list[int]) -> torch.Tensor:
    """Divide the rows of a tensor into as many equal blocks as `new_order` has elements, and return them in this order.

    For example, the rows `[0, 1, 2, 3]` and the order `[1, 0]` result in `[2, 3, 0, 1]`. The result is a copy.
    """
    # (blocks, rows per block, ...)
    blocks = rows.unflatten(0, (len(new_order), -1))
    return blocks[new_order].flatten(0, 1)


def table_length(config: VanillaTransformerConfig, max_positions: int) -> int:
    """Return the number of rows in CTranslate2's position table.

    It is `max_positions`, or the number of learned positions if the model has fewer.
    """
    if config.position_embedding_type == "learned":
        return min(max_positions, config.max_position_embeddings)
    return max_positions
