"""Run forward passes that collect what pictures show: tokens, attention weights, masks and log-probabilities."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

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

    def words(self, kind: str) -> tuple[list[str], list[str]]:
        """Return the query tokens and the key tokens of one type of attention.

        Args:
            kind (`str`): `"encoder"`, `"decoder"` or `"cross"`.
        """
        if kind == "encoder":
            return self.source_tokens, self.source_tokens
        if kind == "decoder":
            return self.target_tokens, self.read_tokens
        return self.target_tokens, self.source_tokens


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
    """Run the model on a sentence pair, or on a sentence and the model's own translation.

    The model's own translation is the best hypothesis of `generate()`. The forward pass runs over this translation with
    teacher forcing, so other hypotheses of the search do not appear.

    Args:
        model (`PreTrainedModel`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        source (`str`): a sentence.
        target (`str`, *optional*): its translation; by default the model's own.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Raises:
        TypeError: if the model is an engine of another runtime, or a sentence is not a string.
        ValueError: if the sentence is empty, arguments of `generate()` come with a target, or the model does not
            return attention weights.
    """
    targets = None if target is None else [target]
    (source_ids,), (target_ids,) = _tokenize_or_translate(model, tokenizer, [source], targets, generate_kwargs)
    source_row = torch.tensor([source_ids], device=model.device)
    target_row = torch.tensor([target_ids], device=model.device)
    with evaluating(model):
        output = model(
            input_ids=source_row,
            attention_mask=torch.ones_like(source_row),
            decoder_input_ids=target_row[:, :-1],
            output_attentions=True,
            use_cache=False,
        )

    weights = {}
    for attention in KINDS:
        layers = getattr(output, f"{attention}_attentions")
        if not layers or layers[0] is None:
            raise InputError(
                'the model returned no attention weights; load it with attn_implementation="eager", which computes '
                "them."
            )
        weights[attention] = torch.cat(layers).float().cpu().numpy()

    # (target, vocabulary), and the log-probability of each token that is written.
    log_probs = output.logits[0].float().log_softmax(dim=-1)
    target_log_probs = log_probs.gather(-1, target_row[0, 1:, None])[:, 0]
    return ForwardPass(
        source_tokens=token_texts(tokenizer, source_ids),
        read_tokens=token_texts(tokenizer, target_ids[:-1], of_target=True),
        # The text of a token depends on its neighbours, so the start token is left out afterwards.
        target_tokens=token_texts(tokenizer, target_ids, of_target=True)[1:],
        encoder=weights["encoder"],
        decoder=weights["decoder"],
        cross=weights["cross"],
        log_probs=target_log_probs.tolist(),
    )


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
        TypeError: as [`forward_pass`] does.
        ValueError: as [`forward_pass`] does; if the model is of another architecture, or the numbers of sources and
            targets differ.
    """
    if model.config.model_type != VanillaTransformerConfig.model_type:
        raise InputError(f"{type(model).__name__} is another architecture; give a VanillaTransformer model.")
    source_ids, target_ids = _tokenize_or_translate(model, tokenizer, sources, targets, generate_kwargs)
    read_ids = [row[:-1] for row in target_ids]
    encoder_inputs = tokenizer.pad({"input_ids": source_ids}, return_tensors="pt").to(model.device)
    decoder_inputs = tokenizer.pad({"input_ids": read_ids}, return_tensors="pt").to(model.device)

    encoder_layer = model.model.encoder.layers[0]
    decoder_layer = model.model.decoder.layers[0]
    modules: dict[str, nn.Module] = {
        "encoder": encoder_layer.self_attn,
        "decoder": decoder_layer.self_attn,
        "cross": decoder_layer.encoder_attn,
    }
    recorded_masks: dict[str, Tensor | None] = {}
    with evaluating(model), ExitStack() as hooks:
        for attention, module in modules.items():
            hook = _make_mask_recorder(recorded_masks, attention)
            hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        output = model(
            **encoder_inputs,
            decoder_input_ids=decoder_inputs.input_ids,
            decoder_attention_mask=decoder_inputs.attention_mask,
            output_attentions=True,
            use_cache=False,
        )

    allowed = {}
    for attention, mask in recorded_masks.items():
        weights = getattr(output, f"{attention}_attentions")[0]
        # The mask is the same for every head, so the shape of one head's weights is the shape of the mask.
        allowed[attention] = _read_mask(mask, weights[:, 0].shape)
    return Masks(
        source_tokens=[token_texts(tokenizer, row) for row in encoder_inputs.input_ids.tolist()],
        read_tokens=[token_texts(tokenizer, row, of_target=True) for row in decoder_inputs.input_ids.tolist()],
        encoder=allowed["encoder"],
        decoder=allowed["decoder"],
        cross=allowed["cross"],
    )


def _make_mask_recorder(recorded_masks: dict[str, Tensor | None], attention: str) -> Callable[..., None]:
    """Return a hook that stores the attention mask of a layer under the given name."""

    def record(module: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, Any]) -> None:
        recorded_masks[attention] = kwargs["attention_mask"]

    return record


def _read_mask(mask: Tensor | None, shape: torch.Size) -> np.ndarray:
    """Convert a mask into a boolean array that is True where a query may attend to a key.

    Args:
        mask (`torch.Tensor` of shape `(batch, 1, queries or 1, keys)`, *optional*): either a boolean mask, which is
            True where a query may attend, or an additive mask, which is 0 there. None if nothing is masked.
        shape (`torch.Size`): the shape of the result, `(batch, queries, keys)`.
    """
    if mask is None:
        return np.ones(shape, dtype=bool)
    is_allowed = mask if mask.dtype == torch.bool else mask == 0
    return is_allowed[:, 0].expand(shape).cpu().numpy()


def _tokenize_or_translate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str] | None,
    generate_kwargs: Mapping[str, Any],
) -> tuple[list[list[int]], list[list[int]]]:
    """Tokenize sources and targets; if there are no targets, translate the sources.

    Returns:
        The token ids of each source, and the token ids of each target, which begin with the decoder's start token.
    """
    if not runtime_of(model, tokenizer).has_forward_pass:
        raise InputError(f"{type(model).__name__} returns no attention weights; give the model in torch.")
    source_texts = list(check_strings("sources", sources))
    if not source_texts or any(map(is_blank, source_texts)):
        raise InputError("a sentence is empty; give sentences with words.")
    check_vocabulary(model.config, tokenizer)
    codes = TargetCodes(tokenizer)
    coded_texts = [codes.put_before(text) for text in source_texts]
    source_ids = encode(tokenizer, coded_texts).input_ids
    if targets is None:
        return source_ids, [_find_best_hypothesis(model, tokenizer, row, generate_kwargs) for row in source_ids]

    inference = Inference(model, tokenizer, tokens_per_batch=1)
    _, tokenized_targets = inference.tokenize_pairs(source_texts, targets)
    if generate_kwargs:
        raise InputError(f"{', '.join(generate_kwargs)} has no effect on a target that is given; leave out one.")
    start = model.config.decoder_start_token_id
    return source_ids, [[start, *target.token_ids] for target in tokenized_targets]


def _find_best_hypothesis(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source_ids: Sequence[int],
    generate_kwargs: Mapping[str, Any],
) -> list[int]:
    """Translate a sentence, and return the token ids of the best hypothesis.

    The token ids begin with the decoder's start token, and have no padding.
    """
    inputs = torch.tensor([source_ids], device=model.device)
    generate: Callable[..., Any] = model.generate  # type: ignore[assignment]
    with evaluating(model):
        output = generate(input_ids=inputs, attention_mask=torch.ones_like(inputs), **generate_kwargs)
    # `generate()` returns the token ids, or an object that contains them, if the caller passes return_dict_in_generate.
    sequences: Tensor = getattr(output, "sequences", output)
    best = sequences[:1]
    check_generated(model, tokenizer, best)
    token_ids = best[0].tolist()
    # Other hypotheses may be longer, so the best one may be padded. The start token stays, even if it is the pad token.
    while len(token_ids) > 1 and token_ids[-1] == model.config.pad_token_id:
        token_ids.pop()
    return token_ids
