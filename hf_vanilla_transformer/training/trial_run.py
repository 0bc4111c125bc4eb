"""Measure the time and memory that a run needs, with a short trial of updates and translations in a child process.

The child process, `python -m hf_vanilla_transformer.training.trial_run FOLDER`, reads a tokenizer and `job.json` from a
folder and writes `result.json` there. The trial is in a child process so that it does not change the parent's random
states and memory. If several processes train together, the child process does not wait for any of them.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from torch import nn
from transformers import EvalPrediction, Seq2SeqTrainer

from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.length_filter import pair_lengths
from ..evaluation.metrics import IGNORED_LABEL
from ..support.memory_tuning import keep_freed_memory, limit_onednn_cache
from ..support.peak_memory import peak_memory
from ..support.user_errors import UserError
from .corpus import Corpus, MeasuredPairs
from .model_and_tokenizer import make_model
from .model_arguments import NEW_TOKENIZER_ARGUMENTS
from .run_arguments import Settings
from .run_setup import make_run_trainer


# A trial ends after _UPDATES updates or _SECONDS seconds, but makes at least _FEWEST_UPDATES updates. The first update
# is slower than the others, and the first two have the largest batches.
_UPDATES = 50
_SECONDS = 20
_FEWEST_UPDATES = 3
# Arguments of the run that a trial does not use, because they do not affect the cost of its updates.
_ARGUMENTS_LEFT_OUT = {
    "average_last",
    "ddp_backend",
    "deepspeed",
    "early_stopping_patience",
    "eval_strategy",
    "fsdp",
    "load_best_model_at_end",
    "metric_for_best_model",
    "output_dir",
    "push_to_hub",
    "report_to",
    "results",
    "save_strategy",
    # The job contains the sentence pairs that a trial needs.
    "monolingual_source_file",
    "test_file",
    "train_file",
    "validation_file",
    # The tokenizer is already trained.
    *NEW_TOKENIZER_ARGUMENTS,
}
# Parts of the names of environment variables that torchrun, accelerate and MPI set.
_LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "ACCELERATE_", "FSDP_", "PMI_")

# A tokenized pair, with its `input_ids` and `labels`.
TokenizedPair = dict[str, list[int]]


class TrialJob(TypedDict):
    """The content of `job.json`, which tells the child process what to measure."""

    arguments: dict[str, Any]
    """Arguments of `train`."""
    batches: list[list[TokenizedPair]]
    """Training batches, the ones that need most memory first."""
    typical_evaluation_batch: list[TokenizedPair]
    """A batch of validation pairs of ordinary lengths, or of training pairs if there are no validation pairs."""
    longest_evaluation_batch: list[TokenizedPair]
    """The same batch with the longest pair in place of its first pair."""


@dataclass(frozen=True)
class TrialResult:
    """The measurements of a trial, as stored in `result.json`.

    Args:
        update_seconds_per_token: median over the updates of their seconds per source or target token, padding included.
        greedy_seconds_per_token: seconds per generated token of an evaluation during training, usually with greedy
            search. The padding of translations that end before the longest one in their batch counts as tokens.
        beam_seconds_per_token: the same for an evaluation after training, usually with beam search.
        peak_memory: peak memory in bytes: of the child process on CPUs, or of its GPU.
    """

    update_seconds_per_token: float
    greedy_seconds_per_token: float
    beam_seconds_per_token: float
    peak_memory: int


def run_trial(settings: Settings, measured_pairs: MeasuredPairs, batches: list[list[int]]) -> TrialResult:
    """Measure the time and memory of some updates and some translations of a run, in a child process.

    Args:
        settings: the run's settings.
        measured_pairs: a sample of the run's sentence pairs, and the tokenizer.
        batches: lists of row indices: the sampled training pairs in each batch.

    Raises:
        UserError: if the child process fails, for example because the memory is too small.
    """
    job = _make_job(settings, measured_pairs, batches)
    with TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        measured_pairs.tokenizer.save_pretrained(folder)
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        # The child process runs the last lines of this module.
        command = [sys.executable, "-P", "-m", __name__, folder_name]
        environment = _make_environment(settings.args.device)
        process = subprocess.run(command, env=environment, capture_output=True, check=False)
        if process.returncode != 0:
            reason = _describe_failure(process.returncode, process.stderr)
            raise UserError(f"a trial of some updates failed ({reason}); give a smaller --tokens_per_batch.")
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return TrialResult(**result)


def _make_job(settings: Settings, measured_pairs: MeasuredPairs, batches: list[list[int]]) -> TrialJob:
    """Choose the training batches and the validation pairs that the child process will use.

    Args:
        settings: the run's settings.
        measured_pairs: a sample of the run's sentence pairs. Without validation pairs, training pairs are translated.
        batches: the indices of the sampled training pairs in each batch.
    """
    training_pairs = measured_pairs.tokenized_sample["train"]
    # `measured_pairs.corpus` lists the lengths of `training_pairs` in the same order, so the indices apply to both.
    training_batches = []
    for rows in _select_batches(measured_pairs.corpus, batches):
        training_batches.append(training_pairs.select(rows).to_list())

    validation_pairs = measured_pairs.tokenized_sample.get("validation", training_pairs)
    typical_rows = pick_evenly_spaced_rows(len(validation_pairs), settings.args.per_device_eval_batch_size)
    source_lengths, target_lengths = pair_lengths(validation_pairs)
    longest_row = int((source_lengths + target_lengths).argmax())
    # The longest pair takes the place of the first typical pair, so that both batches have the same number of pairs.
    rows_with_longest = [longest_row, *typical_rows[1:]]
    return {
        "arguments": _select_arguments(settings),
        "batches": training_batches,
        "typical_evaluation_batch": validation_pairs.select(typical_rows).to_list(),
        "longest_evaluation_batch": validation_pairs.select(rows_with_longest).to_list(),
    }


def _select_arguments(settings: Settings) -> dict[str, Any]:
    """Return the run's given arguments that a trial needs, as values that JSON can represent."""
    arguments: dict[str, Any] = {}
    for name, value in settings.repeatable_arguments().items():
        if name not in _ARGUMENTS_LEFT_OUT:
            arguments[name] = value
    return arguments


def _select_batches(corpus: Corpus, batches: list[list[int]]) -> list[list[int]]:
    """Select batches for the updates of a trial. The batches that need the most memory come first.

    These are the batch with the longest pairs and the batch with the most tokens. They come first because a trial may
    end before it has used all batches. The result has at most one batch for each update.

    Args:
        corpus: contains the lengths of the sampled training pairs.
        batches: the indices of these pairs in each batch.
    """
    # For each batch, the length of a padded source plus the length of a padded target.
    padded_lengths = []
    for batch in batches:
        padded_source = corpus.source_lengths[batch].max()
        padded_target = corpus.target_lengths[batch].max()
        padded_lengths.append(int(padded_source + padded_target))
    longest_index = int(np.argmax(padded_lengths))
    largest_index = int(corpus.count_padded_tokens(batches).argmax())

    ordered_indices = [longest_index, largest_index, *range(len(batches))]
    # A dict removes duplicates and keeps the order: [7, 2, 0, 1, 2, 3, ...] becomes [7, 2, 0, 1, 3, ...].
    distinct_indices = list(dict.fromkeys(ordered_indices))
    return [batches[index] for index in distinct_indices[:_UPDATES]]


def _make_environment(device: torch.device) -> dict[str, str]:
    """Return the environment variables of a child process that trains alone, on the same GPU as this process."""
    environment = {}
    for name, value in os.environ.items():
        # With a launcher's variables, the child process would wait for other processes.
        is_of_launcher = any(part in name for part in _LAUNCHER_VARIABLES)
        if not is_of_launcher:
            environment[name] = value
    if device.type == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = _name_gpu(device.index or 0)
    # With the option -P, Python does not add the current folder to its import folders, so the child process gets the
    # import folders of this process. An empty name would stand for the current folder.
    import_folders = [folder for folder in sys.path if folder]
    environment["PYTHONPATH"] = os.pathsep.join(import_folders)
    return environment


def _name_gpu(index: int) -> str:
    """Return the value of `CUDA_VISIBLE_DEVICES` with which a child process uses one of this process's GPUs.

    The index counts the GPUs that this process can use. For example, if the variable is "2,5" in this process, the GPU
    with the index 1 is "5". If the variable is not set, this process can use all GPUs.
    """
    usable_gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    if not usable_gpus:
        return str(index)
    return usable_gpus[index]


def _describe_failure(return_code: int, stderr: bytes) -> str:
    """Return the reason why a child process failed, as far as its return code and its standard error show it."""
    lines = [line for line in stderr.decode(errors="replace").split("\n") if line]
    last_line = lines[-1] if lines else ""
    # Linux kills a process with SIGKILL if the memory is full. If a signal ended the process, the last line that it
    # wrote does not tell the reason.
    if return_code == -signal.SIGKILL or not last_line:
        return "it was killed, perhaps because the memory is full"
    if return_code < 0:
        # A negative code is the number of the signal.
        signal_name = signal.Signals(-return_code).name
        return f"it was ended by {signal_name}"
    return last_line


@dataclass(frozen=True)
class _TrialUpdates:
    """The measurements of a trial's updates, in the order in which the updates were made.

    Args:
        seconds_per_token: seconds of each update, divided by its tokens on both sides, padding included.
        peaks: peak memory of the process or of the GPU in bytes, read after each update.
    """

    seconds_per_token: list[float]
    peaks: list[int]

    def extrapolate_memory_growth(self) -> int:
        """Estimate by how many bytes a CPU process would still grow until its 50th update, if the trial ended earlier.

        Memory that is freed but not returned to the OS grows roughly with the square root of the number of updates. The
        growth is measured after the third update, because the first updates have the largest batches.
        """
        updates = len(self.peaks)
        if updates <= _FEWEST_UPDATES or updates >= _UPDATES:
            # After too few updates, there is no growth to measure. After all updates, there is nothing to extrapolate.
            return 0
        # The growth between two updates m and n is `growth_per_root * (n**0.5 - m**0.5)`.
        measured_growth = self.peaks[-1] - self.peaks[_FEWEST_UPDATES - 1]
        growth_per_root = measured_growth / (updates**0.5 - _FEWEST_UPDATES**0.5)
        return int(growth_per_root * (_UPDATES**0.5 - updates**0.5))


def _run_job(job: TrialJob, folder: str) -> TrialResult:
    """Make and measure the updates and translations of a trial. This runs in the child process.

    The peak memory is measured from the start of the process on, so the steps must allocate memory in the same way and
    in the same order as a run:

    1. Set up the allocators. This must precede large allocations.
    2. Make the model and the Trainer.
    3. Make updates. From here on, Adam's moments are in memory, as they are during the evaluations of a run.
    4. Translate the typical batch twice, with the two searches of a run, to measure their speed.
    5. Translate the batch with the longest pair, which may need the most memory, and read the peak memory.

    Args:
        job: the arguments of the run and the tokenized pairs, as read from `job.json`.
        folder: contains the tokenizer, and serves as the output folder.
    """
    # These are the run's arguments, but with the folder of the trial for the output and the tokenizer. The last two
    # entries take precedence over entries with the same names in `job["arguments"]`.
    settings = Settings.from_arguments(**{**job["arguments"], "output_dir": folder, "tokenizer_name": folder})
    args = settings.args
    # Step 1. If `keeps_freed_memory` is True, memory that is freed stays with the process, as in a run on CPUs.
    keeps_freed_memory = False
    if args.device.type == "cpu":
        keeps_freed_memory = keep_freed_memory()
    limit_onednn_cache()

    # Step 2. A new model whose tokenizer exists needs no sentence pairs.
    tokenizer, model = make_model(settings.model, DatasetDict(), checkpoint=None)
    typical_pairs = Dataset.from_list(job["typical_evaluation_batch"])
    longest_pairs = Dataset.from_list(job["longest_evaluation_batch"])
    # The Trainer needs a training set, but the updates below do not read it.
    trainer = make_run_trainer(args, tokenizer, model, DatasetDict(train=typical_pairs))

    # Step 3.
    updates = _make_updates(trainer, job["batches"])

    # Step 4. If the run translates in its evaluations during training, the evaluation below does so, too. It does not
    # score the translations.
    if trainer.compute_metrics is not None:
        trainer.compute_metrics = _compute_no_metrics
    # An untrained model hardly ever generates EOS. With this limit, translations are as long as their sources.
    model.generation_config.max_length_offset = 0  # type: ignore[attr-defined]
    greedy_seconds = _measure_search(trainer, typical_pairs, args.generation_num_beams)
    # After the training, every run translates. These two settings let the Trainer do so in the evaluations below.
    trainer.compute_metrics = _compute_no_metrics
    trainer.args.predict_with_generate = True  # type: ignore[attr-defined]
    # Without a given number of beams, translations after the training use the model's default.
    beams_after_training = settings.decoding.num_beams or model.generation_config.num_beams
    beam_seconds = _measure_search(trainer, typical_pairs, beams_after_training)

    # Step 5. The longest pair may need more memory than everything before, so the peak is read after its evaluation.
    trainer.evaluate(longest_pairs)
    # The peak is 0 if the system does not report it.
    memory = peak_memory(args.device) or 0
    if keeps_freed_memory:
        # The memory of such a process still grows after the end of the trial.
        memory += updates.extrapolate_memory_growth()
    # The first update is left out. It is slower, because memory is allocated and kernels are compiled.
    later_updates = updates.seconds_per_token[1:]
    return TrialResult(
        update_seconds_per_token=float(np.median(later_updates)),
        greedy_seconds_per_token=greedy_seconds,
        beam_seconds_per_token=beam_seconds,
        peak_memory=memory,
    )


def _make_updates(trainer: Seq2SeqTrainer, batches: list[list[TokenizedPair]]) -> _TrialUpdates:
    """Make training updates and measure them, until there are enough updates or the time of the trial is over.

    Args:
        trainer: the Trainer, whose model is changed.
        batches: the training batches. If there are fewer than updates, they are used several times.
    """
    # Prepare the model and the optimizer as `trainer.train()` does. The schedule is not used, because the learning rate
    # does not affect the time of an update.
    trainer.create_optimizer_and_scheduler(_UPDATES)
    model, optimizer = trainer.accelerator.prepare(trainer.model, trainer.optimizer)
    model.train()
    seconds_per_token: list[float] = []
    peaks: list[int] = []
    start = time.perf_counter()
    for pairs in cycle(batches):
        batch = trainer.data_collator(pairs)
        update_seconds = _measure_update(trainer, model, optimizer, batch)
        padded_tokens = batch["input_ids"].numel() + batch["labels"].numel()
        seconds_per_token.append(update_seconds / padded_tokens)
        # The peak is 0 if the system does not report it.
        peaks.append(peak_memory(trainer.args.device) or 0)

        updates = len(peaks)
        is_time_over = time.perf_counter() - start >= _SECONDS
        has_ended_early = is_time_over and updates >= _FEWEST_UPDATES
        if updates >= _UPDATES or has_ended_early:
            break
    return _TrialUpdates(seconds_per_token, peaks)


def _measure_update(
    trainer: Seq2SeqTrainer, model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor]
) -> float:
    """Make one update with a single batch, and return how many seconds it takes. This changes the model's weights."""
    start = time.perf_counter()
    # `training_step` computes the loss, divides it by this number, and computes the gradients.
    target_tokens = (batch["labels"] != IGNORED_LABEL).sum()
    loss = trainer.training_step(model, batch, target_tokens)
    # Reading the loss waits until a GPU has finished the backward pass.
    loss.item()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start


def _measure_search(trainer: Seq2SeqTrainer, pairs: Dataset, num_beams: int | None) -> float:
    """Translate a batch of pairs with `num_beams` beams, and return how many seconds this takes per generated token.

    Padding counts as generated tokens, because the search continues until the longest translation ends. If `num_beams`
    is None, the Trainer's default applies.
    """
    start = time.perf_counter()
    trainer.evaluate(pairs, num_beams=num_beams)
    seconds = time.perf_counter() - start
    # `_run_job` has set the limit for the translations: each has as many tokens as its source.
    longest_translation = max(map(len, pairs["input_ids"]))
    return seconds / (len(pairs) * longest_translation)


def _compute_no_metrics(predictions: EvalPrediction) -> dict[str, float]:
    """Return no metrics. A Trainer translates in its evaluations only if it has a function like this one."""
    return {}


if __name__ == "__main__":
    job_folder = Path(sys.argv[1])
    trial_job = json.loads((job_folder / "job.json").read_text(encoding="utf-8"))
    trial_result = _run_job(trial_job, sys.argv[1])
    (job_folder / "result.json").write_text(json.dumps(asdict(trial_result)), encoding="utf-8")
