"""Provide `Seq2SeqTrainingArguments` whose defaults are the training settings of the paper (section 5)."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from transformers import Seq2SeqTrainingArguments, TrainingArguments

from ..support.argument_checks import check_number
from ..support.build_arguments import option


# Durations in seconds.
_DAY = 24 * 60 * 60
_YEAR = 365 * _DAY


@dataclass
class PaperTrainingArguments(Seq2SeqTrainingArguments):
    """Training arguments for `Seq2SeqTrainer` whose defaults follow section 5 of the paper as closely as possible.

    - Adam has beta_1 = 0.9, beta_2 = 0.98 and epsilon = 1e-9. The learning rate warms up over 4000 updates and then
      decays with the inverse square root of the number of updates (section 5.3).
    - There is no gradient clipping and no weight decay, because the paper does not mention them.
    - Batches contain sentences of approximately equal length (section 5.1).
    - `label_smoothing_factor` is 0, because the model itself smooths labels (section 5.4, `config.label_smoothing`). A
      value above 0 replaces the model's rate. With the same rate, the training loss is the same, but the evaluation
      loss is then smoothed, unlike the model's own evaluation loss.

    Arguments cannot express Eq. 3 exactly, for two reasons: Eq. 3 depends on d_model, and the `inverse_sqrt` schedule
    of transformers lags one update behind it (its first update has learning rate 0). Therefore `learning_rate` is the
    peak for the base model, 512^-0.5 4000^-0.5. To follow Eq. 3 exactly with any model, call [`PaperSchedule.use_in`]
    before the training.

    If [`CompleteCheckpoints`] is among the callbacks, a run that resumes in the middle of an epoch reads the sentences
    in the same order as an uninterrupted run. Without it, transformers draws a new order for `group_by_length`.

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

    ddp_timeout: int = option(_DAY, "Seconds that processes wait for each other, on GPUs and CPUs.")

    def __post_init__(self) -> None:
        """Check `ddp_timeout`, a number of seconds, and make it take effect on CPUs as well."""
        # Python and PyTorch cannot represent durations that are much longer than a year.
        check_number("ddp_timeout", self.ddp_timeout, 1, _YEAR)
        if self.use_cpu:
            # Imported here, because inference does not need accelerate.
            from accelerate import PartialState

            # On CPUs, the base class ignores `ddp_timeout`, but it uses a process group that already exists. The
            # first `PartialState` of a process creates the group.
            timeout = timedelta(seconds=self.ddp_timeout)
            PartialState(cpu=True, backend=self.ddp_backend, timeout=timeout)
        super().__post_init__()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle. It excludes the Hub token, because the Trainer uploads the pickled arguments."""
        return {**self.__dict__, "hub_token": None}


def describe_precision(args: TrainingArguments) -> str:
    """Describe the precision in which training computes matmuls in linear layers, such as "bfloat16 autocast".

    The precision depends on the arguments and on this machine's device.
    """
    if args.mixed_precision == "no":
        return "float32"
    if args.mixed_precision == "fp16":
        if args.device.type == "cpu":
            return "float32, because accelerate does not use float16 on CPUs"
        return "float16 autocast"
    return "bfloat16 autocast"
