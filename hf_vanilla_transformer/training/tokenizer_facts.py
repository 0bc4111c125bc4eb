"""Facts about the training pairs that are saved with the tokenizer, because `translate()` needs them later."""

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..data.length_filter import pair_lengths
from ..data.target_language import TargetCodes
from ..model.input_checks import (
    LETTERLESS_SHARE_FIELD,
    has_letters,
    is_blank,
    saved_letterless_share,
    teaches_letterless,
)


_LONGEST_SOURCE_FIELD = "longest_training_source"
# Pairs that are read at a time, because a corpus may not fit into memory.
_ROWS_AT_A_TIME = 10_000


def set_languages(tokenizer: PreTrainedTokenizerBase, source_language: str | None, target_language: str | None) -> None:
    """Set the languages of a tokenizer, under the names that `MarianTokenizer` has for them, unless they are None.

    They replace the languages of a fine-tuned model.
    """
    for name, language in (("source_lang", source_language), ("target_lang", target_language)):
        if language is None:
            continue
        tokenizer.init_kwargs[name] = language
        if hasattr(tokenizer, name):
            setattr(tokenizer, name, language)


def set_longest_source(tokenizer: PreTrainedTokenizerBase, data: Dataset, is_fine_tuned: bool) -> None:
    """Set the length in tokens of the longest source in the training, because `translate()` can split longer ones.

    A fine-tuned model without this field, for example from OPUS-MT, does not get it, because it was trained on longer
    sources before.
    """
    earlier_length = tokenizer.init_kwargs.get(_LONGEST_SOURCE_FIELD, 0)
    if is_fine_tuned and _LONGEST_SOURCE_FIELD not in tokenizer.init_kwargs:
        return
    source_lengths, _ = pair_lengths(data)
    tokenizer.init_kwargs[_LONGEST_SOURCE_FIELD] = max(int(source_lengths.max()), earlier_length)


def set_letterless_share(tokenizer: PreTrainedTokenizerBase, pairs: Dataset, is_fine_tuned: bool) -> None:
    """Set which share of the pairs translates a source without letters into a different text.

    A fine-tuned model does not forget what its earlier training taught it, so the larger share counts. If that training
    is unknown, for example of a model from OPUS-MT, a small share of this training says nothing and is not saved.
    """
    share = translated_letterless_share(pairs, TargetCodes(tokenizer))
    if is_fine_tuned:
        earlier_share = saved_letterless_share(tokenizer)
        if earlier_share is not None:
            share = max(share, earlier_share)
        elif not teaches_letterless(share):
            return
    tokenizer.init_kwargs[LETTERLESS_SHARE_FIELD] = share


def translated_letterless_share(pairs: Dataset, codes: TargetCodes) -> float:
    """Compute the share of pairs whose source has no letter and whose target is a different text.

    White space at the ends makes no difference, and pairs with a blank side do not count. The code of a target language
    is not a part of the source.
    """
    translated = 0
    for batch in pairs.select_columns(["source", "target"]).iter(batch_size=_ROWS_AT_A_TIME):
        sources = [codes.read(source).text for source in batch["source"]]
        for source, target in zip(sources, batch["target"], strict=True):
            if has_letters(source) or source.strip() == target.strip():
                continue
            if not is_blank(source) and not is_blank(target):
                translated += 1
    return translated / len(pairs)
