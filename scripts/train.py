"""Train a Transformer from scratch, or fine-tune one, and score it on the test pairs.

With no arguments at all it trains on the built-in number corpus, as recipes/numbers.yaml says. A first argument that
ends in .yaml or .json is a file of arguments; those that follow override it.
"""

import json
import logging
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple


# Run as a file, Python looks in the file's folder first, where evaluate.py hides the library of that name.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

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

from hf_vanilla_transformer import (
    CompleteCheckpoints,
    PaperTrainingArguments,
    TokenBudgetBatchSampler,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    filter_pairs,
    make_compute_metrics,
    paper_optimizers,
    tokenize_pairs,
    train_tokenizer,
)
from hf_vanilla_transformer.data.bpe_dropout import tokenize_with_dropout
from hf_vanilla_transformer.evaluation.curves import write_curve
from hf_vanilla_transformer.evaluation.results import changed_arguments, describe_surroundings
from hf_vanilla_transformer.training.arguments import RunArguments, describe_precision
from hf_vanilla_transformer.training.averaging import averaged_from, last_checkpoints, write_average
from hf_vanilla_transformer.training.checkpoints import (
    are_all_torn,
    early_stopping,
    find_checkpoint,
    is_finished,
    remove_checkpoints,
)
from hf_vanilla_transformer.training.checks import (
    check_average,
    check_base,
    check_counts,
    check_effects,
    check_lengths,
    check_processes,
    check_tokenizer,
    check_validation,
    check_validation_pairs,
    check_vocabulary,
)
from hf_vanilla_transformer.training.divergence import DivergedError, StopWhenDiverged
from hf_vanilla_transformer.training.hub import describe_error, prepare_repository, push_run
from hf_vanilla_transformer.training.memory import GiveBackMemory, keep_freed_memory, peak_memory
from hf_vanilla_transformer.training.model_card import BUILT_IN, FactsOfTheRun, card_metadata, fill_model_card
from hf_vanilla_transformer.training.output import check_output_folder, check_writable, files_of_a_run, staged
from hf_vanilla_transformer.training.r_drop import RDropTrainer
from scripts.common import (
    DataArguments,
    DecodingArguments,
    ScoringArguments,
    check_can_write,
    finding,
    load,
    parse,
    plain_errors,
    score,
    show,
    write,
)


# Kept where nobody says how many: those of a long run would fill a disk.
USUAL_CHECKPOINTS = 10
# What a checkpoint brings along when a run is resumed, whatever is given.
OF_THE_CHECKPOINT = {"learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay"}
OF_THE_CHECKPOINT |= {"row", "config_overrides", "vocab_size", "whitespace_words"}
WITHOUT_WARMUP = (SchedulerType.CONSTANT, SchedulerType.REDUCE_ON_PLATEAU)
DEFAULT_RECIPE = Path(__file__).parents[1] / "recipes" / "numbers.yaml"


@dataclass
class ModelArguments:
    """Which model: an existing one to fine-tune, or a row of Table 3 with changes."""

    _argument_group_name = "model"

    model: str | None = field(
        default=None,
        metadata={"help": "Fine-tune this model, a folder or a name on the Hub, with its tokenizer and sizes."},
    )
    row: str = field(
        default="base", metadata={"help": 'Row of Table 3 to begin from: "base", "big", "C N=2", "E", ...'}
    )
    tokenizer: str | None = field(
        default=None, metadata={"help": "Use this tokenizer, a folder or a name on the Hub, instead of learning one."}
    )
    vocab_size: int = field(default=37000, metadata={"help": "Most tokens of the joint byte-pair encoding."})
    whitespace_words: bool = field(
        default=False, metadata={"help": "Split texts at spaces only, for text that is tokenised already."}
    )
    bpe_dropout: float | None = field(
        default=None,
        metadata={"help": "Cut the training pairs at random, leaving out merges with this probability, 0.1 or so."},
    )
    bpe_dropout_copies: int = field(
        default=10, metadata={"help": "Copies of the training pairs, each cut in its own way, with --bpe_dropout."}
    )
    num_layers: int | None = field(default=None, metadata={"help": "N, of either stack, instead of the row's."})
    d_model: int | None = field(default=None, metadata={"help": "Instead of the row's."})
    d_ff: int | None = field(default=None, metadata={"help": "Instead of the row's."})
    num_heads: int | None = field(default=None, metadata={"help": "h, instead of the row's."})
    dropout: float | None = field(default=None, metadata={"help": "P_drop, instead of the row's, or the model's."})
    label_smoothing: float | None = field(default=None, metadata={"help": "epsilon_ls, likewise."})
    config_overrides: dict | str | None = field(
        default=None,
        metadata={"help": "Other fields of VanillaTransformerConfig, as JSON: '{\"decoder_layers\": 2}'."},
    )
    attn_implementation: str | None = field(default=None, metadata={"help": "eager or sdpa; chosen if not given."})
    license: str | None = field(default=None, metadata={"help": "Licence of the weights, for the model card."})
    max_tokens: int | None = field(
        default=None,
        metadata={"help": "Leave out training pairs longer than this on one side; empty ones are left out anyway."},
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that cut the pairs into tokens, for long corpora."}
    )
    overwrite: bool = field(default=False, metadata={"help": "Replace the model that the output folder holds."})
    average_last: int | None = field(
        default=None,
        metadata={
            "help": "Save the average of the last so many checkpoints, instead of the weights after the last update. "
            "The paper averages 5, and 20 of the big model."
        },
    )

    def __post_init__(self) -> None:
        for name in ("max_tokens", "bpe_dropout_copies", "preprocessing_num_workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1.")
        if self.bpe_dropout is not None and not 0 <= self.bpe_dropout <= 1:
            raise ValueError(f"bpe_dropout is {self.bpe_dropout}; it must lie between 0 and 1.")
        if self.bpe_dropout is None and self.bpe_dropout_copies != type(self).bpe_dropout_copies:
            raise ValueError(
                f"bpe_dropout_copies is {self.bpe_dropout_copies}, but bpe_dropout is missing; give both, such as "
                "--bpe_dropout 0.1, or neither."
            )
        if isinstance(self.config_overrides, str):
            self.config_overrides = read_object("config_overrides", self.config_overrides)
        known = {each.name for each in fields(VanillaTransformerConfig)} | VanillaTransformerConfig.attribute_map.keys()
        unknown = set(self.config_overrides or {}) - known
        if unknown:
            raise ValueError(f"config_overrides has {min(unknown)}, which is no field of VanillaTransformerConfig.")
        if self.tokenizer is not None and (self.vocab_size, self.whitespace_words) != (type(self).vocab_size, False):
            raise ValueError(
                f"tokenizer is {self.tokenizer}, so none is learnt; leave out --vocab_size and --whitespace_words."
            )
        if self.model is not None:
            self._check_fine_tuning()

    def _check_fine_tuning(self) -> None:
        """Make sure that nothing is asked for that comes with the model.

        Raises:
            ValueError: if something is.
        """
        for name in ("row", "tokenizer", "config_overrides"):
            value = getattr(self, name)
            if value != getattr(type(self), name):
                raise ValueError(
                    f"{name} is {value}, but sizes and tokenizer are those of {self.model}; leave out one of the two."
                )

    def regularization(self) -> dict[str, float]:
        """What may be set for a model that is fine-tuned, too."""
        values = {"dropout": self.dropout, "label_smoothing": self.label_smoothing}
        return {name: value for name, value in values.items() if value is not None}

    def check_sizes(self, config: VanillaTransformerConfig, name: str | Path) -> None:
        """Make sure that no other size than an existing model's is asked for.

        Raises:
            ValueError: if one is.
        """
        sizes = [("num_layers", "encoder_layers"), ("num_layers", "decoder_layers")]
        sizes += [(size, size) for size in ("d_model", "d_ff", "num_heads")]
        for argument, size in sizes:
            wanted, there = getattr(self, argument), getattr(config, size)
            if wanted not in (None, there):
                raise ValueError(f"{argument} is {wanted}, but {name} has {there}, which training does not change.")

    def config(self, tokenizer: PreTrainedTokenizerBase | None = None) -> VanillaTransformerConfig:
        """The configuration of a model from scratch, without a tokenizer with the usual vocabulary."""
        sizes = {"encoder_layers": self.num_layers, "decoder_layers": self.num_layers}
        sizes |= {"d_model": self.d_model, "d_ff": self.d_ff, "num_heads": self.num_heads}
        given = {name: value for name, value in sizes.items() if value is not None}
        given |= self.regularization()
        if tokenizer is not None:
            # There may be ids without a token.
            given |= {"vocab_size": max(tokenizer.get_vocab().values()) + 1, **special_tokens(tokenizer)}
        return VanillaTransformerConfig.from_paper(self.row, **{**given, **(self.config_overrides or {})})


def read_object(name: str, text: str) -> dict[str, Any]:
    """Names and values of an argument that is a JSON object.

    Raises:
        ValueError: if it is none.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {text!r}; give a JSON object of names and values, such as '{{\"d_k\": 32}}'.")
    return value


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """What a configuration says of a tokenizer's special tokens; decoding starts from `<s>`, or else from padding."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    there = {name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None}
    return {**there, "decoder_start_token_id": there.get("bos_token_id", tokenizer.pad_token_id)}


@dataclass
class ResultArguments:
    """What is told of the run besides its model card."""

    _argument_group_name = "results"

    results: str | None = field(
        default=None,
        metadata={"help": "Write settings, scores on validation and test pairs, times and versions into this file."},
    )
    bleu_targets: list[float] = field(
        default_factory=list,
        metadata={"help": "The curve tells when the validation BLEU first reached these, such as 35 38 40."},
    )


class Settings(NamedTuple):
    """All arguments of the command line."""

    model: ModelArguments
    data: DataArguments
    decoding: DecodingArguments
    scoring: ScoringArguments
    results: ResultArguments
    args: RunArguments

    @property
    def output(self) -> Path:
        """The folder of the trained model."""
        return Path(self.args.output_dir)


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
        report(trainer, settings, pairs, told)
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


def describe_run(settings: Settings) -> dict[str, Any]:
    """What the results tell of a run besides what came out of it."""
    model_args, data_args, decoding, scoring, result_args, args = settings
    return {
        "base_model": name_of(model_args.model),
        "settings": changed_arguments(model_args, data_args, decoding, scoring, args),
        **(describe_surroundings(args.device) if result_args.results else {}),
    }


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
        trainer.add_callback(GiveBackMemory())
    if args.early_stopping_patience is not None:
        trainer.add_callback(early_stopping(args.early_stopping_patience, start.checkpoint))
    return pairs, trainer


def report(trainer: Seq2SeqTrainer, settings: Settings, pairs: DatasetDict, told: dict[str, Any]) -> None:
    """Score the saved model, write what is to be known of it beside it, say so, and push it, if asked."""
    model_args, data_args, _, _, result_args, args = settings
    # The Trainer may have put a copy of it in its place, with restore_callback_states_from_checkpoint.
    facts = next(each for each in trainer.callback_handler.callbacks if isinstance(each, FactsOfTheRun))
    with staged(settings.output) as folder:
        curve = write_curve(folder, trainer.state.log_history, result_args.bleu_targets)
    scores = score_pairs("test", settings, pairs)
    save_card(trainer, model_args, data_args, pairs, scores, facts)
    if scores is not None:
        show(scores)
    print(f"the model is in {settings.output}")
    if result_args.results:
        told["data"] = {split: data_args.describe(split) for split in pairs}
        told["scores"] = {"validation": score_pairs("validation", settings, pairs), "test": scores}
        save_results(result_args.results, trainer, facts, curve, told)
    if args.push_to_hub:
        push(trainer, scores)


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
    """Token ids of all pairs; of the training pairs with BPE dropout, if asked, and without those that do not fit."""
    processes = model_args.preprocessing_num_workers
    with args.main_process_first(desc="tokenising the pairs"):
        if model_args.bpe_dropout is None:
            data = tokenize_pairs(pairs, tokenizer, processes)
        else:
            others = DatasetDict({split: pairs[split] for split in pairs if split != "train"})
            data = tokenize_pairs(others, tokenizer, processes)
            options = (model_args.bpe_dropout, model_args.bpe_dropout_copies, args.seed)
            data["train"] = tokenize_with_dropout(pairs["train"], tokenizer, *options)
        data["train"] = leave_out(data["train"], tokenizer, model_args.max_tokens)
    return data


def located(model: str | None) -> str | None:
    """A model's name on the Hub, or its folder from the root, which is never taken for a name."""
    return str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model


def name_of(model: str | None) -> str | None:
    """A model's name on the Hub, or its folder's, which does not say where that lies."""
    return Path(model).name if model is not None and Path(model).is_absolute() else model


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
    kind: Any = partial(RDropTrainer, r_drop=args.r_drop) if args.r_drop else Seq2SeqTrainer
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


def score_pairs(split: str, settings: Settings, pairs: DatasetDict) -> dict[str, Any] | None:
    """Scores of the saved model on a split, if there is such a one, by the model's own search.

    The model in memory may still compute as it was trained, in bfloat16 for example; others will load the saved one.
    """
    if split not in pairs:
        return None
    tokenizer, model = load(str(settings.output), settings.args.device)
    data = settings.data.describe(split)
    return score(model, tokenizer, pairs[split], data, settings.decoding, settings.scoring)[0]


def save_card(
    trainer: Seq2SeqTrainer,
    model_args: ModelArguments,
    data_args: DataArguments,
    pairs: DatasetDict,
    scores: dict[str, Any] | None,
    facts: FactsOfTheRun,
) -> None:
    """Write the model card and the scores beside the model."""
    output = Path(trainer.args.output_dir)
    card = fill_model_card(
        trainer.model,
        trainer.args,
        **describe_for_the_hub(trainer.args, model_args, data_args),
        data=data_args.describe("train"),
        **describe_location(trainer.args),
        scores=scores,
        # A sentence of one's own, or of a private data set, may not be for the public.
        example_source=pairs["train"][0]["source"] if data_args.dataset == BUILT_IN else "A sentence to translate.",
        training_facts={
            "optimizer": facts.optimizer,
            "pairs": f"{len(pairs['train']):,}",
            "updates": f"{trainer.state.global_step:,}",
            "seconds": round(facts.seconds),
            **describe_regularizers(trainer.args, model_args),
            **describe_best(trainer),
        },
        averaged_from=averaged_from(output),
    )
    with staged(output) as folder:
        (folder / "README.md").write_text(card.content, encoding="utf-8")
        if scores is not None:
            (folder / "scores.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")


def describe_regularizers(args: RunArguments, model_args: ModelArguments) -> dict[str, str]:
    """What was done against overfitting that the paper does not do."""
    described = {}
    if args.r_drop:
        described["R-Drop"] = f"weight {args.r_drop:g}"
    if model_args.bpe_dropout:
        described["BPE dropout"] = f"{model_args.bpe_dropout:g}, {model_args.bpe_dropout_copies} copies"
    return described


def describe_best(trainer: Seq2SeqTrainer) -> dict[str, str]:
    """Which update the weights are of, where that is not the last one."""
    args, best = trainer.args, trainer.state.best_global_step
    if not args.load_best_model_at_end or best is None:
        return {}
    return {"weights": f"of update {best:,}, the best by {args.metric_for_best_model}"}


def save_results(
    path: str, trainer: Seq2SeqTrainer, facts: FactsOfTheRun, curve: dict[str, Any] | None, described: dict[str, Any]
) -> None:
    """Write what came out of a run into one file, with what it takes to make it again."""
    results = {
        "seed": trainer.args.seed,
        **described,
        "parameters": trainer.model.num_parameters(),
        "optimizer": facts.optimizer,
        "precision": describe_precision(trainer.args),
        "updates": trainer.state.global_step,
        **describe_best(trainer),
        "training_seconds": facts.seconds - facts.evaluation_seconds,
        "evaluation_seconds": facts.evaluation_seconds,
        "curve": curve,
    }
    write(path, json.dumps(results, indent=2) + "\n")
    print(f"the results are in {path}")


def describe_for_the_hub(
    args: PaperTrainingArguments, model_args: ModelArguments, data_args: DataArguments
) -> dict[str, str | None]:
    """What the model card's metadata says whatever comes out of the training."""
    source_language, target_language = data_args.languages()
    return {
        "title": Path(args.hub_model_id if args.push_to_hub else args.output_dir).absolute().name,
        "dataset": data_args.dataset,
        "dataset_config": data_args.dataset_config,
        "source_language": source_language,
        "target_language": target_language,
        "base_model": model_args.model,
        "license": model_args.license,
    }


def describe_location(args: PaperTrainingArguments) -> dict[str, str | None]:
    """Where the model card's example finds the model."""
    if args.push_to_hub:
        return {"location": args.hub_model_id, "revision": args.hub_revision}
    # A path from the root says more about a machine than a reader needs to know.
    folder = Path(args.output_dir)
    return {"location": folder.name if folder.is_absolute() else args.output_dir}


def prepare_push(
    args: PaperTrainingArguments, model_args: ModelArguments, data_args: DataArguments, has_scores: bool
) -> None:
    """Find out before the training whether its result can be pushed, with scores on test pairs if it will have some."""
    args.hub_model_id = args.hub_model_id or Path(args.output_dir).absolute().name
    if args.process_index == 0:
        unknown = {"bleu": 0.0, "bleu_signature": "", "chrf": 0.0, "chrf_signature": ""}
        scores = {**unknown, "data": data_args.describe("test")} if has_scores else None
        metadata = card_metadata(**describe_for_the_hub(args, model_args, data_args), scores=scores)
        options = {"token": args.hub_token, "private": args.hub_private_repo, "revision": args.hub_revision}
        args.hub_model_id = prepare_repository(args.hub_model_id, metadata, **options)


def push(trainer: Seq2SeqTrainer, scores: dict[str, Any] | None) -> None:
    """Push the output folder; where that fails, say how to do it later, for the model is trained."""
    args = trainer.args
    message = f"Train for {trainer.state.global_step:,} updates"
    if scores is not None:
        message += f": BLEU {scores['bleu']:.2f}"
    try:
        address = push_run(
            Path(args.output_dir),
            args.hub_model_id,
            message=message,
            token=args.hub_token,
            revision=args.hub_revision,
        )
    except Exception as error:  # Whatever it is: the network, the Hub, the rights.
        revision = ["--revision", args.hub_revision] if args.hub_revision else []
        left_out = ["--exclude", "checkpoint-*", "--exclude", "training_args.bin", "--exclude", ".*"]
        command = shlex.join(["hf", "upload", args.hub_model_id, args.output_dir, ".", *revision, *left_out])
        sys.exit(
            f"error: the model could not be pushed to {args.hub_model_id} ({describe_error(error)}). It is whole in "
            f"{args.output_dir}; push it later with: {command}"
        )
    print(f"the model is pushed to {args.hub_model_id}: {address}")


if __name__ == "__main__":
    main()
