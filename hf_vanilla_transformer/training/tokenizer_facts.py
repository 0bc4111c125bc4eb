"""Store facts about the training pairs in the tokenizer, such as the longest source. `translate()` reads them."""

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
# Number of pairs that are read at a time, because a corpus may not fit into memory.
_ROWS_AT_A_TIME = 10_000


def set_languages(tokenizer: PreTrainedTokenizerBase, source_language: str | None, target_language: str | None) -> None:
    """Store the source and target languages in a tokenizer. A language that is None is not stored.

    They are stored as `source_lang` and `target_lang`, as in `MarianTokenizer`. If the model is fine-tuned, they
    replace its earlier languages.
    """
    if source_language is not None:
        _set_language(tokenizer, "source_lang", source_language)
    if target_language is not None:
        _set_language(tokenizer, "target_lang", target_language)


def _set_language(tokenizer: PreTrainedTokenizerBase, field: str, language: str) -> None:
    """Store a language in the field `"source_lang"` or `"target_lang"` of a tokenizer."""
    # `save_pretrained` saves this field in `tokenizer_config.json`.
    tokenizer.init_kwargs[field] = language
    # Some tokenizers, such as Marian's, have an attribute of the same name, which must not differ from the field.
    if hasattr(tokenizer, field):
        setattr(tokenizer, field, language)


def set_longest_source(tokenizer: PreTrainedTokenizerBase, data: Dataset, is_fine_tuned: bool) -> None:
    """Store the length in tokens of the longest training source, so that `translate()` can split longer sources.

    It is stored in `tokenizer.init_kwargs`, which `save_pretrained` writes to `tokenizer_config.json`. The field is not
    added to a fine-tuned model that does not have it, such as one from OPUS-MT, because earlier training may have used
    longer sources.
    """
    if is_fine_tuned and _LONGEST_SOURCE_FIELD not in tokenizer.init_kwargs:
        return
    source_lengths, _target_lengths = pair_lengths(data)
    longest_source = int(source_lengths.max())
    # The model does not forget the longer sources of its earlier training, if it had one.
    earlier_longest_source = tokenizer.init_kwargs.get(_LONGEST_SOURCE_FIELD, 0)
    tokenizer.init_kwargs[_LONGEST_SOURCE_FIELD] = max(longest_source, earlier_longest_source)


def set_letterless_share(tokenizer: PreTrainedTokenizerBase, pairs: Dataset, is_fine_tuned: bool) -> None:
    """Store the fraction of training pairs that change a source without letters, such as "3.5" into "3,5".

    It is stored in `tokenizer.init_kwargs`, which `save_pretrained` writes to `tokenizer_config.json`.

    If a model is fine-tuned, the larger fraction of its earlier and its present training is stored, because the model
    does not forget what it has learned. If the earlier fraction is unknown, for example in a model from OPUS-MT, a
    small present fraction is not stored, because earlier training may have had a larger one.
    """
    present_share = translated_letterless_share(pairs, TargetCodes(tokenizer))
    if not is_fine_tuned:
        tokenizer.init_kwargs[LETTERLESS_SHARE_FIELD] = present_share
        return
    # None if the earlier training did not store this fraction.
    earlier_share = saved_letterless_share(tokenizer)
    if earlier_share is not None:
        tokenizer.init_kwargs[LETTERLESS_SHARE_FIELD] = max(present_share, earlier_share)
    elif teaches_letterless(present_share):
        # Enough pairs change such sources for the model to learn it, whatever the earlier fraction was.
        tokenizer.init_kwargs[LETTERLESS_SHARE_FIELD] = present_share


def translated_letterless_share(pairs: Dataset, codes: TargetCodes) -> float:
    """Compute the fraction of pairs whose source contains no letters and whose target differs from the source.

    Leading and trailing white space is ignored, and so is a target language code before the source. A pair with a blank
    source or target does not count as translated.
    """
    translated_count = 0
    for batch in pairs.select_columns(["source", "target"]).iter(batch_size=_ROWS_AT_A_TIME):
        for source, target in zip(batch["source"], batch["target"], strict=True):
            source_without_code = codes.read(source).text
            if _is_translated_letterless(source_without_code, target):
                translated_count += 1
    return translated_count / len(pairs)


def _is_translated_letterless(source: str, target: str) -> bool:
    """Return True if a source has no letters, its target is different, and neither of them is blank."""
    if has_letters(source) or is_blank(source) or is_blank(target):
        return False
    return source.strip() != target.strip()
