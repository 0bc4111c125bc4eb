"""BPE dropout (Provilkov et al. 2020): the same sentences cut into tokens in several ways, as regularisation.

The tokenizers library has it, too, but draws from random numbers that cannot be seeded.
"""

import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .tokenization import FEATURES


# How many ways to cut a word are drawn, and then chosen from at each of its occurrences.
_DRAWN_A_WORD = 128
# Words whose cuts are kept; those of others are drawn anew, and are the same.
_MOST_WORDS = 100_000
_PAIRS_A_BATCH = 1000
_PROBE = "The houses, déjà vu: 42 Häuser wieder  gesehen."
_NEEDS_OURS = "BPE dropout needs a tokenizer of train_tokenizer(); this one cuts texts otherwise."


class BpeDropout:
    """Cuts texts into the tokens of a byte-pair encoding whose merges are left out at random.

    At every step each merge that could be made is left out with probability `dropout`, and of the others the one that
    was learnt first is made; where all are left out, the word stays as it is (Provilkov et al. 2020, Algorithm 1).

    Args:
        tokenizer (`PreTrainedTokenizerBase`): of [`train_tokenizer`].
        dropout (`float`): p, from 0, which is the tokenizer's own cut, to 1, which cuts into bytes.
        seed (`int`): two objects with one seed draw the same cuts of a word.

    Raises:
        ValueError: if the dropout is no rate, or the tokenizer is no byte-level byte-pair encoding like ours.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, dropout: float, seed: int = 0):
        if not 0 <= dropout <= 1:
            raise ValueError(f"bpe_dropout is {dropout}; it must lie between 0 and 1.")
        backend = tokenizer.backend_tokenizer
        model = json.loads(backend.to_str())["model"]
        if model["type"] != "BPE":
            raise ValueError(_NEEDS_OURS)
        added = [token.content for token in backend.get_added_tokens_decoder().values() if not token.special]
        if added:
            raise ValueError(
                f"BPE dropout would cut {', '.join(added[:4])}, which were added to the tokenizer as a whole; train "
                "with the tokenizer as train_tokenizer() made it, or without BPE dropout."
            )
        self.dropout = dropout
        self.seed = seed
        self._normalizer = backend.normalizer
        self._pre_tokenizer = backend.pre_tokenizer
        self._vocabulary: dict[str, int] = model["vocab"]
        pairs = (merge if isinstance(merge, list) else merge.split(" ") for merge in model["merges"])
        ids = self._vocabulary
        # By a pair of ids: when the merge was learnt, and what it makes.
        self._merges = {(ids[a], ids[b]): (rank, ids[a + b]) for rank, (a, b) in enumerate(pairs)}
        self._drawn: dict[str, list[list[int]]] = {}
        if not self._cuts_as(tokenizer):
            raise ValueError(_NEEDS_OURS)

    def _cuts_as(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        """Whether a text is cut as by the tokenizer where no merge is left out."""
        try:
            tokens = [token for word in self.words(_PROBE) for token in self._cut(word, lambda: 1.0)]
        except (AttributeError, KeyError):
            return False
        return [*tokens, tokenizer.eos_token_id] == tokenizer(_PROBE).input_ids

    def words(self, text: str) -> list[str]:
        """The words of a text, in the byte alphabet of the vocabulary, within which merges are made."""
        text = self._normalizer.normalize_str(text) if self._normalizer is not None else text
        return [word for word, _ in self._pre_tokenizer.pre_tokenize_str(text)]

    def cuts(self, word: str) -> Sequence[list[int]]:
        """Token ids of a word, cut in as many ways as are drawn of each word; the same ones at each call."""
        found = self._drawn.get(word)
        if found is None:
            if len(self._drawn) >= _MOST_WORDS:
                del self._drawn[next(iter(self._drawn))]
            found = self._drawn[word] = self._draw(word)
        return found

    def _draw(self, word: str) -> list[list[int]]:
        draw = random.Random(f"{self.seed} {word}").random
        drawn = (self._cut(word, draw) for _ in range(_DRAWN_A_WORD if self.dropout else 1))
        # Most are equal, and one list serves for all of these.
        kept: dict[tuple[int, ...], list[int]] = {}
        return [kept.setdefault(tuple(cut), cut) for cut in drawn]

    def _cut(self, word: str, draw: Callable[[], float]) -> list[int]:
        dropout, merges = self.dropout, self._merges
        tokens = [self._vocabulary[character] for character in word]
        candidates = [merges.get(pair) for pair in pairwise(tokens)]
        while True:
            kept = [(merge, place) for place, merge in enumerate(candidates) if merge is not None and draw() >= dropout]
            if not kept:
                return tokens
            (_, made), place = min(kept)
            tokens[place : place + 2] = [made]
            del candidates[place]
            if place > 0:
                candidates[place - 1] = merges.get((tokens[place - 1], made))
            if place < len(candidates):
                candidates[place] = merges.get((made, tokens[place + 1]))


def tokenize_with_dropout(
    pairs: Dataset, tokenizer: PreTrainedTokenizerBase, dropout: float = 0.1, copies: int = 10, seed: int = 0
) -> Dataset:
    """Several copies of sentence pairs, each cut into tokens in its own way, as one training set.

    An epoch sees every copy once, so a run of as many epochs as there are copies on the plain pairs takes one here.
    Provilkov et al. cut anew whenever they see a pair; with as many copies as epochs this is the same.

    Args:
        pairs (`Dataset`): columns `source` and `target`; others are dropped.
        tokenizer (`PreTrainedTokenizerBase`): of [`train_tokenizer`].
        dropout (`float`, defaults to 0.1): probability of leaving out a merge, the authors' where training data is not
            plenty.
        copies (`int`, defaults to 10): how many.
        seed (`int`): pairs, order and seed alike, the copies are alike.

    Returns:
        `Dataset`: `copies` times as many rows, with columns as of [`tokenize_pairs`].

    Raises:
        ValueError: if the dropout is no rate, there is no copy, or the tokenizer is not of this package's kind.
    """
    if copies < 1:
        raise ValueError(f"bpe_dropout_copies is {copies}; it must be at least 1.")
    tokenize = partial(_tokenize, BpeDropout(tokenizer, dropout, seed), tokenizer.eos_token_id, copies)
    return pairs.map(
        tokenize,
        batched=True,
        batch_size=_PAIRS_A_BATCH,
        with_indices=True,
        remove_columns=pairs.column_names,
        features=FEATURES,
        desc=f"tokenizing {copies} times",
    )


def _tokenize(
    segmenter: BpeDropout, end: int, copies: int, batch: dict[str, list[str]], indices: list[int]
) -> dict[str, list[list[int]]]:
    generator = np.random.default_rng([segmenter.seed, indices[0]])
    sources, targets = (_sentences(segmenter, end, copies, batch[column], generator) for column in ("source", "target"))
    return {"input_ids": sources, "labels": targets}


def _sentences(
    segmenter: BpeDropout, end: int, copies: int, texts: Sequence[str], generator: np.random.Generator
) -> list[list[int]]:
    """Token ids of all texts, and then of all texts again, for each copy."""
    words = [[segmenter.cuts(word) for word in segmenter.words(text)] for text in texts]
    sentences = []
    for _ in range(copies):
        for cuts in words:
            choice = generator.random(len(cuts))
            tokens = [token for ways, u in zip(cuts, choice, strict=True) for token in ways[int(u * len(ways))]]
            sentences.append([*tokens, end])
    return sentences
