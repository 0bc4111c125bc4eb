"""Tokenize sentence pairs for training, and check that a data set contains sentence pairs."""

import json

from datasets import Dataset, DatasetDict, Features, List, Value
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from ..model.input_checks import is_blank, sides_of
from ..support.user_errors import InputError
from .target_language import TargetCodes


# The columns of tokenized pairs.
FEATURES = Features({"input_ids": List(Value("int32")), "labels": List(Value("int32"))})
# Each batch becomes one record batch in the Arrow file. Larger batches need more memory, and smaller ones cause more
# overhead.
_PAIRS_PER_BATCH = 2_000


def tokenize_pairs(
    pairs: DatasetDict | Dataset,
    tokenizer: PreTrainedTokenizerBase,
    num_proc: int | None = None,
    *,
    target_lang: str | None = None,
) -> DatasetDict | Dataset:
    """Tokenize sentence pairs for training with a Trainer and `DataCollatorForSeq2Seq`.

    If `pairs` is a file in the cache of `datasets`, as returned by [`load_pairs`], the result is also stored there and
    memory-mapped, and later runs with the same pairs and the same tokenizer reuse it. If `pairs` is in memory, the
    result is in memory as well.

    Args:
        pairs (`DatasetDict` or `Dataset`): pairs with the columns `source` and `target`. Other columns are dropped.
        tokenizer (`PreTrainedTokenizerBase`): the model's tokenizer.
        num_proc (`int`, *optional*): number of processes that tokenize in parallel.
        target_lang (`str`, *optional*): the target language, such as `"fr"`, for a model that has several target
            languages. The language's code, such as `>>fr<<`, is put before each source that does not begin with a code.

    Returns:
        The same splits with the columns `input_ids` and `labels`, which contain the token ids of sources and targets as
        lists that end with `</s>`. Nothing is padded or truncated.

    Raises:
        TypeError: if `pairs` is neither a `DatasetDict` nor a `Dataset`, for example a stream.
        ValueError: if a column is missing, if the model does not translate into `target_lang`, or if the model has
            several target languages, `target_lang` is None, and a source does not begin with a code.
    """
    if isinstance(pairs, DatasetDict):
        tokenized = DatasetDict()
        for name, split in pairs.items():
            tokenized[name] = tokenize_pairs(split, tokenizer, num_proc, target_lang=target_lang)
        return tokenized
    check_are_texts(pairs)
    codes = TargetCodes(tokenizer, target_lang)
    return pairs.map(
        _tokenize,
        batched=True,
        batch_size=_PAIRS_PER_BATCH,
        writer_batch_size=_PAIRS_PER_BATCH,
        remove_columns=pairs.column_names,
        fn_kwargs={"tokenizer": tokenizer, "codes": codes},
        features=FEATURES,
        num_proc=num_proc,
        new_fingerprint=_compute_fingerprint(pairs, tokenizer, codes),
        desc="tokenizing",
    )


def _compute_fingerprint(pairs: Dataset, tokenizer: PreTrainedTokenizerBase, codes: TargetCodes) -> str:
    """Return the hash of everything on which the tokens depend, under which the tokenized pairs are cached.

    If anything else begins to affect the tokens, it must be added here, or later runs would read outdated tokens.
    """
    # The pairs' own fingerprint identifies them.
    dependencies: list[object] = [pairs._fingerprint, describe_tokenizer(tokenizer), FEATURES]
    if codes.codes:
        # This code is put before each source that does not begin with a code.
        dependencies.append(codes.default)
    return Hasher.hash(dependencies)


def check_is_dataset(data: object) -> None:
    """Raise TypeError unless `data` is a `datasets.Dataset`. For example, a `DatasetDict` or a stream is rejected."""
    if not isinstance(data, Dataset):
        raise TypeError(
            f'the pairs are in a {type(data).__name__}; give a datasets.Dataset, such as load_pairs(...)["train"].'
        )


def check_are_texts(pairs: Dataset) -> None:
    """Raise TypeError unless `pairs` is a `Dataset`, and ValueError unless `source` and `target` contain text."""
    check_is_dataset(pairs)
    for side in ("source", "target"):
        if pairs.features.get(side) not in (Value("string"), Value("large_string")):
            columns = ", ".join(pairs.column_names)
            raise InputError(
                f"the pairs have the columns {columns}; they need source and target, as from load_pairs()."
            )


def describe_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[str, str, str] | PreTrainedTokenizerBase:
    """Describe a tokenizer by everything that affects its token ids. The description is a part of a cache key.

    Equal tokenizers have the same description in every process. The tokenizer itself would differ between processes,
    because it also stores its path and the padding of its last call.

    Returns:
        The tokenizer's class name, and its models and its settings as JSON. If the tokenizer is written in Python, any
        of its attributes may affect the token ids, so the tokenizer itself is returned.
    """
    is_written_in_python = getattr(tokenizer, "backend_tokenizer", None) is None
    if is_written_in_python:
        return tokenizer
    class_name = type(tokenizer).__qualname__
    # Source and target have the same model, unless the tokenizer has two vocabularies.
    models = [_describe_model(side) for side in sides_of(tokenizer)]
    settings = _settings_of(tokenizer)
    return class_name, json.dumps(models, sort_keys=True), json.dumps(settings, sort_keys=True)


def _describe_model(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    """Return the vocabulary and the rules of a tokenizer, without the padding and the truncation of its last call."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())
    model["padding"] = None
    model["truncation"] = None
    return model


def _settings_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    """Return the attributes of a tokenizer that are plain values, except for those that do not affect the token ids."""
    settings = {}
    for name, attribute in vars(tokenizer).items():
        affects_tokens = name not in ("name_or_path", "model_max_length")
        is_plain_value = isinstance(attribute, (str, int, float, type(None)))
        if affects_tokens and is_plain_value:
            settings[name] = attribute
    return settings


def _tokenize(
    batch: dict[str, list[str]], tokenizer: PreTrainedTokenizerBase, codes: TargetCodes
) -> dict[str, list[list[int]]]:
    """Tokenize a batch of pairs. `codes` puts the target language's code before each source that is not blank."""
    sources = []
    for text in batch["source"]:
        # A code at the beginning of the text is separated from it: ">>fr<< Hello" has the code ">>fr<<" and the text
        # "Hello".
        source = codes.read(text)
        if is_blank(source.text):
            # filter_pairs() recognizes a blank source by its tokens, so it must not get a code.
            sources.append(source.text)
        else:
            sources.append(codes.join(source))
    # verbose=False, because the tokenizer would warn about texts that are longer than the model's limit.
    tokens = tokenizer(sources, text_target=batch["target"], return_attention_mask=False, verbose=False)
    return {"input_ids": tokens["input_ids"], "labels": tokens["labels"]}
