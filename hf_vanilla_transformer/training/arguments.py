"""Section 5 of the paper as defaults of `Seq2SeqTrainingArguments`."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import SchedulerType, Seq2SeqTrainingArguments, TrainingArguments
from transformers.training_args import OptimizerNames

from ..model.fast_path import cpu_supports_matmul_in


# Section 5.3 is left as soon as one of these is given.
_OPTIMIZER_ARGUMENTS = ("learning_rate", "lr_scheduler_type", "optim")


@dataclass
class PaperTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` whose defaults are section 5 of the paper, as far as arguments can say it.

    Adam with beta_1 = 0.9, beta_2 = 0.98 and epsilon = 1e-9, warm-up over 4000 updates and then the inverse square root
    (section 5.3); no gradient clipping and no weight decay, of which the paper says nothing; sentences of approximately
    equal length together (section 5.1). Label smoothing (section 5.4) is the model's own, `config.label_smoothing`, so
    `label_smoothing_factor` stays 0. Given, it takes the place of the model's own with the same loss in training, and
    smooths the loss of an evaluation, too, which the model's own leaves plain.

    What arguments cannot say: Eq. 3 depends on d_model, and transformers' `inverse_sqrt` schedule lags it by one update
    (its first update has learning rate 0). `learning_rate` is therefore the peak of the base model, 512^-0.5 4000^-0.5;
    for exactly Eq. 3 with any model, pass `optimizers=paper_optimizers(model, args)` to the Trainer.

    With [`CompleteCheckpoints`] among the callbacks, a run that is resumed in the middle of an epoch sees the sentences
    in the same order as one that was not stopped. Without it transformers draws `group_by_length` anew.
    """

    _argument_group_name = "training"

    learning_rate: float = field(
        default=512**-0.5 * 4000**-0.5,
        metadata={"help": "Peak of the schedule; not given, scripts/train.py uses Eq. 3."},
    )
    lr_scheduler_type: str = field(default="inverse_sqrt", metadata={"help": "Schedule after the warm-up."})
    warmup_steps: float = field(default=4000, metadata={"help": "Updates during which the learning rate rises."})
    adam_beta1: float = field(default=0.9, metadata={"help": "beta_1 of Adam."})
    adam_beta2: float = field(default=0.98, metadata={"help": "beta_2 of Adam."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "epsilon of Adam."})
    weight_decay: float = field(default=0.0, metadata={"help": "The paper has none."})
    max_grad_norm: float = field(default=0.0, metadata={"help": "Clip gradients to this norm; 0 does not clip."})
    train_sampling_strategy: str = field(
        default="group_by_length", metadata={"help": "Put sentences of approximately equal length together."}
    )

    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Leave losses that are no number out of the log, as if all went well."}
    )

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the token, which the Trainer would pickle into folders that it pushes. Copies lose it, too."""
        return {**self.__dict__, "hub_token": None}


@dataclass
class RunArguments(PaperTrainingArguments):
    """What scripts/train.py takes: batches by tokens, and one push of what it has trained, at its end, besides.

    A class of the package, not of the script, because the Trainer pickles it.
    """

    tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "Most tokens of a batch on each side, padding included, instead of --per_device_train_batch_size."
        },
    )
    largest_first: bool = field(
        default=False,
        metadata={"help": "Begin with the largest batch of --tokens_per_batch, so that too large a one shows at once."},
    )
    r_drop: float = field(
        default=0.0,
        metadata={"help": "Weight of R-Drop: each batch twice, with predictions alike; 2, for example. 0 is without."},
    )
    early_stopping_patience: int | None = field(
        default=None,
        metadata={
            "help": "Stop after so many evaluations in a row that are not better than the best, by "
            "--metric_for_best_model or else by the loss."
        },
    )
    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={
            "help": 'Go on from this checkpoint: a folder, or "last", the newest complete one in --output_dir; "auto" '
            "is the same, but begins where there is none."
        },
    )
    save_total_limit: int | None = field(
        default=None,
        metadata={"help": "Checkpoints to keep, the best among them; 0 keeps all. 10, or more for --average_last."},
    )
    hub_strategy: str = field(
        default="end",
        metadata={
            "help": 'When --push_to_hub pushes: "end", or as the Trainer\'s, which also push during the training.'
        },
    )

    def __post_init__(self) -> None:
        if not 0 <= self.r_drop < math.inf:
            raise ValueError(f"r_drop is {self.r_drop}; it must be 0, which is without, or a weight above it.")
        if self.early_stopping_patience is not None and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        super().__post_init__()

    @property
    def uses_the_paper_s_schedule(self) -> bool:
        """Whether optimizer and learning rate were left to section 5.3."""
        return all(getattr(self, name) == getattr(PaperTrainingArguments, name) for name in _OPTIMIZER_ARGUMENTS)

    def describe_optimizer(self) -> str:
        """Optimizer and schedule in words."""
        if self.uses_the_paper_s_schedule:
            return f"{'AdamW' if self.weight_decay else 'Adam'}, learning rate of Eq. 3"
        optimizer, schedule = OptimizerNames(self.optim).value, SchedulerType(self.lr_scheduler_type).value
        return f"{optimizer}, learning rate {self.learning_rate:g}, schedule {schedule}"


def describe_precision(args: TrainingArguments) -> str:
    """In which precision linear layers make their products, with these arguments and on this machine, in words.

    Layers that somebody has changed, by adapters or hooks, compute as torch does, and are not looked at.
    """
    on_cpu = args.device.type == "cpu"
    if args.mixed_precision == "no":
        return "float32"
    if args.mixed_precision == "fp16":
        return "float32, because accelerate leaves float16 out on CPUs" if on_cpu else "float16 autocast"
    if on_cpu and not args.torch_compile and not cpu_supports_matmul_in(torch.bfloat16):
        return "float32, because the CPU has no products in bfloat16"
    return "bfloat16 autocast"
