"""Estimate how much time, memory and disk space a training run will need.

Time and memory are either measured by a short trial run on this machine, or computed for a GPU that is not in this
machine.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel
from transformers.trainer_pt_utils import get_length_grouped_indices

from ..data.length_filter import pair_lengths
from ..evaluation.choose_search import ALPHAS, PAIRS_TO_CHOOSE_SEARCH
from ..model.generation_settings import PAPER_MAX_LENGTH_OFFSET
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .corpus import Corpus, MeasuredPairs
from .run_arguments import RunArguments, Settings
from .run_setup import choose_checkpoint_limit
from .trial_run import TrialResult, run_trial
from .update_batches import TrainingMemory


# The fraction of a GPU's peak TFLOP/s that the Trainer reaches with the base model. It was measured on an H200 with
# bfloat16 autocast by benchmarks.gpu_candidates. In the paper, the base model reached 0.29 of a P100's 9.5 TFLOP/s.
UTILIZATION = 0.10
# On CPUs, a run's memory grows by about this factor after the first updates, which a trial measures. On Multi30k,
# German-English, the trial needed 2.6 GB and the whole run 3.5 GB.
_MEMORY_GROWTH_ON_CPUS = 1.3
# In the first evaluations of a run, the model does not yet end its translations, so they have the maximum length. This
# is about how many of the evaluations are like this (docs/experiments.md).
_FRACTION_OF_LONG_EVALUATIONS = 0.2


class Costs(NamedTuple):
    """The estimated costs of a training run: its size, time, memory and disk space.

    Args:
        parameters (`int`): number of model parameters; shared parameters count once.
        tokens (`int`): number of target tokens in one epoch.
        updates (`int`): number of updates.
        seconds (`float`): duration of the training, the evaluations and the final scoring.
        memory (`int`): peak memory in bytes: of the process on CPUs, or of each GPU.
        disk (`int`): size of the model and the checkpoints in bytes.
    """

    parameters: int
    tokens: int
    updates: int
    seconds: float
    memory: int
    disk: int


@dataclass(frozen=True)
class _TimeAndMemory:
    """The estimated duration of a run in seconds, and its peak memory in bytes."""

    seconds: float
    memory: int


def estimate_costs(settings: Settings, updates: int, measured_pairs: MeasuredPairs, tflops: float | None) -> Costs:
    """Estimate the time, memory and disk space of a training run.

    Args:
        settings: the run's settings.
        updates: number of updates of the run.
        measured_pairs: the sentence pairs, without the training pairs that are too long for the run.
        tflops: peak bfloat16 TFLOP/s of a GPU that is not in this machine, for which time and memory are computed. If
            it is None, they are measured on this machine by a trial run.
    """
    corpus = measured_pairs.corpus
    # Only the sizes of this model are needed. The meta device allocates no memory for its weights.
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(settings.model.make_config(measured_pairs.tokenizer))

    # The indices of the sampled training pairs in each batch.
    batches = corpus.make_batches(settings.args.tokens_per_batch, settings.args.per_device_train_batch_size)
    if tflops is None:
        time_and_memory = _measure_time_and_memory(settings, updates, measured_pairs, batches)
    else:
        padded_tokens = corpus.count_padded_tokens(batches)
        time_and_memory = _compute_time_and_memory(settings, updates, model, padded_tokens, tflops)

    parameters = model.num_parameters()
    disk = _estimate_disk_space(settings, updates, parameters)
    target_tokens_per_epoch = round(corpus.training_pairs * float(corpus.target_lengths.mean()))
    return Costs(
        parameters=parameters,
        tokens=target_tokens_per_epoch,
        updates=updates,
        seconds=time_and_memory.seconds,
        memory=time_and_memory.memory,
        disk=disk,
    )


def _measure_time_and_memory(
    settings: Settings, updates: int, measured_pairs: MeasuredPairs, batches: list[list[int]]
) -> _TimeAndMemory:
    """Make a short trial run on this machine, and extrapolate its time and memory to the whole run.

    Args:
        settings: the run's settings.
        updates: number of updates of the run.
        measured_pairs: the sentence pairs.
        batches: the indices of the sampled training pairs in each batch.
    """
    trial = run_trial(settings, measured_pairs, batches)
    padded_tokens = measured_pairs.corpus.count_padded_tokens(batches)
    # `update_seconds_per_token` refers to the same tokens: source and target tokens, padding included.
    training_seconds = _count_trained_tokens(settings, updates, padded_tokens) * trial.update_seconds_per_token
    search_seconds = _estimate_search_seconds(settings, measured_pairs, updates, trial)
    memory = trial.peak_memory
    if settings.args.device.type == "cpu":
        # The trial ends before the memory stops growing.
        memory = int(trial.peak_memory * _MEMORY_GROWTH_ON_CPUS)
    return _TimeAndMemory(training_seconds + search_seconds, memory)


def _compute_time_and_memory(
    settings: Settings, updates: int, model: PreTrainedModel, padded_tokens: NDArray[np.int64], tflops: float
) -> _TimeAndMemory:
    """Compute the time and the memory of a run on a GPU that is not in this machine.

    Args:
        settings: the run's settings.
        updates: number of updates of the run.
        model: the run's model. Its weights may be on the meta device.
        padded_tokens: array of shape `(batches,)`: number of source and target tokens of each batch, padding included.
        tflops: peak bfloat16 TFLOP/s of the GPU.
    """
    trained_tokens = _count_trained_tokens(settings, updates, padded_tokens)
    seconds = _compute_training_seconds(model, settings.args, trained_tokens, tflops)
    # `tflops` is a bfloat16 figure, so the other GPU computes in 16 bits even if this machine does not. The size of its
    # memory is unknown.
    training_memory = TrainingMemory.for_model(model, settings.args, memory=None, in_16_bits=True)
    # `padded_tokens` counts both sides of a batch together, but `bytes_for_batch` expects the number on each side.
    tokens_on_each_side = int(padded_tokens.max()) / 2
    return _TimeAndMemory(seconds, training_memory.bytes_for_batch(tokens_on_each_side))


def _count_trained_tokens(settings: Settings, updates: int, padded_tokens: NDArray[np.int64]) -> float:
    """Estimate how many tokens each process trains on in the whole run: source and target tokens, padding included.

    Args:
        settings: the run's settings.
        updates: number of updates of the run.
        padded_tokens: array of shape `(batches,)`: number of tokens of each batch.
    """
    batches_of_run = updates * settings.args.gradient_accumulation_steps
    return batches_of_run * float(padded_tokens.mean())


def _compute_training_seconds(model: PreTrainedModel, args: RunArguments, tokens: float, tflops: float) -> float:
    """Estimate how many seconds a GPU needs for the whole training.

    `tokens` is the total over the run of source and target tokens, padding included.
    """
    matmul_weights = 0
    for module in model.modules():
        if isinstance(module, nn.Linear):
            matmul_weights += module.weight.numel()
    # Source tokens pass through the encoder and target tokens through the decoder, so each token uses about half of the
    # weights.
    weights_per_token = matmul_weights / 2
    # R-Drop runs every batch twice.
    passes = 2 if args.r_drop_alpha else 1
    # A token takes 2 FLOPs for each weight in the forward pass, and 4 in the backward pass.
    flops_per_weight = 2 + 4
    training_flops = tokens * flops_per_weight * weights_per_token * passes
    # No GPU reaches its peak. `UTILIZATION` is the fraction of it that the training reaches.
    return training_flops / (tflops * 1e12 * UTILIZATION)


def _estimate_disk_space(settings: Settings, updates: int, parameters: int) -> int:
    """Estimate the disk space of a run's model and checkpoints in bytes. The model has `parameters` parameters."""
    # Each parameter takes 4 bytes. A checkpoint contains the parameters and Adam's two moments of each parameter.
    model_bytes = 4 * parameters
    checkpoint_bytes = 3 * model_bytes
    return model_bytes + _count_checkpoints_on_disk(settings, updates) * checkpoint_bytes


def _count_checkpoints_on_disk(settings: Settings, updates: int) -> int:
    """Return the maximum number of checkpoints that a run has on the disk at the same time."""
    args = settings.args
    written_checkpoints = _count_occurrences(args.save_strategy, args.save_steps, updates)
    limit = args.save_total_limit
    if limit is None:
        # The run sets the same limit when it starts.
        limit = choose_checkpoint_limit(settings.output.average_last)
    if limit == 0:
        # In `save_total_limit`, 0 means no limit.
        return written_checkpoints
    # The oldest checkpoint is removed after a new one is written, so briefly there is one more than the limit.
    return min(written_checkpoints, limit + 1)


def _count_occurrences(strategy: str, steps: float | None, updates: int) -> int:
    """Return how often a run evaluates or saves. With the strategy `"best"`, this is an upper limit.

    Args:
        strategy: the Trainer's `eval_strategy` or `save_strategy`, such as `"no"` or `"steps"`.
        steps: the Trainer's `eval_steps` or `save_steps`: the number of updates from one evaluation or checkpoint to
            the next, or a fraction of all updates if it is below 1. For the strategy `"epoch"`, it must be the number
            of updates per epoch.
        updates: the number of updates of the run.
    """
    # `steps` is None or 0 if the run never evaluates or saves.
    if strategy == "no" or not steps:
        return 0
    interval = steps
    if steps < 1:
        # For example, 0.05 of 2,000 updates are 100 updates, so the result is 20.
        interval = steps * updates
    return math.ceil(updates / interval)


def _estimate_search_seconds(
    settings: Settings, measured_pairs: MeasuredPairs, updates: int, trial: TrialResult
) -> float:
    """Estimate how many seconds a run spends on evaluations during training, and on beam search after it.

    Args:
        settings: the run's settings.
        measured_pairs: the sentence pairs, whose validation and test pairs are translated.
        updates: number of updates of the run.
        trial: the measured seconds per token of both searches.
    """
    lengths = _estimate_translation_lengths(settings.args, measured_pairs)
    greedy_tokens = _estimate_greedy_tokens(settings.args, updates, measured_pairs.corpus.validation_pairs, lengths)
    beam_tokens = _count_beam_sentences(settings, measured_pairs.corpus) * lengths.mean
    return greedy_tokens * trial.greedy_seconds_per_token + beam_tokens * trial.beam_seconds_per_token


@dataclass(frozen=True)
class _TranslationLengths:
    """Estimated lengths of the translations of validation or test sentences, in tokens per sentence.

    In the evaluations during training, a batch may have sentences of quite different lengths, and its search continues
    until its longest translation ends. There, each translation counts as long as the longest one in its batch.

    Args:
        mean: mean length of the translations of a trained model.
        padded: the same in the evaluations during training, with all translations of a batch as long as the longest.
        unended: the same for a model that does not end its translations.
    """

    mean: float
    padded: float
    unended: float


def _estimate_translation_lengths(args: RunArguments, measured_pairs: MeasuredPairs) -> _TranslationLengths:
    """Estimate how long translations are, from the validation pairs or, if there are none, from the training pairs."""
    corpus = measured_pairs.corpus
    source_lengths = corpus.source_lengths
    target_lengths = corpus.target_lengths
    if corpus.validation_pairs > 0:
        # Validation sentences from other documents can be much longer than training sentences.
        source_lengths, target_lengths = pair_lengths(measured_pairs.tokenized_sample["validation"])

    # The Trainer forms the batches of its evaluations with this function, too.
    batch_size = args.per_device_eval_batch_size
    rows = get_length_grouped_indices(source_lengths, batch_size, generator=torch.Generator().manual_seed(0))
    padded_tokens = 0
    unended_tokens = 0
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        padded_tokens += len(batch) * int(target_lengths[batch].max())
        # The search stops a translation that has this many tokens more than its source.
        unended_tokens += len(batch) * (int(source_lengths[batch].max()) + PAPER_MAX_LENGTH_OFFSET)
    return _TranslationLengths(
        mean=float(target_lengths.mean()), padded=padded_tokens / len(rows), unended=unended_tokens / len(rows)
    )


def _estimate_greedy_tokens(
    args: RunArguments, updates: int, validation_pairs: int, lengths: _TranslationLengths
) -> float:
    """Estimate how many tokens the evaluations during training generate, which translate with greedy search.

    Args:
        args: the run's arguments.
        updates: number of updates of the run.
        validation_pairs: number of pairs that each evaluation translates.
        lengths: estimated lengths of the translations.
    """
    evaluations = _count_occurrences(args.eval_strategy, args.eval_steps, updates)
    # At the beginning of the training, the model does not yet end its translations.
    long_evaluations = math.ceil(_FRACTION_OF_LONG_EVALUATIONS * evaluations)
    tokens_of_long_evaluations = long_evaluations * lengths.unended
    tokens_of_other_evaluations = (evaluations - long_evaluations) * lengths.padded
    return validation_pairs * (tokens_of_long_evaluations + tokens_of_other_evaluations)


def _count_beam_sentences(settings: Settings, corpus: Corpus) -> int:
    """Count the sentences that are translated with beam search after the training. A sentence may count repeatedly."""
    # The saved model translates each test pair once.
    sentences = corpus.test_pairs
    if settings.output.average_last:
        # Both the averaged weights and the last checkpoint translate the validation pairs.
        sentences += 2 * corpus.validation_pairs
    if settings.evaluation.choose_search:
        # Each length penalty in `ALPHAS` is tried once, and then the second stopping rule.
        searches = len(ALPHAS) + 1
        pairs_per_search = min(corpus.validation_pairs, PAIRS_TO_CHOOSE_SEARCH)
        sentences += searches * pairs_per_search
    return sentences
