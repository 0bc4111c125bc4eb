"""Checks of `train` before any work: what would stop the run later, do silently wrong, or overwrite another run."""

import json
import math
from pathlib import Path
from typing import Any

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
from .run_arguments import ModelArguments, RunArguments, Settings


# Numbers that the Trainer accepts, and then trains nothing, or fails at the first batch or evaluation.
_AT_LEAST_1 = ["gradient_accumulation_steps", "per_device_train_batch_size", "per_device_eval_batch_size"]
_AT_LEAST_1 += ["eval_accumulation_steps", "generation_max_length", "generation_num_beams"]
_AT_LEAST_1 += ["tokens_per_batch", "tokens_per_update", "early_stopping_patience"]
_AT_LEAST_0 = ["learning_rate", "max_grad_norm", "num_train_epochs", "save_steps", "eval_steps", "logging_steps"]
_AT_LEAST_0 += ["save_total_limit", "weight_decay", "adam_epsilon", "warmup_steps", "dataloader_num_workers"]
_AT_LEAST_0 += ["neftune_noise_alpha"]


def check_settings(settings: Settings, checkpoint: Path | None, resumes: bool) -> None:
    """Raise ValueError or OSError if settings do not fit together, or the run would overwrite something.

    A run `resumes` if the checkpoint that it starts from is in its own folder.
    """
    model_args, args, output = settings.model, settings.args, settings.output
    if not args.output_dir:
        raise InputError("output_dir is empty; name a folder for the trained model.")
    check_numbers(args)
    check_device(model_args.device, args)
    check_engine()
    if not settings.plans:  # A plan may give what is missing.
        check_schedule(args)
        check_validation(args)
        check_average(model_args, args)
        check_chosen_search(settings)
    if model_args.average_last and checkpoint is not None and not resumes and is_last_checkpoint(args, checkpoint):
        raise InputError(
            f"{checkpoint} is the end of the run, so {args.output_dir} would get no checkpoints to average; "
            "average those of the earlier run with `hf-vanilla-transformer average`."
        )
    base, folder = model_args.model_name_or_path, output.resolve()
    if base is None and checkpoint is None:
        # Checks the preset and the sizes; the vocabulary is not known yet.
        model_args.config()
    if base is not None and not resumes and Path(base).is_dir() and Path(base).resolve().is_relative_to(folder):
        raise InputError(f"{base} lies in {output}, which the run replaces; name another --output_dir.")
    # A job that was killed during its first checkpoint starts again.
    has_nothing = has_only_unfinished_checkpoints(output) and not _model_files(output)
    starts_again = args.resume_from_checkpoint == "auto" and has_nothing
    if not (model_args.overwrite or resumes or starts_again):
        check_holds_no_run(output)
    if args.results is not None and args.process_index == 0:
        inputs = [*settings.data.paths(), base, model_args.tokenizer_name]
        check_can_write(args.results, inputs=inputs, made=(folder, *folder.parents))
        path = Path(args.results)
        if path.absolute().parent.resolve() == folder and any(map(path.match, FILES_OF_A_RUN)):
            raise InputError(f"{path} is a file of the trained model; write the results to another file.")


def check_chosen_search(settings: Settings) -> None:
    """Raise ValueError if the settings of a search are to be chosen, and the search is greedy."""
    if settings.model.choose_search and settings.decoding.num_beams == 1:
        raise InputError(
            "choose_search is set, but num_beams is 1, and a greedy search has neither a length penalty nor a stopping "
            "rule; give more beams, or --choose_search false."
        )


def check_holds_no_run(folder: Path) -> None:
    """Raise FileExistsError if a folder holds files of a run."""
    found = [path.name for path in (*checkpoints_in(folder), *_model_files(folder))]
    if found:
        raise FileExistsError(
            f"{folder} already holds a model or checkpoints ({', '.join(found[:4])}); name another folder, or give "
            "--overwrite to replace them or --resume_from_checkpoint last to resume."
        )


def _model_files(folder: Path) -> list[Path]:
    """The files of a run that has ended; its arguments are written before it starts."""
    return [path for path in files_of_a_run(folder) if path.name not in (ARGUMENTS, ARGUMENTS_WHILE_PUSHED)]


def check_numbers(args: RunArguments) -> None:
    """Raise ValueError if a number is out of its range, where neither torch nor the Trainer says so before training."""
    for name in _AT_LEAST_1:
        check_optional(args, name)
    for name in _AT_LEAST_0:
        if not 0 <= (getattr(args, name) or 0) < math.inf:
            raise InputError(f"{name} is {getattr(args, name)}; it must be a number of at least 0.")
    for name in ("adam_beta1", "adam_beta2"):
        if not 0 <= getattr(args, name) < 1:
            raise InputError(f"{name} is {getattr(args, name)}; it must be at least 0 and below 1.")
    if args.max_steps != -1:
        check_number("max_steps", args.max_steps, 1)
    elif args.num_train_epochs == 0:
        raise InputError("num_train_epochs is 0; give a number above 0, or --max_steps.")


def check_schedule(args: RunArguments) -> None:
    """Raise ValueError if an option of the schedule would have no effect."""
    if args.rate_factor != 1 and not args.uses_paper_schedule:
        raise InputError(
            f"rate_factor is {args.rate_factor}, but the learning rate does not follow Eq. 3; leave it out, or leave "
            "out learning_rate, lr_scheduler_type and optim."
        )
    for name in ("optim_args", "lr_scheduler_kwargs"):
        if getattr(args, name) and args.uses_paper_schedule:
            raise InputError(
                f"{name} is {getattr(args, name)}, but optimizer and learning rate follow section 5.3, without "
                "options; give --learning_rate, --lr_scheduler_type or --optim, too, or leave it out."
            )


def check_validation(args: RunArguments) -> None:
    """Raise ValueError if evaluations do not measure what chooses the best checkpoint, or that one may not be saved."""
    metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
    scores = [name for name, each in METRICS.items() if each.higher_is_better]
    # Not perplexity, whose highest value the Trainer would take for the best.
    if metric not in ("loss", "token_accuracy", *(scores if args.predict_with_generate else ())):
        raise InputError(
            f'metric_for_best_model is {args.metric_for_best_model}; choose "loss" or "token_accuracy", or with '
            f"--predict_with_generate {' or '.join(map(json.dumps, scores))}."
        )
    if args.early_stopping_patience is not None and args.eval_strategy == "no":
        raise InputError(
            f"early_stopping_patience is {args.early_stopping_patience}, but the run has no evaluations; give "
            '--eval_strategy "steps" or "epoch".'
        )


def check_average(model_args: ModelArguments, args: RunArguments) -> None:
    """Raise ValueError if a run does not write and keep the checkpoints to average, as far as the arguments tell."""
    count = model_args.average_last
    if count is None:
        if model_args.keep_better:
            raise InputError("keep_better chooses between an average and the last checkpoint; give --average_last.")
        return
    if args.save_strategy not in ("steps", "epoch") or args.save_only_model:
        raise InputError(
            f'average_last is {count}, which needs complete checkpoints; give --save_strategy "steps" or "epoch", and '
            "leave out --save_only_model."
        )
    if args.load_best_model_at_end:
        raise InputError("average_last and load_best_model_at_end choose different weights; give one of the two.")
    # The best checkpoint takes the slot of a newer one.
    kept = count + (args.metric_for_best_model is not None)
    # 0 keeps all of them.
    if args.save_total_limit and args.save_total_limit < kept:
        raise InputError(
            f"average_last is {count}, but save_total_limit {args.save_total_limit}; give at least {kept}."
        )


def check_device(given: str | None, args: Any) -> None:
    """Raise ValueError if the Trainer does not use the device that was given, or has several for one process.

    `nn.DataParallel` needs more memory and time, and changes the loss of R-Drop.
    """
    if args.n_gpu > 1:
        raise InputError(
            f"there are {args.n_gpu} GPUs for one process; launch one for each, torchrun --standalone "
            f"--nproc-per-node {args.n_gpu} -m hf_vanilla_transformer train ..., or choose one with "
            "CUDA_VISIBLE_DEVICES=0."
        )
    device = torch.device(given or args.device)
    if device.type != args.device.type or device.index not in (None, args.device.index):
        raise InputError(
            f"device is {given}, but the Trainer uses {args.device}; choose a GPU with CUDA_VISIBLE_DEVICES, such as "
            "CUDA_VISIBLE_DEVICES=1, or give --device cpu."
        )


def check_engine() -> None:
    """Raise ValueError with ZeRO 3, which leaves a process a part of each matrix before `train` has initialized it."""
    if is_deepspeed_zero3_enabled():
        raise InputError(
            "DeepSpeed's zero_stage is 3, with which `train` can neither initialize nor save a model; set it to 2, or "
            "use accelerate's FSDP2 (recipes/accelerate/fsdp2.yaml) if the model does not fit on one GPU."
        )


def check_space(trainer: Seq2SeqTrainer, folder: Path) -> None:
    """Raise OSError if the disk of the output folder lacks space for the model, and for a checkpoint if there are any.

    A checkpoint has the weights and Adam's two moments. A later checkpoint may still find a full disk.
    """
    model: Any = trainer.model
    size = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    needed = size if trainer.args.save_strategy == "no" else 4 * size
    check_free_space(folder, needed, "make room, or name another --output_dir")


def check_lengths(config: PreTrainedConfig, data: DatasetDict) -> None:
    """Raise ValueError if a sentence has more tokens than a model has learned positions."""
    if config.position_embedding_type != "learned":
        return
    for name, split in data.items():
        longest = max(int(side.max(initial=0)) for side in pair_lengths(split))
        if longest > config.max_position_embeddings:
            raise InputError(
                f"the longest sentence of {name} has {longest} tokens, but the model {config.max_position_embeddings} "
                "learned positions; remove or split it, or train with sinusoidal positions."
            )


def check_tokenizer(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a tokenizer has no pad token, or does not append EOS: a model would not learn to stop."""
    appends_eos = tokenizer.eos_token is not None and tokenizer("a").input_ids[-1] == tokenizer.eos_token_id
    if tokenizer.pad_token is None or not appends_eos:
        raise InputError(
            f"the tokenizer of {name} has no pad_token, or does not append an eos_token; use one that does, or leave "
            "out --tokenizer_name."
        )
