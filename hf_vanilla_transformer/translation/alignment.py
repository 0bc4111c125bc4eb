"""`align()`: word alignments, the links between the words of a source and its translation, from cross-attention."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..model.pipeline_vanilla_transformer import check_vocabulary, evaluating
from ..support.argument_checks import check_number, check_strings
from .engine import Engine
from .forced_decoding import forced_decoding
from .inference_batches import batches
from .words_of_tokens import TokenTexts, words_of_tokens


Links = list[tuple[int, int]]


class Aligner:
    """Turns cross-attention into links of words, by the configuration of a model.

    Args:
        model (`PreTrainedModel`, or an `Engine` as of `load_engine`): gives `alignment_heads` and `alignment_shift`.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        split (`Callable`): splits a text into words; by default at whitespace.
    """

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, split: Callable[[str], list[str]] = str.split):
        self.heads = alignment_heads(model)
        self._shift = getattr(model.config, "alignment_shift", False)
        self._split = split
        self._source_texts, self._target_texts = TokenTexts(tokenizer, False), TokenTexts(tokenizer, True)

    def words(self, source: tuple[str, list[int]], target: tuple[str, list[int]]) -> tuple[Any, Any]:
        """The words of each token of a source and of a target, which are given as text and token ids."""
        (source_text, source_ids), (target_text, target_ids) = source, target
        return (
            words_of_tokens(self._split(source_text), self._source_texts(source_ids)),
            words_of_tokens(self._split(target_text), self._target_texts(target_ids)),
        )

    def __call__(self, source: tuple[str, list[int]], target: tuple[str, list[int]], attention: torch.Tensor) -> Links:
        """The links of a pair, from its attention, `(heads, target, source)`."""
        return link(attention.mean(dim=0), *self.words(source, target), shift=self._shift)


def alignment_heads(model: Any) -> list[tuple[int, int]]:
    """Decoder layer and head of the attention that alignments are read from; none where a model gives no attention."""
    if isinstance(model, Engine):
        return model.alignment_heads
    has_layers = hasattr(model, "get_decoder") and hasattr(model.get_decoder(), "layers")
    return list(getattr(model.config, "heads_for_alignment", [])) if has_layers else []


def link(attention: torch.Tensor, source_words: Any, target_words: Any, shift: bool) -> Links:
    """Link the words of each target token with those of the source token that it attends to most.

    Two words are linked if any of their tokens are (Zenkel et al. 2019, "Adding Interpretable Attention to Neural
    Translation Models Improves Word Alignment"). A token that attends to `</s>` most is not linked.

    Args:
        attention (`torch.FloatTensor` of shape `(target, source)`): row i of the step that predicts target token i.
        source_words, target_words (`list` of `list` of `int`): the words of each token.
        shift (`bool`): use the step whose input the token is, so the next row (Chen et al. 2020).
    """
    best = attention.argmax(dim=1).tolist()
    if shift:
        best = [*best[1:], *best[-1:]]
    pairs = zip(target_words, best, strict=True)
    return sorted(
        {(source, target) for targets, token in pairs for target in targets for source in source_words[token]}
    )


@torch.inference_mode()
def align(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str],
    batch_tokens: int = 4096,
    show_progress: bool = False,
) -> list[Links]:
    """Align the words of sentences and their translations, from the cross-attention of one forward pass per batch.

    Words are what whitespace separates. The configuration's `alignment_heads` and `alignment_shift` say which attention
    is read; `choose_alignment` chooses them.

    Args:
        model (`VanillaTransformerForConditionalGeneration`, or an `Engine` as of `load_engine`): runs in evaluation
            mode; its mode is restored afterwards.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sources, targets (`Iterable[str]`): sentences, and one translation of each.
        batch_tokens (`int`): maximum number of tokens per batch on each side, padding included; a longer pair is its
            own batch.
        show_progress (`bool`): whether to show a progress bar, in pairs.

    Returns:
        `list` of `list` of pairs of `int`: of each sentence pair the linked words, as their indices from 0 in the
        source and the target, in order.

    Raises:
        TypeError: if a side is one string, or contains anything but strings.
        ValueError: if the numbers of sources and targets differ, the tokenizer belongs to another model, or the model
            gives no attention.
    """
    aligner = Aligner(model, tokenizer)
    if not aligner.heads:
        is_engine = isinstance(model, Engine)
        reason = "CTranslate2 averages heads of one layer only" if is_engine else "it is no model of this package"
        raise ValueError(f"a {type(model).__name__} gives no attention to align words by: {reason}.")
    pairs = attention_of_pairs(model, tokenizer, sources, targets, aligner.heads, batch_tokens, show_progress)
    rows = {row: aligner(source, target, attention) for row, source, target, attention in pairs}
    return [rows[row] for row in sorted(rows)]


def attention_of_pairs(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str],
    heads: list[tuple[int, int]],
    batch_tokens: int,
    show_progress: bool,
) -> Iterator[tuple[int, tuple[str, list[int]], tuple[str, list[int]], Any]]:
    """The row of each pair, its texts with their token ids, and its attention, `(heads, target, source)`."""
    check_number("batch_tokens", batch_tokens, 1)
    check_vocabulary(model.config, tokenizer)
    sources, targets = list(check_strings("sources", sources)), list(check_strings("targets", targets))
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources and {len(targets)} targets; give one target per source.")
    if not sources:
        return
    ids = tokenizer(sources, verbose=False).input_ids, tokenizer(text_target=targets, verbose=False).input_ids
    lengths = [max(map(len, pair)) for pair in zip(*ids, strict=True)]
    progress = tqdm(total=len(sources), desc="aligning", unit=" pairs", disable=not show_progress)
    with evaluating(model), progress:
        for batch in batches(lengths, batch_tokens):
            source_ids, target_ids = ([side[row] for row in batch] for side in ids)
            decoded = forced_decoding(model, tokenizer, source_ids, target_ids, heads)
            for row, forced in zip(batch, decoded, strict=True):
                yield row, (sources[row], ids[0][row]), (targets[row], ids[1][row]), forced.attention
            progress.update(len(batch))
