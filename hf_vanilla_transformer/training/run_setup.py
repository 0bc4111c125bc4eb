"""Build the Trainer of a run, with its model, tokenizer, tokenized pairs, final arguments and callbacks."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from datasets import Dataset, DatasetDict
from transformers import (
    DataCollatorForSeq2Seq,
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

    The order of the steps must stay, because most steps need results of the steps before them; comments say where this
    is not obvious. The settings exist in three versions:

    - `settings` have the arguments that the user or the plan has chosen. They are used for everything except the
      Trainer.
    - `final_settings` are a copy with a `save_total_limit`, with `enable_jit_checkpoint=False`, and, if
      `tokens_per_update` is set, with batches that fit into memory. The Trainer is built from them.
    - The returned settings are `final_settings` with the Trainer's own copy of its arguments.

    Args:
        settings: the run's settings, which must be complete.
        pairs: the sentence pairs of all splits.
        checkpoint: the checkpoint to resume from, or None.
        facts: facts about the run so far.

    Returns:
        The settings with the final arguments of the Trainer, including batches that fit into memory; and the Trainer.
    """
    keeps_freed_memory = False
    if settings.args.device.type == "cpu":
        # Let the allocator keep freed memory for later updates. It must be set up before large allocations, so this
        # comes before the model is made.
        keeps_freed_memory = keep_freed_memory()

    # Make the tokenizer and the model.
    tokenizer, model = make_model(settings.model, pairs, checkpoint)
    # In models that follow Marian, the embedding of the decoder's start token is zero, and must stay zero.
    keep_zero_start(model)
    # These search settings are used by evaluations, and are saved with the model.
    model.generation_config.update(**settings.decoding.generate_kwargs())

    # Tokenize the pairs, and complete the tokenizer with facts about them. `tokenize` also removes training pairs that
    # are empty or too long, so `tokenized_pairs` may have fewer pairs than `pairs`. The check and the longest source
    # refer to the remaining pairs, but the share of sources without letters refers to all training pairs.
    tokenized_pairs = tokenize(settings, pairs, tokenizer)
    check_lengths(model.config, tokenized_pairs)
    # The tokenizer is saved with these facts, which translation needs. Checkpoints contain the tokenizer, too, so the
    # facts are set before the training.
    set_tokenizer_facts(tokenizer, settings, pairs, tokenized_pairs)
    set_length_limit(tokenizer, model)

    # Each checkpoint contains the hash of the training pairs. In a resumed run, `facts.pairs` is the checkpoint's hash.
    pairs_digest = digest(tokenized_pairs["train"])
    if checkpoint is not None:
        warn_of_changes(checkpoint, facts.pairs, pairs_digest, settings.args.world_size)
    facts_of_this_run = replace(facts, pairs=pairs_digest)

    # Build the Trainer. This comes after the tokenization, because the batches must fit the longest sentence.
    final_settings = choose_trainer_arguments(settings, model, tokenized_pairs["train"])
    scored_pairs = pairs.get("validation", pairs["train"])
    scoring_options = settings.scoring.options(scored_pairs)
    trainer = make_run_trainer(final_settings.args, tokenizer, model, tokenized_pairs, scoring_options)
    # The callbacks get `settings`, because they depend on the user's value of `enable_jit_checkpoint`. In
    # `final_settings`, it is always False, so that the Trainer does not write a checkpoint at SIGTERM itself; a
    # callback does.
    for callback in make_callbacks(settings, trainer, pairs, facts_of_this_run, keeps_freed_memory):
        trainer.add_callback(callback)
    if settings.args.process_index == 0:
        check_space(trainer, settings.output_folder)
    # `make_run_trainer` has given the Trainer a changed copy of `final_settings.args`, for example without pinned
    # memory on CPUs. The returned settings contain this copy, so that they have the same values as the Trainer.
    trainer_args = cast(RunArguments, trainer.args)
    return final_settings._replace(args=trainer_args), trainer


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
    limited_settings = settings.change_training(
        save_total_limit=save_total_limit,
        # The callback `CheckpointAtSigterm` writes the checkpoint at SIGTERM instead of the Trainer.
        enable_jit_checkpoint=False,
    )

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
    # The Trainer declares wider types.
    model = cast(PreTrainedModel, trainer.model)
    tokenizer = cast(PreTrainedTokenizerBase, trainer.processing_class)
    training_pairs = cast(Dataset, trainer.train_dataset)
    callbacks: list[TrainerCallback] = [
        facts,
        LogRunSizes(model.num_parameters(), len(training_pairs)),
        StopWhenDiverged(),
        ProcessSeeds(trainer),
    ]
    if args.eval_strategy != "no":
        callbacks.append(LogExamples(trainer, tokenizer, pairs["validation"]))
    if keeps_freed_memory:
        # It comes after `LogExamples`, whose translations prepack the weights that it releases.
        callbacks.append(ReleaseMemory())
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(args.early_stopping_patience))
    if args.enable_jit_checkpoint:
        # It comes last. At the end of the training it may raise Terminated, and the Trainer would then not call any
        # callback after it.
        callbacks.append(CheckpointAtSigterm())
    return callbacks


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

    The Trainer follows the paper's learning rate schedule unless the arguments choose a different schedule.

    Args:
        args: arguments of the Trainer. They are copied.
        tokenizer, model: the tokenizer and the model to train.
        data: the tokenized pairs of `train` and, optionally, `validation`.
        scoring_options: keyword arguments of `score_translations` for evaluations, such as the BLEU tokenization.
    """
    compute_metrics = None
    if args.predict_with_generate:
        compute_metrics = make_compute_metrics(tokenizer, **(scoring_options or {}))
    trainer_options: dict[str, Any] = {
        "model": model,
        "args": _set_device_arguments(args),
        "train_dataset": data["train"],
        "eval_dataset": data.get("validation"),
        # The collator lets the model make the decoder's inputs from the labels.
        "data_collator": DataCollatorForSeq2Seq(tokenizer, model=model),
        "processing_class": tokenizer,
        "compute_metrics": compute_metrics,
        # The callback marks each checkpoint when it is complete, so that a run can resume from it.
        "callbacks": [CompleteCheckpoints()],
    }
    # `RDropTrainer` is a subclass of `TokenMetricsTrainer`.
    trainer: TokenMetricsTrainer
    if args.r_drop_alpha:
        trainer = RDropTrainer(**trainer_options, r_drop_alpha=args.r_drop_alpha)
    else:
        trainer = TokenMetricsTrainer(**trainer_options)

    # This replaces methods of this one Trainer object, depending on the arguments: with the paper's schedule, the
    # methods that create the optimizer and the schedule; with `tokens_per_batch`, the methods that make the training
    # batches; and for pushes during the training, the method that pushes a checkpoint.
    _adapt_trainer(trainer, args)
    if trainer.is_fsdp_enabled:
        # This call changes the model if embeddings are shared. Before it, the encoder and the decoder have separate
        # embedding modules with the same matrix, which FSDP2 does not accept. `get_input_embeddings` returns the
        # encoder's module, and `set_input_embeddings` makes the decoder use this module, too.
        model.set_input_embeddings(model.get_input_embeddings())
    return trainer


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
