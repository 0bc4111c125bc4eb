"""Perplexity and token accuracy of training and validation, counted in the forward passes that compute the loss."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import EvalLoopOutput

from ..model.operations import token_sums
from ..support.skip_logits import with_skip_logits


class TokenMetricsTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` whose log has perplexity and token accuracy, exact by the count of target tokens.

    In several processes, each validation sentence counts once in every metric, BLEU and chrF of `compute_metrics`
    included. Stock `Seq2SeqTrainer` counts the sentences twice that fill up the last batch.

    Padding is not counted. Sums over tokens are added over batches, gradient accumulation and processes, and divided
    once; no batch is computed twice.

    In training the model gets `skip_logits=True`, so the loss is computed without all logits in memory, unless
    `compute_loss_func`, `label_smoothing_factor` or a subclass's `compute_loss` needs them.

    - `eval_loss`: cross-entropy in nats per target token, without label smoothing. `Seq2SeqTrainer` instead averages
      the means of batches, in which a token of a batch with few tokens counts more.
    - `eval_perplexity`: exp(`eval_loss`).
    - `eval_token_accuracy`: percent of target tokens that have the highest logit, given the tokens of the reference
      before them (teacher forcing).
    - `perplexity`, `token_accuracy`: the same of the training batches since the last entry, without label smoothing but
      with dropout, while the weights change.
    - `target_tokens_per_second` of these batches, and `minutes_left`, of training without evaluations, at that speed.

    `loss`, of the training batches, stays what the Trainer minimizes, with label smoothing.
    """

    _training_sums: torch.Tensor | None = None
    # Time and update of the first batch since the last entry.
    _since = (0.0, 0)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any) -> Any:
        """Compute the Trainer's loss; in training, count the tokens of the batch, too.

        The model computes no logits unless `return_outputs` or a loss of the Trainer's own needs them.
        """
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, *args, **kwargs)
        labels = inputs.get("labels")
        started = time.monotonic()
        batch = with_skip_logits(self, model, inputs, return_outputs)
        loss, outputs = super().compute_loss(model, batch, True, *args, **kwargs)
        if labels is not None:
            sums = outputs.get("token_sums")
            sums = _precise(token_sums(outputs["logits"], labels).sum(dim=0) if sums is None else sums.detach())
            if self._training_sums is None:
                self._since = (started, self.state.global_step)
            self._training_sums = sums if self._training_sums is None else self._training_sums + sums
        return (loss, outputs) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the metrics of training next to its loss."""
        if "loss" in logs and self._training_sums is not None:
            sums = self.accelerator.reduce(self._training_sums, "sum")
            metrics = token_metrics(sums)
            logs |= {name: metrics[name] for name in ("perplexity", "token_accuracy")}
            (started, update), state = self._since, self.state
            seconds, left = time.monotonic() - started, state.max_steps - state.global_step
            logs["target_tokens_per_second"] = round(sums[2].item() / seconds)
            logs["minutes_left"] = round(left * seconds / (state.global_step - update) / 60, 1)
            self._training_sums = None
        super().log(logs, start_time)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The Trainer's evaluation; its time does not count for the speed of training."""
        started = time.monotonic()
        found = super().evaluate(*args, **kwargs)
        self._since = (self._since[0] + time.monotonic() - started, self._since[1])
        return found

    def evaluation_loop(self, *args: Any, metric_key_prefix: str = "eval", **kwargs: Any) -> EvalLoopOutput:
        """Run the Trainer's loop over every sentence exactly once, and add the metrics of all tokens."""
        # With several processes accelerate fills up the last batch with sentences of the first one. Seq2SeqTrainer sets
        # the plain `gather` here, which keeps them, so BLEU and chrF would count these sentences twice.
        self.gather_function = partial(
            self.accelerator.gather_for_metrics, use_gather_object=self.args.eval_use_gather_object
        )
        self._sentences: list[torch.Tensor] = []
        kwargs["metric_key_prefix"] = metric_key_prefix
        output = super().evaluation_loop(*args, **kwargs)
        if self._sentences:
            metrics = token_metrics(torch.stack(self._sentences).sum(dim=0))
            prefixed = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
            output = output._replace(metrics={**(output.metrics or {}), **prefixed})
        return output

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer's step; the tokens are counted where it calls the model for the loss."""
        labels = inputs.get("labels")
        if labels is None:
            return super().prediction_step(model, inputs, *args, **kwargs)

        def count(outputs: Any) -> None:
            sentences = token_sums(outputs["logits"], labels)
            # Without the sentences that fill up the last batch of several processes.
            self._sentences.append(_precise(self.accelerator.gather_for_metrics(sentences)).sum(dim=0))

        settings: Any = getattr(self.model, "generation_config", None)
        limit = settings and settings.max_length
        found = super().prediction_step(_Watched(model, count), inputs, *args, **kwargs)  # type: ignore[arg-type]
        if settings:  # The Trainer writes a limit of 20 here, which `generate()` warns of with each batch.
            settings.max_length = limit
        return found


class _Watched:
    """A model whose outputs a function sees, too. Not a hook, which `generate()` would run at every step."""

    def __init__(self, model: nn.Module, see: Callable[[Any], None]):
        self._model, self._see = model, see

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self._model(*args, **kwargs)
        self._see(outputs)
        return outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def token_metrics(sums: torch.Tensor) -> dict[str, float]:
    """Metrics from the sums of [`token_sums`], `(3,)`: `loss`, `perplexity` and `token_accuracy` (percent)."""
    cross_entropy, correct, tokens = sums.cpu().double()
    loss = cross_entropy / tokens
    return {
        "loss": loss.item(),
        "perplexity": loss.exp().item(),
        "token_accuracy": (100 * correct / tokens).item(),
    }


def _precise(sums: torch.Tensor) -> torch.Tensor:
    """In float64 where the device has it, because float32 counts to 2^24 only."""
    return sums if sums.device.type == "mps" else sums.double()
