"""The arguments of a run: its model, its data, its training, its search and its scores."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from transformers import IntervalStrategy, PreTrainedTokenizerBase, SchedulerType
from transformers.trainer_utils import SaveStrategy
from transformers.training_args import OptimizerNames
from transformers.utils import is_torch_bf16_gpu_available

from ..acceleration.fast_path_checks import cpu_supports_matmul_in
from ..data.pair_arguments import TrainingDataArguments, file_names
from ..data.tokenizer import Normalization
from ..data.vocabularies import vocabularies_of
from ..evaluation.scoring_arguments import ScoringArguments
from ..hub.model_folder import ARGUMENTS, ARGUMENTS_WHILE_PUSHED
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.input_checks import sides_of
from ..support.argument_checks import check_optional
from ..support.build_arguments import build, option
from ..support.recipes import read_recipe
from ..support.user_errors import InputError
from ..translation.decoding_arguments import DecodingArguments
from ..translation.loading_arguments import LoadingArguments
from .paper_arguments import PaperTrainingArguments
from .recipe_overrides import override_recipe
from .teacher_arguments import TeacherArguments


# Arguments of a tokenizer that is trained.
TRAINED = ("vocab_size", "tokenizer_type", "joint_vocabulary", "whitespace_words", "normalization")
# The paper's update of 25,000 tokens on 8 GPUs has 3,125 on each. On a CPU, a batch has at most as many.
TOKENS_PER_PROCESS = 3125
# Of these, what only a byte-level BPE has.
_OF_BPE = ("joint_vocabulary", "whitespace_words", "normalization")


@dataclass
class ModelArguments(LoadingArguments):
    """The model to train: an existing one to fine-tune, or a preset from the paper with changes."""

    model_name_or_path: str | None = option(  # type: ignore[assignment]
        None, "Fine-tune this model, a folder or a name on the Hub, with its tokenizer and its sizes."
    )
    tokenizer_name: str | None = option(None, "Use this tokenizer, a folder or a name on the Hub; train none.")
    preset: str = option("base", 'Row of Table 3: big, "C N=2", E, ...')
    vocab_size: int = option(37000, "Maximum size of the joint BPE vocabulary, or of each.")
    tokenizer_type: Literal["bpe", "sentencepiece", "char"] = option(
        "bpe",
        "Byte-level BPE, characters, or SentencePiece as in OPUS-MT, for convert --to hf_marian.",
    )
    joint_vocabulary: bool = option(True, "One vocabulary for both languages, as in the paper, or one for each.")
    whitespace_words: bool = option(False, "Split text into words at spaces only, for text that is tokenized already.")
    normalization: Normalization = option(
        "nfc", "Changes of texts: of invisible characters, accents and spaces; nfkc: of variants, too."
    )
    num_layers: int | None = option(None, "Layers of each stack (base: 6).")
    d_model: int | None = option(None, "Model width (base: 512).")
    d_ff: int | None = option(None, "Width of the feed-forward networks (base: 2048).")
    num_heads: int | None = option(None, "Attention heads (base: 8).")
    dropout: float | None = option(None, "P_drop (base: 0.1).")
    label_smoothing: float | None = option(None, "epsilon_ls (base: 0.1).")
    initializer_factor: float | None = option(None, "Of initial weights (1); below 1 for 6 layers and more.")
    config_overrides: dict | str | None = option(
        None, "Other fields of VanillaTransformerConfig, as JSON: '{\"decoder_layers\": 2}'."
    )
    attn_implementation: str | None = option(None, "Attention of transformers, such as sdpa.")
    license: str | None = option(None, "Licence of the weights, for the model card.", group="output")
    max_tokens: int | None = option(
        None, "Remove training pairs with no text or more tokens on one side (default: tokens_per_batch).", group="data"
    )
    preprocessing_num_workers: int | None = option(None, "Processes that tokenize, for large corpora.", group="data")
    overwrite: bool = option(False, "Replace the model in --output_dir.", group="output")
    average_last: int | None = option(
        None,
        "Save the average of the last N checkpoints instead of the last weights. The paper averages 5, "
        "and 20 for the big model.",
        group="output",
    )
    keep_better: bool = option(
        False,
        "Keep the weights of the last checkpoint if they have more BLEU on the validation pairs than the average.",
        group="output",
    )
    choose_search: bool = option(
        False,
        "Choose length penalty and stopping rule of the search on at most 500 validation pairs, after the training.",
        group="evaluation",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_tokens", "preprocessing_num_workers", "average_last"):
            check_optional(self, name)
        text = self.config_overrides
        if isinstance(text, str):
            with suppress(json.JSONDecodeError):
                self.config_overrides = json.loads(text)
            if not isinstance(self.config_overrides, dict):
                raise InputError(
                    f"config_overrides is {text!r}; give a JSON object of names and values, such as '{{\"d_k\": 32}}'."
                )
        known = {each.name for each in fields(VanillaTransformerConfig)} | VanillaTransformerConfig.attribute_map.keys()
        unknown = set(self.config_overrides or {}) - known
        if unknown:
            raise InputError(f"config_overrides has {min(unknown)}, which is no field of VanillaTransformerConfig.")
        changed = [name for name in TRAINED if getattr(self, name) != getattr(type(self), name)]
        if self.tokenizer_type == "sentencepiece" and (unfit := [name for name in _OF_BPE if name in changed]):
            raise InputError(
                f"{unfit[0]} is {getattr(self, unfit[0])}, but SentencePiece has one vocabulary and its own "
                f"normalization; leave out --{unfit[0]}."
            )
        if self.tokenizer_type == "char" and self.whitespace_words:
            raise InputError("whitespace_words is True, but tokenizer_type is char, which has no words; leave one out.")
        if self.tokenizer_name is not None and changed:
            raise InputError(
                f"tokenizer_name is {self.tokenizer_name}, so no tokenizer is trained; leave out "
                f"{', '.join(f'--{name}' for name in TRAINED)}."
            )
        for name in ("preset", "tokenizer_name", "config_overrides", "initializer_factor"):
            value = getattr(self, name)
            if self.model_name_or_path is not None and value != getattr(type(self), name):
                raise InputError(
                    f"{name} is {value}, but {self.model_name_or_path} has sizes and a tokenizer; leave out one of the "
                    "two."
                )

    def regularization(self) -> dict[str, float]:
        """The fields of a configuration that fine-tuning may change."""
        values = {"dropout": self.dropout, "label_smoothing": self.label_smoothing}
        return {name: value for name, value in values.items() if value is not None}

    def check_sizes(self, config: VanillaTransformerConfig, name: str | Path) -> None:
        """Raise ValueError if a size was given that differs from an existing model's."""
        sizes = [("num_layers", "encoder_layers"), ("num_layers", "decoder_layers")]
        sizes += [(size, size) for size in ("d_model", "d_ff", "num_heads")]
        for argument, size in sizes:
            given, actual = getattr(self, argument), getattr(config, size)
            if given not in (None, actual):
                raise InputError(f"{argument} is {given}, but {name} has {actual}, which training does not change.")

    def config(self, tokenizer: PreTrainedTokenizerBase | None = None) -> VanillaTransformerConfig:
        """The configuration of a model from scratch; without a tokenizer, with the default vocabulary."""
        sizes = {"encoder_layers": self.num_layers, "decoder_layers": self.num_layers}
        sizes |= {"d_model": self.d_model, "d_ff": self.d_ff, "num_heads": self.num_heads}
        given: dict[str, Any] = {name: value for name, value in sizes.items() if value is not None}
        given |= self.regularization()
        if self.initializer_factor is not None:
            given["initializer_factor"] = self.initializer_factor
        overrides = self.config_overrides if isinstance(self.config_overrides, dict) else {}
        if tokenizer is not None:
            vocabularies = vocabularies_of(tokenizer)
            # Not their lengths, because ids may have gaps.
            counts = [max(vocabulary.values()) + 1 for vocabulary in vocabularies]
            rows = dict(zip(("source_vocab_size", "vocab_size"), counts, strict=True))
            of_tokenizer = special_tokens(tokenizer)
            given |= {"vocab_size": rows["vocab_size"], **of_tokenizer}
            if sides_of(tokenizer)[0] is not tokenizer or vocabularies[0] != vocabularies[1]:
                given["source_vocab_size"] = rows["source_vocab_size"]
            fewer = {name for name in rows if (overrides.get(name) or rows[name]) < rows[name]}
            # Decoding may start from any token.
            others = {name for name in of_tokenizer if overrides.get(name, of_tokenizer[name]) != of_tokenizer[name]}
            for name in sorted(fewer | others - {"decoder_start_token_id"}):
                wanted = rows[name] if name in fewer else of_tokenizer[name]
                raise InputError(f"config_overrides has {name} {overrides[name]}, but the tokenizer needs {wanted}.")
        return VanillaTransformerConfig.from_paper(self.preset, **{**given, **overrides})


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """A tokenizer's special tokens for a configuration; without BOS decoding starts from padding, as in Marian."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    ids = {name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None}
    return {
        "bos_token_id": tokenizer.eos_token_id,
        **ids,
        "decoder_start_token_id": ids.get("bos_token_id", tokenizer.pad_token_id),
    }


# Groups of `train --help`. It shows these and what this class adds; `--help_all` shows the Trainer's others, too.
_GROUPS = {
    "training": "per_device_train_batch_size gradient_accumulation_steps num_train_epochs max_steps "
    "learning_rate lr_scheduler_type warmup_steps optim weight_decay max_grad_norm seed fp16 use_cpu",
    "evaluation": "eval_strategy eval_steps per_device_eval_batch_size predict_with_generate generation_num_beams "
    "generation_max_length metric_for_best_model load_best_model_at_end early_stopping_patience",
    "output": "output_dir results save_strategy save_steps save_total_limit resume_from_checkpoint logging_steps "
    "report_to",
    "Hub": "push_to_hub hub_model_id hub_private_repo hub_revision hub_strategy",
}


@dataclass
class RunArguments(PaperTrainingArguments):
    """`PaperTrainingArguments` of `train`: batches by tokens, R-Drop, early stopping, and one push after the training.

    The Trainer pickles an object of this class, so its module must be importable.
    """

    _argument_groups = {name: group for group, names in _GROUPS.items() for name in names.split()}

    tokens_per_batch: int | None = option(
        None, "Maximum tokens of a batch on each side, with padding; not --per_device_train_batch_size."
    )
    tokens_per_update: int | None = option(
        None, "Tokens of an update per side, over all processes; its batches follow from the memory of the device."
    )
    r_drop_alpha: float = option(0.0, "Weight of the R-Drop loss, such as 2.")
    rate_factor: float = option(1.0, "Constant before Eq. 3 (paper: 1).")
    bf16: bool | None = option(  # type: ignore[assignment]
        None, "bfloat16 autocast, true or false (default: true where the device computes in it)."
    )
    early_stopping_patience: int | None = option(
        None, "Stop after N evaluations in a row without a better --metric_for_best_model (or loss)."
    )
    resume_from_checkpoint: str | None = option(
        None,
        "Checkpoint folder; last is the newest complete one in --output_dir; auto is the same, but starts "
        "from scratch without one.",
    )
    save_total_limit: int | None = option(
        None, "Checkpoints to keep, including the best (default: 10, or more for --average_last); 0: all."
    )
    report_to: list[str] | None = option(
        None, "What else shows the log: tensorboard, wandb, mlflow, ...; all of them must be installed."
    )
    results: str | None = option(None, "Write settings, scores, times and versions to this JSON file.")
    hub_strategy: str = option("end", "When --push_to_hub pushes; the Trainer's others push during training, too.")

    def __post_init__(self) -> None:
        if not 0 <= self.r_drop_alpha < math.inf:
            raise InputError(f"r_drop_alpha is {self.r_drop_alpha}; give 0 for training without R-Drop, or a weight.")
        if not 0 < self.rate_factor < math.inf:
            raise InputError(f"rate_factor is {self.rate_factor}; it must be above 0. The paper's is 1.")
        if self.early_stopping_patience is not None and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        # The Trainer accepts bfloat16 on a CPU only if `use_cpu` is set.
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        if self.bf16 is None:
            self.bf16 = not self.fp16 and computes_in_bfloat16(self.use_cpu)
        self.report_to = self.report_to or ["none"]
        if self.load_best_model_at_end:
            self._check_saves_what_it_evaluates()
        accelerator_config = self.accelerator_config
        super().__post_init__()
        # A batch is copied to a GPU while the update before it is computed. That takes effect from pinned memory only,
        # which MPS does not have.
        copies_from_pinned_memory = self.dataloader_pin_memory and self.device.type not in ("cpu", "mps")
        if copies_from_pinned_memory and not _sets_non_blocking(accelerator_config):
            self.accelerator_config.non_blocking = True  # type: ignore[union-attr]

    def _check_saves_what_it_evaluates(self) -> None:
        """Raise ValueError if a run that is to end with its best model would not save each model that it evaluates.

        The Trainer's arguments raise ValueError if the two strategies differ. These are the cases that they accept.
        """
        save_strategy = SaveStrategy(self.save_strategy).value
        eval_strategy = IntervalStrategy(self.eval_strategy).value
        if eval_strategy == "no" and save_strategy in ("no", "best"):
            raise InputError(
                'load_best_model_at_end is set, but eval_strategy is "no"; give --eval_strategy and --save_strategy, '
                'both "steps" or both "epoch".'
            )
        # As the Trainer's default.
        eval_steps = self.eval_steps or self.logging_steps
        # The Trainer accepts a multiple, and then loses a best model that it did not save.
        if save_strategy == eval_strategy == "steps" and self.save_steps != eval_steps:
            raise InputError(
                f"load_best_model_at_end is set, but save_steps is {self.save_steps:g} and eval_steps {eval_steps:g}, "
                "so the best model may not be saved; give both the same number."
            )

    @property
    def uses_paper_schedule(self) -> bool:
        """Whether optimizer and learning rate follow section 5.3."""
        names = ("learning_rate", "lr_scheduler_type", "optim")
        return all(getattr(self, name) == getattr(PaperTrainingArguments, name) for name in names)

    def describe_optimizer(self) -> str:
        """Optimizer and schedule in words."""
        others = f", weight decay {self.weight_decay:g}" if self.weight_decay else ""
        values = (self.adam_beta1, self.adam_beta2, self.adam_epsilon)
        if values != tuple(getattr(PaperTrainingArguments, f"adam_{name}") for name in ("beta1", "beta2", "epsilon")):
            others += f", betas {values[0]:g} and {values[1]:g}, epsilon {values[2]:g}"
        if self.uses_paper_schedule:
            factor = "" if self.rate_factor == 1 else f" times {self.rate_factor:.3g}"
            return f"{'AdamW' if self.weight_decay else 'Adam'}, learning rate of Eq. 3{factor}{others}"
        optimizer, schedule = OptimizerNames(self.optim).value, SchedulerType(self.lr_scheduler_type).value
        return f"{optimizer}, learning rate {self.learning_rate:g}, schedule {schedule}{others}"


def _sets_non_blocking(accelerator_config: object) -> bool:
    """Return True if the `accelerator_config` of a user decides whether copies of batches to the device block.

    A file and an `AcceleratorConfig` decide all of its settings.
    """
    if accelerator_config is None:
        return False
    if isinstance(accelerator_config, str) and accelerator_config.startswith("{"):
        accelerator_config = json.loads(accelerator_config)
    if isinstance(accelerator_config, dict):
        return "non_blocking" in accelerator_config
    return True


@dataclass
class PlanArguments:
    """What is asked of a plan."""

    _argument_group_name = "training"

    dry_run: bool = option(False, "Print what would be trained and what it would cost, and stop.")
    tflops: float | None = option(None, "Costs on a GPU elsewhere, of so many bfloat16 TFLOP/s; with --dry_run.")

    def __post_init__(self) -> None:
        if self.tflops is not None and not (self.dry_run and 0 < self.tflops < math.inf):
            raise InputError(f"tflops is {self.tflops}; give a number above 0, and --dry_run.")


def computes_in_bfloat16(use_cpu: bool) -> bool:
    """Whether the device that trains has matmuls in bfloat16."""
    if not use_cpu:
        # transformers accepts GPUs that emulate it slowly, such as V100 and T4.
        emulates = torch.cuda.is_available() and not torch.cuda.is_bf16_supported(including_emulation=False)
        return is_torch_bf16_gpu_available() and not emulates
    # torch does not report matmuls in bfloat16 for other processors.
    is_x86 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return is_x86 and cpu_supports_matmul_in(torch.bfloat16)


# Arguments of the Trainer that would have no effect here, or stop the run.
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
REJECTED = {name: f"{name} {reason}; leave it out." for name, reason in _REASONS.items()}
REJECTED |= {
    "label_smoothing_factor": "label_smoothing_factor has another name; give label_smoothing.",
    "hub_token": "hub_token has another name; give token.",
    "early_stopping": "early_stopping belongs to the search of translate and evaluate; give early_stopping_patience.",
}

_NOT_TO_REPEAT = ("token", "overwrite", "resume_from_checkpoint", "dry_run", "tflops")
# With one of them, nothing is planned.
_SWITCH_OFF = ("preset", "max_steps", "model_name_or_path")
# Arguments that name places, devices and accounts rather than what a run computes.
_PLACES = {"device", "disable_tqdm", "hub_model_id", "logging_dir", "model_name_or_path", "output_dir", "results"}
_PLACES |= {"preprocessing_num_workers", "run_name", "test_file", "tokenizer_name", "train_file", "trust_remote_code"}
_PLACES |= {"use_cpu", "validation_file", "teacher", "monolingual_source_file"}


class Settings(NamedTuple):
    """All arguments of `train`; `given` has those that the user, a recipe, or a plan gave.

    `plans` tells whether a plan is to choose the others.
    """

    model: ModelArguments
    data: TrainingDataArguments
    decoding: DecodingArguments
    scoring: ScoringArguments
    args: RunArguments
    plan: PlanArguments
    teacher: TeacherArguments
    given: Mapping[str, Any] = MappingProxyType({})
    plans: bool = False

    @property
    def output(self) -> Path:
        """The folder of the trained model."""
        return Path(str(self.args.output_dir))

    @classmethod
    def from_arguments(cls, *, may_plan: bool = False, **arguments: Any) -> "Settings":
        """Settings from arguments by name; a single file needs no list.

        A run that is resumed has the arguments of its folder, overridden by those given here.

        Args:
            may_plan (`bool`): whether a plan may choose what is not given; a recipe chooses itself.
        """
        for name in sorted(arguments.keys() & REJECTED.keys()):
            raise InputError(REJECTED[name])
        earlier = _arguments_of_resumed(arguments)
        if "tokens_per_batch" in earlier:
            # A checkpoint counts batches, so a resumed run keeps its own, whatever would fit into memory now.
            arguments.pop("tokens_per_update", None)
        arguments = override_recipe(earlier, arguments)
        if arguments.get("device") == "cpu":  # The Trainer chooses its device by `use_cpu`.
            arguments["use_cpu"] = True
        for name in (
            "train_file",
            "validation_file",
            "test_file",
            "monolingual_source_file",
            "teacher",
            "teacher_revision",
        ):
            if arguments.get(name) is not None:
                arguments[name] = file_names(arguments[name])
        plans = may_plan and not earlier and not any(arguments.get(name) for name in _SWITCH_OFF)
        if plans:
            arguments.setdefault("clean", True)
        elif _is_split_by_memory(arguments):
            # Otherwise the memory of the device would decide which pairs are too long.
            arguments.setdefault("max_tokens", min(arguments["tokens_per_update"], TOKENS_PER_PROCESS))
        if arguments.get("load_best_model_at_end"):
            save_strategy = arguments.get("save_strategy", "steps")
            arguments.setdefault("eval_strategy", "steps" if save_strategy == "best" else save_strategy)
            arguments.setdefault("save_strategy", arguments["eval_strategy"])
        settings = build(cls, {**arguments, **_steps_of_best(arguments)})
        settings.args.hub_token = settings.model.token
        return settings._replace(given=arguments, plans=plans)

    def to_repeat(self) -> dict[str, Any]:
        """What was given, as plain values: no token, and nothing that would replace or resume the run."""
        given = {name: value for name, value in self.given.items() if name not in _NOT_TO_REPEAT}
        return json.loads(json.dumps(given, default=str))  # Enums, paths and tuples.

    def to_record(self) -> dict[str, Any]:
        """What was given that changes what a run computes, and the precision that was chosen."""
        given = {name: value for name, value in self.to_repeat().items() if name not in _PLACES and value is not None}
        return {**given, "bf16": self.args.bf16}

    def for_target_language(self) -> "Settings":
        """The settings with the tokenization of BLEU for the target language, if the run may compute BLEU."""
        data, args, model = self.data, self.args, self.model
        scores = data.test_file or data.dataset_name or args.predict_with_generate or args.results
        if not (scores or model.average_last or model.choose_search):
            return self
        return self._replace(scoring=self.scoring.for_target(data.languages()[1]))


def _is_split_by_memory(arguments: Mapping[str, Any]) -> bool:
    """Return True if the tokens of an update are given, and not those of a batch."""
    tokens_per_update = arguments.get("tokens_per_update")
    is_valid = isinstance(tokens_per_update, int) and tokens_per_update >= 1
    return is_valid and not arguments.get("tokens_per_batch")


def _steps_of_best(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return `eval_steps` and `save_steps` for `load_best_model_at_end`: one that is not given equals the other.

    They must be equal, because the Trainer can only load a model that it has saved. Without this option, return {}.
    """
    if not arguments.get("load_best_model_at_end"):
        return {}
    eval_steps = arguments.get("eval_steps")
    save_steps = arguments.get("save_steps")
    if save_steps is None:
        save_steps = eval_steps
    if save_steps is None:
        # If neither is given, the Trainer evaluates when it logs.
        save_steps = arguments.get("logging_steps")
    if save_steps is None:
        save_steps = RunArguments.save_steps
    if eval_steps is None:
        eval_steps = save_steps
    return {"eval_steps": eval_steps, "save_steps": save_steps}


def _arguments_of_resumed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in the output folder of a resumed run; none of a checkpoint elsewhere, which may be untrusted."""
    resumed, folder = arguments.get("resume_from_checkpoint"), Path(arguments.get("output_dir") or "trainer_output")
    if not resumed or (resumed not in ("last", "auto") and Path(resumed).resolve().parent != folder.resolve()):
        return {}
    files = [path for name in (ARGUMENTS, ARGUMENTS_WHILE_PUSHED) if (path := folder / name).is_file()]
    return read_recipe(str(files[0]), Settings) if files else {}
