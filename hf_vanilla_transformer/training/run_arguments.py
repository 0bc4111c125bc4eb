"""Define the arguments of a training run, most of them as groups of options in `train --help`.

Each group is a dataclass. `Settings` bundles the objects of all these classes.
"""

import copy
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from transformers import IntervalStrategy, SchedulerType
from transformers.trainer_utils import SaveStrategy
from transformers.training_args import OptimizerNames
from transformers.utils import is_torch_bf16_gpu_available

from ..acceleration.fast_path_checks import cpu_is_faster_in_bfloat16
from ..data.pair_arguments import TrainingDataArguments, file_names
from ..evaluation.scoring_arguments import ScoringArguments
from ..hub.model_folder import ARGUMENTS, ARGUMENTS_WHILE_PUSHED
from ..support.argument_checks import check_optional
from ..support.build_arguments import build, option
from ..support.recipes import read_recipe
from ..support.user_errors import InputError
from ..translation.decoding_arguments import DecodingArguments
from .distillation_arguments import DistillationArguments
from .model_arguments import ModelArguments
from .paper_arguments import PaperTrainingArguments
from .recipe_overrides import override_recipe


# Arguments of `train` by name, such as {"max_steps": 100}. The classes below define their types.
Arguments = Mapping[str, Any]

# Maximum number of tokens in a batch on CPUs. It is the paper's number per GPU: 25,000 tokens on 8 GPUs.
TOKENS_PER_PROCESS = 3125


@dataclass
class RunDataArguments(TrainingDataArguments):
    """Options for the sentence pairs: where they are, which of them to train on, and how to tokenize them."""

    max_tokens: int | None = option(
        None, "Remove training pairs that are empty or have more tokens on one side (default: tokens_per_batch)."
    )
    preprocessing_num_workers: int | None = option(None, "Processes that tokenize, for large corpora.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optional(self, "max_tokens")
        check_optional(self, "preprocessing_num_workers")


# The Trainer options that `train --help` shows, by group. It also shows the options that our own classes add.
# --help_all shows all other Trainer options.
_TRAINER_OPTIONS_IN_HELP = {
    "training": "per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps "
    "learning_rate lr_scheduler_type warmup_steps optim weight_decay max_grad_norm seed fp16 use_cpu",
    "evaluation": "eval_strategy eval_steps per_device_eval_batch_size predict_with_generate generation_num_beams "
    "generation_max_length metric_for_best_model load_best_model_at_end early_stopping_patience",
    "output": "output_dir results save_strategy save_steps save_total_limit resume_from_checkpoint logging_steps "
    "report_to",
    "Hub": "push_to_hub hub_model_id hub_private_repo hub_revision hub_strategy",
}


def _group_by_option() -> dict[str, str]:
    """Invert `_TRAINER_OPTIONS_IN_HELP`: map each option to its group in the help text."""
    groups = {}
    for group, options in _TRAINER_OPTIONS_IN_HELP.items():
        groups.update(dict.fromkeys(options.split(), group))
    return groups


@dataclass
class RunArguments(PaperTrainingArguments):
    """The Trainer's arguments, extended by the options that `train` adds, such as token batches and R-Drop.

    The Trainer pickles an object of this class, so the module of the class must be importable.
    """

    _argument_groups = _group_by_option()

    tokens_per_batch: int | None = option(
        None, "Maximum tokens of a batch on each side, including padding; replaces --per_device_train_batch_size."
    )
    tokens_per_update: int | None = option(
        None,
        "Tokens of an update on each side, over all processes. They are split into batches that fit into memory.",
    )
    r_drop_alpha: float = option(0.0, "Weight of the R-Drop loss, such as 2.")
    rate_factor: float = option(1.0, "Factor of the learning rate of Eq. 3.")
    bf16: bool | None = option(  # type: ignore[assignment]
        None, "bfloat16 autocast, true or false (default: true if the device is faster in bfloat16)."
    )
    early_stopping_patience: int | None = option(
        None, "Stop after N evaluations in a row without a better --metric_for_best_model (or loss)."
    )
    resume_from_checkpoint: str | None = option(
        None,
        "Folder of a checkpoint, or last for the newest complete one in --output_dir, or auto, which is last but "
        "starts from scratch if there is none.",
    )
    save_total_limit: int | None = option(
        None, "Checkpoints to keep, including the best (default: 10, or more for --average_last); 0 keeps all."
    )
    report_to: list[str] | None = option(
        None, "Other tools that show the log: tensorboard, wandb, mlflow, ... They must be installed."
    )
    results: str | None = option(None, "Write settings, scores, times and versions to this JSON file.")
    hub_strategy: str = option("end", "When --push_to_hub pushes; other values than end also push during the training.")

    def __post_init__(self) -> None:
        """Check the arguments, and set arguments that depend on other arguments or on the device.

        The order around `super().__post_init__()` must stay. Before it come the steps that set what it reads, and that
        read what it replaces. After it comes the step that changes its result.
        """
        self._check_r_drop_and_rate()
        # The base class reads the arguments that this sets. For example, without `use_cpu`, it would reject `bf16` on a
        # machine that has only a CPU.
        self._set_defaults()
        if self.load_best_model_at_end:
            self._check_evaluates()
            self._check_saves_what_it_evaluates()

        # The base class replaces the user's `accelerator_config`, such as None, a dict or JSON, by an object that has a
        # value for every setting. It no longer shows which of them the user has set.
        user_sets_non_blocking = _sets_non_blocking(self.accelerator_config)
        super().__post_init__()
        if not user_sets_non_blocking:
            self._overlap_copies_with_updates()

    def _check_r_drop_and_rate(self) -> None:
        """Raise InputError if the weight of the R-Drop loss or the factor of the learning rate is out of range."""
        if not 0 <= self.r_drop_alpha < math.inf:
            raise InputError(f"r_drop_alpha is {self.r_drop_alpha}; give 0 for training without R-Drop, or a weight.")
        if not 0 < self.rate_factor < math.inf:
            raise InputError(f"rate_factor is {self.rate_factor}; it must be above 0. The paper's is 1.")

    def _set_defaults(self) -> None:
        """Set missing arguments whose values depend on other arguments or on the device. This changes the object."""
        if self.early_stopping_patience is not None and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        # The Trainer accepts bfloat16 on a CPU only if `use_cpu` is set.
        if not torch.accelerator.is_available():
            self.use_cpu = True
        # This comes after `use_cpu`, on which it depends.
        if self.bf16 is None:
            self.bf16 = not self.fp16 and is_faster_in_bfloat16(self.use_cpu)
        # Without a value, the run reports to no service.
        if not self.report_to:
            self.report_to = ["none"]

    def _check_evaluates(self) -> None:
        """Raise InputError if `load_best_model_at_end` is set, but the run never evaluates.

        The Trainer rejects most of these combinations. This method rejects the combinations that the Trainer accepts.
        """
        save_strategy = SaveStrategy(self.save_strategy).value
        eval_strategy = IntervalStrategy(self.eval_strategy).value
        # With other values of `save_strategy`, the Trainer itself raises an error.
        if eval_strategy == "no" and save_strategy in ("no", "best"):
            raise InputError(
                'load_best_model_at_end is set, but eval_strategy is "no"; give --eval_strategy and --save_strategy, '
                'both "steps" or both "epoch".'
            )

    def _check_saves_what_it_evaluates(self) -> None:
        """Raise InputError if a run with `load_best_model_at_end` evaluates every N updates, but saves every M updates.

        The Trainer accepts such numbers if M is a multiple of N. It may then lose the best model.
        """
        saves_by_steps = SaveStrategy(self.save_strategy) == SaveStrategy.STEPS
        evaluates_by_steps = IntervalStrategy(self.eval_strategy) == IntervalStrategy.STEPS
        both_use_steps = saves_by_steps and evaluates_by_steps
        if not both_use_steps:
            return
        eval_steps = self.eval_steps
        if not eval_steps:
            # The Trainer has the same default.
            eval_steps = self.logging_steps
        if self.save_steps != eval_steps:
            raise InputError(
                f"load_best_model_at_end is set, but save_steps is {self.save_steps:g} and eval_steps {eval_steps:g}, "
                "so the best model may not be saved; give both the same number."
            )

    def _overlap_copies_with_updates(self) -> None:
        """Make the Trainer copy each batch to the GPU while the GPU computes the previous update.

        This takes effect only with pinned memory, which CPUs do not need and MPS does not have. Without it, nothing is
        changed.
        """
        if self.dataloader_pin_memory and self.device.type not in ("cpu", "mps"):
            self.accelerator_config.non_blocking = True  # type: ignore[union-attr]

    def change(self, **changes: object) -> "RunArguments":
        """Return a copy in which some arguments are changed, without validating the arguments.

        `dataclasses.replace` would validate them again, and would repeat warnings.
        """
        changed_args = copy.copy(self)
        # `copy.copy` omits the token, because it uses `__getstate__`, which keeps the token out of pickled files.
        changed_args.hub_token = self.hub_token
        for name, value in changes.items():
            setattr(changed_args, name, value)
        return changed_args

    @property
    def uses_paper_schedule(self) -> bool:
        """True if the optimizer and the learning rate follow section 5.3 of the paper."""
        # The defaults of a dataclass are attributes of the class.
        for name in ("learning_rate", "lr_scheduler_type", "optim"):
            if getattr(self, name) != getattr(PaperTrainingArguments, name):
                return False
        return True

    def describe_optimizer(self) -> str:
        """Return a text about the optimizer and the schedule, such as "Adam, learning rate of Eq. 3"."""
        if self.uses_paper_schedule:
            description = self._describe_paper_optimizer()
        else:
            description = self._describe_chosen_optimizer()
        if self.weight_decay:
            description += f", weight decay {self.weight_decay:g}"
        if not self._has_paper_values_of_adam():
            description += f", betas {self.adam_beta1:g} and {self.adam_beta2:g}, epsilon {self.adam_epsilon:g}"
        return description

    def _describe_chosen_optimizer(self) -> str:
        """Return a text about an optimizer and a schedule that are not the paper's."""
        optimizer = OptimizerNames(self.optim).value
        schedule = SchedulerType(self.lr_scheduler_type).value
        return f"{optimizer}, learning rate {self.learning_rate:g}, schedule {schedule}"

    def _has_paper_values_of_adam(self) -> bool:
        """Return True if Adam has the paper's betas and epsilon."""
        # The defaults of these arguments are the paper's values.
        paper = PaperTrainingArguments
        paper_values = (paper.adam_beta1, paper.adam_beta2, paper.adam_epsilon)
        return (self.adam_beta1, self.adam_beta2, self.adam_epsilon) == paper_values

    def _describe_paper_optimizer(self) -> str:
        """Return a text about the paper's optimizer and schedule, such as "AdamW, learning rate of Eq. 3 times 2"."""
        # Adam with weight decay is called AdamW.
        optimizer = "AdamW" if self.weight_decay else "Adam"
        description = f"{optimizer}, learning rate of Eq. 3"
        if self.rate_factor != 1:
            description += f" times {self.rate_factor:.3g}"
        return description


def _sets_non_blocking(accelerator_config: object) -> bool:
    """Return True if the user's `accelerator_config` sets `non_blocking`.

    If it is a file or an `AcceleratorConfig` object, all of its settings count as set.
    """
    if accelerator_config is None:
        return False
    if isinstance(accelerator_config, dict):
        return "non_blocking" in accelerator_config
    if isinstance(accelerator_config, str) and accelerator_config.startswith("{"):
        # The string is not a file name, but JSON.
        return "non_blocking" in json.loads(accelerator_config)
    return True


def is_faster_in_bfloat16(use_cpu: bool) -> bool:
    """Return True if the training device computes matmuls faster in bfloat16 than in float32."""
    if use_cpu:
        return cpu_is_faster_in_bfloat16()
    # transformers accepts GPUs that emulate bfloat16 slowly, such as V100 and T4.
    is_emulated = torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False)
    return is_torch_bf16_gpu_available() and not is_emulated


@dataclass
class EvaluationArguments:
    """Options for choices that a run makes after training, based on scores on the validation pairs."""

    _argument_group_name = "evaluation"

    choose_search: bool = option(
        False,
        "Choose length penalty and stopping rule of the search on at most 500 validation pairs, after the training.",
    )


@dataclass
class OutputArguments:
    """Options for the output folder, such as which weights to save and whether to replace a model."""

    _argument_group_name = "output"

    license: str | None = option(None, "License of the weights, for the model card.")
    overwrite: bool = option(False, "Replace the model in --output_dir.")
    average_last: int | None = option(
        None,
        "Save the average of the last N checkpoints instead of the last weights (paper: 5, and 20 for big).",
    )
    keep_better: bool = option(
        False,
        "Keep the weights of the last checkpoint if they have a higher BLEU than the average on the validation pairs.",
    )

    def __post_init__(self) -> None:
        check_optional(self, "average_last")


@dataclass
class PreviewArguments:
    """Options for a dry run, which shows what would be trained and what it would cost."""

    _argument_group_name = "training"

    dry_run: bool = option(False, "Print what would be trained and its costs, and stop.")
    tflops: float | None = option(
        None, "With --dry_run, compute the costs for a GPU with this peak in bfloat16 TFLOP/s, which need not be here."
    )

    def __post_init__(self) -> None:
        if self.tflops is None:
            return
        if not self.dry_run or not 0 < self.tflops < math.inf:
            raise InputError(f"tflops is {self.tflops}; give a number above 0, and --dry_run.")


# Trainer arguments that would have no effect in `train`, or would make the run fail, each with the reason.
_REASONS = {
    "do_train": "has no effect, because `train` always trains",
    "do_eval": 'has no effect, because --eval_strategy "steps" or "epoch" evaluates during training',
    "do_predict": "has no effect, because --test_file translates and scores test pairs after training",
    "local_rank": "has no effect, because torchrun and accelerate launch set it",
    "sortish_sampler": "has no effect, because --train_sampling_strategy and --tokens_per_batch form batches",
    "length_column_name": "has no effect, because lengths are counted from the tokens",
    "include_for_metrics": "has no effect, because BLEU and chrF need translations only",
    "use_liger_kernel": "has no effect, because Liger has no kernels for this model",
    "batch_eval_metrics": "is not supported, because BLEU needs all translations",
    "eval_do_concat_batches": "is not supported, because BLEU needs all translations",
    "auto_find_batch_size": "is not supported, because its second attempt continues with the first one's weights",
}
# The error message of each argument that `train` does not accept.
REJECTED = {name: f"{name} {reason}; leave it out." for name, reason in _REASONS.items()}
REJECTED["label_smoothing_factor"] = "label_smoothing_factor has another name; give label_smoothing."
REJECTED["hub_token"] = "hub_token has another name; give token."
REJECTED["early_stopping"] = (
    "early_stopping belongs to the search of translate and evaluate; give early_stopping_patience."
)

# Arguments that are lists of names. `from_arguments` also accepts a single name.
_LIST_ARGUMENTS = (
    "train_file",
    "validation_file",
    "test_file",
    "monolingual_source_file",
    "teacher",
    "teacher_revision",
)
# If one of these arguments is given, the run has no plan.
_ARGUMENTS_WITHOUT_PLAN = ("preset", "max_steps", "model_name_or_path")
# Arguments that are not saved with a run, because they are secret or apply to a single start of the run.
_NOT_SAVED = ("token", "overwrite", "resume_from_checkpoint", "dry_run", "tflops")
# Arguments that a run's record omits. They name places, devices and accounts, and do not affect what the run computes.
_NOT_RECORDED = {
    "device",
    "disable_tqdm",
    "hub_model_id",
    "logging_dir",
    "model_name_or_path",
    "monolingual_source_file",
    "output_dir",
    "preprocessing_num_workers",
    "results",
    "run_name",
    "teacher",
    "test_file",
    "tokenizer_name",
    "train_file",
    "trust_remote_code",
    "use_cpu",
    "validation_file",
}


class Settings(NamedTuple):
    """All settings of a training run, with one object for each group of options.

    Args:
        given_arguments: the arguments that the user, a recipe or a plan has set, by name. A resumed run reuses them.
        needs_plan: True if a plan will choose the arguments that are not given.
    """

    model: ModelArguments
    data: RunDataArguments
    decoding: DecodingArguments
    scoring: ScoringArguments
    args: RunArguments
    evaluation: EvaluationArguments
    output: OutputArguments
    preview: PreviewArguments
    distillation: DistillationArguments
    given_arguments: Arguments = MappingProxyType({})
    needs_plan: bool = False

    @property
    def output_folder(self) -> Path:
        """The folder of the trained model, `output_dir`."""
        return Path(str(self.args.output_dir))

    @classmethod
    def from_arguments(cls, *, allow_plan: bool = False, **arguments: Any) -> "Settings":
        """Build settings from arguments of `train`, which are given by name.

        A run that resumes has the arguments that are saved in its folder, overridden by the given arguments.

        Args:
            allow_plan (`bool`): whether a plan may choose the arguments that are not given. With a recipe, this is
                False.
            **arguments: arguments of `train`. A single file need not be in a list.

        Raises InputError for an argument that `train` does not accept or for a wrong value, and TypeError for an
        unknown name.
        """
        _check_accepted(arguments)
        # The result is {} unless the run resumes from a checkpoint in its own output folder.
        saved_arguments = _read_saved_arguments(arguments)
        overridden_arguments = _merge_arguments(saved_arguments, arguments)
        is_resumed = bool(saved_arguments)
        needs_plan = allow_plan and not is_resumed and not _excludes_plan(overridden_arguments)

        # The defaults that this adds are saved with the run, as if the user had given them.
        arguments_to_save = _add_defaults(overridden_arguments, needs_plan)
        # What the Trainer needs in addition is not saved.
        option_values = _adapt_to_trainer(arguments_to_save)
        settings = build(cls, option_values)
        return settings._replace(given_arguments=arguments_to_save, needs_plan=needs_plan)

    def change_training(self, **changes: object) -> "Settings":
        """Return a copy in which some of the Trainer's arguments are changed."""
        return self._replace(args=self.args.change(**changes))

    def repeatable_arguments(self) -> dict[str, object]:
        """Return the given arguments with which the run can be repeated, as values that JSON can represent.

        Arguments that are secret or apply to a single start, such as `token` and `overwrite`, are left out.
        """
        # `_NOT_SAVED` has the names of the arguments that are left out.
        arguments = {name: value for name, value in self.given_arguments.items() if name not in _NOT_SAVED}
        # JSON turns enums, paths and tuples into strings and lists.
        arguments_in_json = json.dumps(arguments, default=str)
        return json.loads(arguments_in_json)

    def recorded_arguments(self) -> dict[str, object]:
        """Return the given arguments that affect what the run computes, for the results file of the run.

        `bf16` is always included, because its default depends on the device.
        """
        arguments = {}
        for name, value in self.repeatable_arguments().items():
            # `_NOT_RECORDED` has the names of the arguments that do not affect what the run computes.
            if name not in _NOT_RECORDED and value is not None:
                arguments[name] = value
        arguments["bf16"] = self.args.bf16
        return arguments

    def for_target_language(self) -> "Settings":
        """Return settings with the BLEU tokenization that suits the target language.

        If the run will not compute BLEU, the settings are returned unchanged.
        """
        # A data set on the Hub may have test pairs.
        may_have_test_pairs = bool(self.data.test_file or self.data.dataset_name)
        # Each of these options computes the BLEU on the validation pairs, during or after the training.
        scores_validation_pairs = bool(
            self.args.predict_with_generate
            or self.args.results
            or self.output.average_last
            or self.evaluation.choose_search
        )
        computes_bleu = may_have_test_pairs or scores_validation_pairs
        if not computes_bleu:
            return self
        _source_language, target_language = self.data.languages()
        return self._replace(scoring=self.scoring.for_target(target_language))


def _check_accepted(arguments: Arguments) -> None:
    """Raise InputError if there is an argument of the Trainer that `train` does not accept."""
    for name in sorted(arguments):
        # `REJECTED` maps the name of each such argument to the message.
        if name in REJECTED:
            raise InputError(REJECTED[name])


def _read_saved_arguments(arguments: Arguments) -> dict[str, object]:
    """Return the arguments that a resumed run has saved in its output folder.

    The result is {} if the run starts from scratch. It is also {} if the checkpoint is in a different folder, because
    that folder may be untrusted.
    """
    checkpoint_name = arguments.get("resume_from_checkpoint")
    if not checkpoint_name:
        return {}
    folder = _find_output_folder(arguments)
    if not _is_checkpoint_in(folder, checkpoint_name):
        return {}
    # The run has one of these two files. Its name depends on whether the Trainer pushed checkpoints.
    for file_name in (ARGUMENTS, ARGUMENTS_WHILE_PUSHED):
        path = folder / file_name
        if path.is_file():
            return read_recipe(str(path), Settings)
    return {}


def _find_output_folder(arguments: Arguments) -> Path:
    """Return the output folder of a run, by default that of the Trainer."""
    output_dir = arguments.get("output_dir")
    if output_dir:
        return Path(output_dir)
    return Path("trainer_output")


def _is_checkpoint_in(folder: Path, checkpoint_name: str | Path) -> bool:
    """Return True if a value of `resume_from_checkpoint` stands for a checkpoint in the run's folder."""
    if checkpoint_name in ("last", "auto"):
        return True
    return Path(checkpoint_name).resolve().parent == folder.resolve()


def _merge_arguments(saved_arguments: Arguments, arguments: Arguments) -> dict[str, Any]:
    """Return the saved arguments of a resumed run, overridden by the given arguments. Single files become lists.

    Without saved arguments, for example if the run starts from scratch, the given arguments are returned.
    """
    merged_arguments = dict(arguments)
    if saved_arguments:
        if "tokens_per_batch" in saved_arguments:
            # A run with `tokens_per_update` divides the tokens into batches that fit into its memory, and saves the
            # size of these batches as `tokens_per_batch`. Its checkpoints count batches, so a resumed run keeps their
            # size, even if the memory is different now.
            merged_arguments.pop("tokens_per_update", None)
        merged_arguments = override_recipe(saved_arguments, merged_arguments)
    # `_LIST_ARGUMENTS` has the names of the arguments that are lists, such as "train_file".
    for name in _LIST_ARGUMENTS:
        if merged_arguments.get(name) is not None:
            merged_arguments[name] = file_names(merged_arguments[name])
    return merged_arguments


def _excludes_plan(arguments: Arguments) -> bool:
    """Return True if an argument is set that rules out a plan, such as `max_steps`."""
    return any(arguments.get(name) for name in _ARGUMENTS_WITHOUT_PLAN)


def _add_defaults(arguments: Arguments, needs_plan: bool) -> dict[str, Any]:
    """Return the arguments together with defaults that depend on other arguments.

    Args:
        arguments: the given arguments. They are not changed.
        needs_plan: True if a plan will choose the arguments that are not given.
    """
    complete_arguments = dict(arguments)
    if arguments.get("device") == "cpu":
        # The Trainer has no argument `device`, but uses the CPU if `use_cpu` is set.
        complete_arguments["use_cpu"] = True
    if needs_plan:
        # A run with a plan cleans the pairs. The plan chooses `max_tokens`.
        complete_arguments.setdefault("clean", True)
    elif _is_split_by_memory(arguments):
        # The memory of the device determines the batch size. Without `max_tokens`, it would also determine which pairs
        # are too long.
        complete_arguments.setdefault("max_tokens", min(arguments["tokens_per_update"], TOKENS_PER_PROCESS))
    if arguments.get("load_best_model_at_end"):
        complete_arguments.update(_find_missing_strategies(arguments))
    return complete_arguments


def _adapt_to_trainer(given_arguments: Arguments) -> dict[str, Any]:
    """Return the arguments of a run together with what the Trainer needs in addition.

    The additional arguments are not saved with the run, because they follow from the given ones.
    """
    option_values = dict(given_arguments)
    # The Trainer has a different name for the argument `token`.
    option_values["hub_token"] = given_arguments.get("token")
    if given_arguments.get("load_best_model_at_end"):
        # The Trainer requires that the run evaluates and saves after the same numbers of updates.
        option_values.update(_match_steps(given_arguments))
    return option_values


def _is_split_by_memory(arguments: Arguments) -> bool:
    """Return True if the number of tokens per update is given, but not the number per batch.

    The batch size then depends on the memory of the device.
    """
    tokens_per_update = arguments.get("tokens_per_update")
    is_valid = isinstance(tokens_per_update, int) and tokens_per_update >= 1
    return is_valid and not arguments.get("tokens_per_batch")


def _find_missing_strategies(arguments: Arguments) -> dict[str, str]:
    """Return defaults for `eval_strategy` and `save_strategy`. Strategies that the user has given are left out.

    This is for runs with `load_best_model_at_end`. For them, the Trainer requires that the two strategies are equal, or
    that `save_strategy` is "best".
    """
    if "eval_strategy" in arguments and "save_strategy" in arguments:
        return {}
    if "eval_strategy" in arguments:
        return {"save_strategy": arguments["eval_strategy"]}
    if "save_strategy" not in arguments:
        # Both are missing.
        return {"eval_strategy": "steps", "save_strategy": "steps"}
    if arguments["save_strategy"] == "best":
        # The Trainer then saves when it evaluates. "best" is not a value of `eval_strategy`.
        return {"eval_strategy": "steps"}
    return {"eval_strategy": arguments["save_strategy"]}


def _match_steps(arguments: Arguments) -> dict[str, Any]:
    """Return equal values of `eval_steps` and `save_steps`, or {} if both are given.

    With `load_best_model_at_end`, they must be equal, because the Trainer can load the best model only if it has saved
    every model that it evaluated.
    """
    eval_steps = arguments.get("eval_steps")
    save_steps = arguments.get("save_steps")
    if eval_steps is not None and save_steps is not None:
        return {}
    common_steps = _choose_common_steps(arguments)
    return {"eval_steps": common_steps, "save_steps": common_steps}


def _choose_common_steps(arguments: Arguments) -> float:
    """Return the number of updates between evaluations, and between checkpoints, for a run that has one for both."""
    # If neither number is given, the Trainer evaluates when it logs.
    for name in ("eval_steps", "save_steps", "logging_steps"):
        if arguments.get(name) is not None:
            return arguments[name]
    return RunArguments.save_steps
