"""Estimate what a training run will cost, by a trial run on this machine or by a formula for a GPU elsewhere."""

import math
from typing import NamedTuple

import torch
from datasets import DatasetDict
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..evaluation.choose_search import ALPHAS, PAIRS_TO_CHOOSE_SEARCH
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from .corpus import Corpus
from .run_arguments import RunArguments, Settings
from .run_setup import CHECKPOINTS_KEPT
from .trial_run import TrialResult, run_trial
from .update_batches import TrainingMemory


# The share of a GPU's peak TFLOP/s that the Trainer reaches with the base model. It was measured on an H200 with
# bfloat16 autocast by benchmarks.gpu_candidates. The paper's base model reached 0.29 of the 9.5 TFLOP/s of a P100.
UTILIZATION = 0.10
# On CPUs, the memory of a run grows by this factor after the updates of a trial. On Multi30k, German-English, the trial
# measured 2.6 GB, and the whole run 3.5 GB.
_MEMORY_GROWTH_ON_CPUS = 1.3


class Costs(NamedTuple):
    """The estimated costs of a training run.

    Args:
        parameters (`int`): parameters of the model; shared ones count once.
        tokens (`int`): target tokens of the training pairs in one epoch.
        updates (`int`): updates of the run.
        seconds (`float`): time of training, evaluations and final scores.
        memory (`int`): peak memory in bytes, of the process on CPUs, or of each GPU.
        disk (`int`): bytes of the model and of the checkpoints.
    """

    parameters: int
    tokens: int
    updates: int
    seconds: float
    memory: int
    disk: int


def estimate_costs(
    settings: Settings,
    updates: int,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    tokenized_sample: DatasetDict,
    tflops: float | None,
) -> Costs:
    """Estimate the costs of a run.

    Args:
        settings: arguments of the run.
        updates: number of updates of the run.
        corpus: the corpus without the training pairs that are too long for the run.
        tokenizer: determines the vocabulary size of the model.
        tokenized_sample: tokenized pairs. The rows of `"train"` are those whose lengths the corpus has; a sample of
            `"validation"` is optional.
        tflops: bfloat16 TFLOP/s of a GPU elsewhere, for which time and memory are computed. If it is None, they are
            measured on this machine by a trial run.
    """
    args = settings.args
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(settings.model.make_config(tokenizer))
    parameters = model.num_parameters()

    batches = corpus.make_batches(args.tokens_per_batch, args.per_device_train_batch_size)
    padded_tokens = corpus.count_padded_tokens(batches)
    trained_tokens = updates * args.gradient_accumulation_steps * float(padded_tokens.mean())
    if tflops is None:
        trial = run_trial(settings, corpus, tokenizer, tokenized_sample, batches)
        training_seconds = trained_tokens * trial.update_seconds_per_token
        seconds = training_seconds + _estimate_search_seconds(settings, corpus, updates, trial)
        growth = _MEMORY_GROWTH_ON_CPUS if args.device.type == "cpu" else 1
        memory = int(trial.peak_memory * growth)
    else:
        seconds = _compute_training_seconds(model, args, trained_tokens, tflops)
        # The bfloat16 TFLOP/s of the other GPU say that it computes in 16 bits, whatever this machine does.
        training_memory = TrainingMemory.for_model(model, args, None, in_16_bits=True)
        memory = training_memory.bytes_for_batch(int(padded_tokens.max()) / 2)

    target_tokens = round(corpus.training_pairs * float(corpus.target_lengths.mean()))
    # Weights take 4 bytes each. A checkpoint also has the two moments of Adam.
    checkpoints = _count_checkpoints_on_disk(settings, updates)
    disk = 4 * parameters * (1 + 3 * checkpoints)
    return Costs(parameters, target_tokens, updates, seconds, memory, disk)


def _compute_training_seconds(model: PreTrainedModel, args: RunArguments, tokens: float, tflops: float) -> float:
    """Compute the time in which a GPU trains on a number of tokens, which are counted on both sides with padding."""
    weights = 0
    for module in model.modules():
        if isinstance(module, nn.Linear):
            weights += module.weight.numel()
    # A source token passes the encoder and a target token the decoder, so each token uses about half of the weights.
    weights_per_token = weights / 2
    # R-Drop runs every batch twice.
    passes = 2 if args.r_drop_alpha else 1
    # For each token and weight there are 2 FLOPs in the forward pass and 4 in the backward pass.
    return tokens * 6 * weights_per_token * passes / (tflops * 1e12 * UTILIZATION)


def _count_checkpoints_on_disk(settings: Settings, updates: int) -> int:
    """Return the highest number of checkpoints that a run has on the disk at once."""
    args = settings.args
    written = _count_events(args.save_strategy, args.save_steps, updates)
    limit = args.save_total_limit
    if limit is None:
        # The default that a run sets, which leaves enough checkpoints for their average.
        limit = max(CHECKPOINTS_KEPT, (settings.output.average_last or 0) + 1)
    if limit == 0:
        # In `save_total_limit`, 0 means no limit.
        return written
    # The oldest checkpoint is removed after a new one is written, so there is one more for a moment.
    return min(written, limit + 1)


def _count_events(strategy: str, interval: float | None, updates: int) -> int:
    """Return how often a run evaluates or saves.

    Args:
        strategy: the Trainer's `eval_strategy` or `save_strategy`.
        interval: number of updates between two events; a value below 1 is a share of all updates. With a strategy by
            epochs, the caller passes the updates of an epoch.
        updates: number of updates of the run.
    """
    if strategy == "no" or not interval:
        return 0
    updates_between = interval * updates if interval < 1 else interval
    return math.ceil(updates / updates_between)


def _estimate_search_seconds(settings: Settings, corpus: Corpus, updates: int, trial: TrialResult) -> float:
    """Estimate the time of the evaluations during a run, and of the beam searches after it."""
    args = settings.args
    evaluations = _count_events(args.eval_strategy, args.eval_steps, updates)
    greedy_sentences = corpus.validation_pairs * evaluations

    beam_sentences = corpus.test_pairs
    if settings.output.average_last:
        # The averaged weights are compared with the last checkpoint.
        beam_sentences += 2 * corpus.validation_pairs
    if settings.evaluation.choose_search:
        # Each length penalty is tried, and then the second stopping rule.
        searches = len(ALPHAS) + 1
        beam_sentences += searches * min(corpus.validation_pairs, PAIRS_TO_CHOOSE_SEARCH)

    tokens_per_sentence = float(corpus.target_lengths.mean())
    greedy_seconds = greedy_sentences * trial.greedy_seconds_per_token
    beam_seconds = beam_sentences * trial.beam_seconds_per_token
    return tokens_per_sentence * (greedy_seconds + beam_seconds)
