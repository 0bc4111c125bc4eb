"""Shared steps of translating, scoring and aligning: checks, batches of similar length, and forced decoding."""

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
    """A text with its token ids."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class Inference:
    """A model with its tokenizer and the settings of one call of `translate`, `score` or `align`.

    Args:
        model (`PreTrainedModel`, or an `Engine`): the model.
        tokenizer (`PreTrainedTokenizerBase`): tokenizer of the model.
        tokens_per_batch (`int`): maximum number of tokens per batch on each side, padding included. A longer sentence
            is its own batch.
        show_progress (`bool`): whether to show progress bars.
        target_lang (`str`, *optional*): target language of sources without a code, for a model of several target
            languages.

    Raises:
        ValueError: if `tokens_per_batch` is less than 1, the tokenizer belongs to another model, or the model does not
            translate into `target_lang`.
    """

    model: PreTrainedModel | Engine
    tokenizer: PreTrainedTokenizerBase
    tokens_per_batch: int
    show_progress: bool = False
    target_lang: str | None = None

    def __post_init__(self) -> None:
        check_number("tokens_per_batch", self.tokens_per_batch, 1)
        check_vocabulary(self.model.config, self.tokenizer)
        # Raises an error if the model does not translate into the target language.
        self.codes()

    @property
    def runtime(self) -> Runtime:
        """The runtime that computes the model."""
        return runtime_of(self.model, self.tokenizer)

    def codes(self) -> TargetCodes:
        """Return the object that reads the codes of target languages, and puts them before sources."""
        return TargetCodes(self.tokenizer, self.target_lang)

    def tokenize_pairs(
        self, sources: Iterable[str], targets: Iterable[str]
    ) -> tuple[list[TokenizedText], list[TokenizedText]]:
        """Tokenize sources and their targets.

        If the model needs the code of a target language, the token ids of each source begin with it.

        Returns:
            The tokenized sources, and the tokenized targets.

        Raises:
            TypeError: if a side is one string, or contains anything but strings.
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
        tokenized_sources = map(TokenizedText, source_texts, source_ids)
        tokenized_targets = map(TokenizedText, target_texts, target_ids)
        return list(tokenized_sources), list(tokenized_targets)

    def batches(self, lengths: list[int], task: str, unit: str) -> Iterator[list[int]]:
        """Group rows of similar length into batches, and show a progress bar.

        The longest rows come first, so that a batch that does not fit in memory fails at once.

        Args:
            lengths (`list[int]`): number of tokens of each row.
            task (`str`): description of the progress bar, such as `"translating"`.
            unit (`str`): what a row is, such as `"sentences"`.

        Returns:
            `Iterator[list[int]]`: the indices of the rows of each batch.
        """
        rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])
        start = 0
        with tqdm(total=len(rows), desc=task, unit=f" {unit}", disable=not self.show_progress) as progress:
            while start < len(rows):
                longest = max(1, lengths[rows[start]])
                batch_size = max(1, self.tokens_per_batch // longest)
                batch = rows[start : start + batch_size]
                yield batch
                progress.update(len(batch))
                start += len(batch)


def forced_decoding(
    inference: Inference,
    sources: Sequence[TokenizedText],
    targets: Sequence[TokenizedText],
    with_attention: bool = False,
    task: str = "",
) -> Iterator[tuple[int, ForcedTarget]]:
    """Compute log-probabilities, and attention if requested, of given targets, with one forward pass per batch.

    The model must be in evaluation mode, and each text must have at least one token.

    Args:
        inference (`Inference`): the model.
        sources (`Sequence[TokenizedText]`): the sources.
        targets (`Sequence[TokenizedText]`): a target of each source, without the start token of the decoder.
        with_attention (`bool`): whether to return cross-attention, too.
        task (`str`): description of the progress bar.

    Returns:
        `Iterator[tuple[int, ForcedTarget]]`: the index and the result of each pair, longest pairs first.
    """
    runtime = inference.runtime
    lengths = []
    for source, target in zip(sources, targets, strict=True):
        lengths.append(max(len(source.token_ids), len(target.token_ids)))
    for batch in inference.batches(lengths, task, "pairs"):
        source_ids = [sources[row].token_ids for row in batch]
        target_ids = [targets[row].token_ids for row in batch]
        yield from zip(batch, runtime.decode_forced(source_ids, target_ids, with_attention), strict=True)
