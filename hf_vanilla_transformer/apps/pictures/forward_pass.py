"""Sentence pairs through the model, and what pictures draw of them: tokens, attention weights, masks, probabilities."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ...data.target_language import TargetCodes
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.input_checks import check_generated, check_vocabulary, is_blank
from ...support.argument_checks import check_strings
from ...support.user_errors import InputError
from ...translation.concurrent_use import encode, evaluating
from ...translation.inference import Inference
from ...translation.runtime import runtime_of
from .token_labels import token_texts


# Of section 3.2.3, by the names that pictures and the command line give them.
KINDS = ("encoder", "decoder", "cross")


class ForwardPass(NamedTuple):
    """A sentence pair and its way through the model, with teacher forcing.

    At position t the decoder reads `read_tokens[t]`, and writes `target_tokens[t]`.

    Args:
        source_tokens (`list[str]`): decoded, as the encoder reads them.
        read_tokens (`list[str]`): the decoder's input, from the start token on.
        target_tokens (`list[str]`): the same tokens one position earlier; `</s>` is last, unless a limit of the length
            ended the translation.
        encoder (`np.ndarray` of shape `(layers, heads, source, source)`): attention weights of section 3.2.1, in
            float32; rows are queries, columns keys, and each row sums to 1.
        decoder (`np.ndarray` of shape `(layers, heads, target, target)`): of the decoder's self-attention.
        cross (`np.ndarray` of shape `(layers, heads, target, source)`): of the attention to the encoder's output.
        log_probs (`list[float]`): of each target token given the tokens before it, in nats.
    """

    source_tokens: list[str]
    read_tokens: list[str]
    target_tokens: list[str]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray
    log_probs: list[float]

    def words(self, kind: str) -> tuple[list[str], list[str]]:
        """The tokens of the queries and of the keys of a kind of attention."""
        queries = self.source_tokens if kind == "encoder" else self.target_tokens
        return queries, self.read_tokens if kind == "decoder" else self.source_tokens


class Masks(NamedTuple):
    """The masks of a batch, as the first layer of each stack receives them.

    Args:
        source_tokens, read_tokens (`list[list[str]]`): decoded tokens of each sentence, with padding.
        encoder (`np.ndarray` of shape `(batch, source, source)`): True where a query may attend to a key.
        decoder (`np.ndarray` of shape `(batch, target, target)`): of the decoder's self-attention.
        cross (`np.ndarray` of shape `(batch, target, source)`): of the attention to the encoder's output.
    """

    source_tokens: list[list[str]]
    read_tokens: list[list[str]]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


@torch.inference_mode()
def forward_pass(
    model: Any, tokenizer: PreTrainedTokenizerBase, source: str, target: str | None = None, **generate_kwargs: Any
) -> ForwardPass:
    """Compute a sentence pair, or a sentence and the model's own translation.

    The translation is the best hypothesis of `generate()`, computed again with teacher forcing, so that beams that the
    search dropped leave no trace.

    Args:
        model (`PreTrainedModel`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        source (`str`): a sentence.
        target (`str`, *optional*): its translation; by default the model's own.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Raises:
        TypeError: if the model is an engine of another runtime, or a sentence is not a string.
        ValueError: if the sentence is empty, arguments of `generate()` come with a target, or the model does not
            return attention weights.
    """
    targets = None if target is None else [target]
    sources, rows = _token_ids(model, tokenizer, [source], targets, generate_kwargs)
    inputs = torch.tensor(sources, device=model.device)
    row = torch.tensor(rows, device=model.device)
    with evaluating(model):
        output = model(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            decoder_input_ids=row[:, :-1],
            output_attentions=True,
            use_cache=False,
        )
    attentions = {kind: getattr(output, f"{kind}_attentions") for kind in KINDS}
    if not all(layers and layers[0] is not None for layers in attentions.values()):
        raise InputError(
            'the model returned no attention weights; load it with attn_implementation="eager", which computes them.'
        )
    log_probs = output.logits[0].float().log_softmax(dim=-1).gather(-1, row[0, 1:, None])[:, 0]
    return ForwardPass(
        token_texts(tokenizer, sources[0]),
        token_texts(tokenizer, rows[0][:-1], of_target=True),
        token_texts(tokenizer, rows[0], of_target=True)[1:],
        **{kind: torch.cat(layers).float().cpu().numpy() for kind, layers in attentions.items()},
        log_probs=log_probs.tolist(),
    )


@torch.inference_mode()
def masks_of(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str] | None = None,
    **generate_kwargs: Any,
) -> Masks:
    """The masks of a batch of sentence pairs, or of sentences and the model's own translations of them.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): runs in evaluation mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): of the model; it pads on its side.
        sources (`Iterable[str]`): sentences.
        targets (`Iterable[str]`, *optional*): one translation of each; by default the model's own.
        **generate_kwargs: arguments of `generate()`, such as `num_beams`.

    Raises:
        TypeError: as [`forward_pass`] does.
        ValueError: as [`forward_pass`] does; if the model is of another architecture, or the numbers of sources and
            targets differ.
    """
    if model.config.model_type != VanillaTransformerConfig.model_type:
        raise InputError(f"{type(model).__name__} is another architecture; give a VanillaTransformer model.")
    ids, rows = _token_ids(model, tokenizer, sources, targets, generate_kwargs)
    inputs = tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(model.device)
    decoder = tokenizer.pad({"input_ids": [row[:-1] for row in rows]}, return_tensors="pt").to(model.device)
    received: list[torch.Tensor | None] = []  # In the order of KINDS.

    def record(module: Any, args: Any, kwargs: Any) -> None:
        received.append(kwargs["attention_mask"])

    first = model.model.decoder.layers[0]
    with evaluating(model), ExitStack() as hooks:
        for module in (model.model.encoder.layers[0].self_attn, first.self_attn, first.encoder_attn):
            hooks.enter_context(module.register_forward_pre_hook(record, with_kwargs=True))
        output = model(
            **inputs,
            decoder_input_ids=decoder.input_ids,
            decoder_attention_mask=decoder.attention_mask,
            output_attentions=True,
            use_cache=False,
        )
    return Masks(
        [token_texts(tokenizer, row) for row in inputs.input_ids.tolist()],
        [token_texts(tokenizer, row, of_target=True) for row in decoder.input_ids.tolist()],
        *map(_allowed, received, (getattr(output, f"{kind}_attentions")[0][:, 0] for kind in KINDS)),
    )


def _token_ids(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str] | None,
    generate_kwargs: dict[str, Any],
) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids of the sources, and of the targets from the decoder's start token on."""
    if not runtime_of(model, tokenizer).has_forward_pass:
        raise InputError(f"{type(model).__name__} returns no attention weights; give the model in torch.")
    sources = list(check_strings("sources", sources))
    if not sources or any(map(is_blank, sources)):
        raise InputError("a sentence is empty; give sentences with words.")
    check_vocabulary(model.config, tokenizer)
    codes = TargetCodes(tokenizer)
    ids = encode(tokenizer, [codes.put_before(source) for source in sources]).input_ids
    if targets is None:
        return ids, [_best_hypothesis(model, tokenizer, row, generate_kwargs) for row in ids]
    _, tokenized_targets = Inference(model, tokenizer, tokens_per_batch=1).tokenize_pairs(sources, targets)
    if generate_kwargs:
        raise InputError(f"{', '.join(generate_kwargs)} has no effect on a target that is given; leave out one.")
    start = model.config.decoder_start_token_id
    return ids, [[start, *target.token_ids] for target in tokenized_targets]


def _best_hypothesis(
    model: Any, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], generate_kwargs: dict[str, Any]
) -> list[int]:
    inputs = torch.tensor([ids], device=model.device)
    with evaluating(model):
        output = model.generate(input_ids=inputs, attention_mask=torch.ones_like(inputs), **generate_kwargs)
    best = getattr(output, "sequences", output)[:1]
    check_generated(model, tokenizer, best)
    row = best[0].tolist()
    while len(row) > 1 and row[-1] == model.config.pad_token_id:  # Other hypotheses may be longer.
        row.pop()
    return row


def _allowed(mask: torch.Tensor | None, weights: torch.Tensor) -> np.ndarray:
    """Where queries may attend to keys, by a mask that is boolean or added to scores, or None if nothing is hidden.

    `weights` are those of a head, `(batch, queries, keys)`.
    """
    if mask is None:
        return np.ones(weights.shape, dtype=bool)
    allowed = mask if mask.dtype == torch.bool else mask == 0
    return allowed[:, 0].expand(weights.shape).cpu().numpy()
