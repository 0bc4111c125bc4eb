"""Describe a corpus by its size and a sample of its sentence lengths, from which `plan` derives batches and costs."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from datasets import DatasetDict
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from ..data.token_budget_batches import TokenBudgetBatchSampler
from ..support.user_errors import InputError


class Corpus(NamedTuple):
    """Size of a corpus: the number of pairs in each split, and the sentence lengths of a sample of training pairs.

    Args:
        training_pairs (`int`): number of training pairs.
        validation_pairs (`int`): number of validation pairs; 0 if there are none.
        test_pairs (`int`): number of test pairs; 0 if there are none.
        source_lengths (`np.ndarray` of shape `(sample,)`): number of tokens in each source of the sample.
        target_lengths (`np.ndarray` of shape `(sample,)`): number of tokens in each target of the sample.
        longest_validation_sentence (`int`, defaults to 0): number of tokens in the longest source or target of a sample
            of validation pairs.
    """

    training_pairs: int
    validation_pairs: int
    test_pairs: int
    source_lengths: NDArray[np.integer]
    target_lengths: NDArray[np.integer]
    longest_validation_sentence: int = 0

    @property
    def longest_sentence(self) -> int:
        """Number of tokens in the longest source or target of the sample."""
        return int(max(self.source_lengths.max(), self.target_lengths.max()))

    def find_rows_up_to(self, max_tokens: int | None) -> NDArray[np.int64]:
        """Return the indices of the sampled pairs that have at most `max_tokens` tokens on each side.

        If `max_tokens` is None, the indices of all sampled pairs are returned.
        """
        limit = max_tokens or math.inf
        # The length of the longer side of each pair, `(sample,)`.
        longer_sides = np.maximum(self.source_lengths, self.target_lengths)
        return np.flatnonzero(longer_sides <= limit)

    def drop_pairs_over(self, max_tokens: int | None) -> "Corpus":
        """Return a copy without the training pairs that have more than `max_tokens` tokens on either side.

        The number of training pairs is estimated: it is multiplied by the fraction of the sample that remains. If
        `max_tokens` is None, all pairs remain.

        Raises:
            ValueError: if no pair remains.
        """
        rows = self.find_rows_up_to(max_tokens)
        if len(rows) == 0:
            raise InputError(f"all training pairs have more than {max_tokens} tokens on a side; raise max_tokens.")
        remaining_pairs = round(self.training_pairs * len(rows) / len(self.source_lengths))
        return self._replace(
            training_pairs=remaining_pairs,
            source_lengths=self.source_lengths[rows],
            target_lengths=self.target_lengths[rows],
        )

    def make_batches(self, tokens_per_batch: int | None, sentences_per_batch: int) -> list[list[int]]:
        """Divide the sampled pairs into batches as the training does. The batches are in random order.

        Args:
            tokens_per_batch: maximum number of tokens on each side of a batch, or None for batches with a fixed number
                of pairs of similar length.
            sentences_per_batch: number of pairs in a batch. It is used only if `tokens_per_batch` is None.

        Returns:
            `list[list[int]]`: the indices of the pairs in each batch.
        """
        if tokens_per_batch is not None:
            # The sampler also puts the batches into random order.
            sampler = TokenBudgetBatchSampler((self.source_lengths, self.target_lengths), tokens_per_batch)
            return list(sampler)
        batches = self._split_by_length(sentences_per_batch)
        # The seed is fixed, so that a plan can be repeated.
        random_order = np.random.default_rng(0).permutation(len(batches))
        return [batches[index] for index in random_order]

    def _split_by_length(self, sentences_per_batch: int) -> list[list[int]]:
        """Return batches of pairs of similar length, sorted by the length of a pair's longer side.

        A batch has the indices of `sentences_per_batch` pairs. The last one may have fewer.
        """
        longer_sides = np.maximum(self.source_lengths, self.target_lengths)
        rows_by_length = np.argsort(longer_sides, kind="stable").tolist()
        batches = []
        for start in range(0, len(rows_by_length), sentences_per_batch):
            end = start + sentences_per_batch
            batches.append(rows_by_length[start:end])
        return batches

    def count_padded_tokens(self, batches: list[list[int]]) -> NDArray[np.int64]:
        """Count the source and target tokens of each batch, padding included.

        Args:
            batches: the indices of the sampled pairs in each batch.

        Returns:
            `np.ndarray` of shape `(batches,)`: number of tokens of each batch.
        """
        token_counts = []
        for batch in batches:
            # In a batch, all sources are padded to the longest source, and all targets to the longest target.
            padded_length = int(self.source_lengths[batch].max() + self.target_lengths[batch].max())
            token_counts.append(len(batch) * padded_length)
        return np.array(token_counts)


@dataclass(frozen=True)
class MeasuredPairs:
    """Sentence pairs whose lengths were measured in tokens, and the tokenizer that measured them.

    Args:
        corpus: the number of pairs in each split, and the sentence lengths of a sample of training pairs.
        tokenizer: the tokenizer that measured the lengths.
        tokenized_sample: the tokenized sample. `"train"` contains the pairs whose lengths `corpus` lists, in the same
            order. `"validation"` is optional.
    """

    corpus: Corpus
    tokenizer: PreTrainedTokenizerBase
    tokenized_sample: DatasetDict

    def drop_pairs_over(self, max_tokens: int | None) -> "MeasuredPairs":
        """Return a copy without the training pairs that have more than `max_tokens` tokens on either side.

        If `max_tokens` is None, all pairs remain.
        """
        short_corpus = self.corpus.drop_pairs_over(max_tokens)
        # Select the same training pairs from the tokenized sample. The validation pairs stay.
        remaining_rows = self.corpus.find_rows_up_to(max_tokens)
        short_sample = DatasetDict(self.tokenized_sample)
        short_sample["train"] = self.tokenized_sample["train"].select(remaining_rows)
        return MeasuredPairs(short_corpus, self.tokenizer, short_sample)
