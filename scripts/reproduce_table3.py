"""Train every row of Table 3 at a small scale, and print the table with the paper's figures beside ours.

Without files it reads Multi30k from the folder that MULTI30K_DIR names. On a CPU, as many rows are trained at once as
there are cores. Rows that the output folder has are not trained again, so a run that was stopped goes on with the
others.
"""

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat
from pathlib import Path
from statistics import median
from typing import Any


# Run as a file, Python looks in the file's folder first, where evaluate.py hides the library of that name.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch
from datasets import Dataset, DatasetDict
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Seq2SeqTrainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from hf_vanilla_transformer import (
    PaperTrainingArguments,
    TokenBudgetBatchSampler,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    paper_optimizers,
    tokenize_pairs,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.cli.arguments import DataArguments, DecodingArguments, ScoringArguments
from hf_vanilla_transformer.cli.checks import check_lengths
from hf_vanilla_transformer.cli.common import parse, plain_errors, score, write
from hf_vanilla_transformer.data.tokenization import describe_tokenizer
from hf_vanilla_transformer.evaluation.environment import describe_environment
from hf_vanilla_transformer.model.configuration_vanilla_transformer import PAPER_ROWS
from hf_vanilla_transformer.training.arguments import describe_precision
from hf_vanilla_transformer.training.callbacks import ReleaseMemory
from scripts.side_by_side import as_they_end, count_one, makespan, side_by_side


# Table 3: perplexity and BLEU on newstest2013, and millions of parameters where the paper prints them.
PAPER_RESULTS: dict[str, tuple[float, float, int | None]] = {
    "base": (4.92, 25.8, 65),
    "A h=1": (5.29, 24.9, None),
    "A h=4": (5.00, 25.5, None),
    "A h=16": (4.91, 25.8, None),
    "A h=32": (5.01, 25.4, None),
    "B d_k=16": (5.16, 25.1, 58),
    "B d_k=32": (5.01, 25.4, 60),
    "C N=2": (6.11, 23.7, 36),
    "C N=4": (5.19, 25.3, 50),
    "C N=8": (4.88, 25.5, 80),
    "C d_model=256": (5.75, 24.5, 28),
    "C d_model=1024": (4.66, 26.0, 168),
    "C d_ff=1024": (5.12, 25.4, 53),
    "C d_ff=4096": (4.75, 26.2, 90),
    "D P_drop=0.0": (5.77, 24.6, None),
    "D P_drop=0.2": (4.95, 25.5, None),
    "D eps_ls=0.0": (4.67, 25.3, None),
    "D eps_ls=0.2": (5.47, 25.7, None),
    "E": (4.92, 25.7, None),
    "big": (4.33, 26.4, 213),
}

# Widths, depths and the vocabulary are divided so that the layers and the embeddings both have 1/32 of the paper's
# weights. Heads and rates stay. 40,960 tokens are what the counts of Table 3 fit; section 5.1 says "about 37000".
WIDTH_DIVISOR, DEPTH_DIVISOR = 4, 2
VOCAB_SIZE = 40960 // 8
TOKENS_PER_BATCH = 1024
MINUTES = 100
# The first updates are slower: every shape of a batch is new.
TIMED_UPDATES, UNTIMED_UPDATES, TIMED_SENTENCES = 16, 6, 64
SYMBOLS = {
    "encoder_layers": "N",
    "d_model": "d_model",
    "d_ff": "d_ff",
    "num_heads": "h",
    "key_dim": "d_k",
    "value_dim": "d_v",
    "dropout": "P_drop",
    "label_smoothing": "eps_ls",
    "position_embedding_type": "positions",
}


@dataclass
class TableArguments:
    """Which rows, how long, and where the results go."""

    _argument_group_name = "table"

    rows: list[str] | None = field(
        default=None, metadata={"help": 'Rows of Table 3: base "A h=4" "D P_drop=0.0" E big ...; all if not given.'}
    )
    max_steps: int = field(default=1600, metadata={"help": "Updates of every row."})
    warmup_steps: int = field(
        default=400, metadata={"help": "Updates during which the learning rate of Eq. 3 rises, of every row."}
    )
    rate_factor: float = field(
        default=1 / 3, metadata={"help": "Constant before Eq. 3, of every row; the paper's is 1."}
    )
    seed: int = field(default=1, metadata={"help": "Of weights, dropout and the order of the sentences."})
    output_dir: str = field(default="runs/table3", metadata={"help": "Folder of the results, one file a row."})

    def __post_init__(self) -> None:
        for name, least in (("max_steps", 1), ("warmup_steps", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if not 0 < self.rate_factor < math.inf:
            raise ValueError(f"rate_factor is {self.rate_factor}; it must be above 0. The paper's is 1.")
        if Path(self.output_dir).is_file():
            raise NotADirectoryError(f"{self.output_dir} is a file; name a folder for the results.")

    def chosen_rows(self) -> list[str]:
        """The rows in the paper's order, each once.

        Raises:
            ValueError: if there is no row of such a name.
        """
        for row in self.rows or []:
            VanillaTransformerConfig.from_paper(row)
        return [row for row in PAPER_ROWS if self.rows is None or row in self.rows]


@dataclass
class Material:
    """What all rows have in common."""

    args: TableArguments
    scoring: ScoringArguments
    description: str
    tokenizer: PreTrainedTokenizerBase
    pairs: DatasetDict
    data: DatasetDict
    digest: str
    tokenizer_digest: str

    def config(self, row: str) -> VanillaTransformerConfig:
        """A row's configuration at the small scale."""
        return scaled_config(row, len(self.tokenizer))

    def training_args(self, max_steps: int) -> PaperTrainingArguments:
        """Of a Trainer that makes so many updates of a row."""
        accelerated = torch.accelerator.is_available()
        return PaperTrainingArguments(
            self.args.output_dir,
            max_steps=max_steps,
            warmup_steps=self.args.warmup_steps,
            seed=self.args.seed,
            bf16=True,
            use_cpu=not accelerated,
            dataloader_pin_memory=accelerated,
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
        )

    def settings(self, row: str) -> dict[str, Any]:
        """All that a row's result depends on, but for the software."""
        config = self.config(row)
        return {
            **{symbol: getattr(config, name) for name, symbol in SYMBOLS.items()},
            "vocab_size": config.vocab_size,
            "max_steps": self.args.max_steps,
            "warmup_steps": self.args.warmup_steps,
            "rate_factor": self.args.rate_factor,
            "tokens_per_batch": TOKENS_PER_BATCH,
            "precision": describe_precision(self.training_args(self.args.max_steps)),
            "device": str(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"),
            "seed": self.args.seed,
            "tokenizer_sha256": self.tokenizer_digest,
            "data": self.description,
            "data_sha256": self.digest,
            **self.scoring.options(self.pairs["validation"]),
        }


class Ends(TrainerCallback):
    """Notes when each update ended."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.seconds.append(time.perf_counter())


class Count(TrainerCallback):
    """Counts the updates of all rows."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        count_one()


def main(arguments: Sequence[str] | None = None) -> Path:
    """Train the missing rows as the command line says; returns the file with the table."""
    args, data_args, scoring = parse([TableArguments, DataArguments, ScoringArguments], __doc__, arguments)
    folder = Path(args.output_dir)
    with plain_errors():
        rows = args.chosen_rows()
        scoring = scoring.for_target(data_args.languages()[1])
        material = prepare(args, data_args, scoring, rows)
        found = {row: read_result(folder, row, material.settings(row)) for row in rows}
        results = {row: result for row, result in found.items() if result is not None}
        missing = [row for row in rows if row not in results]
        folder.mkdir(parents=True, exist_ok=True)
        print(
            f"{len(rows)} rows of Table 3, {args.max_steps:,} updates each; {len(rows) - len(missing)} of them are in "
            f"{folder}",
            flush=True,
        )
    try:
        failed = train_rows(missing, material, results) if missing else []
    except BrokenExecutor:
        sys.exit(
            "error: a process ended before its row did, perhaps for lack of memory; the same command goes on with the "
            "missing rows, and with OMP_NUM_THREADS=1 it trains one at a time."
        )
    if failed:
        sys.exit(f"error: there is no table without {', '.join(failed)}; the same command tries them again.")
    table = make_table({row: results[row] for row in rows})
    write(folder / "table3.md", table)
    print(f"\n{table}")
    total = sum(map(minutes, results.values()))
    print(f"the table is in {folder / 'table3.md'}; added up, its rows took {total:.1f} minutes")
    return folder / "table3.md"


def rows_at_once() -> int:
    """On CPUs one on each core, because the work of such small models is shared out badly among several."""
    return 1 if torch.accelerator.is_available() else torch.get_num_threads()


def train_rows(rows: Sequence[str], material: Material, results: dict[str, dict[str, Any]]) -> list[str]:
    """Train rows, write each result as soon as it is there, and add it to those given; returns the rows that failed.

    Raises:
        BrokenExecutor: if a process is gone.
    """
    folder, max_steps = Path(material.args.output_dir), material.args.max_steps
    processes, failed = min(rows_at_once(), len(rows)), []
    with side_by_side(processes) as (executor, count):
        with plain_errors():
            longest_first = plan(rows, material, processes, executor, is_new=not results)
        count.value = 0
        training = {executor.submit(run_row, row, material): row for row in longest_first}
        for future in as_they_end(training, count, total=len(rows) * max_steps, unit=" updates"):
            row = training[future]
            try:
                results[row] = future.result()
            except BrokenExecutor:
                raise
            except Exception as error:
                # Whatever it was, hours of other rows may be under way.
                tqdm.write(f"{row}: {str(error) or repr(error)}")
                failed.append(row)
                continue
            write(folder / file_name(row), json.dumps(results[row], indent=2) + "\n")
            tqdm.write(describe_result(row, results[row]))
    return failed


def describe_result(row: str, result: dict[str, Any]) -> str:
    """What came out of a row, in a line."""
    return f"{row}: perplexity {result['perplexity']:.2f}, BLEU {result['bleu']:.2f}, {minutes(result):.1f} minutes"


def prepare(args: TableArguments, data_args: DataArguments, scoring: ScoringArguments, rows: Sequence[str]) -> Material:
    """The pairs, their joint encoding, and their tokens.

    Raises:
        ValueError: if no pairs are given, or none for validation, or one is too long for one of the rows.
    """
    name_files(data_args)
    pairs = data_args.load()
    for split in ("train", "validation"):
        if split not in pairs:
            raise ValueError(f"there are no {split} pairs; there is: {', '.join(pairs)}. Give --{split}_files.")
    pairs = DatasetDict({split: pairs[split] for split in ("train", "validation")})
    texts = chain(pairs["train"]["source"], pairs["train"]["target"])
    tokenizer = train_tokenizer(texts, vocab_size=VOCAB_SIZE)
    data = tokenize_pairs(pairs, tokenizer)
    description = "; ".join(data_args.describe(split) for split in pairs)
    for row in rows:
        check_lengths(scaled_config(row, len(tokenizer)), data)
    of_tokenizer = digest(describe_tokenizer(tokenizer))
    return Material(args, scoring, description, tokenizer, pairs, data, digest(sentences_of(pairs)), of_tokenizer)


def name_files(data_args: DataArguments) -> None:
    """Where no pairs are named, take Multi30k.

    Raises:
        ValueError: if nothing says where that is.
    """
    if data_args.dataset or data_args.train_files or data_args.validation_files:
        return
    folder = os.environ.get("MULTI30K_DIR")
    if not folder:
        raise ValueError(
            "no pairs are given; give --train_files and --validation_files, or set MULTI30K_DIR to the folder that "
            "holds train.en, train.de, val.en and val.de of Multi30k."
        )
    data_args.train_files, data_args.validation_files = (
        [str(Path(folder, f"{name}.{language}")) for language in ("en", "de")] for name in ("train", "val")
    )


def sentences_of(pairs: DatasetDict) -> list[str]:
    """All sentences, because files of one name may hold different ones."""
    return [sentence for split in pairs.values() for column in ("source", "target") for sentence in split[column]]


def digest(content: Any) -> str:
    """A fingerprint."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def scaled_config(row: str, vocab_size: int) -> VanillaTransformerConfig:
    """A row of Table 3 at the small scale: the same change in proportion, so d_ff is still 4 d_model, and so on."""
    paper = VanillaTransformerConfig.from_paper(row)
    return VanillaTransformerConfig.from_paper(
        row,
        vocab_size=vocab_size,
        encoder_layers=paper.encoder_layers // DEPTH_DIVISOR,
        decoder_layers=paper.decoder_layers // DEPTH_DIVISOR,
        d_model=paper.d_model // WIDTH_DIVISOR,
        d_ff=paper.d_ff // WIDTH_DIVISOR,
        d_k=None if paper.d_k is None else paper.d_k // WIDTH_DIVISOR,
    )


def file_name(row: str) -> str:
    """Of a row's result."""
    return f"{row.replace(' ', '_')}.json"


def read_result(folder: Path, row: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a row that an earlier run left; None if there is none.

    Raises:
        ValueError: if it was made with other settings, or is no result.
    """
    path = folder / file_name(row)
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        made_with = dict(result["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no result of this command; remove it to train the row anew.") from error
    differing = [name for name in {**settings, **made_with} if settings.get(name) != made_with.get(name)]
    if differing:
        there, wanted = (
            ", ".join(f"{name}={values.get(name)}" for name in differing) for values in (made_with, settings)
        )
        raise ValueError(
            f"{path} was made with {there}, but {wanted} is asked for; name another --output_dir, or remove the file "
            "to train the row anew."
        )
    return result


def plan(rows: Sequence[str], material: Material, processes: int, executor: Executor, is_new: bool) -> list[str]:
    """Print how long each row will take, from a few updates and translations of each; returns the longest first."""
    started = time.perf_counter()
    max_steps = material.args.max_steps
    estimated = tqdm(executor.map(estimate_seconds, rows, repeat(material)), "timing the rows", len(rows), unit=" rows")
    estimates = dict(zip(rows, estimated, strict=True))
    seconds = {row: max_steps * an_update + scoring for row, (an_update, scoring) in estimates.items()}
    for row in rows:
        print(f"  {row:16} about {seconds[row] / 60:4.1f} minutes")
    longest_first = sorted(rows, key=seconds.__getitem__, reverse=True)
    total = makespan([seconds[row] for row in longest_first], processes)
    print(
        f"estimated time: {total / 60:.0f} minutes, {processes} at a time, after {time.perf_counter() - started:.0f} "
        "seconds for this estimate"
    )
    scoring = makespan([estimates[row][1] for row in longest_first], processes)
    # Rows that are there already would have to be trained again.
    if is_new and total > 60 * MINUTES > scoring:
        fitting = max(1, int(max_steps * (60 * MINUTES - scoring) / (total - scoring)))
        print(f"that is more than {MINUTES} minutes; --max_steps {fitting} would fit, in another --output_dir")
    sys.stdout.flush()
    return longest_first


def estimate_seconds(row: str, material: Material) -> tuple[float, float]:
    """Seconds of an update of a row, and of its scores."""
    ends = Ends()
    model = train_row(row, material, TIMED_UPDATES, ends)
    seconds_an_update = median(end - begin for begin, end in pairwise(ends.seconds[UNTIMED_UPDATES:]))
    validation = material.pairs["validation"]
    sample = range(min(TIMED_SENTENCES, len(validation)))
    longest = max(len(ids) for ids in material.data["validation"].select(sample)["labels"])
    started = time.perf_counter()
    # Left alone, a model that has learnt nothing goes on to the limit.
    translate(model, material.tokenizer, validation.select(sample)["source"], max_new_tokens=longest)
    seconds_a_sentence = (time.perf_counter() - started) / len(sample)
    return seconds_an_update, len(validation) * seconds_a_sentence


def run_row(row: str, material: Material) -> dict[str, Any]:
    """Train and score a row.

    Raises:
        ValueError: if its perplexity is no number.
    """
    started = time.perf_counter()
    model = train_row(row, material, material.args.max_steps, Count())
    trained = time.perf_counter()
    found = perplexity(model, material.data["validation"], material.tokenizer)
    if not math.isfinite(found):
        raise ValueError(f"the perplexity is {found}: the training diverged; lower the rate_factor.")
    scores, _ = score(
        model,
        material.tokenizer,
        material.pairs["validation"],
        material.description,
        DecodingArguments(),
        material.scoring,
        show_progress=False,
    )
    return {
        "row": row,
        "parameters": model.num_parameters(),
        "perplexity": found,
        "bleu": scores["bleu"],
        "bleu_signature": scores["bleu_signature"],
        "decoding": scores["decoding"],
        "training_seconds": trained - started,
        "scoring_seconds": time.perf_counter() - trained,
        "settings": material.settings(row),
        **describe_environment(),
    }


def train_row(row: str, material: Material, max_steps: int, callback: TrainerCallback) -> PreTrainedModel:
    """A row's model after so many updates."""
    set_seed(material.args.seed)
    model = VanillaTransformerForConditionalGeneration(material.config(row))
    training_args = material.training_args(max_steps)
    trainer = Seq2SeqTrainer(
        model,
        training_args,
        train_dataset=material.data["train"],
        data_collator=DataCollatorForSeq2Seq(material.tokenizer, model=model),
        callbacks=[callback, ReleaseMemory()],
        optimizers=paper_optimizers(model, training_args, material.args.rate_factor),
    )
    trainer.remove_callback(PrinterCallback)
    TokenBudgetBatchSampler.use_in(trainer, TOKENS_PER_BATCH)
    trainer.train()
    # Anew, because what training in bfloat16 wraps around a model stays with it.
    trained = VanillaTransformerForConditionalGeneration(material.config(row)).to(model.device)
    trained.load_state_dict(trainer.accelerator.unwrap_model(trainer.model).state_dict())
    return trained.eval()


@torch.inference_mode()
def perplexity(model: PreTrainedModel, data: Dataset, tokenizer: PreTrainedTokenizerBase) -> float:
    """exp of the mean cross-entropy, not smoothed, of a target token, `</s>` among them: "per-wordpiece", as Table 3.

    Args:
        model (`PreTrainedModel`): is put into evaluation mode.
        data (`Dataset`): tokenised pairs, as of `tokenize_pairs`.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
    """
    model.eval()
    sampler = TokenBudgetBatchSampler(data, TOKENS_PER_BATCH)
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for batch in DataLoader(data, batch_sampler=sampler, collate_fn=collator):
        count = int((batch["labels"] != collator.label_pad_token_id).sum())
        total += model(**batch.to(model.device)).loss.cpu().double() * count
        tokens += count
    return float((total / tokens).exp())


def minutes(result: dict[str, Any]) -> float:
    """That a row took."""
    return (result["training_seconds"] + result["scoring_seconds"]) / 60


def make_table(results: dict[str, dict[str, Any]]) -> str:
    """Results beside the paper's as a Markdown table; in brackets, how much more or less than the base model."""
    lines = [
        "| row | at this scale | 10^6 parameters | perplexity | BLEU | paper: 10^6 parameters | perplexity | BLEU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, result in results.items():
        ours = (result["perplexity"], result["bleu"])
        base = results.get("base")
        paper = PAPER_RESULTS[row]
        cells = [
            row,
            describe_change(row),
            f"{result['parameters'] / 1e6:.2f}",
            *with_differences(ours, None if row == "base" or base is None else (base["perplexity"], base["bleu"])),
            paper[2] or "",
            *with_differences(paper[:2], None if row == "base" else PAPER_RESULTS["base"][:2]),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def with_differences(figures: tuple[float, float], base: tuple[float, float] | None) -> tuple[str, str]:
    """Perplexity and BLEU as they are printed, with what differs from the base model's, if that is given."""
    perplexity_cell, bleu_cell = f"{figures[0]:.2f}", f"{figures[1]:.1f}"
    if base is None:
        return perplexity_cell, bleu_cell
    return f"{perplexity_cell} ({figures[0] - base[0]:+.2f})", f"{bleu_cell} ({figures[1] - base[1]:+.1f})"


def describe_change(row: str) -> str:
    """What a row changes at the small scale; of the base model, what it is."""
    base, config = scaled_config("base", VOCAB_SIZE), scaled_config(row, VOCAB_SIZE)
    changed = [name for name in SYMBOLS if row == "base" or getattr(config, name) != getattr(base, name)]
    return ", ".join(f"{SYMBOLS[name]}={getattr(config, name)}" for name in changed)


if __name__ == "__main__":
    main()
