"""Provide a Trainer that logs perplexity and token accuracy without extra forward passes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import EvalLoopOutput

from ..model.operations import token_sums
from ..support.skip_logits import with_skip_logits


class TokenMetricsTrainer(Seq2SeqTrainer):
    """A `Seq2SeqTrainer` that logs perplexity and token accuracy as exact averages over target tokens.

    It sums the metrics over batches, gradient accumulation and processes, and then divides once. Padding is not
    counted, and no batch is computed twice. The log contains these values:

    - `eval_loss`: cross-entropy in nats per target token, without label smoothing. A stock `Seq2SeqTrainer` averages
      batch means instead, so that tokens of batches with few tokens count more.
    - `eval_perplexity`: exp(`eval_loss`).
    - `eval_token_accuracy`: percentage of target tokens that have the highest logit, given the reference's preceding
      tokens (teacher forcing).
    - `perplexity`, `token_accuracy`: the same metrics for the training batches since the last log entry. They are
      computed without label smoothing but with dropout, while the weights change.
    - `target_tokens_per_second`: training speed on these batches.
    - `minutes_left`: time that the rest of the training will take at this speed, without evaluations.

    The `loss` of the training batches is still the loss that the Trainer minimizes, with label smoothing.

    With several processes, each validation sentence counts once in every metric, including the BLEU and chrF of
    `compute_metrics`. A stock `Seq2SeqTrainer` counts some sentences twice, because it repeats them to fill the last
    batch.

    In training, the model gets `skip_logits=True`, so that it computes the loss without holding all logits in memory.
    The exceptions are runs in which `compute_loss_func`, `label_smoothing_factor` or a subclass's `compute_loss` needs
    the logits.
    """

    # Sums of `token_sums` over the training batches since the last log entry. None if there are no such batches yet.
    _training_sums: torch.Tensor | None = None
    # Time at which the first of these batches began. The duration of later evaluations is added to it.
    _start_time = 0.0
    # Number of updates before the first of these batches.
    _start_update = 0

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> torch.Tensor | tuple[torch.Tensor, Any]:
        """Compute the Trainer's loss. In training, also collect the batch's token metrics for the log.

        The model returns logits only if `return_outputs` is True or if the Trainer computes the loss from logits.
        """
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)
        # The Trainer's method may remove the labels, (sentences, length), from the batch, so they are read before.
        labels = inputs.get("labels")
        start_time = time.monotonic()
        # If nothing needs the logits, the model returns token sums instead.
        model_inputs = with_skip_logits(self, model, inputs, return_outputs)
        # `True` is the value of `return_outputs`, because the metrics need the outputs. It is given by position,
        # because `args` has the arguments that follow it.
        loss, outputs = super().compute_loss(model, model_inputs, True, *args, **kwargs)
        if labels is not None:
            sums = _get_token_sums(outputs, labels)
            self._add_training_sums(_to_float64(sums), start_time)
        if return_outputs:
            return loss, outputs
        return loss

    def _add_training_sums(self, sums: torch.Tensor, start_time: float) -> None:
        """Add a training batch's sums to `self._training_sums`, the totals since the last log entry.

        Args:
            sums (`torch.Tensor` of shape `(3,)`): [`token_sums`] of the batch.
            start_time: the time when the batch began.
        """
        if self._training_sums is None:
            # This is the first batch since the last log entry.
            self._training_sums = sums
            self._start_time = start_time
            self._start_update = self.state.global_step
        else:
            self._training_sums = self._training_sums + sums

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log values. If they include the training loss, first add the token metrics and the speed to `logs`."""
        # Only the log entries about training batches have the key "loss".
        if "loss" in logs and self._training_sums is not None:
            sums_of_all_processes = self.accelerator.reduce(self._training_sums, "sum")
            logs.update(self._describe_training(sums_of_all_processes))
            # The totals for the next log entry begin with the next batch.
            self._training_sums = None
        super().log(logs, start_time)

    def _describe_training(self, sums: torch.Tensor) -> dict[str, float]:
        """Compute the token metrics and the speed of the training since the last log entry.

        Args:
            sums (`torch.Tensor` of shape `(3,)`): [`token_sums`], summed over processes and over the batches since the
                last log entry.
        """
        metrics = _compute_token_metrics(sums)
        # The order is that of the result of `token_sums`.
        _cross_entropy, _correct, target_tokens = sums.tolist()
        # `_add_training_sums` has stored when the first of these batches began, and how many updates preceded it.
        seconds = time.monotonic() - self._start_time
        updates = self.state.global_step - self._start_update
        seconds_per_update = seconds / updates
        updates_left = self.state.max_steps - self.state.global_step
        return {
            "perplexity": metrics["perplexity"],
            "token_accuracy": metrics["token_accuracy"],
            "target_tokens_per_second": round(target_tokens / seconds),
            "minutes_left": round(updates_left * seconds_per_update / 60, 1),
        }

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Run the Trainer's evaluation. Its duration does not affect the logged training speed."""
        evaluation_start = time.monotonic()
        metrics = super().evaluate(*args, **kwargs)
        # `_describe_training` computes the duration of the training as the time since `_start_time`.
        self._start_time += time.monotonic() - evaluation_start
        return metrics

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """Run the Trainer's evaluation loop, count every sentence exactly once, and add the token metrics.

        The Trainer's loop gathers the losses, predictions and labels of all processes with `self.gather_function`, and
        calls `self.prediction_step` for each batch.
        """
        # With several processes, accelerate fills the last batch with sentences of the first batch. Seq2SeqTrainer
        # gathers with `gather`, which keeps these repetitions, so BLEU and chrF would count them twice. It sets
        # `gather` anew before each loop, so it must be replaced here each time.
        self.gather_function = partial(
            self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
        )
        # `prediction_step` appends the sums, (3,), of each batch with labels.
        self._evaluation_sums: list[torch.Tensor] = []
        # The Trainer prepends the prefix to the names of its metrics.
        kwargs["metric_key_prefix"] = metric_key_prefix
        output = super().evaluation_loop(*args, **kwargs)
        if not self._evaluation_sums:
            # No batch had labels, so there is nothing to measure.
            return output
        sums_of_all_batches = torch.stack(self._evaluation_sums).sum(dim=0)
        token_metrics = _prefix_names(_compute_token_metrics(sums_of_all_batches), metric_key_prefix)
        return output._replace(metrics={**(output.metrics or {}), **token_metrics})

    # The two base classes declare different types for the loss, the first item of the result.
    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Run the Trainer's evaluation step. Collect token metrics from the forward pass that computes the loss.

        Returns the Trainer's tuple of loss, predictions and labels.
        """
        labels = inputs.get("labels")
        if labels is None:
            # Without labels, there are no metrics.
            return super().prediction_step(model, inputs, *args, **kwargs)
        # The Trainer gets this wrapper in the place of the model. In each step, it calls the wrapper exactly once, to
        # compute the loss, and the wrapper then stores the batch's sums in its attribute `token_sums`. To translate the
        # batch, the Trainer calls `self.model.generate()`, which does not call the wrapper. If the Trainer called the
        # wrapper again, the attribute would have the sums of the last call. If it did not call it, reading the
        # attribute below would raise an error.
        measured_model = _MeasuredModel(model, labels)
        # The Trainer's step may set a length limit of 20 in the model's generation settings. It is undone afterward.
        with _keeping_length_limit(self.model):
            result = super().prediction_step(measured_model, inputs, *args, **kwargs)  # type: ignore[arg-type]
        # (sentences, 3)
        self._add_evaluation_sums(measured_model.token_sums)
        return result

    def _add_evaluation_sums(self, sums_of_sentences: torch.Tensor) -> None:
        """Append the sums of a batch to `self._evaluation_sums`.

        Args:
            sums_of_sentences (`torch.Tensor` of shape `(sentences, 3)`): [`token_sums`] of this process's sentences.
        """
        # This drops the repeated sentences that fill the last batch of several processes.
        gathered_sums = self.accelerator.gather_for_metrics(sums_of_sentences)  # (sentences of all processes, 3)
        sums_of_batch = _to_float64(gathered_sums).sum(dim=0)  # (3,)
        self._evaluation_sums.append(sums_of_batch)


class _MeasuredModel:
    """A wrapper of a model that computes token sums from the outputs when it is called.

    A forward hook is unsuitable, because it would also be called at every step of `generate()`.

    Args:
        model (`nn.Module`): the model.
        labels (`torch.LongTensor` of shape `(sentences, length)`): the labels of the batch on which it is called.

    Attributes:
        token_sums (`torch.Tensor` of shape `(sentences, 3)`): [`token_sums`] of the batch, after the model was called.
    """

    token_sums: torch.Tensor

    def __init__(self, model: nn.Module, labels: torch.Tensor):
        self._model = model
        self._labels = labels

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self._model(*args, **kwargs)
        self.token_sums = token_sums(outputs["logits"], self._labels)
        return outputs

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for attributes that the wrapper lacks, such as `config` and `generate`.
        return getattr(self._model, name)


@contextmanager
def _keeping_length_limit(model: object) -> Iterator[None]:
    """Restore the `max_length` of a model's generation settings, if it has any, at the end of the block.

    In an evaluation step, the Trainer sets `max_length` to 20. Unless it is restored, `generate()` would warn about
    this limit in the next step.
    """
    generation_config = getattr(model, "generation_config", None)
    earlier_max_length = getattr(generation_config, "max_length", None)
    try:
        yield
    finally:
        if generation_config is not None:
            generation_config.max_length = earlier_max_length


def _get_token_sums(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """Return the [`token_sums`] of a training batch, of shape `(3,)`.

    If the model computed the loss without returning logits, its outputs contain the sums. Otherwise the sums are
    computed from the logits.
    """
    sums = outputs.get("token_sums")
    if sums is not None:
        return sums.detach()
    # (sentences, 3) becomes (3,).
    return token_sums(outputs["logits"], labels).sum(dim=0)


def _compute_token_metrics(sums: torch.Tensor) -> dict[str, float]:
    """Compute `loss`, `perplexity` and `token_accuracy` (percent) from sums over tokens.

    Args:
        sums (`torch.Tensor` of shape `(3,)`): cross-entropy in nats, number of correct tokens, and number of tokens. It
            is the sum of results of [`token_sums`].
    """
    # In the order in which `token_sums` returns them.
    cross_entropy, correct, tokens = sums.cpu().double()
    loss = cross_entropy / tokens
    return {
        "loss": loss.item(),
        "perplexity": loss.exp().item(),
        "token_accuracy": (100 * correct / tokens).item(),
    }


def _prefix_names(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    """Return metrics with a prefix before their names, as in `eval_loss`."""
    return {f"{prefix}_{name}": metric for name, metric in metrics.items()}


def _to_float64(sums: torch.Tensor) -> torch.Tensor:
    """Convert sums to float64, because float32 counts exactly only to 2^24. Apple GPUs do not support float64."""
    if sums.device.type == "mps":
        return sums
    return sums.double()
