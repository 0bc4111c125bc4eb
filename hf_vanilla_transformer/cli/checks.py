"""Wrong arguments and data that do not fit, found before the training."""

import math
import os
import tempfile
from pathlib import Path

from datasets import DatasetDict
from transformers import IntervalStrategy, PreTrainedTokenizerBase

from ..data.lengths import pair_lengths
from ..hub.folder import files_of_a_run
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..training.arguments import PaperTrainingArguments, RunArguments
from ..training.checkpoints import checkpoints_in


# Of translations, as `make_compute_metrics` names them.
_METRICS = ("bleu", "chrf")


def check_counts(args: PaperTrainingArguments) -> None:
    """Numbers that transformers does not check.

    Raises:
        ValueError: if one of them is not a whole number of at least 1.
    """
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
        value = getattr(args, name)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value}; it must be a whole number of at least 1.")


def check_effects(args: RunArguments) -> None:
    """Make sure that no setting is given that would have no effect.

    Raises:
        ValueError: if one is.
    """
    if args.largest_first and args.tokens_per_batch is None:
        raise ValueError("largest_first is about batches by tokens; give --tokens_per_batch, too, or leave it out.")
    if args.tokens_per_batch is not None and args.tokens_per_batch < 1:
        raise ValueError(f"tokens_per_batch is {args.tokens_per_batch}; it must be at least 1.")
    if args.auto_find_batch_size:
        raise ValueError(
            "auto_find_batch_size begins anew with fewer sentences, but not the learning rate, and not the model; give "
            "--per_device_train_batch_size or --tokens_per_batch as memory allows."
        )
    if args.neftune_noise_alpha is not None:
        raise ValueError(
            f"neftune_noise_alpha is {args.neftune_noise_alpha}, but the Trainer's noise does not reach embeddings "
            "that both stacks share; leave it out, and give --dropout instead."
        )
    for name in ("optim_args", "lr_scheduler_kwargs"):
        value = getattr(args, name)
        if value and args.uses_the_paper_s_schedule:
            raise ValueError(
                f"{name} is {value}, but optimizer and learning rate are those of section 5.3, which take none; give "
                "--learning_rate, --lr_scheduler_type or --optim, too, or leave it out."
            )


def check_validation(args: RunArguments) -> None:
    """Make sure that what decides on the best checkpoint, and on stopping early, is measured, and the best kept.

    Raises:
        ValueError: if there are no evaluations, or none of BLEU where BLEU decides; if nothing measures what decides;
            if the best may be between two checkpoints; or if the patience is less than 1.
    """
    metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
    if metric not in ("loss", *_METRICS):
        raise ValueError(f'metric_for_best_model is {args.metric_for_best_model}; it may be "loss", "bleu" or "chrf".')
    if metric != "loss" and not args.predict_with_generate:
        raise ValueError(
            f"metric_for_best_model is {args.metric_for_best_model}, which needs translations; add "
            "--predict_with_generate."
        )
    # The Trainer asks for a multiple, and then forgets a best model that it did not save.
    if args.load_best_model_at_end and args.save_strategy == "steps" and args.save_steps != args.eval_steps:
        raise ValueError(
            f"load_best_model_at_end is set, but save_steps is {args.save_steps} and eval_steps {args.eval_steps}, so "
            "the best model may not be saved; give both the same number."
        )
    if args.early_stopping_patience is None:
        return
    if args.early_stopping_patience < 1:
        raise ValueError(f"early_stopping_patience is {args.early_stopping_patience}; it must be at least 1.")
    if args.eval_strategy == "no":
        raise ValueError(
            f"early_stopping_patience is {args.early_stopping_patience}, but the run has no evaluations; give "
            '--eval_strategy "steps" or "epoch".'
        )


def check_validation_pairs(args: PaperTrainingArguments, pairs: DatasetDict) -> None:
    """Make sure that there is something to evaluate on.

    Raises:
        ValueError: if evaluations are wanted without validation pairs.
    """
    if args.eval_strategy != "no" and "validation" not in pairs:
        strategy = IntervalStrategy(args.eval_strategy).value
        raise ValueError(
            f"eval_strategy is {strategy}, but there are no validation pairs; there is: {', '.join(pairs)}. Give "
            "--validation_files beside --train_files, or leave it out."
        )


def check_average(args: PaperTrainingArguments, count: int, resumes: bool) -> None:
    """Make sure that a run keeps the checkpoints that are averaged at its end.

    Raises:
        ValueError: if it does not, or writes fewer, as far as the arguments tell.
    """
    if count < 1:
        raise ValueError(f"average_last is {count}; it must be at least 1.")
    if args.save_strategy not in ("steps", "epoch") or args.save_only_model:
        raise ValueError(
            f'average_last is {count}, which needs complete checkpoints; give --save_strategy "steps" or "epoch", and '
            "leave out --save_only_model."
        )
    if args.load_best_model_at_end:
        raise ValueError("average_last and load_best_model_at_end choose different weights; give one of the two.")
    # The best checkpoint is kept in the place of a newer one.
    kept = count + (args.metric_for_best_model is not None)
    # Less than 1 keeps all of them.
    if args.save_total_limit is not None and 1 <= args.save_total_limit < kept:
        raise ValueError(
            f"average_last is {count}, but save_total_limit {args.save_total_limit}; it must be at least {kept}."
        )
    written = count_checkpoints(args)
    if written is not None and written < count and not resumes:
        raise ValueError(
            f"average_last is {count}, but the run writes only {written}; save more often or average less."
        )


def count_checkpoints(args: PaperTrainingArguments) -> int | None:
    """How many checkpoints a run writes, the last update's among them; None if the arguments alone do not tell."""
    if args.save_strategy == "epoch" and args.max_steps <= 0:
        return math.ceil(args.num_train_epochs)
    if args.save_strategy == "steps" and args.max_steps > 0:
        # Less than 1 is a share of all updates.
        interval = args.save_steps if args.save_steps >= 1 else math.ceil(args.max_steps * args.save_steps)
        return math.ceil(args.max_steps / (interval or args.max_steps))
    return None


def check_processes(args: PaperTrainingArguments) -> None:
    """Make sure that processes that were launched together train together, and each with one accelerator at most.

    Raises:
        ValueError: if each of them would train a model of its own, all in one folder; or if one is to use several GPUs
            by itself, by `nn.DataParallel`, which needs more memory and time, and has other losses with R-Drop.
    """
    if args.n_gpu > 1:
        raise ValueError(
            f"there are {args.n_gpu} GPUs for one process; launch one for each, torchrun --standalone "
            f"--nproc-per-node {args.n_gpu} scripts/train.py ..., or choose one with CUDA_VISIBLE_DEVICES=0."
        )
    launched = int(os.environ.get("WORLD_SIZE", 1))
    if launched > args.world_size:
        raise ValueError(
            f"{launched} processes were launched, but they cannot train together without an accelerator each; add "
            "--use_cpu to train on the CPU."
        )


def check_base(model: Path, output: Path) -> None:
    """Make sure that a run does not replace the model that it begins from.

    Raises:
        ValueError: if that lies where the run writes.
    """
    if model.is_dir() and output.resolve() in (model.resolve(), *model.resolve().parents):
        raise ValueError(f"{model} lies in {output}, which the run replaces; name another --output_dir.")


def check_output_folder(folder: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    """Make sure that a run does not mix its files with another's.

    Args:
        folder (`Path`): where the run is to write.
        overwrite (`bool`): whether what an earlier run left there may be replaced.
        resume (`bool`): whether this run goes on with the earlier one.

    Raises:
        FileExistsError: if the folder holds files like those that a run writes, and neither was said.
        NotADirectoryError: if it is a file.
    """
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name a folder for the trained model.")
    found = [path.name for path in (*checkpoints_in(folder), *files_of_a_run(folder))]
    if found and not (overwrite or resume):
        raise FileExistsError(
            f"{folder} already holds a model or checkpoints ({', '.join(found[:4])}); name another folder, or say "
            "--overwrite to replace them or --resume_from_checkpoint last to go on."
        )


def check_writable(folder: Path) -> None:
    """Make sure that a folder, or where it is to be made, can be written into.

    Raises:
        OSError: if not.
    """
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryDirectory(dir=place):
            pass
    except OSError as error:
        raise OSError(f"{place} cannot be written into ({error.strerror}); name another folder.") from error


def check_lengths(config: VanillaTransformerConfig, data: DatasetDict) -> None:
    """Make sure that every sentence has positions.

    Raises:
        ValueError: if a sentence is longer than a table of learned positions.
    """
    if config.position_embedding_type == "sinusoidal":
        return
    for name, split in data.items():
        longest = max(int(side.max(initial=0)) for side in pair_lengths(split))
        if longest > config.max_position_embeddings:
            raise ValueError(
                f"the longest sentence of {name} has {longest} tokens, but the model {config.max_position_embeddings} "
                "learned positions; remove or split it, or train with sinusoidal positions."
            )


def check_tokenizer(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make sure that a model can be trained with a tokenizer.

    Raises:
        ValueError: if it has no token for padding, or none for the end of a sentence that it puts there.
    """
    for token in ("pad_token", "eos_token"):
        if getattr(tokenizer, token) is None:
            raise ValueError(f"the tokenizer of {name} has no {token}; take one that has, or leave out --tokenizer.")
    if tokenizer("a").input_ids[-1] != tokenizer.eos_token_id:
        raise ValueError(
            f"the tokenizer of {name} does not end a sentence with {tokenizer.eos_token}, so a model would not learn "
            "where to stop; take another, or leave out --tokenizer."
        )


def check_vocabulary(name: str | Path, config: VanillaTransformerConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make sure that a tokenizer is its model's.

    Raises:
        ValueError: if the model has too few embeddings for it, or other special tokens.
    """
    rows = min(config.vocab_size, config.source_vocab_size or config.vocab_size)
    if len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer of {name} has {len(tokenizer)} tokens, but the model's vocabulary {rows}; "
            "fine-tune a model with the tokenizer that it was trained with."
        )
    for token in ("pad_token_id", "eos_token_id"):
        of_the_model = getattr(config, token)
        if getattr(tokenizer, token) not in (of_the_model if isinstance(of_the_model, list) else [of_the_model]):
            raise ValueError(
                f"{token} is {getattr(tokenizer, token)} in the tokenizer of {name} and {of_the_model} in "
                "the model; fine-tune a model with the tokenizer that it was trained with."
            )
