"""Build the Trainer of a run with its model, tokenizer, tokenized pairs, final arguments and callbacks."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import cast

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
    set_batches_of_update,
)


# The default of save_total_limit, because the checkpoints of a long run would fill a disk.
CHECKPOINTS_KEPT = 10
# Pairs whose tokens go into the digest of a corpus, which may be large.
_DIGESTED_PAIRS = 1000

logger = logging.getLogger(__name__)


def build_trainer(
    settings: Settings, pairs: DatasetDict, checkpoint: Path | None, facts: RecordFacts
) -> tuple[Settings, Seq2SeqTrainer]:
    """Build the tokenizer, the model and the Trainer of a run.

    Args:
        settings: the settings of the run, in which nothing is left to a plan.
        pairs: the sentence pairs of all splits.
        checkpoint: the checkpoint to resume from, or None.
        facts: facts about the run so far.

    Returns:
        The settings with the arguments of the Trainer, including the batches that fit into memory; and the Trainer.
    """
    # The allocator must be set up before large allocations, which it would return to the OS otherwise.
    keeps_freed_memory = settings.args.device.type == "cpu" and keep_freed_memory()
    tokenizer, model = make_model(settings.model, pairs, checkpoint)
    keep_zero_start(model)
    model.generation_config.update(**settings.decoding.generate_kwargs())

    data = tokenize(settings, pairs, tokenizer)
    check_lengths(model.config, data)
    is_fine_tuned = settings.model.model_name_or_path is not None
    set_longest_source(tokenizer, data["train"], is_fine_tuned)
    set_languages(tokenizer, *settings.data.languages())
    set_letterless_share(tokenizer, pairs["train"], is_fine_tuned)
    if model.config.position_embedding_type == "learned":
        # Sinusoidal positions have no limit.
        tokenizer.model_max_length = model.config.max_position_embeddings

    pairs_digest = digest(data["train"])
    if checkpoint is not None:
        warn_of_changes(checkpoint, facts.pairs, pairs_digest, settings.args.world_size)
    final_settings = choose_trainer_arguments(settings, model, data["train"])
    scored_pairs = pairs.get("validation", pairs["train"])
    scoring_options = settings.scoring.options(scored_pairs)
    trainer = make_trainer(final_settings.args, tokenizer, model, data, scoring_options)

    run_facts = replace(facts, pairs=pairs_digest)
    for callback in make_callbacks(settings, trainer, pairs, run_facts, keeps_freed_memory):
        trainer.add_callback(callback)
    if settings.args.process_index == 0:
        check_space(trainer, settings.output_folder)
    return final_settings._replace(args=cast(RunArguments, trainer.args)), trainer


def choose_trainer_arguments(settings: Settings, model: PreTrainedModel, data: Dataset) -> Settings:
    """Return settings with the arguments that depend on others, on the model, or on the memory of the device.

    Args:
        settings: the settings of the run.
        model: the model to train.
        data: the tokenized training pairs.
    """
    # The callback `CheckpointAtSigterm` writes this checkpoint instead of the Trainer.
    changes: dict[str, object] = {"enable_jit_checkpoint": False}
    if settings.args.save_total_limit is None:
        # If the best checkpoint is kept as well, it takes the slot of one that is to be averaged.
        needed = (settings.output.average_last or 0) + 1
        changes["save_total_limit"] = max(CHECKPOINTS_KEPT, needed)
    changed = settings.change_training(**changes)
    if settings.args.tokens_per_update is None:
        return changed
    tokens_that_fit = count_tokens_that_fit(model, settings.args, read_smallest_device_memory(settings.args.device))
    return set_batches_of_update(changed, tokens_that_fit, find_longest_sentence(data))


def make_callbacks(
    settings: Settings, trainer: Seq2SeqTrainer, pairs: DatasetDict, facts: RecordFacts, keeps_freed_memory: bool
) -> list[TrainerCallback]:
    """Make the callbacks that a run needs, in the order in which the Trainer calls them.

    Args:
        settings: the settings of the run.
        trainer: the Trainer that will get the callbacks.
        pairs: the sentence pairs as text; some validation pairs are shown after each evaluation.
        facts: the callback that records facts for the model card.
        keeps_freed_memory: True if this process keeps freed memory, which is then released now and then.
    """
    args = settings.args
    model = cast(PreTrainedModel, trainer.model)
    tokenizer = cast(PreTrainedTokenizerBase, trainer.processing_class)
    data = cast(Dataset, trainer.train_dataset)
    callbacks: list[TrainerCallback] = [
        facts,
        LogRunSizes(model.num_parameters(), len(data)),
        StopWhenDiverged(),
        ProcessSeeds(trainer),
    ]
    if args.eval_strategy != "no":
        callbacks.append(LogExamples(trainer, tokenizer, pairs["validation"]))
    if keeps_freed_memory:
        callbacks.append(ReleaseMemory())
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(args.early_stopping_patience))
    if args.enable_jit_checkpoint:
        callbacks.append(CheckpointAtSigterm())
    return callbacks


def digest(data: Dataset) -> str:
    """Compute a hash of tokenized pairs, by which a resumed run recognizes its training pairs.

    It covers the lengths of all pairs and the tokens of 1,000 pairs that are evenly spread.
    """
    rows = pick_evenly_spaced_rows(len(data), _DIGESTED_PAIRS)
    pairs = data.select(rows).select_columns(["input_ids", "labels"]).to_dict()
    hasher = sha256(json.dumps(pairs).encode())
    for lengths in pair_lengths(data):
        hasher.update(lengths.astype("<i8").tobytes())
    return hasher.hexdigest()[:16]


def warn_of_changes(checkpoint: Path, earlier_digest: str | None, pairs_digest: str, processes: int) -> None:
    """Log warnings if a run does not continue a checkpoint exactly, because pairs or processes have changed.

    Args:
        checkpoint: the checkpoint to resume from.
        earlier_digest: the digest of the training pairs of the checkpoint's run, or None if it is unknown.
        pairs_digest: the digest of this run's training pairs.
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


def make_trainer(
    args: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data: DatasetDict,
    scoring_options: Mapping[str, object] | None = None,
) -> Seq2SeqTrainer:
    """Make the Trainer of a run, which is a `TokenMetricsTrainer`, or an `RDropTrainer` if R-Drop has a weight.

    It follows the paper's schedule unless the arguments choose a different one.

    Args:
        args: arguments of the Trainer, which gets a copy.
        tokenizer, model: what to train.
        data: the tokenized pairs of `train` and, if there are any, of `validation`.
        scoring_options: how to compute BLEU and chrF in evaluations.
    """
    # Pinned memory speeds up copies to an accelerator only.
    pins_memory = args.dataloader_pin_memory and args.device.type != "cpu"
    trainer_args = args.change(dataloader_pin_memory=pins_memory)
    if trainer_args.ddp_find_unused_parameters is None:
        # Every weight gets a gradient in every update.
        trainer_args.ddp_find_unused_parameters = False
    trainer_class: Callable[..., TokenMetricsTrainer] = TokenMetricsTrainer
    if args.r_drop_alpha:
        trainer_class = partial(RDropTrainer, r_drop_alpha=args.r_drop_alpha)
    compute_metrics = None
    if args.predict_with_generate:
        compute_metrics = make_compute_metrics(tokenizer, **(scoring_options or {}))
    trainer = trainer_class(
        model=model,
        args=trainer_args,
        train_dataset=data["train"],
        eval_dataset=data.get("validation"),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
        callbacks=[CompleteCheckpoints()],
    )
    if args.uses_paper_schedule:
        PaperSchedule.use_in(trainer, args.rate_factor)
    if args.tokens_per_batch is not None:
        TokenBudgetBatchSampler.use_in(trainer, args.tokens_per_batch)
    if args.push_to_hub and args.hub_strategy != HubStrategy.END:
        leave_paths_out_of_pushes(trainer)
    if trainer.is_fsdp_enabled:
        # FSDP2 does not accept a matrix that two modules hold, such as the embeddings of both stacks.
        model.set_input_embeddings(model.get_input_embeddings())
    return trainer
