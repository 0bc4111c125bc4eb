"""What translating, scoring and aligning share: checks, batches of similar length, and forced decoding."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..data.target_language import TargetCodes
from ..model.input_checks import check_vocabulary
from ..support.argument_checks import check_number, check_strings
from ..support.user_errors import InputError
from .concurrent_use import encode
from .runtime import ForcedTarget, Runtime, runtime_of


@dataclass(frozen=True)
class Inference:
    """A model with its tokenizer, and the size of the batches that it gets; a longer sentence is its own batch.

    `target_lang` is the target language of sources without a code, for a model of several target languages.
    """

    model: Any
    tokenizer: PreTrainedTokenizerBase
    tokens_per_batch: int
    show_progress: bool = False
    target_lang: str | None = None

    def __post_init__(self) -> None:
        check_number("tokens_per_batch", self.tokens_per_batch, 1)
        check_vocabulary(self.model.config, self.tokenizer)
        self.codes()  # Raises for a language that the model does not have.

    @property
    def runtime(self) -> Runtime:
        """What answers the questions that a model in torch and an engine have in common."""
        return runtime_of(self.model, self.tokenizer)

    def codes(self) -> TargetCodes:
        """Return what puts the codes of target languages before sources."""
        return TargetCodes(self.tokenizer, self.target_lang)

    def tokenize_pairs(
        self, sources: Iterable[str], targets: Iterable[str]
    ) -> tuple[list[str], list[str], list[list[int]], list[list[int]]]:
        """Sentences and their translations, and the token ids of each of them.

        The ids of a source begin with the code of its target language if the model needs one.
        """
        sources, targets = list(check_strings("sources", sources)), list(check_strings("targets", targets))
        if len(sources) != len(targets):
            raise InputError(f"there are {len(sources)} sources and {len(targets)} targets; give a target per source.")
        if not sources:
            return [], [], [], []
        codes = self.codes()
        source_ids = encode(self.tokenizer, [codes.put_before(source) for source in sources]).input_ids
        return sources, targets, source_ids, encode(self.tokenizer, text_target=targets).input_ids

    def batches(self, lengths: list[int], task: str, unit: str) -> Iterator[list[int]]:
        """Rows in batches, longest first, so that running out of memory shows at once; with a progress bar."""
        rows, start = sorted(range(len(lengths)), key=lambda row: -lengths[row]), 0
        with tqdm(total=len(rows), desc=task, unit=f" {unit}", disable=not self.show_progress) as progress:
            while start < len(rows):
                batch = rows[start : start + max(1, self.tokens_per_batch // max(1, lengths[rows[start]]))]
                yield batch
                progress.update(len(batch))
                start += len(batch)


def forced_decoding(
    inference: Inference,
    sources: list[list[int]],
    targets: list[list[int]],
    with_attention: bool = False,
    task: str = "",
) -> Iterator[tuple[int, ForcedTarget]]:
    """Yield the row of each pair with its log-probabilities and attention, from one forward pass per batch.

    Token ids are without the token that decoding starts from; no row is empty, and the model is in evaluation mode.
    Longest pairs come first.
    """
    runtime = inference.runtime
    lengths = [max(map(len, pair)) for pair in zip(sources, targets, strict=True)]
    for batch in inference.batches(lengths, task, "pairs"):
        source_ids = [sources[row] for row in batch]
        target_ids = [targets[row] for row in batch]
        yield from zip(batch, runtime.decode_forced(source_ids, target_ids, with_attention), strict=True)
