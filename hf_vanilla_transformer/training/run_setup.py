"""Build the Trainer of a run, with its model, tokenizer, tokenized pairs, final arguments and callbacks."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from datasets import Dataset, DatasetDict
from transformers import (
    DataCollatorForSeq2Seq,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    TrainerCallback,
)
from transformers.trainer_utils import HubStrategy

from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.length_filter import pair_lengths
from ..data.token_budget_batches import TokenBudgetBatchSampler
from ..evaluation.metrics import make_compute_metrics
from ..support.memory_tuning import keep_freed_memory
from .checkpoints import CompleteCheckpoints, count_processes
from .model_and_tokenizer import keep_zero_start, make_model
from .optimizer_and_schedule import PaperSchedule
from .process_seeds import ProcessSeeds
from .pushing import leave_paths_out_of_pushes
from .r_drop import RDropTrainer
from .run_arguments import RunArguments, Settings
from .run_checks import check_lengths, check_space
from .token_metrics_trainer import TokenMetricsTrainer
from .tokenizer_facts import set_languages, set_letterless_share, set_longest_source
from .trainer_callbacks import (
    CheckpointAtSigterm,
    EarlyStopping,
    LogExamples,
    LogRunSizes,
    RecordFacts,
    ReleaseMemory,
    StopWhenDiverged,
)
from .training_pairs import tokenize
from .update_batches import (
    count_tokens_that_fit,
    find_longest_sentence,
    read_smallest_device_memory,
    with_batches_of_update,
)


# Default of save_total_limit. Without a limit, the checkpoints of a long run could fill the disk.
CHECKPOINTS_KEPT = 10
# Number of pairs whose tokens are hashed to recognize a corpus. Hashing all pairs of a large corpus would take long.
_DIGESTED_PAIRS = 1000

logger = logging.getLogger(__name__)


def set_up_training(
    settings: Settings, pairs: DatasetDict, checkpoint: Path | None, facts: RecordFacts
) -> tuple[Settings, Seq2SeqTrainer]:
    """Make the tokenizer and the model of a run, tokenize the pairs, and build the Trainer.

    Most steps need results of the steps before them, so their order must stay.

    Args:
        settings: the run's settings, which must be complete.
        pairs: the sentence pairs of all splits.
        checkpoint: the checkpoint to resume from, or None.
        facts: facts about the run so far.

    Returns:
        The settings with the final arguments of the Trainer, including batches that fit into memory; and the Trainer.
    """
    # This must be set up before large allocations, such as those of the model.
    keeps_freed_memory = _keep_freed_memory_on_cpu(settings)
    tokenizer, model = _make_model_to_train(settings, pairs, checkpoint)
    # Empty and too long training pairs are removed, so `tokenized_pairs` may have fewer pairs than `pairs`.
    tokenized_pairs = tokenize(settings, pairs, tokenizer)
    check_lengths(model.config, tokenized_pairs)
    # Checkpoints contain the tokenizer, so it is completed before the training.
    set_tokenizer_facts(tokenizer, settings, pairs, tokenized_pairs)
    set_length_limit(tokenizer, model)
    facts_of_this_run = _record_digest(facts, tokenized_pairs["train"], settings, checkpoint)

    # The batches must fit the longest sentence, so these arguments are chosen after the tokenization.
    final_settings = choose_trainer_arguments(settings, model, tokenized_pairs["train"])
    scored_pairs = pairs.get("validation", pairs["train"])
    scoring_options = settings.scoring.options(scored_pairs)
    trainer = make_run_trainer(final_settings.args, tokenizer, model, tokenized_pairs, scoring_options)
    # The callbacks need the user's value of `enable_jit_checkpoint`. In `final_settings`, it is always False.
    for callback in make_callbacks(settings, trainer, pairs, facts_of_this_run, keeps_freed_memory):
        trainer.add_callback(callback)
    if settings.args.process_index == 0:
        check_space(trainer, settings.output_folder)
    # The Trainer has a changed copy of the arguments, for example without pinned memory on CPUs.
    trainer_args = cast(RunArguments, trainer.args)
    return final_settings._replace(args=trainer_args), trainer


def _keep_freed_memory_on_cpu(settings: Settings) -> bool:
    """Let the allocator keep freed memory if the run trains on a CPU. Return True if it does."""
    if settings.args.device.type != "cpu":
        return False
    return keep_freed_memory()


def _make_model_to_train(
    settings: Settings, pairs: DatasetDict, checkpoint: Path | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Return the tokenizer and the model, with the search settings for evaluations and for the saved model."""
    tokenizer, model = make_model(settings.model, pairs, checkpoint)
    # In models that follow Marian, the embedding of the decoder's start token is zero, and must stay zero.
    keep_zero_start(model)
    model.generation_config.update(**settings.decoding.generate_kwargs())
    return tokenizer, model


def _record_digest(
    facts: RecordFacts, tokenized_pairs: Dataset, settings: Settings, checkpoint: Path | None
) -> RecordFacts:
    """Return the facts with the hash of the training pairs.

    Log a warning if a resumed run has other pairs or another number of processes than before.
    """
    pairs_digest = digest(tokenized_pairs)
    if checkpoint is not None:
        # In a resumed run, `facts.pairs` is the hash in the checkpoint.
        warn_of_changes(checkpoint, facts.pairs, pairs_digest, settings.args.world_size)
    return replace(facts, pairs=pairs_digest)


def set_tokenizer_facts(
    tokenizer: PreTrainedTokenizerBase, settings: Settings, pairs: DatasetDict, tokenized_pairs: DatasetDict
) -> None:
    """Store facts about the training pairs in the tokenizer, which is changed. Translation needs these facts.

    These facts are the length of the longest source, the languages, and how often the translation of a source without
    letters, such as "1984", differs from the source.
    """
    is_fine_tuned = settings.model.model_name_or_path is not None
    source_language, target_language = settings.data.languages()
    set_longest_source(tokenizer, tokenized_pairs["train"], is_fine_tuned)
    set_languages(tokenizer, source_language, target_language)
    set_letterless_share(tokenizer, pairs["train"], is_fine_tuned)


def set_length_limit(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """If the model has a maximum sequence length, store it in the tokenizer. This changes the tokenizer."""
    if model.config.position_embedding_type == "learned":
        # Sinusoidal positions have no limit.
        tokenizer.model_max_length = model.config.max_position_embeddings


def choose_trainer_arguments(settings: Settings, model: PreTrainedModel, data: Dataset) -> Settings:
    """Return settings with the final Trainer arguments, such as batch sizes that suit the device's memory.

    Args:
        settings: the run's settings.
        model: the model to train.
        data: the tokenized training pairs.
    """
    save_total_limit = settings.args.save_total_limit
    if save_total_limit is None:
        save_total_limit = choose_checkpoint_limit(settings.output.average_last)
    # The callback `CheckpointAtSigterm` writes the checkpoint at SIGTERM instead of the Trainer.
    limited_settings = settings.change_training(save_total_limit=save_total_limit, enable_jit_checkpoint=False)

    if settings.args.tokens_per_update is None:
        # The batch size is given, so it does not depend on the memory.
        return limited_settings
    memory = read_smallest_device_memory(settings.args.device)
    tokens_that_fit = count_tokens_that_fit(model, settings.args, memory)
    longest_sentence = find_longest_sentence(data)
    return with_batches_of_update(limited_settings, tokens_that_fit, longest_sentence)


def choose_checkpoint_limit(average_last: int | None) -> int:
    """Return the default of `save_total_limit`, which keeps enough checkpoints for an average of the last ones.

    Args:
        average_last: the number of checkpoints that are averaged, or None.
    """
    if average_last is None:
        return CHECKPOINTS_KEPT
    # One more than are averaged, because the best checkpoint may be kept in addition.
    return max(CHECKPOINTS_KEPT, average_last + 1)


def make_callbacks(
    settings: Settings, trainer: Seq2SeqTrainer, pairs: DatasetDict, facts: RecordFacts, keeps_freed_memory: bool
) -> list[TrainerCallback]:
    """Make the callbacks that a run needs, in the order in which the Trainer calls them.

    Args:
        settings: the run's settings, with the user's value of `enable_jit_checkpoint`.
        trainer: the Trainer that will get the callbacks.
        pairs: the sentence pairs as text. Some validation pairs are logged after each evaluation.
        facts: the callback that records facts for the model card.
        keeps_freed_memory: True if this process keeps freed memory. A callback then releases it periodically.
    """
    args = settings.args
    callbacks: list[TrainerCallback] = [facts, _make_size_logger(trainer), StopWhenDiverged(), ProcessSeeds(trainer)]
    if args.eval_strategy != "no":
        # The Trainer declares a wider type.
        tokenizer = cast(PreTrainedTokenizerBase, trainer.processing_class)
        callbacks.append(LogExamples(trainer, tokenizer, pairs["validation"]))
    if keeps_freed_memory:
        # It comes after `LogExamples`, whose translations prepack the weights that it releases.
        callbacks.append(ReleaseMemory())
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(args.early_stopping_patience))
    if args.enable_jit_checkpoint:
        # It comes last, because it may raise Terminated at the end of the training, which skips later callbacks.
        callbacks.append(CheckpointAtSigterm())
    return callbacks


def _make_size_logger(trainer: Seq2SeqTrainer) -> LogRunSizes:
    """Return a callback that logs the size of the Trainer's model and the number of its training pairs."""
    # The Trainer declares wider types.
    model = cast(PreTrainedModel, trainer.model)
    training_pairs = cast(Dataset, trainer.train_dataset)
    return LogRunSizes(model.num_parameters(), len(training_pairs))


def digest(data: Dataset) -> str:
    """Compute a hash of tokenized pairs, with which a resumed run checks that its training pairs are the same.

    The hash covers the lengths of all pairs, and the tokens of 1,000 evenly spaced pairs. It is shortened to 16
    hexadecimal digits.
    """
    rows = pick_evenly_spaced_rows(len(data), _DIGESTED_PAIRS)
    sampled_tokens = data.select(rows).select_columns(["input_ids", "labels"]).to_dict()
    hasher = sha256(json.dumps(sampled_tokens).encode())
    source_lengths, target_lengths = pair_lengths(data)
    # Little-endian 8-byte integers are the same bytes on every machine.
    hasher.update(source_lengths.astype("<i8").tobytes())
    hasher.update(target_lengths.astype("<i8").tobytes())
    return hasher.hexdigest()[:16]


def warn_of_changes(checkpoint: Path, earlier_digest: str | None, pairs_digest: str, processes: int) -> None:
    """Log a warning if a resumed run has different training pairs or a different number of processes than before.

    Such a run does not continue exactly as if it had not been interrupted.

    Args:
        checkpoint: the checkpoint to resume from.
        earlier_digest: the hash of the earlier training pairs, or None if it is unknown.
        pairs_digest: the hash of this run's training pairs.
        processes: the number of processes of this run.
    """
    if earlier_digest is not None and earlier_digest != pairs_digest:
        logger.warning(
            "the training pairs are not those of %s, so the run does not continue as if it had not been interrupted; "
            "give the same files, or fine-tune with --model_name_or_path.",
            checkpoint,
        )
    earlier_processes = count_processes(checkpoint)
    # 0 stands for an unknown number.
    if earlier_processes not in (0, processes):
        logger.warning(
            "%s was written by %d processes, and this run has %d, so the batches of an update and the order of the "
            "pairs change; start %d to continue as if the run had not been interrupted.",
            checkpoint,
            earlier_processes,
            processes,
            earlier_processes,
        )


def make_run_trainer(
    args: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data: DatasetDict,
    scoring_options: Mapping[str, object] | None = None,
) -> Seq2SeqTrainer:
    """Make the Trainer of a run: an `RDropTrainer` if `r_drop_alpha` is set, and otherwise a `TokenMetricsTrainer`.

    Args:
        args: arguments of the Trainer. They are copied.
        tokenizer, model: the tokenizer and the model to train.
        data: the tokenized pairs of `train` and, optionally, `validation`.
        scoring_options: keyword arguments of `score_translations` for evaluations, such as the BLEU tokenization.
    """
    trainer_options: dict[str, Any] = {
        "model": model,
        "args": _set_device_arguments(args),
        "train_dataset": data["train"],
        "eval_dataset": data.get("validation"),
        # The collator lets the model make the decoder's inputs from the labels.
        "data_collator": DataCollatorForSeq2Seq(tokenizer, model=model),
        "processing_class": tokenizer,
        # The callback marks each checkpoint when it is complete, so that a run can resume from it.
        "callbacks": [CompleteCheckpoints()],
    }
    if args.predict_with_generate:
        trainer_options["compute_metrics"] = _make_translation_metrics(tokenizer, scoring_options)
    # `RDropTrainer` is a subclass of `TokenMetricsTrainer`.
    trainer: TokenMetricsTrainer
    if args.r_drop_alpha:
        trainer = RDropTrainer(**trainer_options, r_drop_alpha=args.r_drop_alpha)
    else:
        trainer = TokenMetricsTrainer(**trainer_options)

    _adapt_trainer(trainer, args)
    if trainer.is_fsdp_enabled:
        _share_embedding_module(model)
    return trainer


def _make_translation_metrics(
    tokenizer: PreTrainedTokenizerBase, scoring_options: Mapping[str, object] | None
) -> Callable[[EvalPrediction], dict[str, float]]:
    """Return a function that computes the metrics of translations, such as BLEU, for evaluations in the training."""
    if scoring_options is None:
        return make_compute_metrics(tokenizer)
    return make_compute_metrics(tokenizer, **scoring_options)


def _share_embedding_module(model: PreTrainedModel) -> None:
    """Make the decoder use the encoder's embedding module if embeddings are shared. This changes the model.

    Otherwise both have separate modules with the same matrix, which FSDP2 does not accept.
    """
    # `get_input_embeddings` returns the encoder's module.
    model.set_input_embeddings(model.get_input_embeddings())


def _adapt_trainer(trainer: Seq2SeqTrainer, args: RunArguments) -> None:
    """Change the learning rate schedule, the batches and the pushes of a Trainer according to the run's arguments."""
    # Each of these functions replaces methods of this one Trainer object.
    if args.uses_paper_schedule:
        PaperSchedule.use_in(trainer, args.rate_factor)
    if args.tokens_per_batch is not None:
        TokenBudgetBatchSampler.use_in(trainer, args.tokens_per_batch)
    pushes_during_training = args.push_to_hub and args.hub_strategy != HubStrategy.END
    if pushes_during_training:
        leave_paths_out_of_pushes(trainer)


def _set_device_arguments(args: RunArguments) -> RunArguments:
    """Return a copy of the arguments with values that suit the device and training with several processes."""
    # Pinned memory speeds up copies to an accelerator only.
    pins_memory = args.dataloader_pin_memory and args.device.type != "cpu"
    finds_unused_parameters = args.ddp_find_unused_parameters
    if finds_unused_parameters is None:
        # Every weight gets a gradient in every update, so DDP need not search for weights without one. If the argument
        # were None, the Trainer would turn the search on.
        finds_unused_parameters = False
    return args.change(dataloader_pin_memory=pins_memory, ddp_find_unused_parameters=finds_unused_parameters)
