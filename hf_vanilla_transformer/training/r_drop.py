"""Train with R-Drop (Liang et al. 2021, "R-Drop: Regularized Dropout for Neural Networks").

R-Drop is a regularizer. The model reads every sentence twice in one forward pass, with different dropout masks, and the
KL divergence between the two predictions is added to the loss. The model itself does not change. The Transformer paper
does not use R-Drop.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from transformers.modeling_outputs import Seq2SeqLMOutput

from ..model.input_checks import check_labels
from ..model.modeling_vanilla_transformer import per_token
from ..support.user_errors import InputError
from .token_metrics_trainer import TokenMetricsTrainer


# Number of tokens per chunk in which the loss is computed. With these sizes, a chunk's intermediate results fit into a
# CPU's cache, or take little of a GPU's memory.
_TOKENS_PER_CHUNK_ON_CPUS = 64
_TOKENS_PER_CHUNK_ON_GPUS = 2048


def r_drop_loss(
    logits: torch.Tensor, labels: torch.Tensor, weight: float, label_smoothing: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the R-Drop loss of a batch: half of Eq. 4 of Liang et al. 2021, summed over tokens.

        (CE_1 + CE_2 + weight * (KL(1||2) + KL(2||1)) / 2) / 2

    CE is the cross-entropy of a pass. The loss is halved so that for two equal predictions it equals the cross-entropy
    of one of them.

    Args:
        logits (`torch.Tensor` of shape `(2, tokens, vocabulary)`): logits of the same tokens in two passes.
        labels (`torch.LongTensor` of shape `(tokens,)`): target tokens; -100 where there is no target.
        weight (`float`): alpha, the weight of the KL divergence.
        label_smoothing (`float`): epsilon_ls of section 5.4. It applies to both cross-entropies.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: the loss in nats, a scalar in float32 or float64, which can be
            differentiated once; and the sums of [`token_sums`] over the tokens of both passes, of shape `(3,)`.
    """
    target_positions = (labels != -100).nonzero()[:, 0]
    return _ChunkedLoss.apply(logits, labels, target_positions, weight, label_smoothing)


class _LossOfChunk(NamedTuple):
    """Loss, gradient and metric sums of a chunk, i.e. of some of the batch's tokens.

    Args:
        loss (`torch.Tensor`): the loss of [`r_drop_loss`], a scalar.
        gradient (`torch.Tensor` of shape `(2, tokens, vocabulary)`): gradient of the loss with respect to the logits.
        sums (`torch.Tensor` of shape `(3,)`): the sums of [`token_sums`] over both passes.
    """

    loss: torch.Tensor
    gradient: torch.Tensor
    sums: torch.Tensor


def _compute_loss_of_chunk(
    logits: torch.Tensor, labels: torch.Tensor, weight: float, label_smoothing: float
) -> _LossOfChunk:
    """Compute the R-Drop loss and its gradient for a chunk of tokens, all of which have a target.

    For the predictions p and q of the two passes, the gradient of KL(p||q) + KL(q||p) with respect to the logits of p
    is p (log p - log q - KL(p||q)) + p - q. The gradient of a cross-entropy is p minus the smoothed target.
    """
    log_p = logits.log_softmax(dim=-1)
    label_indices = labels.expand(2, -1)[..., None]
    p = log_p.exp()
    # log p of the first pass minus log p of the second one, `(tokens, vocabulary)`.
    difference = log_p[0] - log_p[1]
    label_log_p = log_p.gather(-1, label_indices)[..., 0]
    # KL(1||2) and KL(2||1) for each token, `(2, tokens)`. In the second one, the difference has the opposite sign.
    signs = logits.new_tensor([1.0, -1.0])
    divergences = signs[:, None] * (p * difference).sum(dim=-1)

    # The smoothed target is `everywhere` at each token of the vocabulary, plus `at_label` at the label.
    at_label = 1 - label_smoothing
    everywhere = label_smoothing / log_p.shape[-1]
    cross_entropies = -at_label * label_log_p.sum() - everywhere * log_p.sum()
    loss = (cross_entropies + weight * divergences.sum() / 2) / 2

    correct = (label_log_p >= log_p.amax(dim=-1)).sum()
    sums = torch.stack([-label_log_p.sum(), correct, correct.new_tensor(label_log_p.numel())])

    # `share` is the weight of each divergence in the halved loss. With it, the gradient for the first pass is
    #   p[0] * (0.5 + share - share * divergence + share * difference) - share * p[1] - everywhere / 2
    # plus -at_label / 2 at the labels. For the second pass, p[0] and p[1] swap roles and the difference changes sign.
    share = weight / 4
    factors = 0.5 + share - share * divergences[..., None]
    constant = logits.new_tensor(-everywhere / 2)
    # Memory bandwidth limits the speed here, so there are few operations, and they overwrite `log_p`, which is no
    # longer needed.
    gradient = log_p
    for index, sign in enumerate((1, -1)):
        other_p = p[1 - index]
        torch.add(factors[index], difference, alpha=share * sign, out=gradient[index])
        torch.addcmul(constant, gradient[index], p[index], out=gradient[index]).sub_(other_p, alpha=share)
    gradient.scatter_add_(-1, label_indices, gradient.new_full(label_indices.shape, -at_label / 2))
    return _LossOfChunk(loss, gradient, sums)


class _ChunkedLoss(torch.autograd.Function):
    """Autograd function that computes the R-Drop loss in chunks of tokens, which saves memory.

    The forward pass computes the gradient together with the loss, so the backward pass only scales the gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        labels: torch.Tensor,
        target_positions: torch.Tensor,
        weight: float,
        label_smoothing: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the loss and the sums of [`r_drop_loss`], and save the gradient for the backward pass.

        Args:
            target_positions (`torch.LongTensor` of shape `(targets,)`): indices of the tokens that have a target.
            logits, labels, weight, label_smoothing: see [`r_drop_loss`].
        """
        loss = logits.new_zeros((), dtype=torch.promote_types(logits.dtype, torch.float32))
        sums = loss.new_zeros(3)
        gradient = torch.zeros_like(logits)
        is_on_cpu = logits.device.type == "cpu"
        tokens_per_chunk = _TOKENS_PER_CHUNK_ON_CPUS if is_on_cpu else _TOKENS_PER_CHUNK_ON_GPUS
        for positions in target_positions.split(tokens_per_chunk):
            chunk_logits = logits[:, positions].to(loss.dtype)
            chunk = _compute_loss_of_chunk(chunk_logits, labels[positions], weight, label_smoothing)
            gradient.index_copy_(1, positions, chunk.gradient.to(gradient.dtype))
            loss += chunk.loss
            sums += chunk.sums
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(sums)
        return loss, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_gradient: torch.Tensor, sums_gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        # Only the logits have a gradient.
        return gradient * loss_gradient, None, None, None, None


class RDropTrainer(TokenMetricsTrainer):
    """A `TokenMetricsTrainer` that trains with the R-Drop loss. Evaluation does not change.

    R-Drop (Liang et al. 2021) penalizes differences between the predictions for the same sentence under different
    dropout masks.

    Args:
        r_drop_alpha (`float`): weight of the KL divergence, which must be above 0.
        *args, **kwargs: arguments of `Seq2SeqTrainer`. The collator must return `decoder_input_ids`, as
            `DataCollatorForSeq2Seq(tokenizer, model=model)` does.

    Raises:
        ValueError: if `r_drop_alpha` is not above 0, or if `compute_loss_func` or `label_smoothing_factor` is set.
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
        """Compute the Trainer's loss. In training, compute the R-Drop loss of a batch with each sentence twice."""
        if not model.training:
            self.compute_loss_func = None
            return super().compute_loss(model, inputs, *args, **kwargs)
        self.compute_loss_func = self._compute_r_drop_loss
        doubled_inputs = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
        return super().compute_loss(model, doubled_inputs, *args, **kwargs)

    def _compute_r_drop_loss(
        self,
        outputs: Seq2SeqLMOutput,
        doubled_labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Compute the R-Drop loss per token of a batch whose second half repeats the first half."""
        labels, _ = doubled_labels.chunk(2)
        logits = outputs["logits"]
        check_labels(labels, logits.shape[-1])
        logits_of_passes = logits.view(2, labels.numel(), -1)
        label_smoothing = self.accelerator.unwrap_model(self.model).config.label_smoothing
        loss, sums_of_both_passes = r_drop_loss(logits_of_passes, labels.flatten(), self.r_drop_alpha, label_smoothing)
        # This is the mean of both passes, so that the log counts every target token once.
        outputs["token_sums"] = sums_of_both_passes / 2
        return per_token(loss, labels, num_items_in_batch)
