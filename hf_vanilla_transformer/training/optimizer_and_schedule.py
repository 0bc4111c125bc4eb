"""Set up the optimizer of section 5.3: Adam, with a linear warm-up and an inverse square root decay.

Equation 3 of the paper (Eq. 3) is the formula of this learning rate schedule.
"""

from typing import Any, cast

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, Trainer, TrainingArguments

from ..support.paper_schedule import paper_learning_rate
from ..support.user_errors import InputError


class PaperSchedule:
    """Adam with the learning rate schedule of section 5.3, for a stock `Trainer`. It works with FSDP2 and DeepSpeed.

    With a stock `Trainer` or `Seq2SeqTrainer`, add one line before `trainer.train()`:

    ```python
    PaperSchedule.use_in(trainer)
    ```

    Update k = 1, 2, ... has the learning rate of Eq. 3 at step k, even after a resume.

    In one process, the resulting weights are bit for bit the same as with [`paper_optimizers`], and a run that uses one
    of the two can resume from checkpoints of the other. They differ in when the optimizer is created.
    `paper_optimizers` creates it before the Trainer, so the Trainer raises an error with FSDP and ignores the optimizer
    with DeepSpeed. With `PaperSchedule`, the Trainer creates the optimizer when the training starts.

    Args:
        trainer (`Trainer`): its arguments supply `warmup_steps` (updates), `adam_beta1`, `adam_beta2`, `adam_epsilon`
            and `weight_decay`. They are read when training starts, so the trials of a hyperparameter search can change
            them. `learning_rate`, `lr_scheduler_type` and `optim` are ignored.
        factor (`float`): factor of the learning rate of Eq. 3. The paper uses 1. Smaller factors suit batches that are
            much smaller than the paper's 25,000 tokens on each side.
    """

    def __init__(self, trainer: Trainer, factor: float = 1.0) -> None:
        self.trainer = trainer
        self.factor = factor

    @classmethod
    def use_in(cls, trainer: Trainer, factor: float = 1.0) -> "PaperSchedule":
        """Make a stock `Trainer` or `Seq2SeqTrainer` train with Adam and the learning rate of section 5.3.

        Args:
            trainer (`Trainer`): the Trainer. Its `train()` must not have been called yet.
            factor (`float`): factor of the learning rate of Eq. 3. The paper uses 1.

        Returns:
            `PaperSchedule`: the schedule that the Trainer uses.

        Raises:
            AttributeError: if the model's configuration has no `d_model`, which Eq. 3 needs.
            ValueError: if `warmup_steps` is not a whole number of updates, if the Trainer already has an optimizer or a
                schedule, or if DeepSpeed's configuration sets one.
        """
        schedule = cls(trainer, factor)
        # This raises the errors before the Trainer is changed.
        schedule._check_trainer()
        trainer.create_optimizer = schedule.create_optimizer  # type: ignore[method-assign]
        trainer.create_scheduler = schedule.create_scheduler  # type: ignore[method-assign]
        return schedule

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Create the optimizer: Adam, or AdamW if there is weight decay.

        `use_in` has put this method in the place of the Trainer's method of the same name. If `trainer.optimizer` is
        already set, it is returned unchanged.

        Args:
            model: the model to train, which FSDP or DeepSpeed may have wrapped. The default is the Trainer's model.
        """
        trainer = self.trainer
        # The Trainer's own method makes the optimizer from this attribute, and sets `trainer.optimizer`.
        trainer.optimizer_cls_and_kwargs = (_choose_adam_class(trainer.args), self._make_adam_options(model))
        # `use_in` has replaced the method of this one Trainer, so `trainer.create_optimizer` would call the present
        # method again without end. The class still has the original method.
        trainer_class = type(trainer)
        return trainer_class.create_optimizer(trainer, model)

    def _make_adam_options(self, model: nn.Module | None) -> dict[str, Any]:
        """Return the optimizer's keyword arguments. Without weight decay, they contain the weights as "params".

        From "params", the Trainer makes a single parameter group, as in `paper_optimizers`, and otherwise two, one with
        and one without weight decay. A run can resume only from checkpoints with the same number of groups.
        """
        args = self.trainer.args
        adam_options = _adam_options(args, self.factor)
        if not args.weight_decay:
            trained_model = cast("nn.Module", self.trainer.model if model is None else model)
            adam_options["params"] = _find_trained_parameters(trained_model)
        return adam_options

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        """Create the learning rate schedule of Eq. 3, unless the Trainer already has a schedule.

        This method replaces the Trainer's method of the same name.

        Args:
            num_training_steps: has no effect, because Eq. 3 does not depend on the length of the training.
            optimizer: the optimizer whose learning rate follows Eq. 3. The default is the Trainer's optimizer.
        """
        trainer = self.trainer
        if trainer.lr_scheduler is not None:
            return trainer.lr_scheduler
        scheduled_optimizer = cast("torch.optim.Optimizer", trainer.optimizer if optimizer is None else optimizer)
        warmup_steps = _read_warmup_steps(trainer.args)
        schedule = _create_schedule(scheduled_optimizer, self._read_d_model(), warmup_steps)
        # Set both attributes as the Trainer's own method does. The second one makes the Trainer drop this schedule
        # before the next training.
        trainer.lr_scheduler = schedule
        trainer._created_lr_scheduler = True
        return schedule

    def _read_d_model(self) -> int:
        model = cast("PreTrainedModel", self.trainer.model)
        return model.config.d_model

    def _check_trainer(self) -> None:
        """Raise AttributeError or ValueError if the Trainer cannot use this schedule; `use_in` lists the cases."""
        trainer = self.trainer
        # Both raise an error if the value cannot be used.
        _read_warmup_steps(trainer.args)
        self._read_d_model()
        if trainer.optimizer is not None or trainer.lr_scheduler is not None:
            raise InputError(
                "the Trainer already has an optimizer or a schedule; make a Trainer without optimizers=, and call "
                "PaperSchedule.use_in(trainer) before trainer.train()."
            )
        if trainer.is_deepspeed_enabled:
            config = trainer.accelerator.state.deepspeed_plugin.hf_ds_config.config
            for name in ("optimizer", "scheduler"):
                if name in config:
                    raise InputError(
                        f'the configuration of DeepSpeed has "{name}", but Adam and the learning rate follow section '
                        f'5.3; remove "{name}" from it, or leave out PaperSchedule.'
                    )


def paper_optimizers(
    model: PreTrainedModel, args: TrainingArguments, factor: float = 1.0
) -> tuple[torch.optim.Adam, LambdaLR]:
    """Create Adam and the learning rate schedule of section 5.3, to be passed to a stock `Trainer`.

    ```python
    trainer = Seq2SeqTrainer(..., optimizers=paper_optimizers(model, args))
    ```

    Update k = 1, 2, ... has the learning rate of Eq. 3 at step k, even after a resume. With FSDP or DeepSpeed, use
    [`PaperSchedule`] instead.

    Args:
        model (`PreTrainedModel`): the model to train. Eq. 3 depends on its `config.d_model`.
        args (`TrainingArguments`): supplies `warmup_steps` (updates), `adam_beta1`, `adam_beta2`, `adam_epsilon` and
            `weight_decay`. `learning_rate` is ignored, because Eq. 3 has no such parameter. The paper uses no weight
            decay. A value above 0 selects AdamW and decays only matrices, as in the Trainer.
        factor (`float`): factor of the learning rate of Eq. 3. The paper uses 1. Smaller factors suit batches that are
            much smaller than the paper's 25,000 tokens on each side.

    Returns:
        `tuple[Adam, LambdaLR]`: the optimizer, which is AdamW if there is weight decay, and the schedule.

    Raises:
        ValueError: if `args.warmup_steps` is not a whole number of updates.
    """
    warmup_steps = _read_warmup_steps(args)
    adam_class = _choose_adam_class(args)
    optimizer = adam_class(_make_parameter_groups(model, args.weight_decay), **_adam_options(args, factor))
    schedule = _create_schedule(optimizer, model.config.d_model, warmup_steps)
    return optimizer, schedule


def _read_warmup_steps(args: TrainingArguments) -> int:
    """Return the number of warm-up updates.

    Raises:
        ValueError: if `warmup_steps` is not a whole number of updates. The Trainer would treat a value below 1 as a
            fraction of all updates.
    """
    warmup_steps = args.warmup_steps
    if warmup_steps < 1 or warmup_steps != int(warmup_steps):
        raise InputError(f"warmup_steps is {warmup_steps}; give a whole number of updates, such as 4000.")
    return int(warmup_steps)


def _make_parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups. With weight decay there are two groups, because only matrices decay.

    The order of the groups and of their parameters must stay, because checkpoints store Adam's moments by position.
    """
    parameters = _find_trained_parameters(model)
    if not weight_decay:
        return [{"params": parameters}]
    matrices = [parameter for parameter in parameters if parameter.ndim > 1]
    # Biases and the weights of layer norms.
    vectors = [parameter for parameter in parameters if parameter.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]


def _find_trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _choose_adam_class(args: TrainingArguments) -> type[torch.optim.Adam]:
    return torch.optim.AdamW if args.weight_decay else torch.optim.Adam


def _adam_options(args: TrainingArguments, factor: float) -> dict[str, Any]:
    """Return Adam's keyword arguments. `lr` is only a factor, which the schedule multiplies by the rate of Eq. 3."""
    # With `fused`, PyTorch combines the operations of an update in a few kernels, which is faster.
    return {"lr": factor, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon, "fused": True}


def _create_schedule(optimizer: torch.optim.Optimizer, d_model: int, warmup_steps: int) -> LambdaLR:
    """Create the schedule that multiplies the optimizer's learning rate by Eq. 3."""

    def compute_rate(completed_updates: int) -> float:
        # LambdaLR counts completed updates from 0, but the first update has step 1 in Eq. 3.
        return paper_learning_rate(completed_updates + 1, d_model, warmup_steps)

    # LambdaLR saves the number of completed updates in a checkpoint, but not the function.
    return LambdaLR(optimizer, compute_rate)
