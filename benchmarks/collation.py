"""Time to make a training batch, by the stock collator and from Arrow's memory, on one thread."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq

from benchmarks.support.random_corpus import random_corpus
from hf_vanilla_transformer import TokenBudgetBatchSampler
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.data.arrow_batches import from_arrow
from hf_vanilla_transformer.support.argument_checks import check_number


# Its vocabulary and its pad token are read, and nothing else.
MODEL = Path(__file__).parents[1] / "tests" / "fixtures" / "numbers_tiny"
# Pairs in a record batch of a tokenized corpus, as `tokenize_pairs` writes it.
PAIRS_PER_CHUNK = 2_000


@dataclass
class CollationArguments:
    """The batches to make."""

    corpus_size: int = field(default=100_000, metadata={"help": "Pairs of random tokens, in a memory-mapped file."})
    tokens_per_batch: int = field(default=25_000, metadata={"help": "Maximum tokens per batch on each side."})
    batches: int = field(default=50, metadata={"help": "How many batches to make in each way."})

    def __post_init__(self) -> None:
        for name in ("corpus_size", "tokens_per_batch", "batches"):
            check_number(name, getattr(self, name), 1)


def write_corpus(size: int, vocab_size: int, folder: str) -> Dataset:
    """Return a corpus that lies in a file in chunks, as tokenized text does."""
    return random_corpus(size, vocab_size).map(
        lambda pairs: pairs,
        batched=True,
        batch_size=PAIRS_PER_CHUNK,
        writer_batch_size=PAIRS_PER_CHUNK,
        cache_file_name=str(Path(folder) / "corpus.arrow"),
    )


def milliseconds(make_batch: Callable[[list[int]], object], batches: list[list[int]]) -> float:
    """Return the median time to make one of the batches."""
    times = []
    for rows in batches:
        start = time.perf_counter()
        make_batch(rows)
        times.append(time.perf_counter() - start)
    return median(times) * 1e3


@program
def main(arguments: list[str]) -> dict[str, float]:
    """Print and return the milliseconds of each way, and the mean number of pairs in a batch."""
    args = parse(CollationArguments, __doc__, arguments)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    collator = DataCollatorForSeq2Seq(tokenizer, model=AutoModelForSeq2SeqLM.from_pretrained(MODEL))
    with tempfile.TemporaryDirectory() as folder:
        corpus = write_corpus(args.corpus_size, len(tokenizer), folder)
        batches = list(TokenBudgetBatchSampler(corpus, args.tokens_per_batch))[: args.batches]
        faster = from_arrow(corpus, collator)
        assert faster is not None
        pairs, tensors_of_pairs = faster
        figures = {
            "pairs per batch": sum(map(len, batches)) / len(batches),
            "rows as lists": milliseconds(corpus.__getitems__, batches),
            "rows as lists, stock collator": milliseconds(lambda rows: collator(corpus.__getitems__(rows)), batches),
            "from Arrow's memory": milliseconds(lambda rows: tensors_of_pairs(pairs.__getitems__(rows)), batches),
        }
    for name, value in figures.items():
        print(f"{name}: {value:,.2f}" + ("" if name == "pairs per batch" else " ms"))
    return figures


if __name__ == "__main__":
    main()
