"""Train every row of Table 3 at a small scale, and print a table that compares our figures with the paper's.

Without files it reads Multi30k from the folder that MULTI30K_DIR names. It skips rows whose results are in the output
folder, so the same command resumes a run that was stopped, and commands with other `--rows` train side by side.
"""

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

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
)
from hf_vanilla_transformer.checks import check_number
from hf_vanilla_transformer.cli.arguments import DataArguments, DecodingArguments, ScoringArguments
from hf_vanilla_transformer.cli.evaluate import evaluate_pairs
from hf_vanilla_transformer.cli.parsing import parse, plain_errors
from hf_vanilla_transformer.cli.train_checks import check_lengths
from hf_vanilla_transformer.data.tokenization import describe_tokenizer
from hf_vanilla_transformer.evaluation.environment import describe_environment
from hf_vanilla_transformer.files import write_text
from hf_vanilla_transformer.memory import keep_freed_memory
from hf_vanilla_transformer.model.configuration_vanilla_transformer import PAPER_ROWS
from hf_vanilla_transformer.training.arguments import describe_precision
from hf_vanilla_transformer.training.callbacks import ReleaseMemory


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
    """Which rows to train, for how long, and where to write the results."""

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
    seed: int = field(default=1, metadata={"help": "Seed of weights, dropout and the order of the sentences."})
    output_dir: str = field(default="runs/table3", metadata={"help": "Folder of the results, one file per row."})

    def __post_init__(self) -> None:
        for name, least in (("max_steps", 1), ("warmup_steps", 1), ("seed", 0)):
            check_number(name, getattr(self, name), least)
        if not 0 < self.rate_factor < math.inf:
            raise ValueError(f"rate_factor is {self.rate_factor}; it must be above 0. The paper's is 1.")
        if Path(self.output_dir).is_file():
            raise NotADirectoryError(f"{self.output_dir} is a file; name a folder for the results.")

    def chosen_rows(self) -> list[str]:
        """The rows in the paper's order, each once.

        Raises:
            ValueError: if Table 3 has no row of a name.
        """
        for row in self.rows or []:
            VanillaTransformerConfig.from_paper(row)
        return [row for row in PAPER_ROWS if self.rows is None or row in self.rows]


@dataclass
class Material:
    """What all rows share."""

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

    def training_args(self) -> PaperTrainingArguments:
        """Arguments of the Trainer for each row."""
        accelerated = torch.accelerator.is_available()
        return PaperTrainingArguments(
            self.args.output_dir,
            max_steps=self.args.max_steps,
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
        """Everything that a row's result depends on, except the software."""
        config = self.config(row)
        return {
            **{symbol: getattr(config, name) for name, symbol in SYMBOLS.items()},
            "vocab_size": config.vocab_size,
            "max_steps": self.args.max_steps,
            "warmup_steps": self.args.warmup_steps,
            "rate_factor": self.args.rate_factor,
            "tokens_per_batch": TOKENS_PER_BATCH,
            "precision": describe_precision(self.training_args()),
            "device": str(torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"),
            "seed": self.args.seed,
            "tokenizer_sha256": self.tokenizer_digest,
            "data": self.description,
            "data_sha256": self.digest,
            **self.scoring.options(self.pairs["validation"]),
        }


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
    keep_freed_memory()
    failed = []
    # The last row is the big model, which takes the longest.
    for row in tqdm(missing[::-1], "training", unit=" rows"):
        try:
            results[row] = run_row(row, material)
        except Exception as error:  # One row's error must not stop the others.
            tqdm.write(f"{row}: {str(error) or repr(error)}")
            failed.append(row)
            continue
        write_text(folder / file_name(row), json.dumps(results[row], indent=2) + "\n")
        tqdm.write(describe_result(row, results[row]))
    if failed:
        sys.exit(f"error: the table lacks {', '.join(failed)}; the same command trains these rows again.")
    table = make_table({row: results[row] for row in rows})
    write_text(folder / "table3.md", table)
    print(f"\n{table}")
    total = sum(map(minutes, results.values()))
    print(f"the table is in {folder / 'table3.md'}; its rows took {total:.1f} minutes in total")
    return folder / "table3.md"


def describe_result(row: str, result: dict[str, Any]) -> str:
    """A row's result in one line."""
    return f"{row}: perplexity {result['perplexity']:.2f}, BLEU {result['bleu']:.2f}, {minutes(result):.1f} minutes"


def prepare(args: TableArguments, data_args: DataArguments, scoring: ScoringArguments, rows: Sequence[str]) -> Material:
    """Load the pairs, train the joint BPE, and tokenize the pairs.

    Raises:
        ValueError: if training or validation pairs are missing, or a sentence is too long for one of the rows.
    """
    name_files(data_args)
    pairs = data_args.load()
    for split in ("train", "validation"):
        if split not in pairs:
            raise ValueError(f"the data has no {split} pairs, only {', '.join(pairs)}; give --{split}_file.")
    pairs = DatasetDict({split: pairs[split] for split in ("train", "validation")})
    texts = chain(pairs["train"]["source"], pairs["train"]["target"])
    tokenizer = train_tokenizer(texts, vocab_size=VOCAB_SIZE)
    data = tokenize_pairs(pairs, tokenizer)
    description = "; ".join(data_args.describe(split) for split in pairs)
    for row in rows:
        check_lengths(scaled_config(row, len(tokenizer)), data)
    digests = digest(sentences_of(pairs)), digest(describe_tokenizer(tokenizer))
    return Material(args, scoring, description, tokenizer, pairs, data, *digests)


def name_files(data_args: DataArguments) -> None:
    """Use Multi30k if no pairs are given.

    Raises:
        ValueError: if MULTI30K_DIR is not set.
    """
    if data_args.dataset_name or data_args.train_file or data_args.validation_file:
        return
    folder = os.environ.get("MULTI30K_DIR")
    if not folder:
        raise ValueError(
            "no pairs are given; give --train_file and --validation_file, or set MULTI30K_DIR to the folder that "
            "holds train.en, train.de, val.en and val.de of Multi30k."
        )
    data_args.train_file, data_args.validation_file = (
        [str(Path(folder, f"{name}.{language}")) for language in ("en", "de")] for name in ("train", "val")
    )


def sentences_of(pairs: DatasetDict) -> list[str]:
    """All sentences, because the content of a file may change."""
    return [sentence for split in pairs.values() for column in ("source", "target") for sentence in split[column]]


def digest(content: Any) -> str:
    """SHA-256 of a value that JSON can express."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def scaled_config(row: str, vocab_size: int) -> VanillaTransformerConfig:
    """A row of Table 3 at the small scale, in the same proportions: d_ff is still 4 d_model, and so on."""
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
    """The file of a row's result."""
    return f"{row.replace(' ', '_')}.json"


def read_result(folder: Path, row: str, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Read the result of a row from an earlier run; None without one.

    Raises:
        ValueError: if the result has other settings, or the file holds something else.
    """
    path = folder / file_name(row)
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        made_with = dict(result["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold a result of this command; remove it to train the row again.") from error
    differing = [name for name in {**settings, **made_with} if settings.get(name) != made_with.get(name)]
    if differing:
        there, wanted = (
            ", ".join(f"{name}={values.get(name)}" for name in differing) for values in (made_with, settings)
        )
        raise ValueError(
            f"{path} was made with {there}, but {wanted} is asked for; name another --output_dir, or remove the file "
            "to train the row again."
        )
    return result


def run_row(row: str, material: Material) -> dict[str, Any]:
    """Train and score a row.

    Raises:
        ValueError: if its perplexity is not finite.
    """
    started = time.perf_counter()
    model = train_row(row, material)
    trained = time.perf_counter()
    found = perplexity(model, material.data["validation"], material.tokenizer)
    if not math.isfinite(found):
        raise ValueError(f"the perplexity is {found}: the training diverged; lower the rate_factor.")
    scores, _ = evaluate_pairs(
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


def train_row(row: str, material: Material) -> PreTrainedModel:
    """Train a row's model."""
    set_seed(material.args.seed)
    model = VanillaTransformerForConditionalGeneration(material.config(row))
    training_args = material.training_args()
    trainer = Seq2SeqTrainer(
        model,
        training_args,
        train_dataset=material.data["train"],
        data_collator=DataCollatorForSeq2Seq(material.tokenizer, model=model),
        callbacks=[ReleaseMemory()],
        optimizers=paper_optimizers(model, training_args, material.args.rate_factor),
    )
    trainer.remove_callback(PrinterCallback)
    TokenBudgetBatchSampler.use_in(trainer, TOKENS_PER_BATCH)
    trainer.train()
    # A new model, because the wrappers of bfloat16 training would stay around the old one.
    trained = VanillaTransformerForConditionalGeneration(material.config(row)).to(model.device)
    trained.load_state_dict(trainer.accelerator.unwrap_model(trainer.model).state_dict())
    return trained.eval()


@torch.inference_mode()
def perplexity(model: PreTrainedModel, data: Dataset, tokenizer: PreTrainedTokenizerBase) -> float:
    """exp of the mean cross-entropy per target token including EOS, without smoothing: "per-wordpiece", as in Table 3.

    Args:
        model (`PreTrainedModel`): is set to evaluation mode.
        data (`Dataset`): tokenized pairs from `tokenize_pairs`.
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
    """The duration of a row."""
    return (result["training_seconds"] + result["scoring_seconds"]) / 60


def make_table(results: dict[str, dict[str, Any]]) -> str:
    """Our results and the paper's as a Markdown table, with the difference from the base model in brackets."""
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
    """Perplexity and BLEU as text, with the difference from the base model's figures if these are given."""
    perplexity_cell, bleu_cell = f"{figures[0]:.2f}", f"{figures[1]:.1f}"
    if base is None:
        return perplexity_cell, bleu_cell
    return f"{perplexity_cell} ({figures[0] - base[0]:+.2f})", f"{bleu_cell} ({figures[1] - base[1]:+.1f})"


def describe_change(row: str) -> str:
    """The fields that a row changes at the small scale; for the base model, all fields."""
    base, config = scaled_config("base", VOCAB_SIZE), scaled_config(row, VOCAB_SIZE)
    changed = [name for name in SYMBOLS if row == "base" or getattr(config, name) != getattr(base, name)]
    return ", ".join(f"{SYMBOLS[name]}={getattr(config, name)}" for name in changed)


if __name__ == "__main__":
    main()
