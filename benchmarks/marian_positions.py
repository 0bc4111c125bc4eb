"""What positions cost that a model of Marian was not trained with, in BLEU and chrF, by the length of the text.

Modes: `train` (a small model, by pymarian, on sentences and on several joined into one line, so that long text is like
its training data), `compare` (the model read with Marian's positions, and as models of the Hub are read, with those of
transformers).
"""

import io
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from benchmarks.support.report_parts import table
from hf_vanilla_transformer import score_translations, translate
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.apps.conversion import from_hf_marian, marian
from hf_vanilla_transformer.data.text_lines import iterate_lines
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.user_errors import InputError


POSITIONS, METRICS = ("marian", "hf"), ("bleu", "chrf")
# Of consecutive sentences: most that are joined in training, and passes over the corpus, each joined anew.
LARGEST, PASSES = 8, 12
# Tokens of a translation per sentence, because a model in training may not end one.
LONGEST = 50
SETTINGS = {
    "type": "transformer",
    "tied-embeddings-all": True,
    "transformer-ffn-activation": "relu",
    "dim-emb": 128,
    "transformer-dim-ffn": 256,
    "enc-depth": 2,
    "dec-depth": 2,
    "transformer-heads": 4,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-dropout": 0.1,
    "label-smoothing": 0.1,
    "max-length": 300,
    "mini-batch": 1000,
    "mini-batch-words": 600,
    "maxi-batch": 2000,
    "learn-rate": 0.002,
    "lr-warmup": "400u",
    "lr-decay-inv-sqrt": ["400u"],
    "optimizer-params": [0.9, 0.98, 1e-9],
    "clip-norm": 5,
    "exponential-smoothing": 0.003,
    "save-freq": "500u",
    "disp-freq": "50u",
    "overwrite": True,
    "cpu-threads": 1,
    "workspace": 1500,
    "seed": 1,
}


@dataclass
class PositionsArguments:
    """The model, and the text."""

    folder: str = field(metadata={"help": "The folder in which Marian trains, or trained."})
    source_file: str = field(metadata={"help": "Sentences, one per line: to train on, or to translate."})
    target_file: str = field(metadata={"help": "Their translations."})
    updates: int = field(default=2500, metadata={"help": "Of the training."})
    joined: list[int] = field(
        default_factory=lambda: [1, 2, 4, 8], metadata={"help": "Consecutive sentences per line to translate."}
    )

    def __post_init__(self) -> None:
        for name, value in (("updates", self.updates), *(("joined", count) for count in self.joined)):
            check_number(name, value, 1)

    modes: list[str] = field(default_factory=list, metadata={"help": "What to do.", "positional": True})


def join(lines: Sequence[str], counts: Sequence[int]) -> list[str]:
    """Consecutive lines joined into one, so many at a time; the last may be fewer."""
    joined, begin = [], 0
    for count in counts:
        joined.append(" ".join(lines[begin : begin + count]))
        begin += count
    return joined


def mixed(sources: Sequence[str], targets: Sequence[str]) -> list[list[str]]:
    """Both sides of a corpus in which half of the sentences are alone and half in groups of 2 to `LARGEST`."""
    generator, pairs = random.Random(0), list(zip(sources, targets, strict=True))
    found: list[tuple[str, str]] = []
    for _ in range(PASSES):
        generator.shuffle(pairs)
        half = len(pairs) // 2
        found += pairs[:half]
        counts: list[int] = []
        while sum(counts) < len(pairs) - half:
            counts.append(generator.randrange(2, LARGEST + 1))
        sides = (join([pair[side] for pair in pairs[half:]], counts) for side in (0, 1))
        found += zip(*sides, strict=True)
    generator.shuffle(found)
    return [list(side) for side in zip(*found, strict=True)]


def train(args: PositionsArguments) -> None:
    """Train a model of Marian with one vocabulary of 2,000 tokens.

    Raises:
        ImportError: if pymarian or sentencepiece is not installed.
    """
    import pymarian
    import sentencepiece

    folder = Path(args.folder).absolute()
    folder.mkdir(parents=True)
    sides = [list(iterate_lines(Path(path))) for path in (args.source_file, args.target_file)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*sides[0], *sides[1]]),
        model_writer=model,
        vocab_size=2000,
        bos_id=-1,
        eos_id=0,
        unk_id=1,
        pad_id=-1,
        character_coverage=1.0,
        minloglevel=2,
    )
    (folder / "vocab.spm").write_bytes(model.getvalue())
    paths = [folder / f"train.{side}" for side in ("source", "target")]
    for path, lines in zip(paths, mixed(*sides), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {"model": str(folder / "model.npz"), "vocabs": [str(folder / "vocab.spm")] * 2}
    settings = {**SETTINGS, **files, "train-sets": list(map(str, paths)), "after": f"{args.updates}u"}
    (folder / "config.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    # From a file, because empty values are lost as arguments.
    pymarian.Trainer(config=str(folder / "config.yml")).train()


def compare(args: PositionsArguments) -> dict[str, Any]:
    """Print and return the scores with each kind of positions, by the number of joined sentences."""
    sources, references = (list(iterate_lines(Path(path))) for path in (args.source_file, args.target_file))
    figures: dict[str, Any] = {}
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "as_hf").mkdir()
        weights, vocabularies = marian.find_files(Path(args.folder))
        arrays, settings = marian.read_arrays(weights)
        files, pad = marian.tokenizer_files(vocabularies, arrays)
        for name, content in files.items():
            (folder / "as_hf" / name).write_bytes(content)
        marian.build_marian(arrays, settings, pad, weights).save_pretrained(folder / "as_hf")
        loaded = {
            kind: AutoModelForSeq2SeqLM.from_pretrained(
                from_hf_marian(str(folder / "as_hf"), str(folder / kind), positions=kind)
            )
            for kind in POSITIONS
        }
        tokenizer = AutoTokenizer.from_pretrained(folder / "marian")
    for count in args.joined:
        counts = [count] * -(-len(sources) // count)
        inputs, targets = join(sources, counts), join(references, counts)
        options = {"max_new_tokens": LONGEST * count}
        texts = {kind: translate(model, tokenizer, inputs, **options) for kind, model in loaded.items()}
        scores = {kind: score_translations(found, targets, tokenize="13a") for kind, found in texts.items()}
        figures[str(count)] = {
            "lines": len(inputs),
            "tokens": sum(map(len, tokenizer(inputs).input_ids)) / len(inputs),
            "same": sum(one == other for one, other in zip(*texts.values(), strict=True)),
            **{kind: {name: found[name] for name in METRICS} for kind, found in scores.items()},
        }
    columns = [(kind, metric) for metric in METRICS for kind in POSITIONS]
    headings = ["sentences per line", "lines", "source tokens per line", *(f"{each[1]}, {each[0]}" for each in columns)]
    rows = [
        [
            *(count, str(row["lines"]), f"{row['tokens']:.0f}"),
            *(f"{row[kind][metric]:.2f}" for kind, metric in columns),
            str(row["same"]),
        ]
        for count, row in figures.items()
    ]
    print(table([*headings, "same translations"], rows))
    return figures


MODES = {"train": train, "compare": compare}


@program
def main(arguments: list[str]) -> Any:
    """Run the command line; `compare` returns the figures."""
    args = parse(PositionsArguments, __doc__, arguments)
    if len(args.modes) != 1 or args.modes[0] not in MODES:
        raise InputError(f"the mode is {' '.join(args.modes) or 'missing'}; give one of {', '.join(MODES)}.")
    return MODES[args.modes[0]](args)


if __name__ == "__main__":
    main()
