"""Run forward passes that collect what pictures show: tokens, attention weights, masks and log-probabilities."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from ...data.target_language import TargetCodes
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.input_checks import check_generated, check_vocabulary, is_blank
from ...model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ...support.argument_checks import check_strings
from ...support.user_errors import InputError
from ...translation.concurrent_use import encode, evaluating
from ...translation.inference import Inference
from ...translation.runtime import runtime_of
from .token_labels import token_texts


# The three uses of attention in section 3.2.3, with the names that pictures and the command line use for them.
KINDS = ("encoder", "decoder", "cross")


class ForwardPass(NamedTuple):
    """The tokens, attention weights and log-probabilities of a sentence pair, computed with teacher forcing.

    At position t, the decoder reads `read_tokens[t]` and generates `target_tokens[t]`.

    Args:
        source_tokens (`list[str]`): the text of each token that the encoder reads.
        read_tokens (`list[str]`): the text of each token that the decoder reads, from the start token on.
        target_tokens (`list[str]`): the text of each token that the decoder generates, which it reads at the next
            position. The last one is `</s>` unless the length limit ended the translation.
        encoder (`np.ndarray` of shape `(layers, heads, source, source)`): attention weights (section 3.2.1) of the
            encoder's self-attention, in float32; rows are queries, columns keys, and each row sums to 1.
        decoder (`np.ndarray` of shape `(layers, heads, target, target)`): weights of the decoder's self-attention.
        cross (`np.ndarray` of shape `(layers, heads, target, source)`): weights of the attention to the encoder's
            output.
        log_probs (`list[float]`): the log-probability of each target token given the tokens before it, in nats.
    """

    source_tokens: list[str]
    read_tokens: list[str]
    target_tokens: list[str]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    log_probs: list[float]

    def query_and_key_tokens(self, kind: str) -> tuple[list[str], list[str]]:
        """Return the query tokens and the key tokens of one type of attention.

        Args:
            kind (`str`): `"encoder"`, `"decoder"` or `"cross"`.
        """
        if kind == "encoder":
            return self.source_tokens, self.source_tokens
        if kind == "decoder":
            return self.target_tokens, self.read_tokens
        # The type is "cross".
        return self.target_tokens, self.source_tokens

    def weights(self, kind: str) -> np.ndarray:
        """Return the attention weights `(layers, heads, queries, keys)` of one type of attention.

        Args:
            kind (`str`): `"encoder"`, `"decoder"` or `"cross"`.
        """
        if kind == "encoder":
            return self.encoder
        if kind == "decoder":
            return self.decoder
        # The type is "cross".
        return self.cross


class Masks(NamedTuple):
    """The attention masks of a batch, as the first encoder layer and the first decoder layer receive them.

    Args:
        source_tokens, read_tokens (`list[list[str]]`): the text of each token that the encoder and the decoder read,
            including padding.
        encoder (`np.ndarray` of shape `(batch, source, source)`): True where a query may attend to a key.
        decoder (`np.ndarray` of shape `(batch, target, target)`): the same for decoder self-attention.
        cross (`np.ndarray` of shape `(batch, target, source)`): the same for cross-attention.
    """

    source_tokens: list[list[str]]
    read_tokens: list[list[str]]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


@torch.inference_mode()
def forward_pass(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    **generate_kwargs: Any,
) -> ForwardPass:
    """Run the model with teacher forcing on a sentence pair, or on a sentence and the model's own translation.

    Args:
        model (`PreTrainedModel`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        source (`str`): a sentence.
        target (`str`, *optional*): its translation; by default, the best hypothesis of `generate()`.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`, which are allowed only without a target.

    Raises:
        TypeError: if the model is an engine of another runtime, or a sentence is not a string.
        ValueError: if the sentence is empty, arguments of `generate()` come with a target, or the model does not
            return attention weights.
    """
    source_ids, target_ids = _tokenize_or_translate_one(model, tokenizer, source, target, generate_kwargs)
    # At each position, the decoder reads the token before the one that it generates.
    read_ids = target_ids[:-1]
    generated_ids = target_ids[1:]
    output = _run_with_attention(model, source_ids, read_ids)

    source_texts = token_texts(tokenizer, source_ids)
    read_texts = token_texts(tokenizer, read_ids, of_target=True)
    # The start token is removed only after the conversion, because a token's text depends on its neighbors.
    generated_texts = token_texts(tokenizer, target_ids, of_target=True)[1:]
    return ForwardPass(
        source_tokens=source_texts,
        read_tokens=read_texts,
        target_tokens=generated_texts,
        encoder=_stack_layers(output.encoder_attentions),
        decoder=_stack_layers(output.decoder_attentions),
        cross=_stack_layers(output.cross_attentions),
        log_probs=_log_probs_of_tokens(output.logits, _batch_of_one(generated_ids, model.device)),
    )


def _tokenize_or_translate_one(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None,
    generate_kwargs: dict[str, Any],
) -> tuple[list[int], list[int]]:
    """Return the token ids of a sentence, and those of the given translation or else of the model's own."""
    targets = None if target is None else [target]
    source_rows, target_rows = _tokenize_or_translate(model, tokenizer, [source], targets, generate_kwargs)
    return source_rows[0], target_rows[0]


def _batch_of_one(ids: Sequence[int], device: torch.device) -> Tensor:
    """Return token ids as a batch of one sentence, of shape `(1, length)`."""
    # The dtype is necessary, because a list without tokens would become a tensor of floats.
    return torch.tensor([ids], dtype=torch.long, device=device)


def _run_with_attention(model: PreTrainedModel, source_ids: Sequence[int], read_ids: Sequence[int]) -> Any:
    """Run the model in evaluation mode on one sentence, and return its output with all attention weights."""
    source_batch = _batch_of_one(source_ids, model.device)
    read_batch = _batch_of_one(read_ids, model.device)
    with evaluating(model):
        return model(
            input_ids=source_batch,
            attention_mask=torch.ones_like(source_batch),
            decoder_input_ids=read_batch,
            output_attentions=True,
            use_cache=False,
        )


def _log_probs_of_tokens(logits: Tensor, tokens: Tensor) -> list[float]:
    """Return the log-probability of each token of a batch with one sentence.

    Args:
        logits (`torch.Tensor` of shape `(1, target, vocabulary)`): the scores of all tokens at each position.
        tokens (`torch.LongTensor` of shape `(1, target)`): the tokens.
    """
    all_log_probs = logits[0].float().log_softmax(dim=-1)  # (target, vocabulary)
    log_probs = all_log_probs.gather(-1, tokens[0, :, None])  # (target, 1)
    return log_probs[:, 0].tolist()


def _stack_layers(layers: tuple[Tensor, ...] | None) -> np.ndarray:
    """Stack the attention weights of all layers in an array of shape `(layers, heads, queries, keys)`.

    Args:
        layers (`tuple` of `torch.Tensor` of shape `(1, heads, queries, keys)`): the weights of each layer for a batch
            of one sentence pair. None, empty, or with None for a layer, if the model returned no weights.

    Raises:
        ValueError: if the model returned no weights.
    """
    if not layers or layers[0] is None:
        raise InputError(
            'the model returned no attention weights; load it with attn_implementation="eager", which computes them.'
        )
    # Each layer's first axis has the length 1, so concatenating along this axis makes it the axis of layers.
    return torch.cat(layers).float().cpu().numpy()


@torch.inference_mode()
def masks_of(
    model: VanillaTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str] | None = None,
    **generate_kwargs: Any,
) -> Masks:
    """Record the attention masks of a batch of sentence pairs, or of sentences and the model's own translations.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer; its `padding_side` determines where it pads.
        sources (`Iterable[str]`): sentences.
        targets (`Iterable[str]`, *optional*): one translation of each sentence; by default, the model's own.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Raises:
        TypeError, ValueError: as [`forward_pass`] does; if the model is of another architecture, or the numbers of
            sources and targets differ.
    """
    if model.config.model_type != VanillaTransformerConfig.model_type:
        raise InputError(f"{type(model).__name__} is another architecture; give a VanillaTransformer model.")
    source_rows, target_rows = _tokenize_or_translate(model, tokenizer, sources, targets, generate_kwargs)
    # The decoder never reads the last token of a target.
    read_rows = [target_ids[:-1] for target_ids in target_rows]
    # Batches of shape (batch, source) and (batch, target), padding included.
    encoder_inputs = tokenizer.pad({"input_ids": source_rows}, return_tensors="pt").to(model.device)
    decoder_inputs = tokenizer.pad({"input_ids": read_rows}, return_tensors="pt").to(model.device)

    masks = _compute_masks(model, encoder_inputs, decoder_inputs)
    return Masks(
        source_tokens=_label_rows(tokenizer, encoder_inputs),
        read_tokens=_label_rows(tokenizer, decoder_inputs, of_target=True),
        encoder=masks.encoder,
        decoder=masks.decoder,
        cross=masks.cross,
    )


def _label_rows(
    tokenizer: PreTrainedTokenizerBase, inputs: BatchEncoding, *, of_target: bool = False
) -> list[list[str]]:
    """Return the text of each token of each sentence in a batch, padding included."""
    return [token_texts(tokenizer, row, of_target=of_target) for row in inputs.input_ids.tolist()]


class _BooleanMasks(NamedTuple):
    """The masks of the three types of attention, with the shapes of [`Masks`]. True where a query may attend."""

    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


def _compute_masks(
    model: VanillaTransformerForConditionalGeneration, encoder_inputs: BatchEncoding, decoder_inputs: BatchEncoding
) -> _BooleanMasks:
    """Run a forward pass, and return the masks that the first encoder layer and the first decoder layer receive.

    Args:
        model: the model, whose output is not used.
        encoder_inputs, decoder_inputs: the padded token ids that the encoder and the decoder read, and their padding
            masks. Each tensor has the shape `(batch, length)`.
    """
    encoder_layer = model.model.encoder.layers[0]
    decoder_layer = model.model.decoder.layers[0]
    with (
        evaluating(model),
        _recording_mask(encoder_layer.self_attn) as encoder_mask,
        _recording_mask(decoder_layer.self_attn) as decoder_mask,
        _recording_mask(decoder_layer.encoder_attn) as cross_mask,
    ):
        model(
            **encoder_inputs,
            decoder_input_ids=decoder_inputs.input_ids,
            decoder_attention_mask=decoder_inputs.attention_mask,
            # This selects eager attention, whose masks have the form that `_read_mask` expects.
            output_attentions=True,
            use_cache=False,
        )

    batch_size, source_length = encoder_inputs.input_ids.shape
    _, target_length = decoder_inputs.input_ids.shape
    return _BooleanMasks(
        encoder=_read_mask(encoder_mask, (batch_size, source_length, source_length)),
        decoder=_read_mask(decoder_mask, (batch_size, target_length, target_length)),
        cross=_read_mask(cross_mask, (batch_size, target_length, source_length)),
    )


@dataclass
class _RecordedMask:
    """The attention mask that an attention layer has received.

    Args:
        mask (`torch.Tensor` of shape `(batch, 1, queries or 1, keys)`, *optional*): either a boolean mask, which is
            True where a query may attend to a key, or an additive mask, which is 0 there. None if nothing is masked.
    """

    mask: Tensor | None = None


@contextmanager
def _recording_mask(attention_layer: nn.Module) -> Iterator[_RecordedMask]:
    """Record the attention mask that an attention layer receives, for use in a `with` statement.

    The yielded object has the mask as its attribute `mask`, once the layer has been called inside the block.
    """
    recorded = _RecordedMask()

    # PyTorch calls this hook before the `forward` of the layer. It returns None, so the arguments stay as they are.
    def record(module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> None:
        recorded.mask = kwargs["attention_mask"]

    # At the end of the block, the hook is removed, even after an error.
    with attention_layer.register_forward_pre_hook(record, with_kwargs=True):
        yield recorded


def _read_mask(recorded: _RecordedMask, shape: tuple[int, int, int]) -> np.ndarray:
    """Convert a recorded mask into a boolean array that is True where a query may attend to a key.

    The array has the shape `shape`, which is `(batch, queries, keys)`.
    """
    mask = recorded.mask
    if mask is None:
        # Every query may attend to every key.
        return np.ones(shape, dtype=bool)
    is_allowed = mask  # (batch, 1, queries or 1, keys)
    if mask.dtype != torch.bool:
        # This mask is added to the scores: it is 0 for allowed keys, and a large negative number for hidden keys.
        is_allowed = mask == 0
    # All heads have the same mask, so the axis of heads is removed.
    is_allowed_by_query = is_allowed[:, 0]  # (batch, queries or 1, keys)
    # If all queries have the same mask, `expand` repeats it for each of them.
    return is_allowed_by_query.expand(shape).cpu().numpy()


def _tokenize_or_translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str] | None,
    generate_kwargs: Mapping[str, Any],
) -> tuple[list[list[int]], list[list[int]]]:
    """Tokenize sources and targets. If there are no targets, generate them by translating the sources.

    Returns:
        The token ids of each source, and the token ids of each target, which begin with the decoder's start token.
    """
    if not runtime_of(model, tokenizer).has_forward_pass:
        raise InputError(f"{type(model).__name__} returns no attention weights; give the model in torch.")
    source_texts = _list_sources(sources)
    check_vocabulary(model.config, tokenizer)

    source_rows = _tokenize_sources(tokenizer, source_texts)
    if targets is not None:
        return source_rows, _tokenize_targets(model, tokenizer, source_texts, targets, generate_kwargs)
    translations = []
    for source_ids in source_rows:
        translations.append(_find_best_hypothesis(model, tokenizer, source_ids, generate_kwargs))
    return source_rows, translations


def _list_sources(sources: Iterable[str]) -> list[str]:
    """Return the sources as a list. Raise InputError if there are none, or if one of them is blank."""
    source_texts = list(check_strings("sources", sources))
    if not source_texts or any(map(is_blank, source_texts)):
        raise InputError("a sentence is empty; give sentences with words.")
    return source_texts


def _tokenize_sources(tokenizer: PreTrainedTokenizerBase, source_texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each source."""
    # Models with several target languages read a code such as `>>fr<<` before each source.
    codes = TargetCodes(tokenizer)
    coded_texts = [codes.put_before(text) for text in source_texts]
    return encode(tokenizer, coded_texts).input_ids


def _tokenize_targets(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source_texts: list[str],
    targets: Iterable[str],
    generate_kwargs: Mapping[str, Any],
) -> list[list[int]]:
    """Return the token ids of each target, beginning with the decoder's start token.

    Raises:
        ValueError: if the numbers of sources and targets differ, or there are arguments of `generate()`, which have no
            effect on targets that the caller has chosen.
    """
    # `Inference` requires a number of tokens per batch, but tokenization does not depend on it.
    inference = Inference(model, tokenizer, tokens_per_batch=1)
    # The sources are passed because this also checks that there are as many targets as sources.
    _, tokenized_targets = inference.tokenize_pairs(source_texts, targets)
    if generate_kwargs:
        raise InputError(f"{', '.join(generate_kwargs)} has no effect on a target that is given; leave out one.")
    start_token = model.config.decoder_start_token_id
    return [[start_token, *target.token_ids] for target in tokenized_targets]


def _find_best_hypothesis(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source_ids: Sequence[int],
    generate_kwargs: Mapping[str, Any],
) -> list[int]:
    """Translate a sentence, and return the best hypothesis: its token ids from the start token on, without padding."""
    source_batch = _batch_of_one(source_ids, model.device)
    generate: Callable[..., Any] = model.generate  # type: ignore[assignment]
    with evaluating(model):
        output = generate(input_ids=source_batch, attention_mask=torch.ones_like(source_batch), **generate_kwargs)
    # `generate()` returns the token ids, or an object that contains them, if the caller passes return_dict_in_generate.
    sequences: Tensor = getattr(output, "sequences", output)
    # The first of several hypotheses is the best.
    best_sequence = sequences[:1]  # (1, target)
    # This raises ValueError if the translation is empty because weights of the model are NaN or infinite.
    check_generated(model, tokenizer, best_sequence)
    return _remove_padding(best_sequence[0].tolist(), model.config.pad_token_id)


def _remove_padding(token_ids: Sequence[int], pad_token_id: int) -> list[int]:
    """Return token ids without padding at the end. The start token stays, even if it is the pad token."""
    unpadded_ids = list(token_ids)
    while len(unpadded_ids) > 1 and unpadded_ids[-1] == pad_token_id:
        unpadded_ids.pop()
    return unpadded_ids
