"""Train every row of Table 3 at a small scale, and print a table that compares our figures with the paper's.

Each row is a run of `train`. Without files it reads Multi30k from the folder that MULTI30K_DIR names. It skips rows
whose results are in the output folder, so the same command resumes a run that was stopped, and commands with other
`--rows` train at the same time.
"""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
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


# Table 3: perplexity and BLEU on newstest2013, and millions of parameters where the paper prints them.
PAPER_RESULTS: dict[str, tuple[Any, ...]] = {
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

    rows: list[str] | None = option(None, 'Rows of Table 3: base "A h=4" "D P_drop=0.0" E big ...; all if not given.')
    max_steps: int = option(1600, "Updates of every row.")
    warmup_steps: int = option(400, "Updates during which the learning rate of Eq. 3 rises, of every row.")
    rate_factor: float = option(1 / 3, "Constant before Eq. 3, of every row; the paper's is 1.")
    seed: int = option(1, "Seed of weights, dropout and the order of the sentences.")
    output_dir: str = option("runs/table3", "Folder of the results, one file per row.")


class Arguments(NamedTuple):
    table: TableArguments
    data: DataArguments
    scoring: ScoringArguments


@program
def main(arguments: list[str]) -> Path:
    """Train the missing rows as the command line says; returns the file with the table."""
    args, data_args, scoring = parse(Arguments, __doc__, arguments)
    for row in args.rows or []:
        VanillaTransformerConfig.from_paper(row)  # Raises ValueError for another name.
    rows = [row for row in PAPER_ROWS if args.rows is None or row in args.rows]
    if not (data_args.dataset_name or data_args.train_file or data_args.validation_file):
        folder = os.environ.get("MULTI30K_DIR")
        if not folder:
            raise InputError(
                "no pairs are given; give --train_file and --validation_file, or set MULTI30K_DIR to the folder that "
                "holds train.en, train.de, val.en and val.de of Multi30k."
            )
        data_args.train_file = [f"{folder}/train.en", f"{folder}/train.de"]
        data_args.validation_file = [f"{folder}/val.en", f"{folder}/val.de"]
    pairs = data_args.load("validation")["validation"]
    scoring = scoring.for_target(data_args.languages()[1])
    # New settings for each use, because `train` changes its own.
    settings = partial(settings_of, args=args, data_args=data_args, scoring=scoring)
    results: dict[str, Any] = {row: read_result(settings(row)) for row in rows}
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    missing = [row for row in rows if results[row] is None]
    print(f"{len(rows)} rows of Table 3, {args.max_steps:,} updates each; {len(missing)} of them are missing")
    # The last row is the big model, which takes the longest.
    for number, row in enumerate(missing[::-1], start=1):
        print(f"\n{row}, {number} of {len(missing)} missing rows:", flush=True)
        results[row] = run_row(settings(row), pairs)
    table = make_table(results)
    path = Path(args.output_dir, "table3.md")
    write_text(path, table)
    print(f"\n{table}")
    total = sum(result["total_seconds"] for result in results.values()) / 60
    print(f"the table is in {path}; its rows took {total:.1f} minutes in total")
    return path


def settings_of(row: str, args: TableArguments, data_args: DataArguments, scoring: ScoringArguments) -> Settings:
    """The arguments of `train` for a row."""
    folder = f"{args.output_dir}/{row.replace(' ', '_')}"
    given = {**asdict(data_args), **asdict(scoring), **asdict(args), "output_dir": folder, "results": f"{folder}.json"}
    given = {name: value for name, value in given.items() if value is not None and name != "rows"}
    given |= {"preset": row, "vocab_size": VOCAB_SIZE, "config_overrides": sizes_of(row), "overwrite": True}
    return Settings.from_arguments(**given, tokens_per_batch=TOKENS_PER_BATCH, save_strategy="no")


def sizes_of(row: str) -> dict[str, int]:
    """The sizes of a row at the small scale, in the same proportions: d_ff is still 4 d_model, and so on."""
    paper = VanillaTransformerConfig.from_paper(row)
    layers = {name: getattr(paper, name) // DEPTH_DIVISOR for name in ("encoder_layers", "decoder_layers")}
    widths = {name: getattr(paper, name) for name in ("d_model", "d_ff", "d_k")}
    return layers | {name: width // WIDTH_DIVISOR for name, width in widths.items() if width is not None}


def read_result(settings: Settings) -> dict[str, Any] | None:
    """The result of a row; None if it was not trained.

    Raises:
        ValueError: if the result has other settings, or the file holds something else.
    """
    path, wanted = Path(str(settings.args.results)), settings.to_record()
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        made_with = dict(result["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} does not hold a result of this command; remove it to train the row again.") from error
    for name in {**wanted, **made_with}:
        if wanted.get(name) != made_with.get(name):
            raise InputError(
                f"{path} was made with {name}={made_with.get(name)}, but {wanted.get(name)} is asked for; name "
                "another --output_dir, or remove the file to train the row again."
            )
    return result if "perplexity" in result else None


def run_row(settings: Settings, pairs: Dataset) -> dict[str, Any]:
    """Train a row, and add the perplexity to the result that `train` writes.

    It is per target token including EOS, of the saved model, and without smoothing: "per-wordpiece", as in Table 3.
    """
    tokenizer, model = load(str(run(settings)))
    scores = score(model, tokenizer, pairs["source"], pairs["target"])
    path = Path(str(settings.args.results))
    result = json.loads(path.read_text(encoding="utf-8"))
    result["perplexity"] = math.exp(-sum(each.total for each in scores) / sum(len(each.tokens) for each in scores))
    write_text(path, json.dumps(result, indent=2) + "\n")
    return result


def make_table(results: dict[str, dict[str, Any]]) -> str:
    """Our results and the paper's as a Markdown table, with the difference from the base model in brackets."""
    lines = [
        "| row | at this scale | 10^6 parameters | perplexity | BLEU | paper: 10^6 parameters | perplexity | BLEU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ours = {row: (each["perplexity"], each["scores"]["validation"]["bleu"]) for row, each in results.items()}
    for row, result in results.items():
        bases = [None, None] if row == "base" else [ours.get("base"), PAPER_RESULTS["base"]]
        cells = [row, describe_change(row), f"{result['parameters'] / 1e6:.2f}", *with_differences(ours[row], bases[0])]
        cells += [str(PAPER_RESULTS[row][2] or ""), *with_differences(PAPER_RESULTS[row], bases[1])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_differences(figures: Sequence[float], base: Sequence[float] | None) -> list[str]:
    """Perplexity and BLEU as text, with the difference from the base model's figures if these are given."""
    texts = [f"{figures[0]:.2f}", f"{figures[1]:.1f}"]
    if base is None:
        return texts
    return [f"{texts[0]} ({figures[0] - base[0]:+.2f})", f"{texts[1]} ({figures[1] - base[1]:+.1f})"]


def describe_change(row: str) -> str:
    """The fields that a row changes at the small scale; for the base model, all fields."""
    base, config = (VanillaTransformerConfig.from_paper(name, **sizes_of(name)) for name in ("base", row))
    changed = [name for name in SYMBOLS if row == "base" or getattr(config, name) != getattr(base, name)]
    return ", ".join(f"{SYMBOLS[name]}={getattr(config, name)}" for name in changed)


if __name__ == "__main__":
    main()
