"""Train a Transformer from scratch, or fine-tune one, and score it on the test pairs.

With no arguments at all it trains on the built-in number corpus, as recipes/numbers.yaml says. A first argument that
ends in .yaml or .json is a file of arguments; those that follow override it.
"""

import logging
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import Dataset, DatasetDict, disable_progress_bars
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    SchedulerType,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    set_seed,
)

from .. import (
    CompleteCheckpoints,
    TokenBudgetBatchSampler,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    filter_pairs,
    make_compute_metrics,
    paper_optimizers,
    tokenize_pairs,
    train_tokenizer,
)
from ..evaluation.results import changed_arguments
from ..hub.folder import files_of_a_run, staged
from ..memory import keep_freed_memory, peak_memory
from ..training.arguments import RunArguments, describe_precision
from ..training.averaging import last_checkpoints, write_average
from ..training.callbacks import DivergedError, ReleaseMemory, StopWhenDiverged, early_stopping
from ..training.checkpoints import (
    are_all_torn,
    find_checkpoint,
    is_finished,
    remove_checkpoints,
)
from ..training.facts import FactsOfTheRun
from ..training.r_drop import RDropTrainer
from .arguments import (
    DataArguments,
    DecodingArguments,
    ModelArguments,
    ResultArguments,
    ScoringArguments,
    Settings,
)
from .checks import (
    check_average,
    check_base,
    check_counts,
    check_effects,
    check_lengths,
    check_output_folder,
    check_processes,
    check_tokenizer,
    check_validation,
    check_validation_pairs,
    check_vocabulary,
    check_writable,
)
from .common import check_can_write, finding, parse, plain_errors
from .reporting import describe_run, prepare_push, report


# Kept where nobody says how many: those of a long run would fill a disk.
USUAL_CHECKPOINTS = 10
# What a checkpoint brings along when a run is resumed, whatever is given.
OF_THE_CHECKPOINT = {"learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"}
OF_THE_CHECKPOINT |= {"row", "config_overrides", "vocab_size", "whitespace_words"}
WITHOUT_WARMUP = (SchedulerType.CONSTANT, SchedulerType.REDUCE_ON_PLATEAU)
DEFAULT_RECIPE = Path(__file__).parents[1] / "recipes" / "numbers.yaml"


class Start(NamedTuple):
    """What a run goes on from, and what is known of it so far."""

    checkpoint: Path | None
    resumes: bool
    facts: FactsOfTheRun


class Plan(TrainerCallback):
    """Says what is about to be trained.

    Args:
        parameters, pairs (`int`): of the model, and to train on.
    """

    def __init__(self, parameters: int, pairs: int):
        self.parameters, self.pairs = parameters, pairs

    def on_train_begin(self, args: RunArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # A run that was at its end is resumed with no updates.
        if not state.is_world_process_zero or state.global_step >= state.max_steps:
            return
        batches = args.gradient_accumulation_steps * args.world_size
        tokens = args.tokens_per_batch and f"at most {args.tokens_per_batch * batches:,} tokens on each side"
        print(
            f"training in {describe_precision(args)}: {self.parameters:,} parameters, {self.pairs:,} pairs, "
            f"{state.max_steps:,} updates of {tokens or f'{args.train_batch_size * batches} sentences'}"
        )
        warmup = args.get_warmup_steps(state.max_steps)
        if warmup >= state.max_steps and args.lr_scheduler_type not in WITHOUT_WARMUP:
            print(f"the learning rate rises for {warmup:,} updates, so to the end; see --warmup_steps")


def main(arguments: Sequence[str] | None = None) -> Path:
    """Train as the command line says; returns the folder of the trained model."""
    began = time.monotonic()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    kinds = [ModelArguments, DataArguments, DecodingArguments, ScoringArguments, ResultArguments, RunArguments]
    settings = Settings(*parse(kinds, __doc__, arguments or [str(DEFAULT_RECIPE)]))
    with plain_errors():
        settings = settings._replace(scoring=settings.scoring.for_target(settings.data.languages()[1]))
        start = begin(settings)
        # As they are before the training: the commit, and the settings, which the Trainer writes into.
        told = describe_run(settings)
        pairs, trainer = prepare(settings, start)
    if trainer.is_world_process_zero() and not start.resumes:
        remove_checkpoints(settings.output)
    run(trainer, start.checkpoint)
    told["peak_memory_bytes"] = peak_memory(trainer.args.device)
    save_model(trainer, settings.output)
    if trainer.is_world_process_zero():
        if settings.model.average_last is not None:
            save_average(settings.output, settings.model.average_last)
        # What another command did before is not known.
        report(trainer, settings, pairs, told, began=None if start.checkpoint else began)
    return settings.output


def begin(settings: Settings) -> Start:
    """Find out what the run goes on from, and before any work what would stop it.

    Raises:
        OSError, ValueError: see `find_checkpoint` and `check_settings`.
    """
    model_args, args = settings.model, settings.args
    if args.process_index > 0:
        stay_silent()
    set_seed(args.seed)
    wanted = args.resume_from_checkpoint
    checkpoint = find_checkpoint(wanted, settings.output) if wanted else None
    if wanted:
        check_common(checkpoint)
    resumes = checkpoint is not None and checkpoint.resolve().parent == settings.output.resolve()
    check_settings(settings, checkpoint, resumes)
    facts = FactsOfTheRun.of_checkpoint(checkpoint) if checkpoint else FactsOfTheRun()
    facts.base_model = model_args.model = located(model_args.model) or facts.base_model
    facts.optimizer = facts.optimizer or args.describe_optimizer()
    changes = facts.go_on_with({**changed_arguments(model_args, settings.data, args), "processes": args.world_size})
    if args.process_index == 0:
        say_what_changes(checkpoint, changes)
        say_what_is_idle(settings)
    return Start(checkpoint, resumes, facts)


def check_common(checkpoint: Path | None) -> None:
    """Make sure that all processes go on from one checkpoint: only the first one writes them, on its own disk perhaps.

    Raises:
        ValueError: if they do not.
    """
    (of_the_first,) = broadcast_object_list([checkpoint])
    if checkpoint != of_the_first:
        raise ValueError(
            f"the first process goes on from {of_the_first or 'the beginning'}, but this one from "
            f"{checkpoint or 'the beginning'}; give all machines one folder, or copy the checkpoint to each."
        )


def say_what_changes(checkpoint: Path | None, changes: dict[str, str]) -> None:
    """Of settings, in words, that differ from a checkpoint's: which are new, and which come with the checkpoint."""
    kept = [name for name in changes if name in OF_THE_CHECKPOINT]
    new = [words for name, words in changes.items() if name not in kept]
    if new:
        print(f"{checkpoint} was written with other settings; now: {'; '.join(new)}")
    if kept:
        print(f"{', '.join(kept)}: without effect, because {checkpoint} has its own")


def say_what_is_idle(settings: Settings) -> None:
    """What has no effect beside other settings."""
    of_model, of_data, of_results, args = settings.model, settings.data, settings.results, settings.args
    of_tokenizer = [name for name in ("vocab_size", "whitespace_words") if name in changed_arguments(of_model)]
    if of_model.model is not None and of_tokenizer:
        print(f"{', '.join(of_tokenizer)}: without effect, because {of_model.model} has its own tokenizer")
    if of_model.bpe_dropout is not None and of_model.preprocessing_num_workers:
        print("preprocessing_num_workers: without effect on the training pairs, because of bpe_dropout")
    if args.eval_strategy != "no":
        return
    given = {name: getattr(args, name) for name in ("eval_steps", "metric_for_best_model", "predict_with_generate")}
    given |= {"validation_files": of_data.validation_files, "bleu_targets": of_results.bleu_targets}
    idle = [name for name, value in given.items() if value]
    if idle:
        print(f"without effect while it trains: {', '.join(idle)}; --eval_strategy steps or epoch gives evaluations")


def prepare(settings: Settings, start: Start) -> tuple[DatasetDict, Seq2SeqTrainer]:
    """The pairs, and a Trainer that is ready to train on them; with a repository on the Hub for the result, if asked.

    Raises:
        OSError, ValueError: if something is not there, or does not fit.
    """
    model_args, args = settings.model, settings.args
    if args.save_total_limit is None:
        args.save_total_limit = max(USUAL_CHECKPOINTS, (model_args.average_last or 0) + 1)
    # Before there is much in memory.
    keeps_freed_memory = args.device.type == "cpu" and keep_freed_memory()
    pairs = load_with_training_pairs(args, settings.data)
    if args.push_to_hub:
        prepare_push(args, model_args, settings.data, has_scores="test" in pairs)
    tokenizer, model = make_model(model_args, pairs, start.checkpoint)
    model.generation_config.update(**settings.decoding.generate_kwargs())
    data = tokenize(args, model_args, pairs, tokenizer)
    check_lengths(model.config, data)
    trainer = make_trainer(args, tokenizer, model, data, settings.scoring.options(pairs["train"]))
    for callback in (start.facts, Plan(model.num_parameters(), len(data["train"])), StopWhenDiverged()):
        trainer.add_callback(callback)
    if keeps_freed_memory:
        trainer.add_callback(ReleaseMemory())
    if args.early_stopping_patience is not None:
        trainer.add_callback(early_stopping(args.early_stopping_patience, start.checkpoint))
    return pairs, trainer


def check_settings(settings: Settings, checkpoint: Path | None, resumes: bool) -> None:
    """Find out before any work what would stop the run, or spoil another's.

    Raises:
        OSError: if something cannot be written.
        ValueError: if settings do not go together.
    """
    model_args, result_args, args = settings.model, settings.results, settings.args
    check_counts(args)
    check_validation(args)
    check_effects(args)
    check_processes(args)
    if model_args.model is None and checkpoint is None:
        # Its names and numbers; how many tokens there are is not known yet.
        model_args.config()
    # A job that was killed in its first checkpoint begins again.
    has_nothing = are_all_torn(settings.output) and not files_of_a_run(settings.output)
    begins_again = args.resume_from_checkpoint == "auto" and has_nothing
    check_output_folder(settings.output, overwrite=model_args.overwrite, resume=resumes or begins_again)
    if model_args.model is not None and not resumes:
        check_base(Path(model_args.model), settings.output)
    # Of several processes only the first one writes, but for checkpoints.
    if args.process_index == 0:
        check_can_write(result_args.results)
    if args.process_index == 0 or args.save_strategy != "no":
        check_writable(settings.output)
    if model_args.average_last is not None:
        check_average(args, model_args.average_last, resumes)
        if checkpoint is not None and not resumes and is_finished(args, checkpoint):
            raise ValueError(
                f"{checkpoint} is the end of the run already, so {args.output_dir} would get no checkpoints to "
                "average; average those of the earlier run with scripts/average_checkpoints.py."
            )


def load_with_training_pairs(args: RunArguments, data_args: DataArguments) -> DatasetDict:
    """The pairs, in the main process first.

    Raises:
        ValueError: if there are none to train on, or none for the evaluations that are asked for.
    """
    with args.main_process_first(desc="loading the pairs"):
        pairs = data_args.load()
    if "train" not in pairs:
        raise ValueError(f"there are no training pairs; there is: {', '.join(pairs)}. Give --train_files.")
    check_validation_pairs(args, pairs)
    return pairs


def tokenize(
    args: RunArguments, model_args: ModelArguments, pairs: DatasetDict, tokenizer: PreTrainedTokenizerBase
) -> DatasetDict:
    """Token ids of all pairs, without the training pairs that are empty or too long."""
    processes = model_args.preprocessing_num_workers
    with args.main_process_first(desc="tokenising the pairs"):
        data = tokenize_pairs(pairs, tokenizer, processes)
        data["train"] = leave_out(data["train"], tokenizer, model_args.max_tokens)
    return data


def located(model: str | None) -> str | None:
    """A model's name on the Hub, or its folder from the root, which is never taken for a name."""
    return str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model


def leave_out(data: Dataset, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None) -> Dataset:
    """Training pairs without those that are empty or too long; says how many those are, if any might be."""
    kept, dropped = filter_pairs(data, tokenizer, max_tokens)
    too_long = "" if max_tokens is None else f", {dropped['too long']} longer than {max_tokens} tokens"
    if PartialState().is_main_process and (too_long or len(kept) < len(data)):
        print(
            f"left out {len(data) - len(kept)} of {len(data)} training pairs: {dropped['empty']} empty on one side"
            f"{too_long}"
        )
    return kept


def run(trainer: Seq2SeqTrainer, checkpoint: Path | None) -> None:
    """Train, from the beginning or from a checkpoint."""
    if checkpoint is not None and is_finished(trainer.args, checkpoint):
        if trainer.is_world_process_zero():
            print(f"{checkpoint} is the end of the run already, so nothing is left to train")
        # From the last checkpoint the Trainer would make one update more.
        trainer.args.max_steps, trainer.args.num_train_epochs = -1, 0
    try:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    except DivergedError as error:
        sys.exit(f"error: {error}")
    except (KeyError, ValueError) as error:
        if "parameter group" not in str(error) and not is_raised_by_an_optimizer(error):
            raise
        if checkpoint is None:
            sys.exit(f"error: {error}")
        sys.exit(
            f"error: {checkpoint} was written with another optimizer ({error}); resume with the same learning_rate, "
            "lr_scheduler_type, optim and weight_decay."
        )


def is_raised_by_an_optimizer(error: Exception) -> bool:
    """Whether an error comes out of torch.optim, as where an optimizer is given another's state."""
    *_, innermost = traceback.walk_tb(error.__traceback__)
    return innermost[0].f_globals["__name__"].startswith("torch.optim.")


def stay_silent() -> None:
    """Leave speaking to the main process."""
    disable_progress_bars()
    logging.getLogger("hf_vanilla_transformer").setLevel(logging.ERROR)


def make_model(
    model_args: ModelArguments, pairs: DatasetDict, checkpoint: Path | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Tokenizer and model: of a checkpoint, of an existing model, or new ones."""
    existing = checkpoint or model_args.model
    options = {"attn_implementation": model_args.attn_implementation} if model_args.attn_implementation else {}
    if existing is None:
        tokenizer = make_tokenizer(model_args, pairs)
        config = model_args.config(tokenizer)
        return tokenizer, VanillaTransformerForConditionalGeneration._from_config(config, **options)
    with finding(existing):
        config = AutoConfig.from_pretrained(existing)
    if config.model_type != VanillaTransformerConfig.model_type:
        raise ValueError(
            f"{existing} is a {config.model_type} model; this command trains {VanillaTransformerConfig.model_type}."
        )
    model_args.check_sizes(config, existing)
    if checkpoint is None and PartialState().is_main_process:
        print(f"{existing} is trained further; sizes and tokenizer are its own")
    tokenizer = AutoTokenizer.from_pretrained(existing, padding_side="right")
    check_vocabulary(existing, config, tokenizer)
    # Weights of 16 bits would lose updates that are smaller than they can tell.
    model = AutoModelForSeq2SeqLM.from_pretrained(
        existing, dtype=torch.float32, **options, **model_args.regularization()
    )
    return tokenizer, model


def make_tokenizer(model_args: ModelArguments, pairs: DatasetDict) -> PreTrainedTokenizerBase:
    """A tokenizer that is there, or one learnt from the training pairs in the main process, for all processes."""
    if model_args.tokenizer is not None:
        tokenizer = AutoTokenizer.from_pretrained(model_args.tokenizer, padding_side="right")
        check_tokenizer(model_args.tokenizer, tokenizer)
        return tokenizer
    tokenizers: list[Any] = [None]
    if PartialState().is_main_process:
        texts = chain(pairs["train"]["source"], pairs["train"]["target"])
        options = {"vocab_size": model_args.vocab_size, "whitespace_words": model_args.whitespace_words}
        tokenizers = [train_tokenizer(texts, **options)]
    return broadcast_object_list(tokenizers)[0]


def make_trainer(
    args: RunArguments,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    data: DatasetDict,
    scoring: dict[str, Any] | None = None,
) -> Seq2SeqTrainer:
    """Stock `Seq2SeqTrainer`, or R-Drop's, with the paper's schedule unless the command line chose another."""
    args.dataloader_pin_memory = args.dataloader_pin_memory and args.device.type != "cpu"
    if args.ddp_find_unused_parameters is None:
        args.ddp_find_unused_parameters = False  # Every weight takes part in every update.
    optimizers = paper_optimizers(model, args) if args.uses_the_paper_s_schedule else None
    kind: Any = partial(RDropTrainer, r_drop_alpha=args.r_drop) if args.r_drop else Seq2SeqTrainer
    trainer = kind(
        model=model,
        args=args,
        train_dataset=data["train"],
        eval_dataset=data.get("validation"),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=make_compute_metrics(tokenizer, **(scoring or {})) if args.predict_with_generate else None,
        callbacks=[CompleteCheckpoints()],
    )
    if optimizers is not None:
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise ValueError(
                f"{'FSDP' if trainer.is_fsdp_enabled else 'DeepSpeed'} needs an optimizer that the Trainer makes, so "
                "there is no learning rate of Eq. 3; give --learning_rate, and --lr_scheduler_type and --warmup_steps "
                "as you like."
            )
        trainer.optimizer, trainer.lr_scheduler = optimizers
    if args.tokens_per_batch is not None:
        TokenBudgetBatchSampler.use_in(trainer, args.tokens_per_batch, largest_first=args.largest_first)
    if trainer.is_fsdp_enabled:
        # FSDP2 refuses a matrix that is in two modules, such as the embeddings of both stacks.
        model.set_input_embeddings(model.get_input_embeddings())
    return trainer


def save_model(trainer: Seq2SeqTrainer, output: Path) -> None:
    """Write model and tokenizer in place of an earlier run's, each file whole."""
    if not trainer.is_world_process_zero():
        trainer.save_model(_internal_call=True)  # Writes nothing; the main process may need its share of the weights.
        return
    with staged(output, replace_run=True) as folder:
        # As the Trainer itself calls it, or it would push, too, with a card of its own.
        trainer.save_model(str(folder), _internal_call=True)
        (folder / "training_args.bin").unlink(missing_ok=True)  # A pickle, which a folder to share should not hold.


def save_average(output: Path, count: int) -> None:
    """Put the average of the last checkpoints, of which the last update's is one, in the place of the saved model."""
    checkpoints = last_checkpoints(output, count)
    if len(checkpoints) < count:
        print(f"average_last is {count}, but the run left {len(checkpoints)} complete checkpoints; these are averaged")
    try:
        with staged(output, replace_run=True) as folder:
            write_average(checkpoints, folder)
    except (OSError, ValueError) as error:
        rest = f" The model in {output} is that of the last update, not an average."
        sys.exit(f"error: {error}{rest if any(output.glob('*.safetensors')) else ''}")


if __name__ == "__main__":
    main()
