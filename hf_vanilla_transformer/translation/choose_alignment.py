"""`choose_alignment()`: which heads' cross-attention gives the best word alignments, on held-out pairs."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from ..support.argument_checks import check_strings
from ..support.atomic_files import write_text
from ..support.user_errors import InputError
from .alignment import (
    Aligner,
    GoldLinks,
    Links,
    alignment_error_rate,
    alignment_heads,
    attention_of_pairs,
    link,
)
from .engine import Engine
from .inference import Inference


# The weight of a word's own frequency in the leave-one-out probabilities of its translations.
_SMOOTHING = 1.0


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

    def fields(self) -> dict[str, Any]:
        """The choice as fields of a model's configuration: `model.config.update(choice.fields())`."""
        return {"alignment_heads": [list(head) for head in self.heads], "alignment_shift": self.shift}


def save_choice(folder: Path, choice: AlignmentChoice) -> None:
    """Write a choice into the config.json of a model's folder, whose other entries stay."""
    path = folder / "config.json"
    entries = json.loads(path.read_text(encoding="utf-8"))
    write_text(path, json.dumps(entries | choice.fields(), indent=2) + "\n")


@torch.inference_mode()
def choose_alignment(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    sources: Iterable[str],
    targets: Iterable[str],
    gold: Sequence[GoldLinks] | None = None,
    tokens_per_batch: int = 4096,
    show_progress: bool = False,
    *,
    target_lang: str | None = None,
) -> list[AlignmentChoice]:
    """Choose the attention that `align` reads, on held-out pairs; `model.config.update(choices[0].fields())` sets it.

    Candidates are each head, the average of each layer, and that of all layers, each of the step that predicts a target
    token and of the step that reads it. With true alignments, the best has the lowest error rate. Without, it has the
    links whose word translations are most consistent: the cross-entropy of the target words given the source words they
    are linked with, in the lexical model of Brown et al. 1993 estimated from the links of all other pairs ("leave one
    out"). Chen et al. 2020 compare the alignments of two models instead, one per direction.

    Args:
        model (`VanillaTransformerForConditionalGeneration`): the model, whose configuration stays.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        sources, targets (`Iterable[str]`): some hundreds of held-out pairs.
        gold (`list[GoldLinks]`, *optional*): their true alignments.
        tokens_per_batch, show_progress, target_lang: as in `align`.

    Returns:
        `list[AlignmentChoice]`: all candidates, best first.

    Raises:
        TypeError, ValueError: as `align`; or if there are no pairs, not as many true alignments, or all candidates tie.
    """
    if isinstance(model, Engine) or not alignment_heads(model):
        raise InputError(f"a {type(model).__name__} does not give the attention of each head; choose with the model.")
    sources, targets = list(check_strings("sources", sources)), list(check_strings("targets", targets))
    if not sources:
        raise InputError("there are no pairs to choose by; give some hundreds of held-out pairs.")
    layers = [[(layer, head) for head in range(model.config.num_heads)] for layer in range(model.config.decoder_layers)]
    heads = [head for layer in layers for head in layer]
    groups = [*([head] for head in heads), *layers, heads]
    # With one head or one layer, some of them are the same.
    groups = [group for index, group in enumerate(groups) if group not in groups[:index]]
    candidates = [(group, shift) for group in groups for shift in (False, True)]
    found: list[list[Links]] = [[[] for _ in sources] for _ in candidates]
    aligner = Aligner(model, tokenizer)
    inference = Inference(model, tokenizer, tokens_per_batch, show_progress, target_lang)
    for row, source, target, attention in attention_of_pairs(inference, sources, targets, heads):
        words = aligner.words(source, target)
        for index, (group, shift) in enumerate(candidates):
            average = attention[[heads.index(head) for head in group]].mean(dim=0)
            found[index][row] = link(average, *words, shift=shift)
    costs = [
        _lexical_cross_entropy(links, sources, targets) if gold is None else alignment_error_rate(links, gold)
        for links in found
    ]
    if math.isclose(min(costs), max(costs)):
        raise InputError(
            f"all {len(costs)} candidates cost {costs[0]:.3f}, so these pairs ({len(sources)}) show no best one; give "
            "some hundreds of held-out pairs, with words on both sides."
        )
    choices = [AlignmentChoice(*each, cost) for each, cost in zip(candidates, costs, strict=True)]
    return sorted(choices, key=lambda choice: choice.cost)


def _lexical_cross_entropy(alignments: list[Links], sources: list[str], targets: list[str]) -> float:
    """-log p(target word | linked source words), per target word; words without a link have p(target word)."""
    pairs = [(source.split(), target.split()) for source, target in zip(sources, targets, strict=True)]
    words = Counter(word for _, target in pairs for word in target)
    total = sum(words.values())
    if not total:
        return 0.0
    found = [
        [(source[one], target[other]) for one, other in links]
        for links, (source, target) in zip(alignments, pairs, strict=True)
    ]
    together, linked = Counter(chain(*found)), Counter(one for one, _ in chain(*found))
    cost = 0.0
    for links, linked_words, (source, target) in zip(alignments, found, pairs, strict=True):
        own, own_linked = Counter(linked_words), Counter(one for one, _ in linked_words)
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
