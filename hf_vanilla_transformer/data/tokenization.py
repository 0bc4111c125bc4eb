"""Sentence pairs to token ids."""

from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase


def tokenize_pairs(
    pairs: DatasetDict | Dataset, tokenizer: PreTrainedTokenizerBase, num_proc: int | None = None
) -> DatasetDict | Dataset:
    """Token ids of sentence pairs, as a Trainer with `DataCollatorForSeq2Seq` takes them.

    Args:
        pairs (`DatasetDict` or `Dataset`): columns `source` and `target`; others are dropped.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        num_proc (`int`, *optional*): number of processes.

    Returns:
        The same splits with columns `input_ids`, `attention_mask` and `labels`, lists of varying lengths in tokens,
        `</s>` included. Nothing is cut off.
    """

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return dict(tokenizer(batch["source"], text_target=batch["target"]))

    columns = pairs.column_names
    columns = next(iter(columns.values())) if isinstance(columns, dict) else columns
    return pairs.map(tokenize, batched=True, remove_columns=columns, num_proc=num_proc, desc="tokenizing")
