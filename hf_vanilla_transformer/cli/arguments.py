"""The arguments of the command lines, and what is wrong with them by themselves."""

import json
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Dataset, DatasetDict
from sacrebleu.metrics import BLEU
from transformers import PreTrainedTokenizerBase

from .. import VanillaTransformerConfig, load_pairs
from ..data.languages import language_of
from ..data.sources import SPLITS
from ..training.arguments import RunArguments


LARGEST_LENGTH_PENALTY = 100
# How sacrebleu cuts languages whose words have no blanks between them.
_WITHOUT_BLANKS = {
    "zh": "zh",
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    **dict.fromkeys(("th", "lo", "km", "my"), "char"),
}


@dataclass
class DataArguments:
    """Where the sentence pairs are: a data set, or a table or two aligned text files for each split."""

    _argument_group_name = "data"

    dataset: str | None = field(
        default=None, metadata={"help": 'A data set\'s name on the Hub, or "numbers" for the built-in corpus.'}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "The configuration of a Hub data set."})
    train_files: list[str] | None = field(
        default=None, metadata={"help": "CSV, TSV, JSON lines or parquet files, or two aligned text files."}
    )
    validation_files: list[str] | None = field(default=None, metadata={"help": "Likewise, for validation."})
    test_files: list[str] | None = field(default=None, metadata={"help": "Likewise, for the scores at the end."})
    source: str = field(default="source", metadata={"help": "Column or language code of the sources."})
    target: str = field(default="target", metadata={"help": "Column or language code of the targets."})
    max_digits: int = field(default=9, metadata={"help": "Digits of the longest numbers of the built-in corpus."})
    train_size: int = field(default=200_000, metadata={"help": "Training pairs of the built-in corpus."})

    def __post_init__(self) -> None:
        said, named = tuple(map(language_of, (self.source, self.target))), self._languages_of_files()
        if any(None not in pair and len(set(pair)) > 1 for pair in zip(said, named, strict=True)):
            raise ValueError(
                f"source and target are {self.source} and {self.target}, but the files end in {named[0]} and "
                f"{named[1]}; name the file of the sources first, and --source and --target as the files end."
            )

    def load(self, split: str | None = None) -> DatasetDict:
        """The pairs that these arguments name, of one split at least; see `load_pairs`.

        Raises:
            ValueError: if there is no such split.
        """
        given = {name: getattr(self, f"{name}_files") for name in SPLITS}
        given = {name: files for name, files in given.items() if files is not None}
        if split in given and self.dataset is None:
            given = {split: given[split]}
        files = {f"{name}_files": of_split for name, of_split in given.items()}
        pairs = load_pairs(self.dataset, **files, source=self.source, target=self.target, **self._options(split))
        if split is not None and split not in pairs:
            raise ValueError(f'there is no split "{split}"; there is: {", ".join(pairs)}.')
        return pairs

    def _options(self, split: str | None) -> dict[str, Any]:
        if self.dataset == "numbers":
            # The other splits do not depend on how many numbers are left for training.
            train_size = self.train_size if split in (None, "train") else 1
            return {"max_digits": self.max_digits, "train_size": train_size}
        options = {"name": self.dataset_config, "split": split if self.dataset is not None else None}
        return {name: value for name, value in options.items() if value is not None}

    def describe(self, split: str) -> str:
        """A split in words: the data set's name, or its files'."""
        if self.dataset == "numbers":
            return f"numbers of up to {self.max_digits} digits written out in words ({split})"
        if self.dataset is not None:
            # Where a folder lies says nothing to others.
            name = Path(self.dataset).resolve().name if Path(self.dataset).is_dir() else self.dataset
            return f"{name} ({split})"
        return ", ".join(Path(file).name for file in getattr(self, f"{split}_files") or [])

    def languages(self) -> tuple[str | None, str | None]:
        """The language codes that `source` and `target` are, as far as they are, or else the ends of two text files."""
        code = "[a-z]{2,3}([_-][A-Za-z]{2,4})?"
        source, target = (name if re.fullmatch(code, name) else None for name in (self.source, self.target))
        of_files = self._languages_of_files()
        return source or of_files[0], target or of_files[1]

    def _languages_of_files(self) -> tuple[str | None, str | None]:
        """What the names of two aligned text files end in, where both are languages."""
        for files in (self.train_files, self.test_files, self.validation_files):
            ends = [language_of(Path(file).suffix.removeprefix(".")) for file in files or []]
            if len(ends) == 2 and None not in ends and ends[0] != ends[1]:
                return ends[0], ends[1]
        return None, None


@dataclass
class DecodingArguments:
    """How to translate. What is not given is as the model's `generation_config` says: the paper's search."""

    _argument_group_name = "decoding"

    num_beams: int | None = field(default=None, metadata={"help": "Beams; 1 is greedy search. The paper's is 4."})
    length_penalty: float | None = field(default=None, metadata={"help": "alpha; the paper's is 0.6."})
    max_new_tokens: int | None = field(
        default=None, metadata={"help": "Most tokens of a translation, instead of the paper's input length + 50."}
    )
    batch_tokens: int = field(default=4096, metadata={"help": "Most source tokens of a batch, padding included."})

    def __post_init__(self) -> None:
        for name in ("num_beams", "max_new_tokens", "batch_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1.")
        if self.length_penalty is not None and not abs(self.length_penalty) <= LARGEST_LENGTH_PENALTY:
            raise ValueError(
                f"length_penalty is {self.length_penalty}; it must lie between -{LARGEST_LENGTH_PENALTY} and "
                f"{LARGEST_LENGTH_PENALTY}, the paper's is 0.6."
            )

    def generate_kwargs(self) -> dict[str, Any]:
        """Arguments of `generate()`: those that were given."""
        values = {name: getattr(self, name) for name in ("num_beams", "length_penalty", "max_new_tokens")}
        return {name: value for name, value in values.items() if value is not None}


@dataclass
class ScoringArguments:
    """How to score; the signature beside each score says it."""

    _argument_group_name = "scoring"

    bleu_tokenize: str | None = field(
        default=None,
        metadata={
            "help": '"13a" for running text, "none" for text that is tokenised already, "char" for single words; if '
            'not given, "char" for the built-in corpus, what the target language asks for (--target, or what the '
            'text files end in) if it is written without blanks, and "13a" for others.'
        },
    )
    lowercase: bool = field(default=False, metadata={"help": "Ignore case."})

    def __post_init__(self) -> None:
        if self.bleu_tokenize is None:
            return
        if self.bleu_tokenize not in BLEU.TOKENIZERS:
            known = ", ".join(str(name) for name in BLEU.TOKENIZERS)
            raise ValueError(f'bleu_tokenize is "{self.bleu_tokenize}"; choose one of: {known}.')
        # Some need a library of their own, which is better missed now than at the end.
        try:
            BLEU(tokenize=self.bleu_tokenize)
        except RuntimeError as error:
            raise ValueError(
                f'bleu_tokenize is "{self.bleu_tokenize}": {error} Or give --bleu_tokenize char.'
            ) from error

    def for_target(self, language: str | None) -> "ScoringArguments":
        """The same, with words as a language has them that is written without blanks, unless it was said how.

        Raises:
            ValueError: if that needs a library that is not there.
        """
        tokenize = self.bleu_tokenize or _WITHOUT_BLANKS.get(re.split("[_-]", language or "")[0])
        return replace(self, bleu_tokenize=tokenize)

    def options(self, pairs: Dataset) -> dict[str, Any]:
        """Arguments of `score_translations`, for pairs."""
        default = "char" if is_number_corpus(pairs) else "13a"
        return {"tokenize": self.bleu_tokenize or default, "lowercase": self.lowercase}


def is_number_corpus(pairs: Dataset) -> bool:
    """Whether pairs are of the built-in corpus, whose translations are single words."""
    return "number" in pairs.column_names


@dataclass
class ModelArguments:
    """Which model: an existing one to fine-tune, or a row of Table 3 with changes."""

    _argument_group_name = "model"

    model: str | None = field(
        default=None,
        metadata={"help": "Fine-tune this model, a folder or a name on the Hub, with its tokenizer and sizes."},
    )
    row: str = field(
        default="base", metadata={"help": 'Row of Table 3 to begin from: "base", "big", "C N=2", "E", ...'}
    )
    tokenizer: str | None = field(
        default=None, metadata={"help": "Use this tokenizer, a folder or a name on the Hub, instead of learning one."}
    )
    vocab_size: int = field(default=37000, metadata={"help": "Most tokens of the joint byte-pair encoding."})
    whitespace_words: bool = field(
        default=False, metadata={"help": "Split texts at spaces only, for text that is tokenised already."}
    )
    bpe_dropout: float | None = field(
        default=None,
        metadata={"help": "Cut the training pairs at random, leaving out merges with this probability, 0.1 or so."},
    )
    bpe_dropout_copies: int = field(
        default=10, metadata={"help": "Copies of the training pairs, each cut in its own way, with --bpe_dropout."}
    )
    num_layers: int | None = field(default=None, metadata={"help": "N, of either stack, instead of the row's."})
    d_model: int | None = field(default=None, metadata={"help": "Instead of the row's."})
    d_ff: int | None = field(default=None, metadata={"help": "Instead of the row's."})
    num_heads: int | None = field(default=None, metadata={"help": "h, instead of the row's."})
    dropout: float | None = field(default=None, metadata={"help": "P_drop, instead of the row's, or the model's."})
    label_smoothing: float | None = field(default=None, metadata={"help": "epsilon_ls, likewise."})
    config_overrides: dict | str | None = field(
        default=None,
        metadata={"help": "Other fields of VanillaTransformerConfig, as JSON: '{\"decoder_layers\": 2}'."},
    )
    attn_implementation: str | None = field(
        default=None, metadata={"help": "By name, such as sdpa; chosen if not given."}
    )
    license: str | None = field(default=None, metadata={"help": "Licence of the weights, for the model card."})
    max_tokens: int | None = field(
        default=None,
        metadata={"help": "Leave out training pairs longer than this on one side; empty ones are left out anyway."},
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that cut the pairs into tokens, for long corpora."}
    )
    overwrite: bool = field(default=False, metadata={"help": "Replace the model that the output folder holds."})
    average_last: int | None = field(
        default=None,
        metadata={
            "help": "Save the average of the last so many checkpoints, instead of the weights after the last update. "
            "The paper averages 5, and 20 of the big model."
        },
    )

    def __post_init__(self) -> None:
        for name in ("max_tokens", "bpe_dropout_copies", "preprocessing_num_workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1.")
        if self.bpe_dropout is not None and not 0 <= self.bpe_dropout <= 1:
            raise ValueError(f"bpe_dropout is {self.bpe_dropout}; it must lie between 0 and 1.")
        if self.bpe_dropout is None and self.bpe_dropout_copies != type(self).bpe_dropout_copies:
            raise ValueError(
                f"bpe_dropout_copies is {self.bpe_dropout_copies}, but bpe_dropout is missing; give both, such as "
                "--bpe_dropout 0.1, or neither."
            )
        if isinstance(self.config_overrides, str):
            self.config_overrides = read_object("config_overrides", self.config_overrides)
        known = {each.name for each in fields(VanillaTransformerConfig)} | VanillaTransformerConfig.attribute_map.keys()
        unknown = set(self.config_overrides or {}) - known
        if unknown:
            raise ValueError(f"config_overrides has {min(unknown)}, which is no field of VanillaTransformerConfig.")
        if self.tokenizer is not None and (self.vocab_size, self.whitespace_words) != (type(self).vocab_size, False):
            raise ValueError(
                f"tokenizer is {self.tokenizer}, so none is learnt; leave out --vocab_size and --whitespace_words."
            )
        if self.model is not None:
            self._check_fine_tuning()

    def _check_fine_tuning(self) -> None:
        """Make sure that nothing is asked for that comes with the model.

        Raises:
            ValueError: if something is.
        """
        for name in ("row", "tokenizer", "config_overrides"):
            value = getattr(self, name)
            if value != getattr(type(self), name):
                raise ValueError(
                    f"{name} is {value}, but sizes and tokenizer are those of {self.model}; leave out one of the two."
                )

    def regularization(self) -> dict[str, float]:
        """What may be set for a model that is fine-tuned, too."""
        values = {"dropout": self.dropout, "label_smoothing": self.label_smoothing}
        return {name: value for name, value in values.items() if value is not None}

    def check_sizes(self, config: VanillaTransformerConfig, name: str | Path) -> None:
        """Make sure that no other size than an existing model's is asked for.

        Raises:
            ValueError: if one is.
        """
        sizes = [("num_layers", "encoder_layers"), ("num_layers", "decoder_layers")]
        sizes += [(size, size) for size in ("d_model", "d_ff", "num_heads")]
        for argument, size in sizes:
            wanted, there = getattr(self, argument), getattr(config, size)
            if wanted not in (None, there):
                raise ValueError(f"{argument} is {wanted}, but {name} has {there}, which training does not change.")

    def config(self, tokenizer: PreTrainedTokenizerBase | None = None) -> VanillaTransformerConfig:
        """The configuration of a model from scratch, without a tokenizer with the usual vocabulary."""
        sizes = {"encoder_layers": self.num_layers, "decoder_layers": self.num_layers}
        sizes |= {"d_model": self.d_model, "d_ff": self.d_ff, "num_heads": self.num_heads}
        given = {name: value for name, value in sizes.items() if value is not None}
        given |= self.regularization()
        if tokenizer is not None:
            # There may be ids without a token.
            given |= {"vocab_size": max(tokenizer.get_vocab().values()) + 1, **special_tokens(tokenizer)}
        return VanillaTransformerConfig.from_paper(self.row, **{**given, **(self.config_overrides or {})})


def read_object(name: str, text: str) -> dict[str, Any]:
    """Names and values of an argument that is a JSON object.

    Raises:
        ValueError: if it is none.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {text!r}; give a JSON object of names and values, such as '{{\"d_k\": 32}}'.")
    return value


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """What a configuration says of a tokenizer's special tokens; decoding starts from `<s>`, or else from padding."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    there = {name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None}
    return {**there, "decoder_start_token_id": there.get("bos_token_id", tokenizer.pad_token_id)}


@dataclass
class ResultArguments:
    """What is told of the run besides its model card."""

    _argument_group_name = "results"

    results: str | None = field(
        default=None,
        metadata={"help": "Write settings, scores on validation and test pairs, times and versions into this file."},
    )
    bleu_targets: list[float] = field(
        default_factory=list,
        metadata={"help": "The curve tells when the validation BLEU first reached these, such as 35 38 40."},
    )


class Settings(NamedTuple):
    """All arguments of scripts/train.py."""

    model: ModelArguments
    data: DataArguments
    decoding: DecodingArguments
    scoring: ScoringArguments
    results: ResultArguments
    args: RunArguments

    @property
    def output(self) -> Path:
        """The folder of the trained model."""
        return Path(self.args.output_dir)
