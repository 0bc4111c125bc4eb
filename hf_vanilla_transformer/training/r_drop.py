"""R-Drop (Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks"); the paper does not use it.

The model reads every batch twice in one forward pass, with different dropout masks, and the loss adds the KL divergence
between the two predictions. The model does not change.
"""

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ..model.input_checks import check_labels
from ..model.loss_kernels import per_token
from .token_metrics import TokenMetricsTrainer


# The loss is computed in chunks of this many tokens: intermediate results fit in a CPU's cache, or take little GPU
# memory.
_TOKENS_AT_ONCE, _TOKENS_AT_ONCE_ON_GPUS = 128, 2048


def r_drop_loss(
    logits: torch.Tensor, labels: torch.Tensor, weight: float, label_smoothing: float = 0.0, ignore_index: int = -100
) -> tuple[torch.Tensor, torch.Tensor]:
    """Liang et al. 2021, Eq. 4, halved and summed over tokens: (CE_1 + CE_2 + weight * (KL(1||2) + KL(2||1)) / 2) / 2.

    It is halved so that the loss of two equal predictions is the cross-entropy of one.

    Args:
        logits (`torch.Tensor` of shape `(2, tokens, vocabulary)`): logits of the same tokens in two passes.
        labels (`torch.LongTensor` of shape `(tokens,)`): target tokens, or `ignore_index`.
        weight (`float`): alpha, the weight of the KL divergence.
        label_smoothing (`float`): epsilon_ls of section 5.4, in both cross-entropies.
        ignore_index (`int`): label of tokens without a loss.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the loss in nats, a scalar in float32 or float64, which can be
            differentiated once; and the sums of [`token_sums`] over the tokens of both passes, `(3,)`.
    """
    valid = (labels != ignore_index).nonzero()[:, 0]
    return _RDropLoss.apply(logits, labels, valid, weight, label_smoothing)


class _RDropLoss(torch.autograd.Function):
    """The forward pass computes the loss and its gradient; the backward pass only scales the gradient.

    Let p be the softmax of the logits z of one pass, q that of the other, y the label, and r = sum p log(p/q). The
    gradient of the cross-entropy with respect to z is p - epsilon / V, minus 1 - epsilon at y; that of the two KL
    divergences is p (log(p/q) - r) + p - q.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        valid: torch.Tensor,
        weight: float,
        label_smoothing: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        precise = torch.promote_types(logits.dtype, torch.float32)
        right, everywhere = 1 - label_smoothing, label_smoothing / logits.shape[-1]
        of_entropy, of_divergence = 1 / 2, weight / 4
        total, plain, highest = logits.new_zeros(3, dtype=precise)
        gradient = torch.zeros_like(logits)
        minus_everywhere = total - of_entropy * everywhere
        # log(p/q) changes its sign between the two passes.
        signed = of_divergence * total.new_tensor([1, -1])[:, None, None]
        at_once = _TOKENS_AT_ONCE if logits.device.type == "cpu" else _TOKENS_AT_ONCE_ON_GPUS
        for tokens in valid.split(at_once):
            log_p = logits[:, tokens].to(precise).log_softmax(dim=-1)
            p = log_p.exp()
            p_log_ratio = p * (log_p[0] - log_p[1])
            divergences = signed * p_log_ratio.sum(dim=-1, keepdim=True)
            right_tokens = labels[tokens].expand(2, -1)[..., None]
            of_right = log_p.gather(-1, right_tokens)
            plain -= of_right.sum()
            highest += (of_right >= log_p.amax(dim=-1, keepdim=True)).sum()
            entropies = right * of_right.sum() + everywhere * log_p.sum()
            total += divergences.sum() - of_entropy * entropies
            of_part = torch.addcmul(minus_everywhere, p, of_entropy + of_divergence - divergences)
            of_part.addcmul_(p_log_ratio, signed)
            of_part[0].sub_(p[1], alpha=of_divergence)
            of_part[1].sub_(p[0], alpha=of_divergence)
            of_part.scatter_add_(-1, right_tokens, of_part.new_full(right_tokens.shape, -of_entropy * right))
            gradient.index_copy_(1, tokens, of_part.to(gradient.dtype))
        ctx.save_for_backward(gradient)
        sums = torch.stack([plain, highest, highest.new_tensor(2 * len(valid))])
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
            raise ValueError(
                f"r_drop_alpha is {r_drop_alpha}; it must be above 0. Use Seq2SeqTrainer to train without R-Drop."
            )
        if kwargs.get("compute_loss_func") is not None:
            raise ValueError("compute_loss_func was given, but RDropTrainer has its own loss; use Seq2SeqTrainer.")
        super().__init__(*args, **kwargs)
        if self.args.label_smoothing_factor:
            raise ValueError(
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
        loss, self._token_sums = r_drop_loss(logits, labels.flatten(), self.r_drop_alpha, smoothing)
        return per_token(loss, labels, num_items_in_batch)

    def sums_of_batch(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """The sums that the loss counted, over both passes."""
        return self._token_sums
