"""Sentence pairs to token ids."""

import json
from typing import Any

from datasets import Dataset, DatasetDict, Features, List, Value
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase


# Columns of tokenised pairs.
FEATURES = Features({"input_ids": List(Value("int32")), "labels": List(Value("int32"))})
# A batch is a record of the file, each of which takes some memory wherever it is mapped; so does tokenising a batch.
_PAIRS_AT_ONCE = 2_000


def tokenize_pairs(
    pairs: DatasetDict | Dataset, tokenizer: PreTrainedTokenizerBase, num_proc: int | None = None
) -> DatasetDict | Dataset:
    """Token ids of sentence pairs, as a Trainer with `DataCollatorForSeq2Seq` takes them.

    Where `pairs` is a file of the cache of `datasets`, as [`load_pairs`] leaves it, so is the result: it is mapped into
    memory, and the same pairs with the same tokenizer are tokenised once, in later runs too. Pairs in memory stay
    there, and nothing is written.

    Args:
        pairs (`DatasetDict` or `Dataset`): columns `source` and `target`; others are dropped.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        num_proc (`int`, *optional*): number of processes.

    Returns:
        The same splits with columns `input_ids` and `labels`, lists of varying lengths in tokens, `</s>` included.
        Nothing is cut off. The collator makes the mask.

    Raises:
        TypeError: if `pairs` is something else, such as a stream.
        ValueError: if a column is missing.
    """
    if isinstance(pairs, DatasetDict):
        return DatasetDict({name: tokenize_pairs(split, tokenizer, num_proc) for name, split in pairs.items()})
    check_is_dataset(pairs)
    if not {"source", "target"} <= set(pairs.column_names):
        columns = ", ".join(pairs.column_names)
        raise ValueError(f"the pairs have the columns {columns}; they need source and target, as of load_pairs().")
    return pairs.map(
        _tokenize,
        batched=True,
        batch_size=_PAIRS_AT_ONCE,
        writer_batch_size=_PAIRS_AT_ONCE,
        remove_columns=pairs.column_names,
        fn_kwargs={"tokenizer": tokenizer},
        features=FEATURES,
        num_proc=num_proc,
        new_fingerprint=Hasher.hash([pairs._fingerprint, describe_tokenizer(tokenizer), FEATURES]),
        desc="tokenizing",
    )


def check_is_dataset(data: Any) -> None:
    """Make sure that there are rows with a number.

    Raises:
        TypeError: if these are several splits, a stream, or something else.
    """
    if isinstance(data, Dataset):
        return
    if isinstance(data, dict):
        raise TypeError(f'these are the splits {", ".join(map(str, data))}; give one of them, such as data["train"].')
    raise TypeError(
        f"the pairs are in a {type(data).__name__}; give a datasets.Dataset, which may be larger than the memory, as "
        "of load_pairs()."
    )


def describe_tokenizer(tokenizer: PreTrainedTokenizerBase) -> Any:
    """All that token ids depend on, equal for equal tokenizers in every process.

    Unlike the object itself, which also knows where it was loaded from, and how it was last asked to pad.

    Returns:
        Its class, model and settings, as text; the tokenizer itself where it is written in Python.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # Written in Python, so anything in it may matter.
        return tokenizer
    model = {**json.loads(backend.to_str()), "padding": None, "truncation": None}
    settings = {
        name: value
        for name, value in vars(tokenizer).items()
        if isinstance(value, (str, int, float, type(None))) and name != "name_or_path"
    }
    return type(tokenizer).__qualname__, json.dumps(model, sort_keys=True), json.dumps(settings, sort_keys=True)


def _tokenize(batch: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[list[int]]]:
    tokens = tokenizer(batch["source"], text_target=batch["target"], return_attention_mask=False)
    return {"input_ids": tokens["input_ids"], "labels": tokens["labels"]}
