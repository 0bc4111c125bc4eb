"""What a run will cost: measured by a trial in a child process, or computed for a GPU that is not here.

The child process, `python -m hf_vanilla_transformer.training.plan_costs FOLDER`, reads a tokenizer and `job.json` from
a folder, and writes `result.json` there. So this process keeps its random states and its memory, and with several
processes none waits for another.
"""

import json
import math
import os
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedTokenizerBase

from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.length_filter import pair_lengths
from ..data.token_budget_batches import TokenBudgetBatchSampler
from ..evaluation.choose_search import ALPHAS, PAIRS_OF_A_CHOICE
from ..evaluation.metrics import IGNORED_LABEL
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..support.process_memory import keep_freed_memory, limit_onednn_cache, peak_memory
from ..support.user_errors import InputError, UserError
from .run_arguments import TRAINED, Settings
from .run_setup import CHECKPOINTS_KEPT, make_model, make_trainer
from .update_batches import TrainingMemory


# Share of a GPU's peak that a training of base by the Trainer reaches, measured on an H200 with bfloat16 autocast by
# benchmarks.gpu_candidates. The paper's base reached 0.29 of the 9.5 TFLOP/s of a P100.
UTILIZATION = 0.10
# A trial ends after so many updates or seconds. Until the end of a run its memory grows by so much: to 3.5 GB, where
# the trial said 2.6, on Multi30k, German-English.
_UPDATES, _SECONDS, _GROWTH = 50, 20, 1.3
# Arguments of a run that do not concern its updates; and of a tokenizer, because that is there.
_LEFT_OUT = {"average_last", "ddp_backend", "deepspeed", "early_stopping_patience", "eval_strategy", "fsdp", *TRAINED}
_LEFT_OUT |= {"load_best_model_at_end", "metric_for_best_model", "output_dir", "push_to_hub", "report_to", "results"}
_LEFT_OUT |= {"save_strategy"}
# Parts of the names of variables of torchrun, accelerate and MPI.
_OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "ACCELERATE_", "FSDP_", "PMI_")


class Costs(NamedTuple):
    """What a run costs.

    Args:
        parameters (`int`): of the model; shared ones count once.
        tokens (`int`): target tokens of the training pairs, in one epoch.
        updates (`int`): of the run.
        seconds (`float`): of training, evaluations and final scores.
        memory (`int`): bytes at the peak, of the process, or of each GPU.
        disk (`int`): bytes of the model and of the checkpoints.
    """

    parameters: int
    tokens: int
    updates: int
    seconds: float
    memory: int
    disk: int


class Corpus(NamedTuple):
    """Numbers of pairs; and of a sample of the training pairs the lengths in tokens, each `(sample,)`."""

    pairs: int
    validation: int
    test: int
    source: NDArray[Any]
    target: NDArray[Any]

    def rows_up_to(self, max_tokens: int | None) -> NDArray[np.int64]:
        """Return the rows of the sample whose pairs are not longer."""
        return np.flatnonzero(np.maximum(self.source, self.target) <= (max_tokens or math.inf))

    def up_to(self, max_tokens: int | None) -> "Corpus":
        """Return the corpus without the training pairs that are longer."""
        rows = self.rows_up_to(max_tokens)
        if len(rows) == 0:
            raise InputError(f"all training pairs have more than {max_tokens} tokens on a side; raise max_tokens.")
        pairs = round(self.pairs * len(rows) / len(self.source))
        return self._replace(pairs=pairs, source=self.source[rows], target=self.target[rows])

    def batches(self, tokens: int | None, sentences: int) -> list[list[int]]:
        """The sample in batches of so many tokens, or sentences if that is None, in a random order."""
        if tokens is not None:
            return list(TokenBudgetBatchSampler((self.source, self.target), tokens))
        order = np.argsort(np.maximum(self.source, self.target), kind="stable").tolist()
        found = [order[begin : begin + sentences] for begin in range(0, len(order), sentences)]
        return [found[number] for number in np.random.default_rng(0).permutation(len(found))]

    def padded(self, batches: list[list[int]]) -> NDArray[np.int64]:
        """Tokens of each batch on both sides, padding included, `(batches,)`."""
        return np.array([len(batch) * int(self.source[batch].max() + self.target[batch].max()) for batch in batches])


def estimate(
    settings: Settings,
    updates: int,
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    data: DatasetDict,
    tflops: float | None,
) -> Costs:
    """The costs of a run of so many updates; nothing is measured with the TFLOP/s of a GPU.

    Args:
        corpus: without the pairs that the run leaves out.
        data: the tokenized sample that the corpus has the lengths of, and a sample of the validation pairs.
    """
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(settings.model.config(tokenizer))
    args, parameters = settings.args, model.num_parameters()
    batches = corpus.batches(args.tokens_per_batch, args.per_device_train_batch_size)
    padded = corpus.padded(batches)
    tokens = updates * args.gradient_accumulation_steps * float(padded.mean())
    if tflops is not None:
        # 6 FLOPs for each token and weight, 2 forward and 4 backward; a token is of one side.
        weights = sum(each.weight.numel() for each in model.modules() if isinstance(each, nn.Linear)) / 2
        seconds = tokens * 6 * weights * (2 if args.r_drop_alpha else 1) / (tflops * 1e12 * UTILIZATION)
        # The precision is that of the other GPU, whose TFLOP/s are those of bfloat16.
        memory = TrainingMemory.of(model, args, None, in_16_bits=True).of_batch(int(padded.max()) / 2)
    else:
        trial = _measure(settings, corpus, tokenizer, data, batches)
        seconds = tokens * trial["update"] + _seconds_of_searches(settings, corpus, updates, trial)
        memory = int(trial["memory"] * (_GROWTH if args.device.type == "cpu" else 1))
    limit, written = args.save_total_limit, _count(args.save_strategy, args.save_steps, updates)
    limit = max(CHECKPOINTS_KEPT, (settings.model.average_last or 0) + 1) if limit is None else limit or written
    kept = min(written, limit + 1)  # The oldest checkpoint is removed after a new one is written.
    of_targets = round(corpus.pairs * float(corpus.target.mean()))
    return Costs(parameters, of_targets, updates, seconds, memory, 4 * parameters * (1 + 3 * kept))


def _count(strategy: str, every: float | None, updates: int) -> int:
    """How many evaluations or checkpoints a run has; of a strategy by epochs, `every` is the updates of one."""
    return math.ceil(updates / (every * updates if every < 1 else every)) if strategy != "no" and every else 0


def _seconds_of_searches(settings: Settings, corpus: Corpus, updates: int, trial: dict[str, Any]) -> float:
    """Seconds of the evaluations, and of the beam searches after the training."""
    args, pairs = settings.args, corpus.validation
    greedy = pairs * _count(args.eval_strategy, args.eval_steps, updates)
    beam = corpus.test + (2 * pairs if settings.model.average_last else 0)
    beam += (len(ALPHAS) + 1) * min(pairs, PAIRS_OF_A_CHOICE) if settings.model.choose_search else 0
    return float(corpus.target.mean()) * (greedy * trial["greedy"] + beam * trial["beam"])


def _measure(
    settings: Settings, corpus: Corpus, tokenizer: PreTrainedTokenizerBase, data: DatasetDict, batches: list[list[int]]
) -> dict[str, Any]:
    """What `_trial` returns for some of the batches, and for some of the validation pairs and the longest of them."""
    sums = [int(corpus.source[batch].max() + corpus.target[batch].max()) for batch in batches]
    # The largest batch, and that of the longest pairs, take most memory.
    first = [int(np.argmax(sums)), int(corpus.padded(batches).argmax())]
    chosen = list(dict.fromkeys([*first, *range(len(batches))]))[:_UPDATES]
    held_out = data.get("validation", data["train"])
    longest = int(np.add(*pair_lengths(held_out)).argmax())
    typical = pick_evenly_spaced_rows(len(held_out), settings.args.per_device_eval_batch_size)
    job = {
        "arguments": {name: value for name, value in settings.to_repeat().items() if name not in _LEFT_OUT},
        "batches": [data["train"].select(batches[number]).to_list() for number in chosen],
        "typical": held_out.select(typical).to_list(),
        "longest": held_out.select([longest, *typical[1:]]).to_list(),
    }
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        (Path(folder) / "job.json").write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-P", "-m", __name__, folder]
        found = subprocess.run(command, env=_environment(settings.args.device), capture_output=True, check=False)
        if found.returncode:
            lines = found.stderr.decode(errors="replace").split("\n")
            last_line = next(filter(None, reversed(lines)), "")
            # What a process wrote before a signal ended it is not the reason.
            if found.returncode == -signal.SIGKILL or not last_line:
                reason = "it was killed, perhaps because the memory is full"
            elif found.returncode < 0:
                reason = f"it was ended by {signal.Signals(-found.returncode).name}"
            else:
                reason = last_line
            raise UserError(f"a trial of some updates failed ({reason}); give a smaller --tokens_per_batch.")
        return json.loads((Path(folder) / "result.json").read_text(encoding="utf-8"))


def _environment(device: torch.device) -> dict[str, str]:
    """The variables of a process that no launcher started, with the GPU of this one."""
    kept = {name: value for name, value in os.environ.items() if not any(part in name for part in _OF_LAUNCHERS)}
    if device.type == "cuda":
        visible = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
        kept["CUDA_VISIBLE_DEVICES"] = visible[device.index or 0] if visible else str(device.index or 0)
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _trial(job: dict[str, Any], folder: str) -> dict[str, Any]:
    """Seconds for each token: of an update, padding included, and of greedy and beam search; bytes at the peak."""
    settings = Settings.from_arguments(**{**job["arguments"], "output_dir": folder, "tokenizer_name": folder})
    args, device, batches = settings.args, settings.args.device, cycle(job["batches"])
    keeps_freed_memory = device.type == "cpu" and keep_freed_memory()
    limit_onednn_cache()
    tokenizer, model = make_model(settings.model, DatasetDict(), None)
    typical = Dataset.from_list(job["typical"])
    trainer = make_trainer(args, tokenizer, model, DatasetDict(train=typical))
    trainer.create_optimizer_and_scheduler(_UPDATES)
    model, optimizer = trainer.accelerator.prepare(model, trainer.optimizer)
    model.train()
    started, rates, peaks = time.perf_counter(), list[float](), list[int]()
    while len(rates) < 3 or (len(rates) < _UPDATES and time.perf_counter() - started < _SECONDS):
        batch, before = trainer.data_collator(next(batches)), time.perf_counter()
        trainer.training_step(model, batch, (batch["labels"] != IGNORED_LABEL).sum()).item()
        optimizer.step()
        optimizer.zero_grad()
        rates.append((time.perf_counter() - before) / (batch["input_ids"].numel() + batch["labels"].numel()))
        peaks.append(peak_memory(device) or 0)
    # An untrained model stops at the limit, here the length of the source.
    model.generation_config.max_length_offset = 0
    trainer.compute_metrics, seconds = None, {}
    final = settings.decoding.num_beams or model.generation_config.num_beams
    for name, beams in (("greedy", args.generation_num_beams), ("beam", final)):
        before = time.perf_counter()
        trainer.evaluate(typical, num_beams=beams)
        seconds[name] = (time.perf_counter() - before) / sum(map(len, typical["input_ids"]))
    trainer.evaluate(Dataset.from_list(job["longest"]))
    memory, count = peak_memory(device) or 0, len(peaks)
    if keeps_freed_memory and 3 < count < _UPDATES:
        # Until its release, memory grows about as the root of the number of updates; the first ones are the largest.
        growth = (peaks[-1] - peaks[2]) / (count**0.5 - 3**0.5)
        memory += int(growth * (_UPDATES**0.5 - count**0.5))
    return {"update": float(np.median(rates[1:])), "memory": memory, **seconds}


if __name__ == "__main__":
    job_file = Path(sys.argv[1]) / "job.json"
    found = _trial(json.loads(job_file.read_text(encoding="utf-8")), sys.argv[1])
    job_file.with_name("result.json").write_text(json.dumps(found), encoding="utf-8")
