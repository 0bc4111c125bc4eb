"""Prepare the sentence pairs of a run: load, clean and tokenize them, and hold out pairs for validation."""

import logging
from collections.abc import Mapping

from datasets import DatasetDict
from transformers import IntervalStrategy, PreTrainedTokenizerBase

from ..data.cleaning import clean_pairs, drop_long_pairs, hold_out
from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.length_filter import filter_pairs
from ..data.pair_arguments import TrainingDataArguments
from ..data.target_language import codes_of
from ..data.tokenized_pairs import tokenize_pairs
from ..support.user_errors import InputError
from .run_arguments import RunArguments, Settings


logger = logging.getLogger(__name__)


def load_training_pairs(args: RunArguments, data_args: TrainingDataArguments) -> DatasetDict:
    """Load the sentence pairs of all splits, and prepare the training pairs, for example by cleaning them.

    The main process loads the pairs first, so that the other processes can read its cache. Raises InputError if there
    are no training pairs.
    """
    with args.main_process_first(desc="loading the pairs"):
        pairs = data_args.load()
        if "train" not in pairs:
            raise InputError(f"the data has no training pairs, only {', '.join(pairs)}; give --train_file.")
        return prepare_pairs(pairs, data_args)


def prepare_pairs(pairs: DatasetDict, data_args: TrainingDataArguments) -> DatasetDict:
    """Sample and clean the training pairs, and hold out some for validation, as far as the arguments ask for it.

    Returns a copy. Cleaning also removes validation pairs with long lines. Raises InputError if no training pairs or no
    validation pairs would remain, or if pairs are to be held out although there are validation pairs.
    """
    _check_is_not_held_out_twice(pairs, data_args)

    prepared = DatasetDict(pairs)
    # The sample comes first, so that only its pairs have to be cleaned.
    if data_args.max_train_samples is not None:
        prepared = _sample_training_pairs(prepared, data_args.max_train_samples)
    if data_args.clean:
        prepared = _clean_splits(prepared, data_args)
    # Pairs are held out after cleaning, so that the validation pairs are clean, too.
    if data_args.validation_size is not None:
        prepared = _hold_out_validation_pairs(prepared, data_args.validation_size)
    return prepared


def _check_is_not_held_out_twice(pairs: DatasetDict, data_args: TrainingDataArguments) -> None:
    """Raise InputError if pairs are to be held out for validation although there are validation pairs."""
    validation_size = data_args.validation_size
    if validation_size is not None and "validation" in pairs:
        raise InputError(
            f"validation_size is {validation_size}, but validation pairs are given; leave out one of the two."
        )


def _sample_training_pairs(pairs: DatasetDict, max_train_samples: int) -> DatasetDict:
    """Return a copy with at most `max_train_samples` evenly spaced training pairs."""
    sampled = DatasetDict(pairs)
    rows = pick_evenly_spaced_rows(len(pairs["train"]), max_train_samples)
    sampled["train"] = pairs["train"].select(rows)
    return sampled


def _hold_out_validation_pairs(pairs: DatasetDict, validation_size: int) -> DatasetDict:
    """Return a copy in which some of the training pairs are validation pairs. Log their number."""
    divided = DatasetDict(pairs)
    divided["train"], divided["validation"] = hold_out(pairs["train"], validation_size)
    logger.info(f"held out {len(divided['validation']):,} training pairs for validation")
    return divided


def _clean_splits(pairs: DatasetDict, data_args: TrainingDataArguments) -> DatasetDict:
    """Clean the training pairs, and remove validation pairs with long lines. Log how many pairs were removed.

    Returns a copy. Test pairs stay as they are, because a test score must be of the whole test set.
    """
    cleaned = DatasetDict(pairs)
    evaluation_pairs = [pairs[split] for split in ("validation", "test") if split in pairs]
    # `skipped_rules` lists the cleaning rules that the user has switched off, such as "long lines".
    cleaned["train"], removed = clean_pairs(pairs["train"], evaluation_pairs, data_args.skipped_rules)
    log_removed(removed, len(pairs["train"]))
    if "validation" in pairs and "long lines" not in data_args.skipped_rules:
        # A page or an encoded file in the validation pairs would make each evaluation slow.
        cleaned["validation"] = drop_long_pairs(pairs["validation"])
        long_pairs = len(pairs["validation"]) - len(cleaned["validation"])
        log_removed({"long lines": long_pairs}, len(pairs["validation"]), "validation pairs")
    return cleaned


def check_has_validation(settings: Settings, pairs: DatasetDict) -> None:
    """Raise InputError if a run needs validation pairs but has none."""
    if "validation" in pairs:
        return
    reason = _find_reason_for_validation(settings)
    if reason is None:
        return
    raise InputError(
        f"{reason}, but the data has no validation pairs, only {', '.join(pairs)}; give --validation_file or "
        "--validation_size, or leave it out."
    )


def _find_reason_for_validation(settings: Settings) -> str | None:
    """Return a text about an argument that makes a run need validation pairs, or None if the run needs none.

    Validation pairs are needed to evaluate during training, and to choose weights or search settings by BLEU afterward.
    """
    eval_strategy = IntervalStrategy(settings.args.eval_strategy).value
    if eval_strategy != "no":
        return f"eval_strategy is {eval_strategy}"
    if settings.output.keep_better:
        return "keep_better is True"
    if settings.evaluation.choose_search:
        return "choose_search is True"
    return None


def tokenize(settings: Settings, pairs: DatasetDict, tokenizer: PreTrainedTokenizerBase) -> DatasetDict:
    """Tokenize all pairs. Remove training pairs that are empty or too long, and log how many were removed."""
    # If the user has set no maximum length, the maximum is the size of a batch, into which a sentence must fit.
    max_tokens = settings.data.max_tokens or settings.args.tokens_per_batch
    target_language = find_target_language(settings.data, tokenizer)
    # The main process fills the cache of `datasets`, from which the other processes then read the same results.
    with settings.args.main_process_first(desc="tokenizing the pairs"):
        tokenized_pairs = tokenize_pairs(
            pairs, tokenizer, settings.data.preprocessing_num_workers, target_lang=target_language
        )
        training_pairs, removed_counts = filter_pairs(tokenized_pairs["train"], tokenizer, max_tokens)
        tokenized_pairs["train"] = training_pairs
    counts_by_reason = {
        "empty on one side": removed_counts["empty"],
        f"longer than {max_tokens} tokens": removed_counts["too long"],
    }
    log_removed(counts_by_reason, len(pairs["train"]))
    return tokenized_pairs


def find_target_language(data_args: TrainingDataArguments, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the target language whose code precedes each source, or None if the tokenizer has no language codes.

    A tokenizer without codes belongs to a model with a single target language. Such a model may be fine-tuned for a
    different language, so its language is not checked.
    """
    if not codes_of(tokenizer):
        return None
    return data_args.target_language_for(tokenizer)


def log_removed(counts: Mapping[str, int], total: int, unit: str = "training pairs") -> None:
    """Log in one line how many sentences or pairs were removed, and why. Log nothing if none were removed.

    Args:
        counts: maps each reason in words to the number of items that were removed for it.
        total: the number of items before any were removed.
        unit: a plural noun for the items, such as "training pairs".
    """
    removed = sum(counts.values())
    if removed == 0:
        return
    phrases = [f"{count:,} {reason}" for reason, count in counts.items() if count]
    logger.info(f"removed {removed:,} of {total:,} {unit}: {', '.join(phrases)}")
