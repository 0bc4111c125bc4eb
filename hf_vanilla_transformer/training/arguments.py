"""Section 5 of the paper as defaults of `Seq2SeqTrainingArguments`."""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import Seq2SeqTrainingArguments, TrainingArguments

from ..model.fast_path import cpu_supports_matmul_in


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
