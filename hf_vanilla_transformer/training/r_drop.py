"""R-Drop (Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks"), which the paper does not have.

Every batch goes through the model twice at once, with other neurons dropped, and the loss also asks the two predictions
to be alike. The model stays the paper's.
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from transformers import Seq2SeqTrainer

from hf_vanilla_transformer.modeling_vanilla_transformer import check_labels, per_token


# Rows of logits that are looked at at one time: what is computed on the way is many times as large as they are.
_ROWS_AT_ONCE = 512


def r_drop_loss(
    first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor, weight: float, label_smoothing: float = 0.0
) -> torch.Tensor:
    """Liang et al. 2021, Eq. 4, halved and summed over tokens: (CE_1 + CE_2 + weight * (KL(1||2) + KL(2||1)) / 2) / 2.

    Half of it, so that two predictions that are equal have the loss of one.

    Args:
        first, second (`torch.Tensor` of shape `(tokens, vocabulary)`): logits of the same tokens in two passes.
        labels (`torch.LongTensor` of shape `(tokens,)`): the right tokens.
        weight (`float`): alpha; the more, the more alike.
        label_smoothing (`float`): epsilon of section 5.4, in both cross-entropies.

    Returns:
        `torch.Tensor`: one number, in nats, in float32 at least. It can be differentiated once.
    """
    return _RDropLoss.apply(first, second, labels, weight, label_smoothing)


class _RDropLoss(torch.autograd.Function):
    """The loss, and its gradients, which the backward pass only scales."""

    @staticmethod
    def forward(
        ctx: Any, first: torch.Tensor, second: torch.Tensor, labels: torch.Tensor, weight: float, label_smoothing: float
    ) -> torch.Tensor:
        precise = torch.promote_types(first.dtype, torch.float32)
        total = first.new_zeros((), dtype=precise)
        gradients = torch.empty_like(first), torch.empty_like(second)
        for begin in range(0, len(labels), _ROWS_AT_ONCE):
            part = slice(begin, begin + _ROWS_AT_ONCE)
            log_p, log_q = (logits[part].to(precise).log_softmax(dim=-1) for logits in (first, second))
            p, q, difference = log_p.exp(), log_q.exp(), log_p - log_q
            for log_own, own, other, more, gradient in (
                (log_p, p, q, difference, gradients[0]),
                (log_q, q, p, -difference, gradients[1]),
            ):
                entropy, of_entropy = _cross_entropy(log_own, own, labels[part], label_smoothing)
                divergence, of_divergence = _divergence(own, other, more)
                total += entropy / 2 + weight / 4 * divergence
                gradient[part] = of_entropy.mul_(0.5).add_(of_divergence, alpha=weight / 4)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        first, second = (gradient * grad for gradient in ctx.saved_tensors)
        return first, second, None, None, None


def _cross_entropy(
    log_p: torch.Tensor, p: torch.Tensor, labels: torch.Tensor, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over rows of the smoothed cross-entropy, and its gradient by the logits: p, less the target."""
    everywhere, labels = label_smoothing / p.shape[-1], labels[:, None]
    total = -(1 - label_smoothing) * log_p.gather(-1, labels).sum() - everywhere * log_p.sum()
    gradient = p - everywhere
    return total, gradient.scatter_add_(-1, labels, gradient.new_full(labels.shape, label_smoothing - 1))


def _divergence(p: torch.Tensor, q: torch.Tensor, difference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over rows of KL(p||q), and the gradient of KL(p||q) + KL(q||p) by the logits of p.

    `difference` is log p - log q.
    """
    products = p * difference
    of_rows = products.sum(dim=-1, keepdim=True)
    return of_rows.sum(), products.add_(p).sub_(q).sub_(p * of_rows)


class RDropTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that trains with R-Drop; evaluation is as ever.

    Args:
        r_drop (`float`): alpha, the weight of the divergence; above 0.
        The rest: as `Seq2SeqTrainer` takes it. The collator must give `decoder_input_ids`, as
            `DataCollatorForSeq2Seq(tokenizer, model=model)` does.

    Raises:
        ValueError: if `r_drop` is not above 0, or the Trainer is given another loss.
    """

    def __init__(self, *args: Any, r_drop: float, **kwargs: Any):
        if not r_drop > 0:
            raise ValueError(f"r_drop is {r_drop}; it must be above 0. Without it, take Seq2SeqTrainer.")
        if kwargs.get("compute_loss_func") is not None:
            raise ValueError("compute_loss_func was given to a Trainer whose loss is R-Drop's; take Seq2SeqTrainer.")
        super().__init__(*args, **kwargs)
        self.r_drop = r_drop

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As the Trainer's, of two passes, which are one of a batch twice as large."""
        self.compute_loss_func = self._loss if model.training else None
        if model.training:
            inputs = {name: torch.cat([value, value]) for name, value in inputs.items()}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        labels, _ = labels.chunk(2)
        first, second = outputs.logits.chunk(2)
        check_labels(labels, first.shape[-1])
        is_there = labels != -100
        smoothing = self.accelerator.unwrap_model(self.model).config.label_smoothing
        total = r_drop_loss(first[is_there], second[is_there], labels[is_there], self.r_drop, smoothing)
        return per_token(total, labels, num_items_in_batch)
