"""Train every row of Table 3 at a small scale, and print a table that compares our figures with the paper's.

Each row is a run of `train`. Unless you pass files, the script reads Multi30k from the folder that MULTI30K_DIR names.
It skips rows whose results are in the output folder. So the same command resumes a run that was stopped, and you can
train several rows at the same time by commands with different `--rows`.
"""

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset

from hf_vanilla_transformer import VanillaTransformerConfig, score
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.apps.cli.train import run
from hf_vanilla_transformer.data.pair_arguments import DataArguments
from hf_vanilla_transformer.evaluation.scoring_arguments import ScoringArguments
from hf_vanilla_transformer.model.configuration_vanilla_transformer import PAPER_ROWS
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.build_arguments import option
from hf_vanilla_transformer.support.user_errors import InputError
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.translation.model_loading import load


class Figures(NamedTuple):
    """The figures of one row of Table 3.

    Args:
        perplexity (`float`): perplexity per target token, which the paper calls "per-wordpiece".
        bleu (`float`): BLEU of the validation pairs, which are newstest2013 in the paper.
        millions_of_parameters (`int`, *optional*): number of parameters / 10^6; None if the paper does not print it.
    """

    perplexity: float
    bleu: float
    millions_of_parameters: int | None = None


PAPER_RESULTS = {
    "base": Figures(4.92, 25.8, 65),
    "A h=1": Figures(5.29, 24.9),
    "A h=4": Figures(5.00, 25.5),
    "A h=16": Figures(4.91, 25.8),
    "A h=32": Figures(5.01, 25.4),
    "B d_k=16": Figures(5.16, 25.1, 58),
    "B d_k=32": Figures(5.01, 25.4, 60),
    "C N=2": Figures(6.11, 23.7, 36),
    "C N=4": Figures(5.19, 25.3, 50),
    "C N=8": Figures(4.88, 25.5, 80),
    "C d_model=256": Figures(5.75, 24.5, 28),
    "C d_model=1024": Figures(4.66, 26.0, 168),
    "C d_ff=1024": Figures(5.12, 25.4, 53),
    "C d_ff=4096": Figures(4.75, 26.2, 90),
    "D P_drop=0.0": Figures(5.77, 24.6),
    "D P_drop=0.2": Figures(4.95, 25.5),
    "D eps_ls=0.0": Figures(4.67, 25.3),
    "D eps_ls=0.2": Figures(5.47, 25.7),
    "E": Figures(4.92, 25.7),
    "big": Figures(4.33, 26.4, 213),
}

# Widths, depths and the vocabulary are divided so that the layers and the embeddings both have 1/32 of the paper's
# weights. Heads and rates stay. 40,960 tokens fit the counts of parameters in Table 3; section 5.1 says "about 37000".
WIDTH_DIVISOR = 4
DEPTH_DIVISOR = 2
VOCAB_SIZE = 40960 // 8
TOKENS_PER_BATCH = 1024
# The fields of the configuration that the table shows, with the paper's symbols.
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
    """The options for the rows to train, the length of the training, and the folder of the results."""

    _argument_group_name = "table"

    rows: list[str] | None = option(
        None, 'Rows of Table 3, for example base "A h=4" "D P_drop=0.0" E big; by default all rows.'
    )
    max_steps: int = option(1600, "Number of updates for each row.")
    warmup_steps: int = option(400, "Number of updates during which the learning rate of Eq. 3 rises, for each row.")
    rate_factor: float = option(1 / 3, "Factor of the learning rate of Eq. 3, for each row; the paper's is 1.")
    seed: int = option(1, "Seed of weights, dropout and the order of the sentences.")
    output_dir: str = option("runs/table3", "Folder of the results, with one file per row.")


class Arguments(NamedTuple):
    """The groups of options of this script."""

    table: TableArguments
    data: DataArguments
    scoring: ScoringArguments


@program
def main(arguments: list[str]) -> Path:
    """Train the rows that are missing, and return the file with the table."""
    args, data_args, scoring = parse(Arguments, __doc__, arguments)
    for row in args.rows or []:
        # This raises ValueError for an unknown row.
        VanillaTransformerConfig.from_paper(row)
    rows = [row for row in PAPER_ROWS if args.rows is None or row in args.rows]
    if not (data_args.dataset_name or data_args.train_file or data_args.validation_file):
        set_multi30k_files(data_args)
    pairs = data_args.load("validation")["validation"]
    scoring = scoring.for_target(data_args.languages()[1])

    results: dict[str, Any] = {}
    for row in rows:
        results[row] = read_result(make_settings(row, args, data_args, scoring))
    missing_rows = [row for row in rows if results[row] is None]
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    print(f"{len(rows)} rows of Table 3, {args.max_steps:,} updates each; {len(missing_rows)} of them are missing")

    # Begin with the last row, because that is the big model, which takes the longest.
    for number, row in enumerate(reversed(missing_rows), start=1):
        print(f"\n{row}, {number} of {len(missing_rows)} missing rows:", flush=True)
        results[row] = run_row(make_settings(row, args, data_args, scoring), pairs)

    table = make_table(results)
    table_path = Path(args.output_dir, "table3.md")
    write_text(table_path, table)
    print(f"\n{table}")
    total_minutes = sum(result["total_seconds"] for result in results.values()) / 60
    print(f"the table is in {table_path}; its rows took {total_minutes:.1f} minutes in total")
    return table_path


def set_multi30k_files(data_args: DataArguments) -> None:
    """Set the files of Multi30k in the folder that the environment variable MULTI30K_DIR names.

    Raises:
        ValueError: if the variable is not set.
    """
    folder = os.environ.get("MULTI30K_DIR")
    if not folder:
        raise InputError(
            "no pairs are given; give --train_file and --validation_file, or set MULTI30K_DIR to the folder that holds "
            "train.en, train.de, val.en and val.de of Multi30k."
        )
    data_args.train_file = [f"{folder}/train.en", f"{folder}/train.de"]
    data_args.validation_file = [f"{folder}/val.en", f"{folder}/val.de"]


def make_settings(row: str, args: TableArguments, data_args: DataArguments, scoring: ScoringArguments) -> Settings:
    """Make the arguments of `train` for a row."""
    folder = f"{args.output_dir}/{row.replace(' ', '_')}"
    arguments = {}
    for options in (data_args, scoring, args):
        for name, value in asdict(options).items():
            # `rows` is an option of this script only, and None stands for an option that was not passed.
            if name != "rows" and value is not None:
                arguments[name] = value
    arguments.update(
        preset=row,
        vocab_size=VOCAB_SIZE,
        config_overrides=sizes_of(row),
        tokens_per_batch=TOKENS_PER_BATCH,
        save_strategy="no",
        output_dir=folder,
        results=f"{folder}.json",
        # A row that was interrupted leaves its folder behind.
        overwrite=True,
    )
    return Settings.from_arguments(**arguments)


def sizes_of(row: str) -> dict[str, int]:
    """Return the sizes of a row at the small scale. They keep the paper's proportions, such as d_ff = 4 d_model."""
    paper_config = VanillaTransformerConfig.from_paper(row)
    sizes = {}
    for name in ("encoder_layers", "decoder_layers"):
        sizes[name] = getattr(paper_config, name) // DEPTH_DIVISOR
    for name in ("d_model", "d_ff", "d_k"):
        width = getattr(paper_config, name)
        # d_k is None unless the row sets it. Then it follows from d_model.
        if width is not None:
            sizes[name] = width // WIDTH_DIVISOR
    return sizes


def read_result(settings: Settings) -> dict[str, Any] | None:
    """Read the result of a row. Return None if the row has not been trained.

    Raises:
        ValueError: if the row was trained with different settings, or if the file does not hold a result.
    """
    path = Path(str(settings.args.results))
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        former_settings = dict(result["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} does not hold a result of this command; remove it to train the row again.") from error
    present_settings = settings.recorded_arguments()
    for name in {**present_settings, **former_settings}:
        former = former_settings.get(name)
        present = present_settings.get(name)
        if former != present:
            raise InputError(
                f"{path} was made with {name}={former}, but {present} is asked for; name a different --output_dir, or "
                "remove the file to train the row again."
            )
    # The perplexity is added last, so a result without it is from a run that was interrupted.
    return result if "perplexity" in result else None


def run_row(settings: Settings, pairs: Dataset) -> dict[str, Any]:
    """Train a row, and add the perplexity of the saved model to the result that `train` writes.

    The perplexity is per target token including EOS, and without label smoothing. Table 3 calls it "per-wordpiece".
    """
    folder = run(settings)
    tokenizer, model = load(str(folder))
    scores = score(model, tokenizer, pairs["source"], pairs["target"])
    log_probability = sum(pair_score.total for pair_score in scores)
    num_tokens = sum(len(pair_score.tokens) for pair_score in scores)

    path = Path(str(settings.args.results))
    result = json.loads(path.read_text(encoding="utf-8"))
    result["perplexity"] = math.exp(-log_probability / num_tokens)
    write_text(path, json.dumps(result, indent=2) + "\n")
    return result


def make_table(results: dict[str, dict[str, Any]]) -> str:
    """Make a Markdown table of our results and the paper's, with the difference from the base model in brackets."""
    lines = [
        "| row | at this scale | 10^6 parameters | perplexity | BLEU "
        "| paper: 10^6 parameters | paper: perplexity | paper: BLEU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    our_figures = {}
    for row, result in results.items():
        our_figures[row] = Figures(result["perplexity"], result["scores"]["validation"]["bleu"])
    for row, result in results.items():
        our_base = None
        paper_base = None
        if row != "base":
            our_base = our_figures.get("base")
            paper_base = PAPER_RESULTS["base"]
        paper_figures = PAPER_RESULTS[row]
        cells = [
            row,
            describe_change(row),
            f"{result['parameters'] / 1e6:.2f}",
            *format_figures(our_figures[row], our_base),
            str(paper_figures.millions_of_parameters or ""),
            *format_figures(paper_figures, paper_base),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def format_figures(figures: Figures, base: Figures | None) -> list[str]:
    """Return perplexity and BLEU as text, with the differences from the base model's figures if these are given."""
    perplexity = f"{figures.perplexity:.2f}"
    bleu = f"{figures.bleu:.1f}"
    if base is not None:
        perplexity += f" ({figures.perplexity - base.perplexity:+.2f})"
        bleu += f" ({figures.bleu - base.bleu:+.1f})"
    return [perplexity, bleu]


def describe_change(row: str) -> str:
    """Describe the fields that a row changes at the small scale. For the base model, describe all fields."""
    base_config = VanillaTransformerConfig.from_paper("base", **sizes_of("base"))
    config = VanillaTransformerConfig.from_paper(row, **sizes_of(row))
    changes = []
    for name, symbol in SYMBOLS.items():
        value = getattr(config, name)
        if row == "base" or value != getattr(base_config, name):
            changes.append(f"{symbol}={value}")
    return ", ".join(changes)


if __name__ == "__main__":
    main()
