"""Section 5.3: Adam, with linear warm-up and inverse square root decay of the learning rate."""

from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, TrainingArguments

from ..support.paper_schedule import paper_learning_rate
from ..support.user_errors import InputError


def paper_optimizers(
    model: PreTrainedModel, args: TrainingArguments, factor: float = 1.0
) -> tuple[torch.optim.Adam, LambdaLR]:
    """Optimizer and schedule of section 5.3, for stock `Seq2SeqTrainer(..., optimizers=paper_optimizers(model, args))`.

    Update k = 1, 2, ... uses Eq. 3 at k, also after a resume.

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
    warmup_steps = args.warmup_steps
    if warmup_steps < 1 or warmup_steps != int(warmup_steps):
        raise InputError(f"warmup_steps is {warmup_steps}; give a whole number of updates, such as 4000.")
    trained: list[Any] = [parameter for parameter in model.parameters() if parameter.requires_grad]
    betas = args.adam_beta1, args.adam_beta2
    options: dict[str, Any] = {"lr": factor, "betas": betas, "eps": args.adam_epsilon, "fused": True}
    optimizer: torch.optim.Adam
    if args.weight_decay:
        matrices: Any = {"params": [parameter for parameter in trained if parameter.ndim > 1]}
        vectors: Any = {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0}
        optimizer = torch.optim.AdamW([matrices, vectors], weight_decay=args.weight_decay, **options)
    else:
        optimizer = torch.optim.Adam(trained, **options)
    d_model = model.config.d_model
    # LambdaLR passes the number of updates done so far.
    return optimizer, LambdaLR(optimizer, lambda done: paper_learning_rate(done + 1, d_model, int(warmup_steps)))
