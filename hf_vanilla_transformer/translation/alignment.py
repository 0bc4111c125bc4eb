"""Align words: link each word of a source sentence to the words of its translation, by the model's cross-attention."""

import re
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..support.user_errors import InputError
from .concurrent_use import evaluating
from .engine import Engine
from .inference import Inference, TokenizedText, forced_decoding
from .runtime import runtime_of
from .words_of_tokens import WORDS, TokenTexts


# Each link is a pair of a source word's index and a target word's index.
Links = list[tuple[int, int]]
# If the links will place tags, a target token is linked only if it puts at least this share of its attention on a
# single source token.
_LEAST_WEIGHT_OF_TARGET = 0.3
# If the links will place tags, a source token without a link gets one only if a target token puts at least this share
# of its attention on it.
_LEAST_WEIGHT_OF_UNLINKED_SOURCE = 0.1


class Aligner:
    """Converts the cross-attention weights of a sentence pair into word alignment links.

    The configuration's `alignment_heads` and `alignment_shift` determine which attention weights are used.

    Args:
        model (`PreTrainedModel`, or an `Engine`): the model.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        words (`re.Pattern[str]`): matches the words to link.
        for_tags (`bool`): whether the links will be used to place markup tags in a translated document; see [`link`].

    Attributes:
        has_attention (`bool`): whether the model provides cross-attention weights from which to align words.
        words (`re.Pattern[str]`): matches the words to link.
    """

    def __init__(
        self,
        model: PreTrainedModel | Engine,
        tokenizer: PreTrainedTokenizerBase,
        words: re.Pattern[str] = WORDS,
        for_tags: bool = False,
    ):
        runtime = runtime_of(model, tokenizer)
        # Words are aligned by the attention weights of the heads in `alignment_heads`. The list is empty if the model
        # gives no weights.
        self.has_attention = len(runtime.alignment_heads) > 0
        self.words = words
        # Links that place markup tags are chosen more strictly; see `link`.
        self._for_tags = for_tags
        # Whether the attention weights for a target token come from the next decoding step; see `link`. Only the
        # configurations of this package have this field.
        self._shift = getattr(model.config, "alignment_shift", False)
        # These find the words that each token of a source and of a target belongs to. They are made only once, because
        # each reads the whole vocabulary.
        self._source_texts = TokenTexts(tokenizer, is_target=False)
        self._target_texts = TokenTexts(tokenizer, is_target=True)

    def __call__(self, source: TokenizedText, target: TokenizedText, attention: torch.Tensor) -> Links:
        """Return the alignment links of a sentence pair, given its attention weights of shape `(target, source)`."""
        source_words = self._source_texts.find_words(source.text, source.token_ids, self.words)
        target_words = self._target_texts.find_words(target.text, target.token_ids, self.words)
        return link(attention, source_words, target_words, shift=self._shift, for_tags=self._for_tags)


def link(
    attention: torch.Tensor,
    source_words: list[list[int]],
    target_words: list[list[int]],
    shift: bool,
    for_tags: bool = False,
) -> Links:
    """Link the words of each target token to the words of the source token that it attends to most.

    Two words are linked if any of their tokens are (Zenkel et al. 2019, "Adding Interpretable Attention to Neural
    Translation Models Improves Word Alignment"). A target token that attends most to `</s>` gets no link.

    If the links will place markup tags, a wrong link does more harm than a missing one, because it moves a tag.
    Therefore two more rules apply:

    - A target token is linked only if its largest attention weight is at least 0.3.
    - After that, a source token whose words have no link is linked to the target token that attends to it most, if this
      weight is at least 0.1.

    Args:
        attention: the attention weights, `(target, source)`. Row i belongs to the decoding step that predicts target
            token i.
        source_words: for each source token, the indices of the words that it belongs to.
        target_words: for each target token, the indices of the words that it belongs to.
        shift: whether to use, for each target token, the weights of the next decoding step, which has the token as its
            input (Chen et al. 2020).
        for_tags: whether the links will place markup tags.

    Returns:
        `Links`: the links in sorted order. Each is a pair of the index of a source word and the index of a target word.
    """
    weights = _shift_to_next_step(attention) if shift else attention
    if not for_tags:
        return sorted(_link_targets(weights, source_words, target_words, least_weight=0))

    links = _link_targets(weights, source_words, target_words, _LEAST_WEIGHT_OF_TARGET)
    # This must be the second step, because it adds links only for source tokens that the first step has not linked.
    additional_links = _link_unlinked_sources(weights, source_words, target_words, links)
    return sorted(links | additional_links)


def _shift_to_next_step(attention: torch.Tensor) -> torch.Tensor:
    """Return attention weights `(target, source)` in which row i has the weights of step i + 1.

    The last token, `</s>`, is never an input of the decoder, so it keeps the weights of its own step.
    """
    return torch.cat([attention[1:], attention[-1:]])


def _link_targets(
    weights: torch.Tensor,
    words_of_source_tokens: list[list[int]],
    words_of_target_tokens: list[list[int]],
    least_weight: float,
) -> set[tuple[int, int]]:
    """Link the words of each target token to the words of the source token with the largest weight in its row.

    Target tokens whose largest weight is below `least_weight` get no link. `weights` has the shape `(target, source)`.
    `words_of_source_tokens` and `words_of_target_tokens` contain, for each token, the indices of its words. A link is a
    pair of the index of a source word and the index of a target word.
    """
    # For each target token, its largest weight and the index of the source token with this weight: `(target,)` each.
    largest_weights, best_sources = weights.max(dim=1)
    links: set[tuple[int, int]] = set()
    for words_of_target_token, weight, best_source in zip(
        words_of_target_tokens, largest_weights.tolist(), best_sources.tolist(), strict=True
    ):
        if weight >= least_weight:
            # `</s>` belongs to no word, so its list of words is empty, and `product` yields no links.
            links.update(product(words_of_source_tokens[best_source], words_of_target_token))
    return links


def _link_unlinked_sources(
    weights: torch.Tensor,
    words_of_source_tokens: list[list[int]],
    words_of_target_tokens: list[list[int]],
    links: set[tuple[int, int]],
) -> set[tuple[int, int]]:
    """Return additional links, for the source tokens that have no link in `links` yet.

    A source token counts as linked if one of its words has a link. Otherwise, all of its words are linked to all words
    of the target token that attends to it most, if this weight is large enough. The arguments are those of
    [`_link_targets`], and its result.
    """
    linked_source_words = {source_word for source_word, _ in links}
    # For each source token, the largest weight in its column and the index of the target token that has this weight:
    # `(source,)` each.
    largest_weights, best_targets = weights.max(dim=0)
    additional_links: set[tuple[int, int]] = set()
    for words_of_source_token, weight, best_target in zip(
        words_of_source_tokens, largest_weights.tolist(), best_targets.tolist(), strict=True
    ):
        has_link = not linked_source_words.isdisjoint(words_of_source_token)
        if not has_link and weight >= _LEAST_WEIGHT_OF_UNLINKED_SOURCE:
            additional_links.update(product(words_of_source_token, words_of_target_tokens[best_target]))
    return additional_links


@torch.inference_mode()
def align(
    model: PreTrainedModel | Engine,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str],
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
    *,
    target_lang: str | None = None,
) -> list[Links]:
    """Align the words of sentences with the words of their translations, using the model's cross-attention.

    Each batch takes one forward pass. Words are separated by white space. The configuration's `alignment_heads` and
    `alignment_shift` determine which attention weights are used.

    Args:
        model (`VanillaTransformerForConditionalGeneration`, or an `Engine` from `load_engine`): runs in evaluation
            mode; its mode is restored afterwards.
        tokenizer, sources, targets, tokens_per_batch, show_progress, target_lang: as in `score`.

    Returns:
        `list` of `list` of pairs of `int`: for each sentence pair, its sorted links. A link consists of the index of a
        source word and the index of a target word, both counted from 0. If a source begins with a language code such as
        `>>fr<<`, the code is word 0 and has no links.

    Raises:
        TypeError: if `sources` or `targets` is a single string, or contains anything but strings.
        ValueError: if the numbers of sources and targets differ, the tokenizer belongs to a different model, the model
            provides no attention weights, or it does not translate into `target_lang` or needs one.
    """
    aligner = Aligner(model, tokenizer)
    if not aligner.has_attention:
        reason = runtime_of(model, tokenizer).reason_without_alignments
        raise InputError(f"a {type(model).__name__} gives no attention to align words by: {reason}.")
    inference = Inference(model, tokenizer, tokens_per_batch, show_progress, target_lang)
    # The longest pairs come first, so the links are collected by the index of their pair, and sorted at the end.
    links_of_rows = {}
    for pair in compute_attention(inference, sources, targets):
        links_of_rows[pair.row] = aligner(pair.source, pair.target, pair.attention)
    return [links_of_rows[row] for row in range(len(links_of_rows))]


class PairAttention(NamedTuple):
    """A tokenized sentence pair and its cross-attention weights.

    Args:
        row (`int`): the index of the pair in the call's input.
        source (`TokenizedText`): the source.
        target (`TokenizedText`): the target.
        attention (`torch.Tensor` of shape `(target, source)`): the weights, averaged over the alignment heads.
    """

    row: int
    source: TokenizedText
    target: TokenizedText
    attention: torch.Tensor


def compute_attention(inference: Inference, sources: Iterable[str], targets: Iterable[str]) -> Iterator[PairAttention]:
    """Compute the cross-attention weights of sentence pairs by forced decoding, and yield the longest pairs first.

    The field `row` of a result is the index of its pair in `sources` and `targets`.
    """
    tokenized_sources, tokenized_targets = inference.tokenize_pairs(sources, targets)
    with evaluating(inference.model):
        forced_targets = forced_decoding(
            inference, tokenized_sources, tokenized_targets, with_attention=True, task="aligning"
        )
        for row, forced_target in forced_targets:
            # The caller has checked that the model gives attention.
            assert forced_target.attention is not None
            yield PairAttention(row, tokenized_sources[row], tokenized_targets[row], forced_target.attention)
