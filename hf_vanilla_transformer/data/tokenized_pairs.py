"""Tokenize sentence pairs."""

import json
from typing import Any

from datasets import Dataset, DatasetDict, Features, List, Value
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from ..model.input_checks import is_blank, sides_of
from ..support.user_errors import InputError
from .target_language import TargetCodes


# Columns of tokenized pairs.
FEATURES = Features({"input_ids": List(Value("int32")), "labels": List(Value("int32"))})
# Each batch becomes one record batch of the Arrow file; its size trades memory against overhead per record.
_PAIRS_PER_BATCH = 2_000


def tokenize_pairs(
    pairs: DatasetDict | Dataset,
    tokenizer: PreTrainedTokenizerBase,
    num_proc: int | None = None,
    *,
    target_lang: str | None = None,
) -> DatasetDict | Dataset:
    """Token ids of sentence pairs, for a Trainer with `DataCollatorForSeq2Seq`.

    If `pairs` is a file in the cache of `datasets`, as returned by [`load_pairs`], so is the result: it is
    memory-mapped, and later runs reuse it for the same pairs and tokenizer. Pairs in memory stay in memory.

    Args:
        pairs (`DatasetDict` or `Dataset`): columns `source` and `target`; others are dropped.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        num_proc (`int`, *optional*): number of processes.
        target_lang (`str`, *optional*): the language of the targets, such as `"fr"`, for a model of several target
            languages: its code, such as `>>fr<<`, is put before each source that does not begin with a code.

    Returns:
        The same splits with columns `input_ids` and `labels`, lists of token ids of varying lengths that end with
        `</s>`. Nothing is truncated. The collator makes the attention mask.

    Raises:
        TypeError: if `pairs` is neither, for example a stream.
        ValueError: if a column is missing, or the model does not translate into `target_lang`, or needs one and a
            source has no code.
    """
    if isinstance(pairs, DatasetDict):
        tokenized = {}
        for name, split in pairs.items():
            tokenized[name] = tokenize_pairs(split, tokenizer, num_proc, target_lang=target_lang)
        return DatasetDict(tokenized)
    check_are_texts(pairs)
    codes = TargetCodes(tokenizer, target_lang)
    determines_tokens = [pairs._fingerprint, describe_tokenizer(tokenizer), FEATURES]
    if codes.codes:
        determines_tokens.append(codes.default)
    return pairs.map(
        _tokenize,
        batched=True,
        batch_size=_PAIRS_PER_BATCH,
        writer_batch_size=_PAIRS_PER_BATCH,
        remove_columns=pairs.column_names,
        fn_kwargs={"tokenizer": tokenizer, "codes": codes},
        features=FEATURES,
        num_proc=num_proc,
        new_fingerprint=Hasher.hash(determines_tokens),
        desc="tokenizing",
    )


def check_is_dataset(data: Any) -> None:
    """Raise TypeError if `data` is no `datasets.Dataset` but several splits, a stream, or something else."""
    if not isinstance(data, Dataset):
        raise TypeError(
            f'the pairs are in a {type(data).__name__}; give a datasets.Dataset, such as load_pairs(...)["train"].'
        )


def check_are_texts(pairs: Any) -> None:
    """Raise TypeError if `pairs` is no `datasets.Dataset`, ValueError if it has no text in `source` or `target`."""
    check_is_dataset(pairs)
    if any(pairs.features.get(side) not in (Value("string"), Value("large_string")) for side in ("source", "target")):
        columns = ", ".join(pairs.column_names)
        raise InputError(f"the pairs have the columns {columns}; they need source and target, as from load_pairs().")


def describe_tokenizer(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Everything that token ids depend on, equal for equal tokenizers in every process.

    These are its class, its models and settings as text, because a tokenizer also holds its path and the padding of its
    last call; the tokenizer itself if it is written in Python.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # Written in Python, so any attribute may matter.
        return tokenizer
    models = [json.loads(side.backend_tokenizer.to_str()) for side in sides_of(tokenizer)]
    models = [{**model, "padding": None, "truncation": None} for model in models]
    settings = {
        name: value
        for name, value in vars(tokenizer).items()
        if isinstance(value, (str, int, float, type(None))) and name not in ("name_or_path", "model_max_length")
    }
    return type(tokenizer).__qualname__, json.dumps(models, sort_keys=True), json.dumps(settings, sort_keys=True)


def _tokenize(
    batch: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, codes: TargetCodes
) -> dict[str, list[list[int]]]:
    sources = []
    for text in batch["source"]:
        source = codes.read(text)
        # A pair with a blank source is removed by its tokens, among which there must be no code.
        sources.append(source.text if is_blank(source.text) else codes.join(source))
    # verbose=False, because a warning would say that this model has a limit of length.
    tokens = tokenizer(sources, text_target=batch["target"], return_attention_mask=False, verbose=False)
    return {"input_ids": tokens["input_ids"], "labels": tokens["labels"]}
