"""Section 5.3: Adam, with linear warm-up and inverse square root decay of the learning rate."""

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, Trainer, TrainingArguments

from ..support.paper_schedule import paper_learning_rate
from ..support.user_errors import InputError


class PaperSchedule:
    """Adam and the learning rate of section 5.3 in a stock `Trainer`, also with FSDP2 and DeepSpeed.

    With stock `Trainer` or `Seq2SeqTrainer`, one line before `trainer.train()`:

    ```python
    PaperSchedule.use_in(trainer)
    ```

    Update k = 1, 2, ... uses Eq. 3 at k, also after a resume. In one process the weights equal those of
    [`paper_optimizers`] bit for bit, and a run can resume from checkpoints of the other. The difference is who makes
    the optimizer: `paper_optimizers` makes it before the Trainer, which raises an error with FSDP and ignores it with
    DeepSpeed. Here the Trainer makes it when a training starts.

    Args:
        trainer (`Trainer`): its arguments supply `warmup_steps` (updates), `adam_beta1`, `adam_beta2`, `adam_epsilon`
            and `weight_decay`. They are read when a training starts, so that the trials of a hyperparameter search may
            change them. `learning_rate`, `lr_scheduler_type` and `optim` are ignored.
        factor (`float`): multiplies Eq. 3; the paper's is 1. Smaller factors suit batches much smaller than the
            paper's 25,000 tokens on each side.
    """

    def __init__(self, trainer: Trainer, factor: float = 1.0) -> None:
        self.trainer = trainer
        self.factor = factor

    @classmethod
    def use_in(cls, trainer: Trainer, factor: float = 1.0) -> "PaperSchedule":
        """Make a stock `Trainer` or `Seq2SeqTrainer` train with Adam and the learning rate of section 5.3.

        Args:
            trainer, factor: see the class. Call it before `trainer.train()`.

        Returns:
            `PaperSchedule`: the schedule that the Trainer uses.

        Raises:
            AttributeError: if the configuration of the model has no `d_model`, which Eq. 3 needs.
            ValueError: if `warmup_steps` is not a whole number of updates, the Trainer already has an optimizer or a
                schedule, or the configuration of DeepSpeed sets one.
        """
        schedule = cls(trainer, factor)
        schedule._check()
        trainer.create_optimizer = schedule.create_optimizer  # type: ignore[method-assign]
        trainer.create_scheduler = schedule.create_scheduler  # type: ignore[method-assign]
        return schedule

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Let the Trainer create Adam, or AdamW with weight decay, for its model or the one that its engine wrapped."""
        trainer = self.trainer
        options = _adam_options(trainer.args, self.factor)
        if not trainer.args.weight_decay:
            # The Trainer's own two groups would differ in nothing. One group, as `paper_optimizers` makes, can be
            # resumed from its checkpoints. The Trainer takes an entry "params" in the place of its groups.
            trained_model: Any = trainer.model if model is None else model
            options["params"] = _trained_parameters(trained_model)
        trainer.optimizer_cls_and_kwargs = (_adam_class(trainer.args), options)
        # The method of the class, because that of the object is this one.
        return type(trainer).create_optimizer(trainer, model)

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> LambdaLR:
        """Create Eq. 3 for the optimizer, unless there is a schedule; `num_training_steps` has no effect."""
        trainer = self.trainer
        if trainer.lr_scheduler is None:
            scheduled: Any = trainer.optimizer if optimizer is None else optimizer
            trainer.lr_scheduler = _equation_3(scheduled, self._d_model(), _warmup_steps(trainer.args))
            # As in the Trainer's own method: the next training then starts with a new schedule.
            trainer._created_lr_scheduler = True
        return trainer.lr_scheduler

    def _d_model(self) -> int:
        model: Any = self.trainer.model
        return model.config.d_model

    def _check(self) -> None:
        """Raise the errors that `use_in` documents."""
        trainer = self.trainer
        _warmup_steps(trainer.args)
        self._d_model()
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
    """Optimizer and schedule of section 5.3, for stock `Seq2SeqTrainer(..., optimizers=paper_optimizers(model, args))`.

    Update k = 1, 2, ... uses Eq. 3 at k, also after a resume. With FSDP or DeepSpeed use [`PaperSchedule`].

    Args:
        model (`PreTrainedModel`): Eq. 3 uses its `config.d_model`.
        args (`TrainingArguments`): supplies `warmup_steps` (updates), `adam_beta1`, `adam_beta2`, `adam_epsilon` and
            `weight_decay`; `learning_rate` is ignored, because Eq. 3 has none. The paper has no weight decay; a value
            above 0 selects AdamW and decays matrices only, as the Trainer does.
        factor (`float`): multiplies Eq. 3; the paper's is 1. Smaller factors suit batches much smaller than the
            paper's 25,000 tokens on each side.

    Returns:
        `tuple[Adam, LambdaLR]`: the optimizer (AdamW with weight decay) and the schedule.

    Raises:
        ValueError: if `args.warmup_steps` is not a whole number of updates.
    """
    warmup_steps = _warmup_steps(args)
    trained = _trained_parameters(model)
    groups: list[dict[str, Any]] = [{"params": trained}]
    if args.weight_decay:
        matrices = [parameter for parameter in trained if parameter.ndim > 1]
        vectors = [parameter for parameter in trained if parameter.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = _adam_class(args)(groups, **_adam_options(args, factor))
    return optimizer, _equation_3(optimizer, model.config.d_model, warmup_steps)


def _warmup_steps(args: TrainingArguments) -> int:
    """Return the number of warm-up updates; raise ValueError if the argument is a share of the training."""
    warmup_steps = args.warmup_steps
    if warmup_steps < 1 or warmup_steps != int(warmup_steps):
        raise InputError(f"warmup_steps is {warmup_steps}; give a whole number of updates, such as 4000.")
    return int(warmup_steps)


def _trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _adam_class(args: TrainingArguments) -> type[torch.optim.Adam]:
    return torch.optim.AdamW if args.weight_decay else torch.optim.Adam


def _adam_options(args: TrainingArguments, factor: float) -> dict[str, Any]:
    """Return the options of Adam; the schedule multiplies `lr`, so `lr` is the factor before Eq. 3."""
    return {"lr": factor, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon, "fused": True}


def _equation_3(optimizer: torch.optim.Optimizer, d_model: int, warmup_steps: int) -> LambdaLR:
    """Create the schedule that multiplies the optimizer's learning rate by Eq. 3."""
    # LambdaLR passes the number of updates done so far. A checkpoint has that number, and no function.
    return LambdaLR(optimizer, lambda done: paper_learning_rate(done + 1, d_model, warmup_steps))
