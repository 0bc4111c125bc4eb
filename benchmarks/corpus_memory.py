"""Measure time and memory of a corpus of millions of sentence pairs, from text files to batches.

The command generates a random corpus in a temporary folder, which also holds the cache of `datasets`, and removes it at
the end. Each step runs in a fresh process. Memory is anonymous memory: the sum of `RssAnon` in /proc over the process
and its children, sampled 50 times per second. Memory mapped from files does not count, because the OS can drop it. All
steps run on a fiftieth of the corpus first, to compute how memory grows with the number of pairs.
"""

import json
import os
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

import numpy as np
import psutil
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from tqdm import tqdm
from transformers import AutoTokenizer, DataCollatorForSeq2Seq, PreTrainedTokenizerBase

from benchmarks.support.measurement_conditions import describe_conditions
from hf_vanilla_transformer import TokenBudgetBatchSampler, filter_pairs, load_pairs, tokenize_pairs, train_tokenizer
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.data.cleaning import clean_pairs, held_out_size, hold_out
from hf_vanilla_transformer.data.text_lines import iterate_lines
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.output_files import check_can_write


WORDS, LETTERS = 20_000, "etaoinshrdlucmfwypvbgkjqxz"
# Words per sentence, log-normal: median e^2 = 7, mean 9, as in subtitles.
LOG_MEAN, LOG_DEVIATION, LONGEST = 2.0, 0.6, 300
EMPTY_SHARE = 0.001
PAIRS_PER_CHUNK = 10_000
TOKENIZER_SENTENCES = 50_000
SECONDS_BETWEEN_SAMPLES = 0.02


@dataclass
class BenchmarkArguments:
    """How much to measure, and where to write the result."""

    pairs: int = field(default=5_000_000, metadata={"help": "Sentence pairs in the corpus."})
    processes: int = field(default=2, metadata={"help": "Processes that tokenize."})
    vocab_size: int = field(default=37_000, metadata={"help": "Maximum vocabulary size of the BPE."})
    max_tokens: int = field(default=40, metadata={"help": "Drop pairs with more tokens on either side."})
    tokens_per_batch: int = field(default=4_096, metadata={"help": "Maximum tokens per batch on each side."})
    batches: int = field(default=1_000, metadata={"help": "Number of batches to collate."})
    seed: int = field(default=0, metadata={"help": "Seed of the corpus."})
    folder: str | None = field(default=None, metadata={"help": "Parent of the temporary folder."})
    output: str | None = field(default=None, metadata={"help": "Also write the figures into this JSON file."})


def write_corpus(folder: Path, args: BenchmarkArguments, pairs: int) -> list[Path]:
    """Write two aligned text files: words follow Zipf's law, and lengths of source and target correlate."""
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
        for begin in range(0, pairs, PAIRS_PER_CHUNK):
            size = min(PAIRS_PER_CHUNK, pairs - begin)
            source = np.clip(generator.lognormal(LOG_MEAN, LOG_DEVIATION, size), 1, LONGEST).astype(int)
            target = np.clip(source * generator.normal(1.05, 0.15, size), 1, LONGEST).astype(int)
            source[generator.random(size) < EMPTY_SHARE] = 0
            source_file.write(sentences(source))
            target_file.write(sentences(target))
            bar.update(size)
    return paths


def learn_tokenizer(folder: Path, files: Sequence[Path], args: BenchmarkArguments) -> None:
    """Train a BPE tokenizer on the first sentences, and save it in the folder."""
    texts = (line for file in files for line in islice(iterate_lines(file), TOKENIZER_SENTENCES))
    train_tokenizer(texts, vocab_size=args.vocab_size).save_pretrained(folder / "tokenizer")


class Corpus:
    """The steps from files to batches; results of earlier processes come from the cache."""

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
        """Pairs of token ids within `max_tokens`."""
        data, dropped = filter_pairs(self.tokenize(), self.tokenizer, self.args.max_tokens)
        print(f"dropped: {dropped}", flush=True)
        return data

    def plan(self) -> tuple[Dataset, TokenBudgetBatchSampler]:
        """Pairs of token ids, and a sampler that has planned an epoch."""
        data = self.filter()
        sampler = TokenBudgetBatchSampler(data, self.args.tokens_per_batch)
        next(iter(sampler))
        return data, sampler


def load(corpus: Corpus) -> Callable[[], int]:
    """Read text files into the cache."""
    return lambda: len(corpus.load())


def clean(corpus: Corpus) -> Callable[[], int]:
    """Remove duplicates and faulty pairs, by their text."""
    pairs = corpus.load()
    return lambda: len(pairs) + 0 * len(clean_pairs(pairs)[0])


def hold_out_validation(corpus: Corpus) -> Callable[[], int]:
    """Divide the pairs into training and validation pairs."""
    pairs = corpus.load()
    return lambda: sum(map(len, hold_out(pairs, held_out_size(len(pairs)))))


def tokenize(corpus: Corpus) -> Callable[[], int]:
    """Tokenize, into the cache."""
    pairs = corpus.load()
    return lambda: len(tokenize_pairs(pairs, corpus.tokenizer, num_proc=corpus.args.processes))


def load_cached(corpus: Corpus) -> Callable[[], int]:
    """Load texts and tokens from the cache, as every later run does."""
    return lambda: len(corpus.tokenize())


def filter_by_length(corpus: Corpus) -> Callable[[], int]:
    """Drop pairs that are empty or too long."""
    data = corpus.tokenize()
    return lambda: len(data) + 0 * len(filter_pairs(data, corpus.tokenizer, corpus.args.max_tokens)[0])


def plan(corpus: Corpus) -> Callable[[], int]:
    """Plan the batches of an epoch, and draw the first."""
    data = corpus.filter()

    def measured() -> int:
        next(iter(TokenBudgetBatchSampler(data, corpus.args.tokens_per_batch)))
        return len(data)

    return measured


def collate(corpus: Corpus) -> Callable[[], int]:
    """Collate padded batches with a `DataLoader` in one process, with the plan."""
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
    "clean": clean,
    "hold out": hold_out_validation,
    "tokenize": tokenize,
    "load and tokenize again, cached": load_cached,
    "filter": filter_by_length,
    "plan an epoch": plan,
    "collate batches": collate,
}


def anonymous_memory() -> int:
    """Bytes of anonymous memory of this process and its children; shared pages count once for each."""
    total = 0
    for number in [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]:
        try:
            status = Path(f"/proc/{number}/status").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            continue  # The process has ended.
        total += sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))
    return total


@contextmanager
def sampled_memory() -> Iterator[list[int]]:
    """A list of samples of anonymous memory, from the start to the end of the context."""
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
    """Measure one step in this process."""
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
    """Measure all steps on a corpus of `pairs` pairs, each in a fresh process."""
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="corpus_memory_") as name:
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
    """Print a table of the larger corpus, with the growth in memory per pair since the smaller one."""
    small, large = figures
    print(
        f"| step | seconds | pairs/s | memory before, MB | peak, MB | peak at {sizes[0]:,} pairs, MB | bytes per pair |"
    )
    print("|---|---|---|---|---|---|---|")
    for step in STEPS:
        growth = (large[step]["memory_peak"] - small[step]["memory_peak"]) / (sizes[1] - sizes[0])
        large[step]["bytes_per_pair"] = growth
        print(
            f"| {step} | {large[step]['seconds']:.1f} | {large[step]['pairs_per_second']:,.0f} | "
            f"{large[step]['memory_before'] / 1e6:.0f} | {large[step]['memory_peak'] / 1e6:.0f} | "
            f"{small[step]['memory_peak'] / 1e6:.0f} | {growth:.1f} |"
        )
    print(f"text files {large['files']['text_bytes'] / 1e9:.2f} GB, cache {large['files']['cache_bytes'] / 1e9:.2f} GB")


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Run the command line; returns the figures."""
    args = parse(BenchmarkArguments, __doc__, arguments)
    check_can_write(args.output)
    check_number("pairs", args.pairs, 50)
    sizes = [args.pairs // 50, args.pairs]
    conditions = describe_conditions(torch.device("cpu"))
    print(", ".join(f"{name} {value}" for name, value in conditions.items()), flush=True)
    figures = [measure_all(args, size) for size in sizes]
    show(sizes, figures)
    result: dict[str, Any] = {"machine": conditions, "arguments": vars(args)}
    result |= {str(size): each for size, each in zip(sizes, figures, strict=True)}
    if args.output is not None:
        write_text(args.output, json.dumps(result, indent=2) + "\n")
    return result


if __name__ == "__main__":
    main()
