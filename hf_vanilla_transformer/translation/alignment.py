"""Word alignments from cross-attention: which words of a source and its translation belong together."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..model.pipeline_vanilla_transformer import check_vocabulary, evaluating
from ..support.argument_checks import check_number, check_strings
from .batching import batches
from .engine import is_engine
from .forced_decoding import forced_decoding
from .words_of_tokens import TokenTexts, words_of_tokens


Links = list[tuple[int, int]]
# The weight of a word's own frequency in the leave-one-out probabilities of its translations.
_SMOOTHING = 1.0


class Aligner:
    """Turns cross-attention into links of words, by the configuration of a model.

    Args:
        model (`PreTrainedModel`, or what `load_engine` returns): gives `alignment_heads` and `alignment_shift`.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        split (`Callable`): splits a text into words; by default at whitespace.
    """

    def __init__(self, model: Any, tokenizer: PreTrainedTokenizerBase, split: Callable[[str], list[str]] = str.split):
        self.heads = heads_of(model)
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


def heads_of(model: Any) -> list[tuple[int, int]]:
    """Decoder layer and head of the attention that alignments are read from; none where a model gives no attention."""
    if is_engine(model):
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
        model (`VanillaTransformerForConditionalGeneration`, or what `load_engine` returns): runs in evaluation mode;
            its mode is restored afterwards.
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
        reason = (
            "CTranslate2 averages heads of one layer only" if is_engine(model) else "it is no model of this package"
        )
        raise ValueError(f"a {type(model).__name__} gives no attention to align words by: {reason}.")
    pairs = _attention(model, tokenizer, sources, targets, aligner.heads, batch_tokens, show_progress)
    rows = {row: aligner(source, target, attention) for row, source, target, attention in pairs}
    return [rows[row] for row in sorted(rows)]


def _attention(
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


class GoldLinks(NamedTuple):
    """The true alignment of a pair.

    Args:
        sure, possible (`set` of pairs of `int`): links that an alignment must have, and those that it may have; sure
            links are possible, too.
    """

    sure: set[tuple[int, int]]
    possible: set[tuple[int, int]]


def alignment_error_rate(found: Sequence[Links], gold: Sequence[GoldLinks]) -> float:
    """AER of Och and Ney 2003: 1 - (|A n S| + |A n P|) / (|A| + |S|), over all pairs; 0 is perfect.

    Raises:
        ValueError: if the numbers of alignments differ, or there are no links.
    """
    if len(found) != len(gold):
        raise ValueError(f"there are {len(found)} alignments and {len(gold)} true ones; give one for each pair.")
    total = sum(len(links) + len(true.sure) for links, true in zip(found, gold, strict=True))
    if not total:
        raise ValueError("there are no links to compare; give pairs that are not empty.")
    right = sum(
        len(true.sure.intersection(links)) + len((true.sure | true.possible).intersection(links))
        for links, true in zip(found, gold, strict=True)
    )
    return 1 - right / total


class AlignmentChoice(NamedTuple):
    """An attention to read alignments from, and how good they are.

    Args:
        heads (`list` of pairs of `int`): decoder layer and head, from 0, whose attention is averaged.
        shift (`bool`): whether the step is read whose input a target token is.
        cost (`float`): lower is better: the alignment error rate, or without true alignments the cross-entropy of the
            target words, in nats; see `choose_alignment`.
    """

    heads: list[tuple[int, int]]
    shift: bool
    cost: float


@torch.inference_mode()
def choose_alignment(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str],
    gold: Sequence[GoldLinks] | None = None,
    batch_tokens: int = 4096,
    show_progress: bool = False,
) -> list[AlignmentChoice]:
    """Choose the attention that `align` reads, on held-out pairs, and set it in `model.config`.

    Candidates are each head, the average of each layer, and that of all layers, each of the step that predicts a target
    token and of the step that reads it. With true alignments, the best has the lowest error rate. Without, it has the
    links whose word translations are most consistent: the cross-entropy of the target words given the source words they
    are linked with, in the lexical model of Brown et al. 1993 estimated from the links of all other pairs ("leave one
    out"). Chen et al. 2020 compare the alignments of two models instead, one per direction.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): `save_pretrained` then saves the choice.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sources, targets (`Iterable[str]`): some hundreds of held-out pairs.
        gold (`list[GoldLinks]`, *optional*): their true alignments.
        batch_tokens (`int`): as in `align`.
        show_progress (`bool`): whether to show a progress bar, in pairs.

    Returns:
        `list[AlignmentChoice]`: all candidates, best first.

    Raises:
        TypeError, ValueError: as `align`; or if there are no pairs, not as many true alignments, or all candidates tie.
    """
    if is_engine(model) or not heads_of(model):
        raise ValueError(f"a {type(model).__name__} does not give the attention of each head; choose with the model.")
    sources, targets = list(check_strings("sources", sources)), list(check_strings("targets", targets))
    if not sources:
        raise ValueError("there are no pairs to choose by; give some hundreds of held-out pairs.")
    layers, size = range(model.config.decoder_layers), model.config.num_heads
    heads = [(layer, head) for layer in layers for head in range(size)]
    candidates = [(group, shift) for group in _groups(heads) for shift in (False, True)]
    found: list[list[Links]] = [[[] for _ in sources] for _ in candidates]
    aligner = Aligner(model, tokenizer)
    for row, source, target, attention in _attention(
        model, tokenizer, sources, targets, heads, batch_tokens, show_progress
    ):
        words = aligner.words(source, target)
        for index, (group, shift) in enumerate(candidates):
            average = attention[[heads.index(head) for head in group]].mean(dim=0)
            found[index][row] = link(average, *words, shift=shift)
    costs = [
        _lexical_cross_entropy(links, sources, targets) if gold is None else alignment_error_rate(links, gold)
        for links in found
    ]
    if math.isclose(min(costs), max(costs)):
        raise ValueError(
            f"all {len(costs)} candidates cost {costs[0]:.3f}, so these pairs ({len(sources)}) show no best one; give "
            "some hundreds of held-out pairs, with words on both sides."
        )
    choices = [AlignmentChoice(*each, cost) for each, cost in zip(candidates, costs, strict=True)]
    choices.sort(key=lambda choice: choice.cost)
    model.config.alignment_heads = [list(head) for head in choices[0].heads]
    model.config.alignment_shift = choices[0].shift
    return choices


def _groups(heads: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Each head, all heads of each layer, and all heads; single ones first."""
    groups = [[head] for head in heads]
    groups += [[head for head in heads if head[0] == layer] for layer in sorted({layer for layer, _ in heads})]
    groups.append(heads)
    return [group for index, group in enumerate(groups) if group not in groups[:index]]


def _lexical_cross_entropy(alignments: list[Links], sources: list[str], targets: list[str]) -> float:
    """-log p(target word | linked source words), per target word; words without a link have p(target word)."""
    pairs = [(source.split(), target.split()) for source, target in zip(sources, targets, strict=True)]
    words = Counter(word for _, target in pairs for word in target)
    total = sum(words.values())
    if not total:
        return 0.0
    together: Counter[tuple[str, str]] = Counter()
    linked: Counter[str] = Counter()
    for links, (source, target) in zip(alignments, pairs, strict=True):
        together.update((source[one], target[other]) for one, other in links)
        linked.update(source[one] for one, _ in links)
    cost = 0.0
    for links, (source, target) in zip(alignments, pairs, strict=True):
        own = Counter((source[one], target[other]) for one, other in links)
        own_linked = Counter(source[one] for one, _ in links)
        for index, word in enumerate(target):
            alone = words[word] / total
            partners = [source[one] for one, other in links if other == index]
            # Of the other pairs only: a pair of rare words would predict itself.
            given = [
                (together[one, word] - own[one, word] + _SMOOTHING * alone)
                / (linked[one] - own_linked[one] + _SMOOTHING)
                for one in partners
            ]
            cost -= math.log(sum(given) / len(given) if given else alone)
    return cost / total
