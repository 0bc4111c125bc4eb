"""The overhead of stock `Seq2SeqTrainer` over a bare training loop with the same batches and updates.

On CPUs, with enough updates, also the overhead of `ReleaseMemory`, which returns freed memory to the OS.
"""

import tempfile
import time
from collections.abc import Callable
from itertools import islice
from statistics import median
from typing import Any

import torch
from transformers import DataCollatorForSeq2Seq, PrinterCallback, Seq2SeqTrainer, TrainerCallback

from benchmarks.support.timing import Clock, synchronize
from benchmarks.support.training_corpus import Corpus, of_all_epochs
from benchmarks.support.training_implementations import Batch
from hf_vanilla_transformer import (
    PaperTrainingArguments,
    TokenBudgetBatchSampler,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    paper_optimizers,
)
from hf_vanilla_transformer.training.trainer_callbacks import ReleaseMemory


WARM_UP_STEPS = 2
# By the names in the JSON file.
LABELS = {"bare": "bare loop", "trainer": "Seq2SeqTrainer", "giving_back": "Seq2SeqTrainer with ReleaseMemory"}


class Stopwatch(TrainerCallback):
    """Seconds from the end of the warm-up to the end of the last update."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.start = self.seconds = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # From end to end, so that each timed update includes reading its batch.
        if state.global_step == WARM_UP_STEPS:
            synchronize(self.device)
            self.start = time.perf_counter()
        if state.global_step == state.max_steps:
            synchronize(self.device)
            self.seconds = time.perf_counter() - self.start


class Overhead:
    """A bare loop and a Trainer that make the same updates of the same model.

    Args:
        updates: number of timed updates, after two warm-up updates.
    """

    def __init__(
        self,
        config: VanillaTransformerConfig,
        corpus: Corpus,
        tokens_per_batch: int,
        updates: int,
        bf16: bool,
        device: torch.device,
    ) -> None:
        self.config, self.corpus, self.tokens_per_batch = config, corpus, tokens_per_batch
        self.updates, self.bf16, self.device = updates, bf16, device

    @property
    def ways(self) -> dict[str, Callable[[int], tuple[float, Any]]]:
        """The loops to compare: bare, Trainer, and on CPUs with enough updates Trainer with `ReleaseMemory`."""
        ways = {"bare": self.bare, "trainer": self.trainer}
        if self.device.type == "cpu" and self.updates >= ReleaseMemory().updates:
            ways["giving_back"] = lambda seed: self.trainer(seed, ReleaseMemory())
        return ways

    def bare(self, seed: int) -> tuple[float, torch.nn.Module]:
        """Forward, loss, backward, Adam and schedule over collated batches; seconds, and the trained model."""
        model, args = self._model(), self._arguments("unused", seed)
        optimizer, schedule = paper_optimizers(model, args)
        batches = self._batches(seed, model)
        start = 0.0
        for number, batch in enumerate(batches):
            if number == WARM_UP_STEPS:
                synchronize(self.device)
                start = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
                # As `TokenBudgetBatchSampler.use_in` makes the Trainer call the model.
                loss = model(**batch, skip_logits=True).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        synchronize(self.device)
        return time.perf_counter() - start, model

    def trainer(self, seed: int, *callbacks: TrainerCallback) -> tuple[float, torch.nn.Module]:
        """Stock `Seq2SeqTrainer` with token-budget batches; seconds, and the trained model."""
        model, stopwatch = self._model(), Stopwatch(self.device)
        with tempfile.TemporaryDirectory() as folder:
            args = self._arguments(folder, seed)
            trainer = Seq2SeqTrainer(
                model,
                args,
                train_dataset=self.corpus.data,
                data_collator=DataCollatorForSeq2Seq(self.corpus.tokenizer, model=model),
                optimizers=paper_optimizers(model, args),
                callbacks=[*callbacks, stopwatch],
            )
            trainer.remove_callback(PrinterCallback)
            TokenBudgetBatchSampler.use_in(trainer, self.tokens_per_batch)
            trainer.train()
        return stopwatch.seconds, model

    def _model(self) -> VanillaTransformerForConditionalGeneration:
        torch.manual_seed(0)
        return VanillaTransformerForConditionalGeneration(self.config).to(self.device).train()

    def _arguments(self, folder: str, seed: int) -> PaperTrainingArguments:
        return PaperTrainingArguments(
            folder,
            max_steps=WARM_UP_STEPS + self.updates,
            data_seed=seed,
            bf16=self.bf16,
            use_cpu=self.device.type == "cpu",
            save_strategy="no",
            disable_tqdm=True,
        )

    def _batches(self, seed: int, model: torch.nn.Module) -> list[Batch]:
        sampler = TokenBudgetBatchSampler(self.corpus.data, self.tokens_per_batch, seed=seed)
        collate = DataCollatorForSeq2Seq(self.corpus.tokenizer, model=model)
        rows = islice(of_all_epochs(sampler), WARM_UP_STEPS + self.updates)
        collated = [collate([self.corpus.data[index] for index in batch]) for batch in rows]
        return [{name: tensor.to(self.device) for name, tensor in batch.items()} for batch in collated]


def time_overhead(overhead: Overhead, rounds: int, clock: Clock, progress: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of each loop in each round, and the share by which one is slower than another."""
    seconds: dict[str, list[float]] = {name: [] for name in overhead.ways}
    for seed in range(rounds):
        for name, way in overhead.ways.items():
            progress(LABELS[name])
            seconds[name].append(clock.measure(lambda way=way, seed=seed: way(seed)[0]))
    found: dict[str, Any] = {f"{name}_seconds": of_rounds for name, of_rounds in seconds.items()}
    found |= {"updates": overhead.updates, **_slower("overhead", seconds["trainer"], seconds["bare"])}
    if "giving_back" in seconds:
        found |= _slower("giving_back", seconds["giving_back"], seconds["trainer"])
    return found


def _slower(name: str, first: list[float], second: list[float]) -> dict[str, Any]:
    """The share by which the first loop is slower: the median over the rounds, and of each round."""
    shares = [one / other - 1 for one, other in zip(first, second, strict=True)]
    return {f"{name}_share": median(shares), f"{name}_share_of_rounds": shares}
