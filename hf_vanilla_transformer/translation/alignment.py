"""`align()`: word alignments, which are links between the words of a source and of its translation."""

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


# Pairs of the indices of a source word and a target word.
Links = list[tuple[int, int]]
# For tags, a target token is linked only if at least this part of its attention is on one source token.
_LEAST_WEIGHT_OF_TARGET = 0.3
# For tags, a source token without a link gets one only if a target token has at least this part of its attention on it.
_LEAST_WEIGHT_OF_UNLINKED_SOURCE = 0.1


class Aligner:
    """Turn the cross-attention of a model into links between words.

    The configuration's `alignment_heads` and `alignment_shift` say which attention is read.

    Args:
        model (`PreTrainedModel`, or an `Engine`): the model.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        words (`re.Pattern[str]`): matches the words to link.
        for_tags (`bool`): whether the links will place tags of documents; see [`link`].

    Attributes:
        has_attention (`bool`): whether the model gives attention to align words by.
        words (`re.Pattern[str]`): as above.
    """

    def __init__(
        self,
        model: PreTrainedModel | Engine,
        tokenizer: PreTrainedTokenizerBase,
        words: re.Pattern[str] = WORDS,
        for_tags: bool = False,
    ):
        self.has_attention = bool(runtime_of(model, tokenizer).alignment_heads)
        self.words = words
        self._for_tags = for_tags
        self._shift = getattr(model.config, "alignment_shift", False)
        self._source_texts = TokenTexts(tokenizer, is_target=False)
        self._target_texts = TokenTexts(tokenizer, is_target=True)

    def __call__(self, source: TokenizedText, target: TokenizedText, attention: torch.Tensor) -> Links:
        """Return the links of a pair, given its attention of shape `(target, source)`."""
        source_words = self._source_texts.words(source.text, source.token_ids, self.words)
        target_words = self._target_texts.words(target.text, target.token_ids, self.words)
        return link(attention, source_words, target_words, shift=self._shift, for_tags=self._for_tags)


def link(
    attention: torch.Tensor,
    source_words: list[list[int]],
    target_words: list[list[int]],
    shift: bool,
    for_tags: bool = False,
) -> Links:
    """Link the words of each target token with the words of the source token that it attends to most.

    Two words are linked if any of their tokens are (Zenkel et al. 2019, "Adding Interpretable Attention to Neural
    Translation Models Improves Word Alignment"). A target token that attends most to `</s>` gets no link.

    For tags, only sure links are made, because a wrong link moves a tag, and a missing link hardly does: at least 0.3
    of the attention of the target token must be on one source token. After that, a source token whose words have no
    link is linked with the target token that attends to it most, if this weight is at least 0.1.

    Args:
        attention (`torch.Tensor` of shape `(target, source)`): the weights, in which row i belongs to the decoding step
            that predicts target token i.
        source_words (`list[list[int]]`): the indices of the words of each source token.
        target_words (`list[list[int]]`): the indices of the words of each target token.
        shift (`bool`): whether to use, for each target token, the step that has it as input, which is the next step
            (Chen et al. 2020).
        for_tags (`bool`): whether the links will place tags.

    Returns:
        `Links`: the linked words, sorted.
    """
    weights = attention
    if shift:
        # The last token, `</s>`, is never an input, so it keeps its own step.
        weights = torch.cat([attention[1:], attention[-1:]])

    best_weights, best_source_tokens = weights.max(dim=1)
    least_weight = _LEAST_WEIGHT_OF_TARGET if for_tags else 0
    is_sure = (best_weights >= least_weight).tolist()
    links: set[tuple[int, int]] = set()
    for words_of_target, source_token, is_linked in zip(
        target_words, best_source_tokens.tolist(), is_sure, strict=True
    ):
        if is_linked:
            links.update(product(source_words[source_token], words_of_target))

    if for_tags:
        linked_source_words = {source_word for source_word, _ in links}
        highest_weights, best_target_tokens = weights.max(dim=0)
        for words_of_source, weight, target_token in zip(
            source_words, highest_weights.tolist(), best_target_tokens.tolist(), strict=True
        ):
            has_link = not linked_source_words.isdisjoint(words_of_source)
            if weight >= _LEAST_WEIGHT_OF_UNLINKED_SOURCE and not has_link:
                links.update(product(words_of_source, target_words[target_token]))
    return sorted(links)


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
    """Align the words of sentences and their translations, from the cross-attention of one forward pass per batch.

    Words are separated by white space. The configuration's `alignment_heads` and `alignment_shift` say which attention
    is read.

    Args:
        model (`VanillaTransformerForConditionalGeneration`, or an `Engine` from `load_engine`): runs in evaluation
            mode; its mode is restored afterwards.
        tokenizer, sources, targets, tokens_per_batch, show_progress, target_lang: as in `score`.

    Returns:
        `list` of `list` of pairs of `int`: the linked words of each sentence pair, as indices from 0 in the source and
        in the target, sorted. If a source begins with a code such as `>>fr<<`, this is its word 0, and has no links.

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
    links_of_rows = {}
    for pair in compute_attention(inference, sources, targets):
        links_of_rows[pair.row] = aligner(pair.source, pair.target, pair.attention)
    return [links_of_rows[row] for row in range(len(links_of_rows))]


class PairAttention(NamedTuple):
    """The cross-attention of a sentence pair.

    Args:
        row (`int`): the index of the pair.
        source (`TokenizedText`): the source.
        target (`TokenizedText`): the target.
        attention (`torch.Tensor` of shape `(target, source)`): averaged over the alignment heads.
    """

    row: int
    source: TokenizedText
    target: TokenizedText
    attention: torch.Tensor


def compute_attention(inference: Inference, sources: Iterable[str], targets: Iterable[str]) -> Iterator[PairAttention]:
    """Compute the cross-attention of sentence pairs by forced decoding; longest pairs come first."""
    tokenized_sources, tokenized_targets = inference.tokenize_pairs(sources, targets)
    with evaluating(inference.model):
        for row, forced in forced_decoding(inference, tokenized_sources, tokenized_targets, True, "aligning"):
            # The caller has checked that the model gives attention.
            assert forced.attention is not None
            yield PairAttention(row, tokenized_sources[row], tokenized_targets[row], forced.attention)
