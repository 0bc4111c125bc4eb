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

    Raises:
        ValueError: if a column is missing.
    """

    def tokenize(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return dict(tokenizer(batch["source"], text_target=batch["target"]))

    if isinstance(pairs, DatasetDict):
        return DatasetDict({name: tokenize_pairs(split, tokenizer, num_proc) for name, split in pairs.items()})
    if not {"source", "target"} <= set(pairs.column_names):
        columns = ", ".join(pairs.column_names)
        raise ValueError(f"the pairs have the columns {columns}; they need source and target, as of load_pairs().")
    return pairs.map(tokenize, batched=True, remove_columns=pairs.column_names, num_proc=num_proc, desc="tokenizing")
