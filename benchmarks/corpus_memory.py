"""Measure a corpus of millions of pairs from text files to batches: seconds, pairs a second, memory that grows.

A corpus is drawn and written into a temporary folder, with the cache of `datasets`, which is removed at the end. Each
step runs in a process of its own. Memory is anonymous memory, the sum of `RssAnon` in /proc over the process and those
that it starts, sampled 50 times a second: what is mapped from files does not count, since the system can take it back.
All is done for a fiftieth of the corpus first, so that the growth with the number of pairs shows.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from threading import Event, Thread
from typing import Any


if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import datasets
import numpy as np
import psutil
import torch
import transformers
from datasets import Dataset
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, PreTrainedTokenizerBase

from hf_vanilla_transformer import (
    TokenBudgetBatchSampler,
    filter_pairs,
    load_pairs,
    tokenize_pairs,
    train_tokenizer,
)
from hf_vanilla_transformer.cli.parsing import parse, plain_errors
from hf_vanilla_transformer.cli.writing import check_can_write
from hf_vanilla_transformer.data.sources import iterate_lines
from hf_vanilla_transformer.files import write_text


WORDS, LETTERS = 20_000, "etaoinshrdlucmfwypvbgkjqxz"
# Of a sentence: median of e^2 = 7 words, mean of 9, as in subtitles.
LOG_MEAN, LOG_DEVIATION, LONGEST = 2.0, 0.6, 300
EMPTY_SHARE = 0.001
PAIRS_AT_ONCE = 10_000
SENTENCES_FOR_THE_TOKENIZER = 50_000
SECONDS_BETWEEN_SAMPLES = 0.02


@dataclass
class BenchmarkArguments:
    """How much to measure, and where to put the result."""

    pairs: int = field(default=5_000_000, metadata={"help": "Size of the corpus."})
    processes: int = field(default=2, metadata={"help": "Processes that tokenise."})
    vocab_size: int = field(default=37_000, metadata={"help": "Most tokens of the byte-pair encoding."})
    max_tokens: int = field(default=40, metadata={"help": "Longer pairs are left out."})
    tokens_per_batch: int = field(default=4_096, metadata={"help": "Most tokens of a batch on each side."})
    batches: int = field(default=1_000, metadata={"help": "Batches that are collated."})
    seed: int = field(default=0, metadata={"help": "Of the corpus."})
    folder: str | None = field(default=None, metadata={"help": "Where to make the temporary folder."})
    output: str | None = field(default=None, metadata={"help": "Write the figures into this JSON file, too."})


def write_corpus(folder: Path, args: BenchmarkArguments, pairs: int) -> list[Path]:
    """Two aligned text files of words with frequencies by Zipf's law, and lengths that go together."""
    generator = np.random.default_rng(args.seed)
    letters = generator.choice(list(LETTERS), (WORDS, 12))
    word_lengths = 1 + generator.binomial(11, 0.4, WORDS)
    words = np.array(["".join(row[:length]) for row, length in zip(letters, word_lengths, strict=True)], dtype=object)
    shares = np.cumsum(1 / np.arange(1, WORDS + 1))
    shares /= shares[-1]

    def sentences(counts: np.ndarray) -> str:
        drawn = words[np.searchsorted(shares, generator.random(counts.sum()))].tolist()
        ends = np.cumsum(counts).tolist()
        return "".join(" ".join(drawn[begin:end]) + "\n" for begin, end in zip([0, *ends], ends, strict=False))

    paths = [folder / "train.en", folder / "train.de"]
    bar = tqdm(total=pairs, desc="writing the corpus", unit=" pairs")
    with bar, paths[0].open("w", encoding="utf-8") as source_file, paths[1].open("w", encoding="utf-8") as target_file:
        for begin in range(0, pairs, PAIRS_AT_ONCE):
            size = min(PAIRS_AT_ONCE, pairs - begin)
            source = np.clip(generator.lognormal(LOG_MEAN, LOG_DEVIATION, size), 1, LONGEST).astype(int)
            target = np.clip(source * generator.normal(1.05, 0.15, size), 1, LONGEST).astype(int)
            source[generator.random(size) < EMPTY_SHARE] = 0
            source_file.write(sentences(source))
            target_file.write(sentences(target))
            bar.update(size)
    return paths


def learn_tokenizer(folder: Path, files: Sequence[Path], args: BenchmarkArguments) -> None:
    """Learn a byte-pair encoding from the first sentences, and leave it in the folder."""
    texts = (line for file in files for line in islice(iterate_lines(file), SENTENCES_FOR_THE_TOKENIZER))
    train_tokenizer(texts, vocab_size=args.vocab_size).save_pretrained(folder / "tokenizer")


class Corpus:
    """The steps from files to batches; what an earlier process did comes out of the cache."""

    def __init__(self, folder: Path, args: BenchmarkArguments) -> None:
        self.files, self.args = [folder / "train.en", folder / "train.de"], args
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder / "tokenizer")

    def load(self) -> Dataset:
        """Pairs of sentences."""
        return load_pairs(train_files=self.files)["train"]

    def tokenize(self) -> Dataset:
        """Pairs of token ids."""
        return tokenize_pairs(self.load(), self.tokenizer, num_proc=self.args.processes)

    def filter(self) -> Dataset:
        """Those that fit."""
        data, dropped = filter_pairs(self.tokenize(), self.tokenizer, self.args.max_tokens)
        print(f"left out: {dropped}", flush=True)
        return data

    def plan(self) -> tuple[Dataset, TokenBudgetBatchSampler]:
        """The batches of an epoch, and its order."""
        data = self.filter()
        sampler = TokenBudgetBatchSampler(data, self.args.tokens_per_batch)
        next(iter(sampler))
        return data, sampler


def load(corpus: Corpus) -> Callable[[], int]:
    """Text files into the cache."""
    return lambda: len(corpus.load())


def tokenize(corpus: Corpus) -> Callable[[], int]:
    """Texts into tokens, in the cache too."""
    pairs = corpus.load()
    return lambda: len(tokenize_pairs(pairs, corpus.tokenizer, num_proc=corpus.args.processes))


def find_again(corpus: Corpus) -> Callable[[], int]:
    """Texts and tokens out of the cache, as in every later run."""
    return lambda: len(corpus.tokenize())


def filter_out(corpus: Corpus) -> Callable[[], int]:
    """Which pairs fit."""
    data = corpus.tokenize()
    return lambda: len(data) + 0 * len(filter_pairs(data, corpus.tokenizer, corpus.args.max_tokens)[0])


def plan(corpus: Corpus) -> Callable[[], int]:
    """The batches of an epoch, and the first of them."""
    data = corpus.filter()

    def measured() -> int:
        next(iter(TokenBudgetBatchSampler(data, corpus.args.tokens_per_batch)))
        return len(data)

    return measured


def collate(corpus: Corpus) -> Callable[[], int]:
    """Batches out of a `DataLoader`, padded, in one process, the plan included."""
    data = corpus.filter()

    def measured() -> int:
        sampler = TokenBudgetBatchSampler(data, corpus.args.tokens_per_batch)
        loader = DataLoader(data, batch_sampler=sampler, collate_fn=DataCollatorForSeq2Seq(corpus.tokenizer))
        some = islice(loader, corpus.args.batches)
        total = min(len(loader), corpus.args.batches)
        return sum(len(batch["labels"]) for batch in tqdm(some, total=total, desc="collating", unit=" batches"))

    return measured


STEPS = {
    "load": load,
    "tokenise": tokenize,
    "load and tokenise again": find_again,
    "filter": filter_out,
    "plan an epoch": plan,
    "collate batches": collate,
}


def anonymous_memory() -> int:
    """Bytes of this process and those it started that are backed by no file; what they share counts for each."""
    total = 0
    for number in [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]:
        try:
            status = Path(f"/proc/{number}/status").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended meanwhile.
        total += sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))
    return total


@contextmanager
def sampled_memory() -> Iterator[list[int]]:
    """A list of what is there at the beginning, and of samples until the end."""
    samples, end = [anonymous_memory()], Event()

    def sample() -> None:
        while not end.wait(SECONDS_BETWEEN_SAMPLES):
            samples.append(anonymous_memory())

    thread = Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        end.set()
        thread.join()


def measure(step: str, folder: Path, args: BenchmarkArguments) -> dict[str, float]:
    """One step in this process, which is fresh."""
    torch.set_num_threads(1)
    with sampled_memory() as samples:
        run = STEPS[step](Corpus(folder, args))
        start = time.perf_counter()
        pairs = run()
        seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "pairs": pairs,
        "pairs_per_second": pairs / seconds,
        "memory_before": samples[0],
        "memory_peak": max(samples),
    }


def measure_all(args: BenchmarkArguments, pairs: int) -> dict[str, dict[str, float]]:
    """All steps for a corpus of so many pairs, each in a fresh process."""
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="long_corpus_") as name:
        folder = Path(name)
        os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
        learn_tokenizer(folder, write_corpus(folder, args, pairs), args)
        for step in STEPS:
            load_average = os.getloadavg()[0]
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                figures[step] = {**pool.submit(measure, step, folder, args).result(), "load_average": load_average}
            print(f"{step}: {json.dumps(figures[step])}", flush=True)
        figures["files"] = {
            "text_bytes": sum(path.stat().st_size for path in folder.glob("train.*")),
            "cache_bytes": sum(path.stat().st_size for path in (folder / "cache").rglob("*") if path.is_file()),
        }
    return figures


def show(sizes: Sequence[int], figures: Sequence[dict[str, dict[str, float]]]) -> None:
    """A table of the larger corpus, and what its memory has grown by since the smaller one."""
    small, large = figures
    print(
        f"| step | seconds | pairs a second | memory before, MB | peak, MB | peak of {sizes[0]:,} pairs, MB | growth |"
    )
    print("|---|---|---|---|---|---|---|")
    for step in STEPS:
        growth = (large[step]["memory_peak"] - small[step]["memory_peak"]) / (sizes[1] - sizes[0])
        large[step]["bytes_a_pair"] = growth
        print(
            f"| {step} | {large[step]['seconds']:.1f} | {large[step]['pairs_per_second']:,.0f} | "
            f"{large[step]['memory_before'] / 1e6:.0f} | {large[step]['memory_peak'] / 1e6:.0f} | "
            f"{small[step]['memory_peak'] / 1e6:.0f} | {growth:.1f} bytes a pair |"
        )
    print(f"text {large['files']['text_bytes'] / 1e9:.2f} GB, cache {large['files']['cache_bytes'] / 1e9:.2f} GB")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure as the command line says; returns the figures."""
    (args,) = parse([BenchmarkArguments], __doc__, arguments)
    with plain_errors():
        check_can_write(args.output)
        if args.pairs < 50:
            raise ValueError(f"pairs is {args.pairs}; it must be at least 50.")
    sizes = [args.pairs // 50, args.pairs]
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}, datasets {datasets.__version__}"
    print(f"{versions}, {os.cpu_count()} CPU cores, load {os.getloadavg()[0]:.1f}", flush=True)
    figures = [measure_all(args, size) for size in sizes]
    show(sizes, figures)
    result = {"versions": versions, "cores": os.cpu_count(), "arguments": vars(args)}
    result |= {str(size): each for size, each in zip(sizes, figures, strict=True)}
    if args.output is not None:
        write_text(args.output, json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    main()
