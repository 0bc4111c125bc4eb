"""Compute the learning rate by Equation 3 of the paper (section 5.3), for training and for plots."""

from .argument_checks import check_number


def paper_learning_rate(update: int, d_model: int, warmup_steps: int) -> float:
    """Return the learning rate of one update, as given by Equation 3 of the paper.

    The equation is lrate = d_model^-0.5 min(step_num^-0.5, step_num warmup_steps^-1.5). The rate rises linearly until
    the update `warmup_steps`, and then falls in proportion to the inverse square root of the update's number.

    Args:
        update (`int`): the update's number, counted from 1. The paper calls it step_num.
        d_model (`int`): width of the model.
        warmup_steps (`int`): number of warm-up updates.

    Raises:
        ValueError: if `update` or `warmup_steps` is below 1.
    """
    check_number("update", update, 1)
    check_number("warmup_steps", warmup_steps, 1)
    return d_model**-0.5 * min(update**-0.5, update * warmup_steps**-1.5)
