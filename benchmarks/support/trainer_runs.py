"""Updates of the Trainer that `train` uses, with several sizes of batches, collators and kernels of attention."""

import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
    PrinterCallback,
    TrainerCallback,
)

from benchmarks.support.candidates_in_model import cudnn_attention
from benchmarks.support.gpu_timing import Budget
from benchmarks.support.timing import synchronize
from benchmarks.support.training_corpus import of_all_epochs
from hf_vanilla_transformer import (
    PaperTrainingArguments,
    TokenBudgetBatchSampler,
    TokenMetricsTrainer,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    paper_optimizers,
)
from hf_vanilla_transformer.data.arrow_batches import from_arrow
from hf_vanilla_transformer.data.length_filter import pair_lengths


# Its pad token is read, and nothing else.
TOKENIZER = Path(__file__).parents[2] / "tests" / "fixtures" / "numbers_tiny"
CHECKED_BATCHES = 5


@dataclass(frozen=True)
class Way:
    """How a run reads and computes an update of `tokens` x `accumulation` tokens on each side."""

    tokens: int
    accumulation: int
    collator: str = "stock"
    cudnn: bool = False
    non_blocking: bool = False

    @property
    def name(self) -> str:
        parts = [f"{self.accumulation} x {self.tokens:,} tokens", f"{self.collator} collator"]
        if self.non_blocking:
            parts.append("non-blocking copies")
        if self.cudnn:
            parts.append("attention by cuDNN")
        return ", ".join(parts)


def ways_for(tokens: int, accumulation: int) -> list[Way]:
    """Return the runs to compare, the most informative first.

    Args:
        tokens: of an update.
        accumulation: number of batches into which the recipe splits an update.
    """
    part = tokens // accumulation
    return [
        Way(tokens, 1, "stock"),
        Way(tokens, 1, "Arrow", non_blocking=True),
        Way(part, accumulation, "stock"),
        Way(tokens, 1, "Arrow"),
        Way(part, accumulation, "Arrow", non_blocking=True),
        Way(tokens, 1, "Arrow", cudnn=True),
    ]


@dataclass(frozen=True)
class RunLimits:
    """The length of each run: warm-up updates, and at most so many updates after them; both at most so many seconds."""

    warm_up: int
    updates: int
    seconds: float


class TimedUpdates(TrainerCallback):
    """Time updates after a warm-up, and end the training after a number of seconds or updates."""

    def __init__(self, limits: RunLimits, device: torch.device) -> None:
        self.limits, self.device = limits, device
        self.warm_up = self.updates = 0
        self.begin = self.start = self.seconds = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # From end to end, so that each timed update includes reading its batch.
        now = time.perf_counter()
        if self.start == 0:
            # With plans for new shapes an update may take many seconds.
            is_warm = state.global_step == self.limits.warm_up or now - self.begin > self.limits.seconds
            if is_warm:
                synchronize(self.device)
                self.start = time.perf_counter()
                self.warm_up = state.global_step
            return
        self.updates = state.global_step - self.warm_up
        if self.updates == self.limits.updates or now - self.start > self.limits.seconds:
            synchronize(self.device)
            self.seconds = time.perf_counter() - self.start
            control.should_training_stop = True


class CollatorOfLists(DataCollatorForSeq2Seq):
    """The stock collator, in a class of its own so that batches are not padded from Arrow's memory instead."""


class TrainerRuns:
    """Runs of one model on one corpus."""

    def __init__(
        self, config: VanillaTransformerConfig, corpus: Dataset, limits: RunLimits, device: torch.device
    ) -> None:
        self.corpus, self.limits, self.device = corpus, limits, device
        self.lengths = pair_lengths(corpus)
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(TOKENIZER)
        torch.manual_seed(0)
        self.model = VanillaTransformerForConditionalGeneration(config).to(device)

    def collators_agree(self, tokens: int) -> bool:
        """Return whether both collators make the same batches, bit by bit."""
        stock = DataCollatorForSeq2Seq(self.tokenizer, model=self.model)
        arrow = from_arrow(self.corpus, stock)
        if arrow is None:
            return False
        pairs, tensors_of_pairs = arrow
        for rows in islice(TokenBudgetBatchSampler(self.lengths, tokens), CHECKED_BATCHES):
            expected = stock(self.corpus.__getitems__(rows))
            actual = tensors_of_pairs(pairs.__getitems__(rows))
            if list(actual) != list(expected):
                return False
            for name, tensor in expected.items():
                if actual[name].dtype != tensor.dtype or not torch.equal(actual[name], tensor):
                    return False
        return True

    def run(self, way: Way, seed: int) -> dict[str, Any]:
        """Train in one way, and return the figures of its updates.

        Args:
            seed: of the order of the batches, another one for each run, so that shapes are new.
        """
        timed = TimedUpdates(self.limits, self.device)
        allocations = self._device_allocations()
        with tempfile.TemporaryDirectory() as folder, cudnn_attention(way.cudnn):
            trainer = self._trainer(way, folder, seed, timed)
            trainer.train()
            # The model stays wrapped for autocast, because accelerate prepares it only once.
        # A Trainer and its callbacks refer to each other, so that its optimizer would stay in memory.
        del trainer
        gc.collect()
        figures = {
            **asdict(way),
            "name": way.name,
            "warm_up": timed.warm_up,
            "updates": timed.updates,
            "seconds": timed.seconds,
            "milliseconds_per_update": timed.seconds / timed.updates * 1e3,
            "target_tokens_per_second": self._target_tokens(way, seed, timed) / timed.seconds,
        }
        if self.device.type == "cuda":
            figures["device_allocations"] = self._device_allocations() - allocations
            figures["peak_megabytes"] = torch.cuda.max_memory_allocated() / 1e6
        return figures

    def run_bare_loop(self, tokens: int, seed: int) -> dict[str, Any]:
        """Train without a Trainer, on batches that are on the device already; returns the figures of its updates."""
        args = PaperTrainingArguments("unused", use_cpu=self.device.type == "cpu", bf16=True)
        optimizer, schedule = paper_optimizers(self.model, args)
        collate = DataCollatorForSeq2Seq(self.tokenizer, model=self.model)
        sampler = TokenBudgetBatchSampler(self.lengths, tokens, seed=seed)
        batches = []
        for rows in islice(of_all_epochs(sampler), self.limits.warm_up + self.limits.updates):
            batch = collate(self.corpus.__getitems__(rows))
            batches.append({name: tensor.to(self.device) for name, tensor in batch.items()})
        self.model.train()
        start = 0.0
        for number, batch in enumerate(batches):
            if number == self.limits.warm_up:
                synchronize(self.device)
                start = time.perf_counter()
            with torch.autocast(self.device.type, torch.bfloat16):
                # As `TokenMetricsTrainer` calls the model.
                loss = self.model(**batch, skip_logits=True).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        synchronize(self.device)
        seconds = time.perf_counter() - start
        target_tokens = sum(int((batch["labels"] != -100).sum()) for batch in batches[self.limits.warm_up :])
        return {
            "name": f"bare loop, 1 x {tokens:,} tokens, batches on the device",
            "updates": self.limits.updates,
            "seconds": seconds,
            "milliseconds_per_update": seconds / self.limits.updates * 1e3,
            "target_tokens_per_second": target_tokens / seconds,
        }

    def _trainer(self, way: Way, folder: str, seed: int, timed: TimedUpdates) -> TokenMetricsTrainer:
        args = PaperTrainingArguments(
            folder,
            max_steps=self.limits.warm_up + self.limits.updates,
            gradient_accumulation_steps=way.accumulation,
            data_seed=seed,
            bf16=True,
            use_cpu=self.device.type == "cpu",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=self.device.type != "cpu",
            accelerator_config={"non_blocking": way.non_blocking},
        )
        collator_class = CollatorOfLists if way.collator == "stock" else DataCollatorForSeq2Seq
        trainer = TokenMetricsTrainer(
            model=self.model,
            args=args,
            train_dataset=self.corpus,
            data_collator=collator_class(self.tokenizer, model=self.model),
            processing_class=self.tokenizer,
            optimizers=paper_optimizers(self.model, args),
            callbacks=[timed],
        )
        trainer.remove_callback(PrinterCallback)
        TokenBudgetBatchSampler.use_in(trainer, way.tokens, lengths=self.lengths)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        return trainer

    def _target_tokens(self, way: Way, seed: int, timed: TimedUpdates) -> int:
        """Count the target tokens of the timed updates, without padding."""
        _, target_lengths = self.lengths
        sampler = TokenBudgetBatchSampler(self.lengths, way.tokens, seed=seed)
        first = timed.warm_up * way.accumulation
        batches = islice(of_all_epochs(sampler), first, first + timed.updates * way.accumulation)
        return sum(int(target_lengths[rows].sum()) for rows in batches)

    def _device_allocations(self) -> int:
        if self.device.type != "cuda":
            return 0
        return torch.cuda.memory_stats().get("num_device_alloc", 0)


def compare_ways(runs: TrainerRuns, ways: Sequence[Way], budget: Budget) -> Iterator[dict[str, Any]]:
    """Run a bare loop, then all ways that fit into the budget, and yield the figures after each."""
    measured: list[dict[str, Any]] = []
    not_measured: list[str] = []
    figures = {
        "collators_agree": runs.collators_agree(ways[0].tokens),
        "runs": measured,
        "not_measured": not_measured,
    }
    with cudnn_attention(enabled=False):
        measured.append(runs.run_bare_loop(ways[0].tokens, len(ways)))
    yield figures
    for seed, way in enumerate(ways):
        # A run may take twice its seconds, with its warm-up.
        if budget.remaining() < 2 * runs.limits.seconds:
            not_measured.append(way.name)
            continue
        measured.append(runs.run(way, seed))
        yield figures
    yield figures
