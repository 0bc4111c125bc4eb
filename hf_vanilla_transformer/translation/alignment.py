"""`align()`: word alignments, the links between the words of a source and its translation."""

import re
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..support.user_errors import InputError
from .concurrent_use import evaluating
from .inference import Inference, forced_decoding
from .runtime import runtime_of
from .words_of_tokens import WORDS, TokenTexts


Links = list[tuple[int, int]]
# A text with its token ids.
Tokenized = tuple[str, list[int]]
# Attention that makes a link of a tag: of a target token, and of a source token that has none.
_SURE, _LEAST_WEIGHT = 0.3, 0.1


class Aligner:
    """Turns cross-attention into links of words, by `alignment_heads` and `alignment_shift` of a model or an engine.

    With `for_tags`, unsure links are left out, and words of the source without a link get one; see [`link`].
    """

    def __init__(
        self, model: Any, tokenizer: PreTrainedTokenizerBase, words: re.Pattern[str] = WORDS, for_tags: bool = False
    ):
        self.has_attention = bool(runtime_of(model, tokenizer).alignment_heads)
        self.words, self._for_tags = words, for_tags
        self._shift = getattr(model.config, "alignment_shift", False)
        self._texts = TokenTexts(tokenizer, False), TokenTexts(tokenizer, True)

    def __call__(self, source: Tokenized, target: Tokenized, attention: torch.Tensor) -> Links:
        """Return the links of a pair, from its attention, `(target, source)`."""
        source_texts, target_texts = self._texts
        source_words = source_texts.words(*source, self.words)
        target_words = target_texts.words(*target, self.words)
        return link(attention, source_words, target_words, shift=self._shift, for_tags=self._for_tags)


def link(attention: torch.Tensor, source_words: Any, target_words: Any, shift: bool, for_tags: bool = False) -> Links:
    """Link the words of each target token with those of the source token that it attends to most.

    Two words are linked if any of their tokens are (Zenkel et al. 2019, "Adding Interpretable Attention to Neural
    Translation Models Improves Word Alignment"). A token that attends to `</s>` most is not linked. Row i of the
    attention, `(target, source)`, is of the step that predicts target token i; with `shift` the step is used whose
    input the token is, so the next row (Chen et al. 2020).

    With `for_tags`, a target token is linked only if at least 0.3 of its attention is on one token, because a wrong
    link moves a tag, and a missing one hardly does. Then the words of a source token that have no link get one with
    those of the target token that attends to it most, if by at least 0.1.
    """
    if shift:
        attention = torch.cat([attention[1:], attention[-1:]])
    weights, best = attention.max(dim=1)
    is_sure = (weights >= (_SURE if for_tags else 0)).tolist()
    pairs = compress(zip(target_words, best.tolist(), strict=True), is_sure)
    links = {(source, target) for targets, token in pairs for target in targets for source in source_words[token]}
    if for_tags:
        linked = {source for source, _ in links}
        highest, steps = attention.max(dim=0)
        for words, weight, step in zip(source_words, highest.tolist(), steps.tolist(), strict=True):
            if weight >= _LEAST_WEIGHT and not linked.intersection(words):
                links.update((source, target) for source in words for target in target_words[step])
    return sorted(links)


@torch.inference_mode()
def align(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str],
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
    *,
    target_lang: str | None = None,
) -> list[Links]:
    """Align the words of sentences and their translations, from the cross-attention of one forward pass per batch.

    Words are what whitespace separates. The configuration's `alignment_heads` and `alignment_shift` say which attention
    is read.

    Args:
        model (`VanillaTransformerForConditionalGeneration`, or an `Engine` as of `load_engine`): runs in evaluation
            mode; its mode is restored afterwards.
        tokenizer, sources, targets, tokens_per_batch, show_progress, target_lang: as in `score`.

    Returns:
        `list` of `list` of pairs of `int`: of each sentence pair the linked words, as their indices from 0 in the
        source and the target, in order. A code such as `>>fr<<` with which a source begins is its word 0, and has no
        links.

    Raises:
        TypeError: if a side is one string, or contains anything but strings.
        ValueError: if the numbers of sources and targets differ, the tokenizer belongs to another model, the model
            gives no attention, or it does not translate into `target_lang` or needs one.
    """
    aligner = Aligner(model, tokenizer)
    if not aligner.has_attention:
        reason = runtime_of(model, tokenizer).reason_without_alignments
        raise InputError(f"a {type(model).__name__} gives no attention to align words by: {reason}.")
    inference = Inference(model, tokenizer, tokens_per_batch, show_progress, target_lang)
    rows = {row: aligner(*each) for row, *each in attention_of_pairs(inference, sources, targets)}
    return [rows[row] for row in range(len(rows))]


def attention_of_pairs(
    inference: Inference, sources: Iterable[str], targets: Iterable[str]
) -> Iterator[tuple[int, Tokenized, Tokenized, Any]]:
    """The row of each pair, its two sides, and its attention, `(target, source)`; longest pairs first."""
    sources, targets, source_ids, target_ids = inference.tokenize_pairs(sources, targets)
    with evaluating(inference.model):
        for row, (_, attention) in forced_decoding(inference, source_ids, target_ids, True, "aligning"):
            yield row, (sources[row], source_ids[row]), (targets[row], target_ids[row]), attention
