"""R-Drop (Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks"); the paper does not use it.

The model reads every batch twice in one forward pass, with different dropout masks, and the loss adds the KL divergence
between the two predictions. The model does not change.
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ..model.input_checks import check_labels
from ..model.modeling_vanilla_transformer import per_token
from ..support.user_errors import InputError
from .token_metrics_trainer import TokenMetricsTrainer


# The loss is computed in chunks of this many tokens: intermediate results fit in a CPU's cache, or take little GPU
# memory.
_TOKENS_AT_ONCE, _TOKENS_AT_ONCE_ON_GPUS = 64, 2048


def r_drop_loss(
    logits: torch.Tensor, labels: torch.Tensor, weight: float, label_smoothing: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Liang et al. 2021, Eq. 4, halved and summed over tokens: (CE_1 + CE_2 + weight * (KL(1||2) + KL(2||1)) / 2) / 2.

    It is halved so that the loss of two equal predictions is the cross-entropy of one.

    Args:
        logits (`torch.Tensor` of shape `(2, tokens, vocabulary)`): logits of the same tokens in two passes.
        labels (`torch.LongTensor` of shape `(tokens,)`): target tokens; -100 where there is no target.
        weight (`float`): alpha, the weight of the KL divergence.
        label_smoothing (`float`): epsilon_ls of section 5.4, in both cross-entropies.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the loss in nats, a scalar in float32 or float64, which can be
            differentiated once; and the sums of [`token_sums`] over the tokens of both passes, `(3,)`.
    """
    valid = (labels != -100).nonzero()[:, 0]
    return _InChunks.apply(logits, labels, valid, weight, label_smoothing)


def _loss_and_gradient(
    logits: torch.Tensor, labels: torch.Tensor, weight: float, label_smoothing: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss of [`r_drop_loss`], its gradient by the logits, and its sums, for labels that all count.

    With predictions p and q, KL(p||q) + KL(q||p) has the gradient p (log p - log q - KL(p||q)) + p - q by the logits
    of p. The gradient of a cross-entropy is p minus the smoothed target.
    """
    log_p, label = logits.log_softmax(dim=-1), labels.expand(2, -1)[..., None]
    p, difference = log_p.exp(), log_p[0] - log_p[1]
    of_labels, signs = log_p.gather(-1, label)[..., 0], logits.new_tensor([1.0, -1.0])
    divergences = signs[:, None] * (p * difference).sum(dim=-1)
    right, everywhere = 1 - label_smoothing, label_smoothing / log_p.shape[-1]
    entropies = -right * of_labels.sum() - everywhere * log_p.sum()
    loss = (entropies + weight * divergences.sum() / 2) / 2
    share, constant = weight / 4, logits.new_tensor(-everywhere / 2)
    factors = 0.5 + share - share * divergences[..., None]
    correct = (of_labels >= log_p.amax(dim=-1)).sum()
    # Memory bounds the speed of these operations, so they are few, and write in place.
    gradient = log_p
    for k in range(2):
        torch.add(factors[k], difference, alpha=share * (1 - 2 * k), out=gradient[k])
        torch.addcmul(constant, gradient[k], p[k], out=gradient[k]).sub_(p[1 - k], alpha=share)
    gradient.scatter_add_(-1, label, gradient.new_full(label.shape, -right / 2))
    return loss, gradient, torch.stack([-of_labels.sum(), correct, correct.new_tensor(of_labels.numel())])


class _InChunks(torch.autograd.Function):
    """The forward pass computes the loss and its gradient in chunks; the backward pass only scales the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        valid: torch.Tensor,
        weight: float,
        label_smoothing: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32))
        sums, gradient = total.new_zeros(3), torch.zeros_like(logits)
        at_once = _TOKENS_AT_ONCE if logits.device.type == "cpu" else _TOKENS_AT_ONCE_ON_GPUS
        for tokens in valid.split(at_once):
            chunk = logits[:, tokens].to(total.dtype)
            loss, gradient_of_chunk, sums_of_chunk = _loss_and_gradient(chunk, labels[tokens], weight, label_smoothing)
            gradient.index_copy_(1, tokens, gradient_of_chunk.to(gradient.dtype))
            total += loss
            sums += sums_of_chunk
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(sums)
        return total, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad, None, None, None, None


class RDropTrainer(TokenMetricsTrainer):
    """`TokenMetricsTrainer` that trains with R-Drop; evaluation does not change.

    Args:
        r_drop_alpha (`float`): weight of the KL divergence; above 0.
        *args, **kwargs: arguments of `Seq2SeqTrainer`. The collator must return `decoder_input_ids`, as
            `DataCollatorForSeq2Seq(tokenizer, model=model)` does.

    Raises:
        ValueError: if `r_drop_alpha` is not above 0, or the Trainer is given `compute_loss_func` or
            `label_smoothing_factor`.
    """

    def __init__(self, *args: Any, r_drop_alpha: float, **kwargs: Any):
        if not r_drop_alpha > 0:
            raise InputError(
                f"r_drop_alpha is {r_drop_alpha}; it must be above 0. Use Seq2SeqTrainer to train without R-Drop."
            )
        if kwargs.get("compute_loss_func") is not None:
            raise InputError("compute_loss_func was given, but RDropTrainer has its own loss; use Seq2SeqTrainer.")
        super().__init__(*args, **kwargs)
        if self.args.label_smoothing_factor:
            raise InputError(
                f"label_smoothing_factor is {self.args.label_smoothing_factor}, but R-Drop uses the model's rate; set "
                "config.label_smoothing, or --label_smoothing on the command line."
            )
        self.r_drop_alpha = r_drop_alpha

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's loss; in training, of a batch that holds every sentence twice."""
        self.compute_loss_func = self._loss if model.training else None
        if model.training:
            inputs = {name: torch.cat([value, value]) for name, value in inputs.items()}
        return super().compute_loss(model, inputs, *args, **kwargs)

    def _loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        labels, _ = labels.chunk(2)
        check_labels(labels, outputs.logits.shape[-1])
        logits = outputs.logits.view(2, labels.numel(), -1)
        smoothing = self.accelerator.unwrap_model(self.model).config.label_smoothing
        loss, sums_of_both_passes = r_drop_loss(logits, labels.flatten(), self.r_drop_alpha, smoothing)
        # The mean of the two passes, so that the log counts every target token once.
        outputs["token_sums"] = sums_of_both_passes / 2
        return per_token(loss, labels, num_items_in_batch)
