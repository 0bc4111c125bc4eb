"""Section 5 of the paper as defaults of `Seq2SeqTrainingArguments`."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from transformers import Seq2SeqTrainingArguments, TrainingArguments

from ..support.argument_checks import check_number
from ..support.build_arguments import option


# In seconds. The first process may tokenize a large corpus while the others wait.
_A_DAY = 24 * 60 * 60
# Python and torch cannot represent much longer times.
_A_YEAR = 365 * _A_DAY


@dataclass
class PaperTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` whose defaults are section 5 of the paper, as far as arguments can say it.

    Adam with beta_1 = 0.9, beta_2 = 0.98 and epsilon = 1e-9, warm-up over 4000 updates, then inverse square root decay
    (section 5.3); no gradient clipping and no weight decay, which the paper does not mention; batches of sentences of
    approximately equal length (section 5.1). The model smooths labels itself (section 5.4, `config.label_smoothing`),
    so `label_smoothing_factor` is 0. A value above 0 replaces the model's rate: the training loss is the same, but the
    evaluation loss is smoothed too, which the model's is not.

    Arguments cannot express Eq. 3: it depends on d_model, and transformers' `inverse_sqrt` schedule lags it by one
    update (its first update has learning rate 0). `learning_rate` is therefore the peak for the base model,
    512^-0.5 4000^-0.5. For exactly Eq. 3 with any model, call [`PaperSchedule.use_in`] before the training.

    With [`CompleteCheckpoints`] among the callbacks, a run that resumes in the middle of an epoch reads the sentences
    in the order of an uninterrupted run. Without it transformers draws the order of `group_by_length` anew.

    Processes that train together wait for each other for at most `ddp_timeout` seconds. The default is 24 hours instead
    of the Trainer's 30 minutes, because the first process may tokenize a large corpus while the others wait.
    """

    _argument_group_name = "training"

    learning_rate: float = option(512**-0.5 * 4000**-0.5, "Peak learning rate (default: the schedule of Eq. 3).")
    lr_scheduler_type: str = option("inverse_sqrt", "Schedule after the warm-up.")
    warmup_steps: float = option(4000, "Number of warm-up updates.")
    adam_beta1: float = option(0.9, "beta_1 of Adam.")
    adam_beta2: float = option(0.98, "beta_2 of Adam.")
    adam_epsilon: float = option(1e-9, "epsilon of Adam.")
    weight_decay: float = option(0.0, "Weight decay; the paper has none.")
    max_grad_norm: float = option(0.0, "Clip gradients to this norm; 0 does not clip.")
    train_sampling_strategy: str = option("group_by_length", "Batch sentences of approximately equal length.")

    logging_nan_inf_filter: bool = option(False, "Replace non-finite losses in the log.")

    ddp_timeout: int = option(_A_DAY, "Seconds that processes wait for each other, on GPUs and CPUs.")

    def __post_init__(self) -> None:
        check_number("ddp_timeout", self.ddp_timeout, 1, _A_YEAR)
        if self.use_cpu:
            # Here, because inference needs no accelerate.
            from accelerate import PartialState

            # On CPUs the Trainer ignores `ddp_timeout`, but it keeps a process group that exists already.
            timeout = timedelta(seconds=self.ddp_timeout)
            PartialState(cpu=True, backend=self.ddp_backend, timeout=timeout)
        super().__post_init__()

    def __getstate__(self) -> dict[str, Any]:
        """The state without the Hub token, which the Trainer would pickle into folders that it pushes."""
        return {**self.__dict__, "hub_token": None}


def describe_precision(args: TrainingArguments) -> str:
    """The precision of matmuls in linear layers, with these arguments on this machine, in words."""
    if args.mixed_precision == "no":
        return "float32"
    if args.mixed_precision == "fp16" and args.device.type == "cpu":
        return "float32, because accelerate does not use float16 on CPUs"
    return "float16 autocast" if args.mixed_precision == "fp16" else "bfloat16 autocast"
