"""Provide the steps that translating, scoring and aligning share: checks, batching by length, and forced decoding.

Forced decoding computes a model's probabilities for a given translation, instead of searching for one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.target_language import TargetCodes
from ..model.input_checks import check_vocabulary
from ..support.argument_checks import check_number, check_strings
from ..support.user_errors import InputError
from .concurrent_use import encode
from .engine import Engine
from .runtime import ForcedTarget, Runtime, runtime_of


class TokenizedText(NamedTuple):
    """A text and its token ids, including special tokens such as `</s>`."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class Inference:
    """A model, its tokenizer and the settings of one call of `translate`, `score` or `align`.

    Args:
        model (`PreTrainedModel`, or an `Engine`): the model.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        tokens_per_batch (`int`): maximum number of source tokens and of target tokens per batch, padding included. A
            longer sentence gets a batch of its own.
        show_progress (`bool`): whether to show progress bars.
        target_lang (`str`, *optional*): for a model with several target languages, the target language of sources that
            do not begin with a language code.

    Raises:
        ValueError: if `tokens_per_batch` is less than 1, the tokenizer belongs to a different model, or the model does
            not translate into `target_lang`.
    """

    model: PreTrainedModel | Engine
    tokenizer: PreTrainedTokenizerBase
    tokens_per_batch: int
    show_progress: bool = False
    target_lang: str | None = None

    def __post_init__(self) -> None:
        check_number("tokens_per_batch", self.tokens_per_batch, 1)
        check_vocabulary(self.model.config, self.tokenizer)
        # The result is not used. The call raises an error if the model does not translate into the target language.
        self.codes()

    @property
    def runtime(self) -> Runtime:
        """The model's runtime. It provides the same interface for PyTorch models and engines."""
        return runtime_of(self.model, self.tokenizer)

    def codes(self) -> TargetCodes:
        """Return an object that reads target-language codes such as `>>fr<<` from sources, and adds them to sources."""
        return TargetCodes(self.tokenizer, self.target_lang)

    def tokenize_pairs(
        self, sources: Iterable[str], targets: Iterable[str]
    ) -> tuple[list[TokenizedText], list[TokenizedText]]:
        """Tokenize source sentences and their translations.

        If the model needs a target-language code, the token ids of each source begin with this code. The text of the
        source stays unchanged.

        Returns:
            The tokenized sources, and the tokenized targets.

        Raises:
            TypeError: if `sources` or `targets` is a single string, or contains anything but strings.
            ValueError: if the numbers of sources and targets differ, or a source needs a code and has none.
        """
        source_texts = list(check_strings("sources", sources))
        target_texts = list(check_strings("targets", targets))
        if len(source_texts) != len(target_texts):
            raise InputError(
                f"there are {len(source_texts)} sources and {len(target_texts)} targets; give one target per source."
            )
        if not source_texts:
            return [], []
        codes = self.codes()
        coded_texts = [codes.put_before(text) for text in source_texts]
        source_ids = encode(self.tokenizer, coded_texts).input_ids
        target_ids = encode(self.tokenizer, text_target=target_texts).input_ids
        return _pair_texts_with_ids(source_texts, source_ids), _pair_texts_with_ids(target_texts, target_ids)

    def batches(self, lengths: list[int], task: str, unit: str) -> Iterator[list[int]]:
        """Group sentences or sentence pairs of similar length into batches, and show a progress bar.

        The longest ones come first, so that a batch that does not fit in memory fails at once.

        Args:
            lengths: the number of tokens of each sentence or pair.
            task: description of the progress bar, such as `"translating"`.
            unit: unit of the progress bar, such as `"sentences"`.

        Returns:
            `Iterator[list[int]]`: for each batch, its indices into `lengths`.
        """
        # Indices into `lengths`, by decreasing length: [1, 2, 0] for the lengths [3, 9, 5].
        rows = sorted(range(len(lengths)), key=lambda row: lengths[row], reverse=True)
        start = 0
        with tqdm(total=len(rows), desc=task, unit=f" {unit}", disable=not self.show_progress) as progress:
            while start < len(rows):
                longest_row = rows[start]
                batch_size = self._choose_batch_size(lengths[longest_row])
                batch = rows[start : start + batch_size]
                yield batch
                progress.update(len(batch))
                start += len(batch)

    def _choose_batch_size(self, longest_length: int) -> int:
        """Return the number of rows in a batch whose rows are padded to the length of the longest one."""
        # The length is 0 if the texts have no tokens.
        padded_length = max(1, longest_length)
        # A row that is longer than the token budget is a batch of its own.
        return max(1, self.tokens_per_batch // padded_length)


def _pair_texts_with_ids(texts: list[str], ids_of_texts: list[list[int]]) -> list[TokenizedText]:
    """Return each text with its token ids."""
    return [TokenizedText(text, ids) for text, ids in zip(texts, ids_of_texts, strict=True)]


def forced_decoding(
    inference: Inference,
    sources: Sequence[TokenizedText],
    targets: Sequence[TokenizedText],
    with_attention: bool = False,
    task: str = "",
) -> Iterator[tuple[int, ForcedTarget]]:
    """Compute the log-probability of each token of given translations, and optionally the cross-attention weights.

    Each batch takes one forward pass. The model must be in evaluation mode, and each text must have at least one token.

    Args:
        targets: one target per source, without the decoder's start token.
        with_attention: whether to compute cross-attention weights as well.
        task: description of the progress bar.

    Returns:
        `Iterator[tuple[int, ForcedTarget]]`: the index and the result of each pair, longest pairs first.
    """
    runtime = inference.runtime
    # The length of a pair is the length of its longer side.
    lengths = []
    for source, target in zip(sources, targets, strict=True):
        lengths.append(max(len(source.token_ids), len(target.token_ids)))
    # The rows of a batch are the indices of its pairs.
    for rows in inference.batches(lengths, task, "pairs"):
        source_ids = [sources[row].token_ids for row in rows]
        target_ids = [targets[row].token_ids for row in rows]
        forced_targets = runtime.decode_forced(source_ids, target_ids, with_attention)
        yield from zip(rows, forced_targets, strict=True)
