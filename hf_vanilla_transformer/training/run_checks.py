"""Checks before a run starts: they reject settings that would fail later, have no effect, or overwrite a run."""

import json
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


# With smaller numbers, the Trainer would train nothing, or fail at the first batch or evaluation.
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
    """Check what is known before the pairs are loaded: numbers, devices, model sizes, and the files to write.

    Raises InputError, or an OSError if the run would overwrite another run or cannot write its results.
    """
    args = settings.args
    if not args.output_dir:
        raise InputError("output_dir is empty; name a folder for the trained model.")
    check_numbers(args)
    check_device(settings.model.device, args)
    check_engine()
    if not settings.needs_plan:
        # A plan may still choose these settings; they are checked after it.
        check_choices(settings)
    resumes = is_in_folder(checkpoint, settings.output_folder)
    if settings.output.average_last and checkpoint is not None and not resumes and is_last_checkpoint(args, checkpoint):
        raise InputError(
            f"{checkpoint} is the end of the run, so {args.output_dir} would get no checkpoints to average; "
            "average those of the earlier run with `hf-vanilla-transformer average`."
        )
    if settings.model.model_name_or_path is None and checkpoint is None:
        # This checks the preset and the sizes. The vocabulary is not known yet.
        settings.model.make_config()
    check_output_folder(settings, resumes)
    if args.results is not None and args.process_index == 0:
        check_results_file(settings, args.results)


def check_choices(settings: Settings) -> None:
    """Raise InputError if schedule, evaluations, checkpoints, averaging or the choice of a search do not fit together.

    A plan may choose all of these settings, so this check comes after the plan if there is one.
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
    """Return True if there is a checkpoint and it lies directly in a folder, whose run then continues from it."""
    return checkpoint is not None and checkpoint.resolve().parent == folder.resolve()


def check_output_folder(settings: Settings, resumes: bool) -> None:
    """Raise an error if the run would overwrite the model that it fine-tunes, or an earlier run in its folder.

    Args:
        settings: the settings of the run.
        resumes: True if the run continues from a checkpoint in its own folder.
    """
    output = settings.output_folder
    base_model = settings.model.model_name_or_path
    if base_model is not None and not resumes:
        is_in_output = Path(base_model).resolve().is_relative_to(output.resolve())
        if Path(base_model).is_dir() and is_in_output:
            raise InputError(f"{base_model} lies in {output}, which the run replaces; name another --output_dir.")
    # A job that was killed during its first checkpoint starts from scratch.
    has_no_results = has_only_unfinished_checkpoints(output) and not _model_files(output)
    starts_again = settings.args.resume_from_checkpoint == "auto" and has_no_results
    if not settings.output.overwrite and not resumes and not starts_again:
        check_holds_no_run(output)


def check_results_file(settings: Settings, results: str) -> None:
    """Raise an error if the results file cannot be written, or is one of the run's inputs or of the model's files."""
    path = Path(results)
    folder = settings.output_folder.resolve()
    inputs = [*settings.data.paths(), settings.model.model_name_or_path, settings.model.tokenizer_name]
    # The run makes its folder and the parents of it.
    check_can_write(results, inputs=inputs, made=(folder, *folder.parents))
    is_in_output_folder = path.absolute().parent.resolve() == folder
    if is_in_output_folder and any(path.match(pattern) for pattern in FILES_OF_A_RUN):
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
    """Find the files that a run writes at its end.

    Its arguments are not among them, because a run writes them before it starts.
    """
    return [path for path in files_of_a_run(folder) if path.name not in (ARGUMENTS, ARGUMENTS_WHILE_PUSHED)]


def check_numbers(args: RunArguments) -> None:
    """Raise InputError if a number is out of its range, which the Trainer would report too late or not at all."""
    for name in _AT_LEAST_1:
        check_optional(args, name)
    for name in _AT_LEAST_0:
        number = getattr(args, name)
        if number is not None and not 0 <= number < math.inf:
            raise InputError(f"{name} is {number}; it must be a number of at least 0.")
    for name in ("adam_beta1", "adam_beta2"):
        beta = getattr(args, name)
        if not 0 <= beta < 1:
            raise InputError(f"{name} is {beta}; it must be at least 0 and below 1.")
    if args.max_steps != -1:
        check_number("max_steps", args.max_steps, 1)
    elif args.num_train_epochs == 0:
        raise InputError("num_train_epochs is 0; give a number above 0, or --max_steps.")


def check_schedule(args: RunArguments) -> None:
    """Raise InputError if an option of the optimizer or of the schedule would have no effect."""
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
    """Raise InputError if no evaluation computes `metric_for_best_model`, or early stopping has no evaluations."""
    scores = [name for name, metric in METRICS.items() if metric.higher_is_better]
    # Perplexity is no choice, because the Trainer would take its highest value for the best.
    choices = ["loss", "token_accuracy"]
    if args.predict_with_generate:
        choices.extend(scores)
    metric = args.metric_for_best_model or "loss"
    if metric.removeprefix("eval_") not in choices:
        quoted_scores = " or ".join(json.dumps(name) for name in scores)
        raise InputError(
            f'metric_for_best_model is {args.metric_for_best_model}; choose "loss" or "token_accuracy", or with '
            f"--predict_with_generate {quoted_scores}."
        )
    if args.early_stopping_patience is not None and args.eval_strategy == "no":
        raise InputError(
            f"early_stopping_patience is {args.early_stopping_patience}, but the run has no evaluations; give "
            '--eval_strategy "steps" or "epoch".'
        )


def check_average(settings: Settings) -> None:
    """Raise InputError if the arguments show that a run will not write and keep the checkpoints to average."""
    args = settings.args
    count = settings.output.average_last
    if count is None:
        if settings.output.keep_better:
            raise InputError("keep_better chooses between an average and the last checkpoint; give --average_last.")
        return
    if args.save_strategy not in ("steps", "epoch") or args.save_only_model:
        raise InputError(
            f'average_last is {count}, which needs complete checkpoints; give --save_strategy "steps" or "epoch", and '
            "leave out --save_only_model."
        )
    if args.load_best_model_at_end:
        raise InputError("average_last and load_best_model_at_end choose different weights; give one of the two.")
    needed = count
    if args.metric_for_best_model is not None:
        # The best checkpoint is kept as well, and takes the slot of a newer one.
        needed += 1
    # A limit of 0 keeps all checkpoints.
    if args.save_total_limit and args.save_total_limit < needed:
        raise InputError(
            f"average_last is {count}, but save_total_limit {args.save_total_limit}; give at least {needed}."
        )


def check_device(name: str | None, args: RunArguments) -> None:
    """Raise InputError if the Trainer does not use the device that the user named, or has several for one process.

    `nn.DataParallel`, which the Trainer would use then, needs more memory and time, and changes the loss of R-Drop.
    """
    if args.n_gpu > 1:
        raise InputError(
            f"there are {args.n_gpu} GPUs for one process; launch one for each, torchrun --standalone "
            f"--nproc-per-node {args.n_gpu} -m hf_vanilla_transformer train ..., or choose one with "
            "CUDA_VISIBLE_DEVICES=0."
        )
    if name is None:
        return
    device = torch.device(name)
    has_other_index = device.index is not None and device.index != args.device.index
    if device.type != args.device.type or has_other_index:
        raise InputError(
            f"device is {name}, but the Trainer uses {args.device}; choose a GPU with CUDA_VISIBLE_DEVICES, such as "
            "CUDA_VISIBLE_DEVICES=1, or give --device cpu."
        )


def check_engine() -> None:
    """Raise InputError for DeepSpeed's ZeRO 3, which splits each matrix before `train` has initialized it."""
    if is_deepspeed_zero3_enabled():
        raise InputError(
            "DeepSpeed's zero_stage is 3, with which `train` can neither initialize nor save a model; set it to 2, or "
            "use accelerate's FSDP2 (recipes/accelerate/fsdp2.yaml) if the model does not fit on one GPU."
        )


def check_space(trainer: Seq2SeqTrainer, folder: Path) -> None:
    """Raise OSError if the disk lacks space for the model, or for a checkpoint if the run writes any.

    A later checkpoint may still find a full disk.
    """
    weights = trainer.model.parameters()  # type: ignore[union-attr]
    model_size = sum(weight.numel() * weight.element_size() for weight in weights)
    needed = model_size
    if trainer.args.save_strategy != "no":
        # The weights at the end of the run, and a checkpoint with the weights and Adam's two moments.
        needed += 3 * model_size
    check_free_space(folder, needed, "make room, or name another --output_dir")


def check_lengths(config: PreTrainedConfig, data: DatasetDict) -> None:
    """Raise InputError if a tokenized sentence is longer than a model has learned positions.

    Sinusoidal positions have no limit.
    """
    if config.position_embedding_type != "learned":
        return
    for split, pairs in data.items():
        source_lengths, target_lengths = pair_lengths(pairs)
        longest = max(int(source_lengths.max(initial=0)), int(target_lengths.max(initial=0)))
        if longest > config.max_position_embeddings:
            raise InputError(
                f"the longest sentence of {split} has {longest} tokens, but the model {config.max_position_embeddings} "
                "learned positions; remove or split it, or train with sinusoidal positions."
            )


def check_tokenizer(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise InputError if a tokenizer has no pad token, or does not append EOS, so that its model would never stop."""
    appends_eos = tokenizer.eos_token is not None and tokenizer("a").input_ids[-1] == tokenizer.eos_token_id
    if tokenizer.pad_token is None or not appends_eos:
        raise InputError(
            f"the tokenizer of {name} has no pad_token, or does not append an eos_token; use one that does, or leave "
            "out --tokenizer_name."
        )
