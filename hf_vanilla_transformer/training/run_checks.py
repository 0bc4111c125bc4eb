"""Checks of `train` before any work: settings and data that do not fit together."""

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import DatasetDict
from transformers import IntervalStrategy, PreTrainedConfig, PreTrainedTokenizerBase, Seq2SeqTrainer

from ..data.length_filter import pair_lengths
from ..evaluation.metrics import METRICS
from ..hub.model_folder import FILES_OF_A_RUN, files_of_a_run
from ..support.argument_checks import check_number, check_optional
from ..support.checkpoint_marks import checkpoints_in
from ..support.disk_errors import check_free_space
from ..support.output_files import check_can_write
from .checkpoints import are_all_unfinished, is_finished
from .paper_arguments import PaperTrainingArguments
from .run_arguments import RunArguments, Settings


def check_settings(settings: Settings, checkpoint: Path | None, resumes: bool) -> None:
    """Check what would stop the run later, or overwrite another run.

    Args:
        checkpoint: the checkpoint that the run starts from.
        resumes: whether this checkpoint is in the run's own folder.

    Raises:
        OSError: if an output cannot be written.
        ValueError: if settings do not fit together.
    """
    model_args, args = settings.model, settings.args
    if not args.output_dir:
        raise ValueError("output_dir is empty; name a folder for the trained model.")
    check_numbers(args)
    check_validation(args)
    check_effects(args)
    check_processes(args)
    if model_args.device is not None:
        check_device_of_trainer(torch.device(model_args.device), args.device)
    if model_args.model_name_or_path is None and checkpoint is None:
        # Checks the preset and the sizes; the vocabulary is not known yet.
        model_args.config()
    # A job that was killed during its first checkpoint starts again.
    has_nothing = are_all_unfinished(settings.output) and not files_of_a_run(settings.output)
    starts_again = args.resume_from_checkpoint == "auto" and has_nothing
    check_output_folder(settings.output, overwrite=model_args.overwrite, resume=resumes or starts_again)
    if model_args.model_name_or_path is not None and not resumes:
        check_base(Path(model_args.model_name_or_path), settings.output)
    # With several processes only the first writes, apart from checkpoints.
    if args.process_index == 0:
        models = [model_args.model_name_or_path, model_args.tokenizer_name]
        check_can_write(args.results, inputs=[*settings.data.paths(), *models])
        check_results(args.results, settings.output)
    if args.process_index == 0 or args.save_strategy != "no":
        check_writable(settings.output)
    if model_args.average_last is not None:
        check_average(args, model_args.average_last)
        if checkpoint is not None and not resumes and is_finished(args, checkpoint):
            raise ValueError(
                f"{checkpoint} is the end of the run, so {args.output_dir} would get no checkpoints to average; "
                "average those of the earlier run with `hf-vanilla-transformer average`."
            )


def check_numbers(args: RunArguments) -> None:
    """Raise ValueError if a number of the Trainer is out of its range: it would train one update, or forever NaN."""
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
        check_number(name, getattr(args, name), 1)
    for name in ("dataloader_num_workers", "data_seed", "save_total_limit"):
        if getattr(args, name) is not None:
            check_number(name, getattr(args, name), 0)
    for name in ("eval_accumulation_steps", "generation_max_length", "generation_num_beams"):
        check_optional(args, name)
    if args.max_steps != -1:
        check_number("max_steps", args.max_steps, 1)
    rates = ("learning_rate", "weight_decay", "max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon")
    for name in (*rates, "warmup_steps", "num_train_epochs", "logging_steps", "eval_steps", "save_steps"):
        value = getattr(args, name)
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}; it must be a number of at least 0.")
    if args.max_steps < 1 and args.num_train_epochs == 0:
        raise ValueError("num_train_epochs is 0; give a number above 0, or --max_steps.")


def check_effects(args: RunArguments) -> None:
    """Raise ValueError if a setting would have no effect."""
    if args.tokens_per_batch is not None:
        check_number("tokens_per_batch", args.tokens_per_batch, 1)
    if args.rate_factor != 1 and not args.uses_paper_schedule:
        raise ValueError(
            f"rate_factor is {args.rate_factor}, but the learning rate does not follow Eq. 3; leave it out, or leave "
            "out learning_rate, lr_scheduler_type and optim."
        )
    for name in ("optim_args", "lr_scheduler_kwargs"):
        value = getattr(args, name)
        if value and args.uses_paper_schedule:
            raise ValueError(
                f"{name} is {value}, but optimizer and learning rate follow section 5.3, without options; give "
                "--learning_rate, --lr_scheduler_type or --optim, too, or leave it out."
            )


def check_validation(args: RunArguments) -> None:
    """Check that evaluations measure what chooses the best checkpoint and stops early, and that the best is saved.

    Raises:
        ValueError: if the run has no evaluations, or without the metric that decides; if an evaluation may fall between
            two checkpoints; or if the patience is less than 1.
    """
    metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
    # Not perplexity, whose highest value the Trainer would take for the best.
    known = ("loss", "token_accuracy", *(name for name, each in METRICS.items() if each.higher_is_better))
    if metric not in known:
        names = ", ".join(f'"{name}"' for name in known)
        raise ValueError(f"metric_for_best_model is {args.metric_for_best_model}; choose one of {names}.")
    if metric in METRICS and not args.predict_with_generate:
        raise ValueError(
            f"metric_for_best_model is {args.metric_for_best_model}, which needs translations; add "
            "--predict_with_generate."
        )
    # The Trainer accepts a multiple, and then loses a best model that it did not save.
    if args.load_best_model_at_end and args.save_strategy == "steps" and args.save_steps != args.eval_steps:
        raise ValueError(
            f"load_best_model_at_end is set, but save_steps is {args.save_steps} and eval_steps {args.eval_steps}, so "
            "the best model may not be saved; give both the same number."
        )
    if args.early_stopping_patience is None:
        return
    check_number("early_stopping_patience", args.early_stopping_patience, 1)
    if args.eval_strategy == "no":
        raise ValueError(
            f"early_stopping_patience is {args.early_stopping_patience}, but the run has no evaluations; give "
            '--eval_strategy "steps" or "epoch".'
        )


def check_validation_pairs(args: PaperTrainingArguments, pairs: DatasetDict) -> None:
    """Raise ValueError if evaluations are asked for without validation pairs."""
    if args.eval_strategy != "no" and "validation" not in pairs:
        strategy = IntervalStrategy(args.eval_strategy).value
        raise ValueError(
            f"eval_strategy is {strategy}, but the data has no validation pairs, only {', '.join(pairs)}; give "
            "--validation_file, or leave it out."
        )


def check_average(args: PaperTrainingArguments, count: int) -> None:
    """Check that a run writes and keeps the checkpoints that are averaged at its end.

    Raises:
        ValueError: if it does not, as far as the arguments tell.
    """
    if args.save_strategy not in ("steps", "epoch") or args.save_only_model:
        raise ValueError(
            f'average_last is {count}, which needs complete checkpoints; give --save_strategy "steps" or "epoch", and '
            "leave out --save_only_model."
        )
    if args.load_best_model_at_end:
        raise ValueError("average_last and load_best_model_at_end choose different weights; give one of the two.")
    # The best checkpoint takes the slot of a newer one.
    kept = count + (args.metric_for_best_model is not None)
    # 0 keeps all of them.
    if args.save_total_limit and args.save_total_limit < kept:
        raise ValueError(
            f"average_last is {count}, but save_total_limit {args.save_total_limit}; it must be at least {kept}."
        )


def check_processes(args: Any) -> None:
    """Check that processes that were launched together train together, each with one accelerator at most.

    Raises:
        ValueError: if each process would train a model of its own in the same folder, or one process would use several
            GPUs through `nn.DataParallel`, which needs more memory and time, and changes the loss of R-Drop.
    """
    if args.n_gpu > 1:
        raise ValueError(
            f"there are {args.n_gpu} GPUs for one process; launch one for each, torchrun --standalone "
            f"--nproc-per-node {args.n_gpu} -m hf_vanilla_transformer train ..., or choose one with "
            "CUDA_VISIBLE_DEVICES=0."
        )
    launched = int(os.environ.get("WORLD_SIZE", 1))
    if launched > args.world_size:
        raise ValueError(
            f"{launched} processes were launched, but they cannot train together without an accelerator each; add "
            "--use_cpu to train on the CPU."
        )


def check_device_of_trainer(given: torch.device, used: torch.device) -> None:
    """Raise ValueError if the Trainer does not use the device that was given."""
    if given.type != used.type or given.index not in (None, used.index):
        raise ValueError(
            f"device is {given}, but the Trainer uses {used}; choose a GPU with CUDA_VISIBLE_DEVICES, such as "
            "CUDA_VISIBLE_DEVICES=1, or give --device cpu."
        )


def check_base(model: Path, output: Path) -> None:
    """Raise ValueError if the run would replace the model that it fine-tunes."""
    if model.is_dir() and output.resolve() in (model.resolve(), *model.resolve().parents):
        raise ValueError(f"{model} lies in {output}, which the run replaces; name another --output_dir.")


def check_results(path: str | None, output: Path) -> None:
    """Raise ValueError if the results would replace a file of the trained model."""
    if path is None or Path(path).absolute().parent.resolve() != output.resolve():
        return
    if any(Path(path).match(pattern) for pattern in FILES_OF_A_RUN):
        raise ValueError(f"{path} is a file of the trained model; write the results to another file.")


def check_output_folder(folder: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    """Check that a run does not mix its files with those of another run.

    Args:
        folder (`Path`): where the run writes.
        overwrite (`bool`): whether it may replace files of an earlier run.
        resume (`bool`): whether it resumes the earlier run.

    Raises:
        FileExistsError: if the folder holds files of a run, and neither is set.
        NotADirectoryError: if the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; name a folder for the trained model.")
    found = [path.name for path in (*checkpoints_in(folder), *files_of_a_run(folder))]
    if found and not (overwrite or resume):
        raise FileExistsError(
            f"{folder} already holds a model or checkpoints ({', '.join(found[:4])}); name another folder, or give "
            "--overwrite to replace them or --resume_from_checkpoint last to resume."
        )


def check_writable(folder: Path) -> None:
    """Raise OSError if a folder, or the one in which it will be created, cannot be written."""
    parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(dir=parent):
            pass
    except OSError as error:
        raise OSError(f"{parent} cannot be written ({error.strerror}); name another folder.") from error


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
            raise ValueError(
                f"the longest sentence of {name} has {longest} tokens, but the model {config.max_position_embeddings} "
                "learned positions; remove or split it, or train with sinusoidal positions."
            )


def check_tokenizer(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ValueError if a tokenizer has no pad token, or does not append EOS."""
    for token in ("pad_token", "eos_token"):
        if getattr(tokenizer, token) is None:
            raise ValueError(
                f"the tokenizer of {name} has no {token}; use one that has it, or leave out --tokenizer_name."
            )
    if tokenizer("a").input_ids[-1] != tokenizer.eos_token_id:
        raise ValueError(
            f"the tokenizer of {name} does not append {tokenizer.eos_token}, so a model would not learn where to stop; "
            "use another, or leave out --tokenizer_name."
        )
