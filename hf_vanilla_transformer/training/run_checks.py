"""Check a run before it starts: reject settings that would fail later, have no effect, or overwrite another run."""

import math
from pathlib import Path

import torch
from datasets import DatasetDict
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, Seq2SeqTrainer
from transformers.integrations import is_deepspeed_zero3_enabled

from ..data.length_filter import pair_lengths
from ..evaluation.metrics import METRICS
from ..hub.model_folder import ARGUMENTS, ARGUMENTS_WHILE_PUSHED, FILES_OF_A_RUN, files_of_a_run
from ..support.argument_checks import check_number, check_optional
from ..support.atomic_files import check_free_space
from ..support.checkpoint_marks import checkpoints_in
from ..support.output_files import check_can_write
from ..support.user_errors import InputError
from .checkpoints import has_only_unfinished_checkpoints, is_last_checkpoint
from .run_arguments import RunArguments, Settings


# With numbers below 1, the Trainer would train nothing, or would fail at the first batch or evaluation.
_AT_LEAST_1 = (
    "gradient_accumulation_steps",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "eval_accumulation_steps",
    "generation_max_length",
    "generation_num_beams",
    "tokens_per_batch",
    "tokens_per_update",
    "early_stopping_patience",
)
_AT_LEAST_0 = (
    "learning_rate",
    "max_grad_norm",
    "num_train_epochs",
    "save_steps",
    "eval_steps",
    "logging_steps",
    "save_total_limit",
    "weight_decay",
    "adam_epsilon",
    "warmup_steps",
    "dataloader_num_workers",
    "neftune_noise_alpha",
)


def check_start(settings: Settings, checkpoint: Path | None) -> None:
    """Check everything that can be checked before the sentence pairs are loaded, such as numbers and model sizes.

    Args:
        settings: the run's settings. If `needs_plan` is True, some of them are not yet chosen.
        checkpoint: the checkpoint to start from, or None.

    Raises InputError, or OSError if the run would overwrite another run or cannot write its results file.
    """
    _check_arguments_and_device(settings)
    if not settings.needs_plan:
        # If there is a plan, it chooses these settings, so they are checked after it.
        check_choices(settings)

    resumes = is_in_folder(checkpoint, settings.output_folder)
    if checkpoint is not None and not resumes:
        # The checkpoint is of a different run, and this run starts where that one was.
        _check_can_average_after(checkpoint, settings)
    if checkpoint is None:
        _check_sizes_of_new_model(settings)
    if not settings.preview.dry_run:
        # A dry run writes nothing, so the folder may hold an earlier run.
        check_output_folder(settings, resumes)
    if settings.args.results is not None and settings.args.process_index == 0:
        # Only the main process writes this file.
        check_results_file(settings, settings.args.results)


def _check_arguments_and_device(settings: Settings) -> None:
    """Raise InputError if the folder's name, a number, the device or DeepSpeed's settings are wrong."""
    args = settings.args
    if not args.output_dir:
        raise InputError("output_dir is empty; name a folder for the trained model.")
    check_numbers(args)
    check_device(settings.model.device, args)
    check_engine()


def _check_sizes_of_new_model(settings: Settings) -> None:
    """Raise an error if the preset or a size of the model is wrong. A model to fine-tune is not checked."""
    if settings.model.model_name_or_path is not None:
        return
    # Making a configuration checks the sizes. It is not used, because the vocabulary is still unknown.
    settings.model.make_config()


def _check_can_average_after(checkpoint: Path, settings: Settings) -> None:
    """Raise InputError if the run cannot average its checkpoints, because it starts where another run has ended.

    Such a run makes no updates, and therefore writes no checkpoints.
    """
    if settings.output.average_last and is_last_checkpoint(settings.args, checkpoint):
        raise InputError(
            f"{checkpoint} is the end of the run, so {settings.args.output_dir} would get no checkpoints to average; "
            "average those of the earlier run with `hf-vanilla-transformer average`."
        )


def check_choices(settings: Settings) -> None:
    """Raise InputError if the settings that an automatic plan may choose contradict each other.

    These settings concern the schedule, evaluations, checkpoints, averaging, and the choice of search settings. If
    there is a plan, call this after it.
    """
    check_schedule(settings.args)
    check_validation(settings.args)
    check_average(settings)
    if settings.evaluation.choose_search and settings.decoding.num_beams == 1:
        raise InputError(
            "choose_search is set, but num_beams is 1, and a greedy search has neither a length penalty nor a stopping "
            "rule; give more beams, or --choose_search false."
        )


def is_in_folder(checkpoint: Path | None, folder: Path) -> bool:
    """Return True if `checkpoint` is not None and lies directly in `folder`.

    If `folder` is the output folder of the present run, the present run resumes the run that wrote the checkpoint.
    """
    return checkpoint is not None and checkpoint.resolve().parent == folder.resolve()


def check_output_folder(settings: Settings, resumes: bool) -> None:
    """Raise an error if the run would overwrite the model that it fine-tunes, or an earlier run in its folder.

    A run may overwrite an earlier run that it continues, that has left nothing to resume from with
    `resume_from_checkpoint="auto"`, or that the user allows to replace with `overwrite`.

    Args:
        settings: the settings of the run.
        resumes: True if the run continues from a checkpoint in its output folder.
    """
    if resumes:
        return
    output = settings.output_folder
    # `overwrite` does not allow a run to replace its base model.
    _check_base_model_stays(settings.model.model_name_or_path, output)
    if settings.output.overwrite:
        return
    # With "auto", a job that was killed while it wrote its first checkpoint starts from scratch.
    if settings.args.resume_from_checkpoint == "auto" and _has_nothing_to_resume_from(output):
        return
    check_holds_no_run(output)


def _has_nothing_to_resume_from(folder: Path) -> bool:
    """Return True if a folder has no complete checkpoint and no model."""
    return has_only_unfinished_checkpoints(folder) and not _model_files(folder)


def _check_base_model_stays(base_model: str | None, output: Path) -> None:
    """Raise InputError if the model to fine-tune lies in the output folder, because the run would overwrite it."""
    if base_model is None or not Path(base_model).is_dir():
        # There is no such model, or it is on the Hub.
        return
    if Path(base_model).resolve().is_relative_to(output.resolve()):
        raise InputError(f"{base_model} lies in {output}, which the run replaces; name another --output_dir.")


def check_results_file(settings: Settings, results: str) -> None:
    """Raise an error if the results file cannot be written, or would replace an input or a file of the model."""
    path = Path(results)
    output_folder = settings.output_folder.resolve()
    # `check_can_write` skips names that are None.
    inputs = [*settings.data.paths(), settings.model.model_name_or_path, settings.model.tokenizer_name]
    # The run creates the output folder and its parents, so they need not exist yet.
    check_can_write(results, inputs=inputs, made=(output_folder, *output_folder.parents))
    is_in_output_folder = path.absolute().parent.resolve() == output_folder
    # The patterns match the names of the files that a run writes into its folder, such as "config.json".
    has_name_of_model_file = any(path.match(pattern) for pattern in FILES_OF_A_RUN)
    if is_in_output_folder and has_name_of_model_file:
        raise InputError(f"{path} is a file of the trained model; write the results to another file.")


def check_holds_no_run(folder: Path) -> None:
    """Raise FileExistsError if a folder holds a model or checkpoints."""
    names = [path.name for path in (*checkpoints_in(folder), *_model_files(folder))]
    if names:
        raise FileExistsError(
            f"{folder} already holds a model or checkpoints ({', '.join(names[:4])}); name another folder, or give "
            "--overwrite to replace them or --resume_from_checkpoint last to resume."
        )


def _model_files(folder: Path) -> list[Path]:
    """Find the files in a folder that a run writes at its end, such as the model.

    The files with the run's arguments are not included, because a run writes them before it trains.
    """
    return [path for path in files_of_a_run(folder) if path.name not in (ARGUMENTS, ARGUMENTS_WHILE_PUSHED)]


def check_numbers(args: RunArguments) -> None:
    """Raise InputError if a number is out of range. The Trainer would report this error late or not at all."""
    for name in _AT_LEAST_1:
        check_optional(args, name)
    for name in _AT_LEAST_0:
        _check_is_at_least_0(args, name)
    for name in ("adam_beta1", "adam_beta2"):
        _check_is_beta(args, name)
    # The default of `max_steps` is -1, with which the number of epochs determines the length of the training.
    if args.max_steps != -1:
        check_number("max_steps", args.max_steps, 1)
    elif args.num_train_epochs == 0:
        raise InputError("num_train_epochs is 0; give a number above 0, or --max_steps.")


def _check_is_at_least_0(args: RunArguments, name: str) -> None:
    """Raise InputError unless the named argument is None or a finite number of at least 0."""
    number = getattr(args, name)
    # All comparisons with NaN are false, so NaN is rejected, too.
    if number is not None and not 0 <= number < math.inf:
        raise InputError(f"{name} is {number}; it must be a number of at least 0.")


def _check_is_beta(args: RunArguments, name: str) -> None:
    """Raise InputError unless the named argument is a number that Adam accepts as a beta."""
    beta = getattr(args, name)
    if not 0 <= beta < 1:
        raise InputError(f"{name} is {beta}; it must be at least 0 and below 1.")


def check_schedule(args: RunArguments) -> None:
    """Raise InputError if an option for the optimizer or the learning rate schedule would have no effect."""
    if args.rate_factor != 1 and not args.uses_paper_schedule:
        raise InputError(
            f"rate_factor is {args.rate_factor}, but the learning rate does not follow Eq. 3; leave it out, or leave "
            "out learning_rate, lr_scheduler_type and optim."
        )
    for name in ("optim_args", "lr_scheduler_kwargs"):
        value = getattr(args, name)
        if value and args.uses_paper_schedule:
            raise InputError(
                f"{name} is {value}, but optimizer and learning rate follow section 5.3, which has no options; leave "
                "it out, or also give --learning_rate, --lr_scheduler_type or --optim."
            )


def check_validation(args: RunArguments) -> None:
    """Raise InputError if the run will not compute a metric that it needs to select the best model or to stop early."""
    _check_best_metric(args)
    if args.early_stopping_patience is not None and args.eval_strategy == "no":
        raise InputError(
            f"early_stopping_patience is {args.early_stopping_patience}, but the run has no evaluations; give "
            '--eval_strategy "steps" or "epoch".'
        )


def _check_best_metric(args: RunArguments) -> None:
    """Raise InputError unless `metric_for_best_model` is a metric by which the run can select its best model."""
    translation_metrics = _list_translation_metrics()
    choices = ["loss", "token_accuracy"]
    if args.predict_with_generate:
        choices += translation_metrics
    # Without a metric, the run selects by the loss. The Trainer accepts names with and without the prefix "eval_".
    if args.metric_for_best_model and args.metric_for_best_model.removeprefix("eval_") not in choices:
        quoted_metrics = " or ".join(f'"{name}"' for name in translation_metrics)
        raise InputError(
            f'metric_for_best_model is {args.metric_for_best_model}; choose "loss" or "token_accuracy", or with '
            f"--predict_with_generate {quoted_metrics}."
        )


def _list_translation_metrics() -> list[str]:
    """Return the names of the translation metrics by which a run can select its best model.

    Perplexity is not among them, because the Trainer maximizes every metric except the loss.
    """
    names = []
    for name, metric in METRICS.items():
        if metric.is_computed_during_training and metric.higher_is_better:
            names.append(name)
    return names


def check_average(settings: Settings) -> None:
    """Raise InputError if `average_last` is set, but the run would not keep enough checkpoints to average."""
    args = settings.args
    average_last = settings.output.average_last
    if average_last is None:
        _check_has_no_keep_better(settings)
        return
    if not _writes_complete_checkpoints(args):
        raise InputError(
            f'average_last is {average_last}, which needs complete checkpoints; give --save_strategy "steps" or '
            '"epoch", and leave out --save_only_model.'
        )
    if args.load_best_model_at_end:
        raise InputError("average_last and load_best_model_at_end choose different weights; give one of the two.")

    needed_checkpoints = average_last
    if args.metric_for_best_model is not None:
        # The best checkpoint is kept as well, and takes the place of a newer one.
        needed_checkpoints += 1
    limit = args.save_total_limit
    # A limit of 0 or None keeps all checkpoints.
    if limit and limit < needed_checkpoints:
        raise InputError(
            f"average_last is {average_last}, but save_total_limit {limit}; give at least {needed_checkpoints}."
        )


def _check_has_no_keep_better(settings: Settings) -> None:
    """Raise InputError if `keep_better` is set, which has no effect without an average."""
    if settings.output.keep_better:
        raise InputError("keep_better chooses between an average and the last checkpoint; give --average_last.")


def _writes_complete_checkpoints(args: RunArguments) -> bool:
    """Return True if the run writes checkpoints that get a completion mark."""
    return args.save_strategy in ("steps", "epoch") and not args.save_only_model


def check_device(name: str | None, args: RunArguments) -> None:
    """Raise InputError if the Trainer does not use the device that the user named, or if one process has several GPUs.

    With several GPUs in one process, the Trainer would use `nn.DataParallel`, which needs more memory and time, and
    changes the R-Drop loss.
    """
    if args.n_gpu > 1:
        raise InputError(
            f"there are {args.n_gpu} GPUs for one process; launch one for each, torchrun --standalone "
            f"--nproc-per-node {args.n_gpu} -m hf_vanilla_transformer train ..., or choose one with "
            "CUDA_VISIBLE_DEVICES=0."
        )
    if name is None:
        return
    # The device "cuda" has no index, so it stands for any GPU. The device "cuda:1" has the index 1.
    device = torch.device(name)
    has_other_index = device.index is not None and device.index != args.device.index
    if device.type != args.device.type or has_other_index:
        raise InputError(
            f"device is {name}, but the Trainer uses {args.device}; choose a GPU with CUDA_VISIBLE_DEVICES, such as "
            "CUDA_VISIBLE_DEVICES=1, or give --device cpu."
        )


def check_engine() -> None:
    """Raise InputError if DeepSpeed uses ZeRO 3, which partitions the weights before `train` has initialized them."""
    if is_deepspeed_zero3_enabled():
        raise InputError(
            "DeepSpeed's zero_stage is 3, with which `train` can neither initialize nor save a model; set it to 2, or "
            "use accelerate's FSDP2 (recipes/accelerate/fsdp2.yaml) if the model does not fit on one GPU."
        )


def check_space(trainer: Seq2SeqTrainer, folder: Path) -> None:
    """Raise OSError unless the disk has space for the model and, if the run writes checkpoints, for one checkpoint.

    The disk may still become full when the run writes further checkpoints.
    """
    weights = trainer.model.parameters()  # type: ignore[union-attr]
    model_bytes = sum(weight.numel() * weight.element_size() for weight in weights)
    needed_bytes = model_bytes
    if trainer.args.save_strategy != "no":
        # In addition to the final weights, count a checkpoint: the weights and Adam's two moments for each weight.
        needed_bytes += 3 * model_bytes
    check_free_space(folder, needed_bytes, "make room, or name another --output_dir")


def check_lengths(config: PreTrainedConfig, data: DatasetDict) -> None:
    """Raise InputError if a tokenized sentence has more tokens than the model has learned position embeddings.

    Models with sinusoidal position encodings have no limit.
    """
    if config.position_embedding_type != "learned":
        return
    for split, pairs in data.items():
        source_lengths, target_lengths = pair_lengths(pairs)
        # With `initial=0`, the maximum of an empty split is 0.
        longest = max(int(source_lengths.max(initial=0)), int(target_lengths.max(initial=0)))
        if longest > config.max_position_embeddings:
            raise InputError(
                f"the longest sentence of {split} has {longest} tokens, but the model {config.max_position_embeddings} "
                "learned positions; remove or split it, or train with sinusoidal positions."
            )


def check_tokenizer(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise InputError if a tokenizer has no pad token or does not append EOS.

    Without EOS, the model would not learn to end its translations.
    """
    # Any text will do here, such as "a".
    appends_eos = tokenizer.eos_token is not None and tokenizer("a").input_ids[-1] == tokenizer.eos_token_id
    if tokenizer.pad_token is None or not appends_eos:
        raise InputError(
            f"the tokenizer of {name} has no pad_token, or does not append an eos_token; use one that does, or leave "
            "out --tokenizer_name."
        )
