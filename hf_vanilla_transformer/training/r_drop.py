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


# Number of tokens per chunk in which the loss is computed.
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
    # Indices of the tokens that have a target, (targets,).
    target_positions = (labels != -100).nonzero()[:, 0]
    # `apply` takes arguments by position only, in the order of `_ChunkedLoss.forward`.
    return _ChunkedLoss.apply(logits, labels, target_positions, weight, label_smoothing)


class _LossOfChunk(NamedTuple):
    """The loss of a chunk, i.e. of some of a batch's tokens, with its gradient and its metric sums.

    Args:
        loss (`torch.Tensor`): the loss of [`r_drop_loss`], a scalar.
        gradient (`torch.Tensor` of shape `(2, tokens, vocabulary)`): gradient of the loss with respect to the logits.
        sums (`torch.Tensor` of shape `(3,)`): the sums of [`token_sums`] over both passes.
    """

    loss: torch.Tensor
    gradient: torch.Tensor
    sums: torch.Tensor


class _SmoothedTarget(NamedTuple):
    """The target distribution of a cross-entropy with label smoothing.

    Args:
        everywhere (`float`): probability of each token of the vocabulary, including the label.
        added_at_label (`float`): additional probability of the label.
    """

    everywhere: float
    added_at_label: float


class _ComparedPasses(NamedTuple):
    """The predictions of both passes for some tokens, and how much they differ.

    Args:
        probabilities (`torch.Tensor` of shape `(2, tokens, vocabulary)`): the probabilities p_1 and p_2 of both passes.
        log_ratios (`torch.Tensor` of shape `(tokens, vocabulary)`): log(p_1 / p_2).
        divergences (`torch.Tensor` of shape `(2, tokens)`): KL(1||2) and KL(2||1).
    """

    probabilities: torch.Tensor
    log_ratios: torch.Tensor
    divergences: torch.Tensor


def _choose_tokens_per_chunk(device: torch.device) -> int:
    """Return how many tokens a chunk has, so that it fits into a CPU's cache, or takes little of a GPU's memory."""
    if device.type == "cpu":
        return _TOKENS_PER_CHUNK_ON_CPUS
    return _TOKENS_PER_CHUNK_ON_GPUS


def _compute_loss_of_chunk(
    logits: torch.Tensor, labels: torch.Tensor, weight: float, label_smoothing: float
) -> _LossOfChunk:
    """Compute the R-Drop loss and its gradient for a chunk of tokens, all of which have a target.

    Args:
        logits (`torch.Tensor` of shape `(2, tokens, vocabulary)`): logits of both passes.
        labels (`torch.LongTensor` of shape `(tokens,)`): target tokens.
        weight, label_smoothing: see [`r_drop_loss`].
    """
    # (2, tokens, vocabulary)
    log_probabilities = logits.log_softmax(dim=-1)
    # The labels in the shape that `gather` and `scatter_add_` need, (2, tokens, 1).
    label_indices = labels.expand(2, -1)[..., None]
    # (2, tokens)
    label_log_probabilities = log_probabilities.gather(-1, label_indices)[..., 0]
    log_likelihood = label_log_probabilities.sum()
    target = _SmoothedTarget(everywhere=label_smoothing / logits.shape[-1], added_at_label=1 - label_smoothing)

    cross_entropies = _sum_cross_entropies(log_probabilities, log_likelihood, target)
    compared = _compare_passes(log_probabilities)
    loss = (cross_entropies + weight * compared.divergences.sum() / 2) / 2
    sums = _sum_metrics(log_probabilities, label_log_probabilities, log_likelihood)

    # Memory bandwidth limits the speed here, so the gradient overwrites the log-probabilities. This must come last,
    # because the lines above read them. None of the results above shares their memory.
    gradient = _compute_gradient(compared, label_indices, weight, target, out=log_probabilities)
    return _LossOfChunk(loss, gradient, sums)


def _sum_cross_entropies(
    log_probabilities: torch.Tensor, log_likelihood: torch.Tensor, target: _SmoothedTarget
) -> torch.Tensor:
    """Return CE_1 + CE_2, summed over the tokens, a scalar.

    A cross-entropy is the sum of -t * log(p) over the vocabulary. The smoothed target t is `everywhere` for all tokens
    of the vocabulary, and larger by `added_at_label` at the label.

    Args:
        log_probabilities (`torch.Tensor` of shape `(2, tokens, vocabulary)`): the log-probabilities of both passes.
        log_likelihood (`torch.Tensor`): the sum of the log-probabilities of the labels, a scalar.
        target: the smoothed target.
    """
    return -target.added_at_label * log_likelihood - target.everywhere * log_probabilities.sum()


def _sum_metrics(
    log_probabilities: torch.Tensor, label_log_probabilities: torch.Tensor, log_likelihood: torch.Tensor
) -> torch.Tensor:
    """Compute the sums of [`token_sums`] over both passes: cross-entropy, correct tokens, and all tokens.

    The cross-entropy is without label smoothing. As in `token_sums`, a label that ties for the highest probability
    counts as correct.

    Args:
        log_probabilities (`torch.Tensor` of shape `(2, tokens, vocabulary)`): the log-probabilities of both passes.
        label_log_probabilities (`torch.Tensor` of shape `(2, tokens)`): the log-probabilities of the labels.
        log_likelihood (`torch.Tensor`): the sum of `label_log_probabilities`, a scalar.

    Returns:
        `torch.Tensor` of shape `(3,)`.
    """
    # (2, tokens)
    highest_log_probabilities = log_probabilities.amax(dim=-1)
    correct = (label_log_probabilities >= highest_log_probabilities).sum()
    token_count = correct.new_tensor(label_log_probabilities.numel())
    # `stack` converts the two counts, which are integers, to the dtype of the log-likelihood.
    return torch.stack([-log_likelihood, correct, token_count])


def _compare_passes(log_probabilities: torch.Tensor) -> _ComparedPasses:
    """Compute the KL divergences between the predictions of two passes, and the values that the gradient needs.

    Args:
        log_probabilities (`torch.Tensor` of shape `(2, tokens, vocabulary)`): the log-probabilities of both passes.
    """
    # All results are new tensors, so the caller may overwrite `log_probabilities`.
    # (2, tokens, vocabulary)
    probabilities = log_probabilities.exp()
    # (tokens, vocabulary)
    log_ratios = log_probabilities[0] - log_probabilities[1]
    # (2, tokens)
    divergences = (probabilities * log_ratios).sum(dim=-1)
    # KL(2||1) is the sum of p_2 * log(p_2 / p_1), but the sum above has log(p_1 / p_2), which is the negative of that.
    divergences[1].neg_()
    return _ComparedPasses(probabilities, log_ratios, divergences)


def _compute_gradient(
    compared: _ComparedPasses,
    label_indices: torch.Tensor,
    weight: float,
    target: _SmoothedTarget,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """Compute the gradient of the R-Drop loss with respect to the logits. It overwrites the tensor `out`.

    Let p be the probabilities of a pass and q those of the other pass. Eq. 4 becomes, with w = weight / 4,

        CE_1 / 2 + CE_2 / 2 + w * (KL(1||2) + KL(2||1))

    With respect to the logits of p, the gradient of a cross-entropy is p - t, where t is the smoothed target, and the
    gradient of KL(p||q) + KL(q||p) is p * (log(p / q) - KL(p||q)) + p - q. Together, this is

        p * (0.5 + w - w * KL(p||q) + w * log(p / q)) - w * q - t / 2

    Two properties help to check a change: the gradient of each token sums to 0 over the vocabulary, and if both passes
    are equal, it is (p - t) / 2.

    Args:
        compared: the probabilities of both passes, and how much they differ.
        label_indices (`torch.LongTensor` of shape `(2, tokens, 1)`): the labels, once for each pass.
        weight: see [`r_drop_loss`].
        target: the target of the cross-entropies.
        out (`torch.Tensor` of shape `(2, tokens, vocabulary)`): is overwritten, and returned. Its memory must be
            separate from that of `compared`.
    """
    w = weight / 4
    factors_of_p = _compute_factors_of_probabilities(compared, w, out=out)
    # -t / 2 for all tokens of the vocabulary except the label, a scalar.
    negative_half_target = out.new_tensor(-target.everywhere / 2)
    # -t / 2 + factor * p. Each element needs only the same element of the factors, so it may overwrite them.
    gradient = torch.addcmul(negative_half_target, factors_of_p, compared.probabilities, out=out)
    # - w * q, where q is the other pass.
    gradient[0].sub_(compared.probabilities[1], alpha=w)
    gradient[1].sub_(compared.probabilities[0], alpha=w)
    # At the labels, t is larger by `added_at_label`.
    missing_at_labels = gradient.new_full(label_indices.shape, -target.added_at_label / 2)
    return gradient.scatter_add_(-1, label_indices, missing_at_labels)


def _compute_factors_of_probabilities(compared: _ComparedPasses, w: float, *, out: torch.Tensor) -> torch.Tensor:
    """Write the factor of p in the formula of `_compute_gradient` to `out`, for both passes, and return it.

    The factor is 0.5 + w - w * KL(p||q) + w * log(p / q). Its shape is `(2, tokens, vocabulary)`.
    """
    # 0.5 + w - w * KL(p||q), which is the same for the whole vocabulary: (2, tokens, 1)
    factors_of_tokens = 0.5 + w - w * compared.divergences[..., None]
    # `log_ratios` is log(p_1 / p_2). In the second pass, log(p / q) is its negative.
    torch.add(factors_of_tokens[0], compared.log_ratios, alpha=w, out=out[0])
    torch.add(factors_of_tokens[1], compared.log_ratios, alpha=-w, out=out[1])
    return out


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
            ctx: autograd's storage for tensors that the backward pass needs.
            logits (`torch.Tensor` of shape `(2, tokens, vocabulary)`): logits of the same tokens in two passes.
            labels (`torch.LongTensor` of shape `(tokens,)`): target tokens.
            target_positions (`torch.LongTensor` of shape `(targets,)`): indices of the tokens that have a target.
            weight, label_smoothing: see [`r_drop_loss`].
        """
        # The loss is computed in float32 if the logits have 16 bits.
        loss_dtype = torch.promote_types(logits.dtype, torch.float32)
        loss = logits.new_zeros((), dtype=loss_dtype)
        sums = loss.new_zeros(3)
        # Tokens without a target keep a gradient of zero, (2, tokens, vocabulary).
        gradient = torch.zeros_like(logits)
        for positions in target_positions.split(_choose_tokens_per_chunk(logits.device)):
            # (2, chunk's tokens, vocabulary)
            chunk_logits = logits[:, positions].to(loss_dtype)
            chunk = _compute_loss_of_chunk(chunk_logits, labels[positions], weight, label_smoothing)
            # The batch's loss is the sum over the chunks, so this is the chunk's part of the batch's gradient.
            gradient.index_copy_(1, positions, chunk.gradient.to(gradient.dtype))
            loss += chunk.loss
            sums += chunk.sums
        ctx.save_for_backward(gradient)
        # The sums are only logged.
        ctx.mark_non_differentiable(sums)
        return loss, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, loss_gradient: torch.Tensor, sums_gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        # `loss_gradient` is a scalar. One result for each argument of `forward`; only the logits have a gradient.
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
        # With `not`, this also rejects NaN, with which all comparisons are false.
        if not r_drop_alpha > 0:
            raise InputError(
                f"r_drop_alpha is {r_drop_alpha}; it must be above 0. Use Seq2SeqTrainer to train without R-Drop."
            )
        if kwargs.get("compute_loss_func") is not None:
            raise InputError("compute_loss_func was given, but RDropTrainer has its own loss; use Seq2SeqTrainer.")
        super().__init__(*args, **kwargs)
        # This check comes after the base class's constructor, which sets `self.args`.
        if self.args.label_smoothing_factor:
            raise InputError(
                f"label_smoothing_factor is {self.args.label_smoothing_factor}, but R-Drop uses the model's rate; set "
                "config.label_smoothing, or --label_smoothing on the command line."
            )
        self.r_drop_alpha = r_drop_alpha

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Compute the Trainer's loss. In training, it is the R-Drop loss of a batch that contains each sentence twice.

        The method of the base class reads the attribute `compute_loss_func`. If it is None, the model computes the loss
        from the labels in the batch. Otherwise, the base class lets the model compute the logits, and then calls
        `self.compute_loss_func(outputs, labels, num_items_in_batch=...)`.
        """
        # Each call sets the attribute before it calls the base class, because training and evaluation alternate. If it
        # were not reset in evaluation, the R-Drop loss would split an ordinary batch into two halves.
        if not model.training:
            self.compute_loss_func = None
            return super().compute_loss(model, inputs, *args, **kwargs)
        self.compute_loss_func = self._compute_r_drop_loss
        # Every tensor of the batch, (sentences, length), becomes (2 * sentences, length). The second half repeats the
        # first half, but gets different dropout masks. `_compute_r_drop_loss` separates the two halves.
        doubled_inputs = {name: torch.cat([tensor, tensor]) for name, tensor in inputs.items()}
        return super().compute_loss(model, doubled_inputs, *args, **kwargs)

    def _compute_r_drop_loss(
        self,
        outputs: Seq2SeqLMOutput,
        doubled_labels: torch.Tensor,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Compute the R-Drop loss per token of a batch whose second half repeats the first half.

        Also add the batch's [`token_sums`] to `outputs`, from which `TokenMetricsTrainer` logs its metrics.

        Args:
            outputs: output of the model, with logits of shape `(2 * sentences, length, vocabulary)`.
            doubled_labels (`torch.LongTensor` of shape `(2 * sentences, length)`): target tokens.
            num_items_in_batch: number of target tokens that the loss is divided by, if the Trainer has counted them.
        """
        labels, _repeated_labels = doubled_labels.chunk(2)
        logits = outputs["logits"]
        check_labels(labels, logits.shape[-1])
        # The halves of the batch become the two passes: (2, sentences * length, vocabulary).
        logits_of_passes = logits.view(2, labels.numel(), -1)
        label_smoothing = self.accelerator.unwrap_model(self.model).config.label_smoothing
        loss, sums_of_both_passes = r_drop_loss(logits_of_passes, labels.flatten(), self.r_drop_alpha, label_smoothing)
        # The mean of both passes, so that the log counts every target token once.
        outputs["token_sums"] = sums_of_both_passes / 2
        return per_token(loss, labels, num_items_in_batch)
