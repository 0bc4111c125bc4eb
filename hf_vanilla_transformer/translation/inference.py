"""What translating, scoring and aligning share: checks of their arguments, and batches of similar length."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..model.pipeline_vanilla_transformer import check_vocabulary, encode
from ..support.argument_checks import check_number, check_strings
from ..support.user_errors import InputError


@dataclass(frozen=True)
class Inference:
    """A model with its tokenizer, and the size of the batches that it gets; a longer sentence is its own batch."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    tokens_per_batch: int
    show_progress: bool = False

    def __post_init__(self) -> None:
        check_number("tokens_per_batch", self.tokens_per_batch, 1)
        check_vocabulary(self.model.config, self.tokenizer)

    def tokenize_pairs(
        self, sources: Iterable[str], targets: Iterable[str]
    ) -> tuple[list[str], list[str], list[list[int]], list[list[int]]]:
        """Sentences and their translations, and the token ids of each of them."""
        sources, targets = list(check_strings("sources", sources)), list(check_strings("targets", targets))
        if len(sources) != len(targets):
            raise InputError(
                f"there are {len(sources)} sources and {len(targets)} targets; give one target per source."
            )
        if not sources:
            return [], [], [], []
        source_ids = encode(self.tokenizer, sources).input_ids
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
