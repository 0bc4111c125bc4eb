"""Throughput and latency of `serve` on loopback: in batches, one request at a time, beside costly ones; its memory.

Each setting, and each kind of costly requests, has a server of its own, in a process of its own. Clients send one
sentence per request, over connections that stay open, and the next one when the last is answered.
"""

import asyncio
import itertools
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
import psutil

from hf_vanilla_transformer import load_pairs
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.machine_and_versions import describe_environment


SETTINGS = {"batches": [], "one at a time": ["--tokens_per_batch", "1", "--max_wait_ms", "0"]}
# Requests before the first figure.
WARM_UP = 50


@dataclass(frozen=True)
class Costly:
    """A request for as many of the longest sentences as `texts`."""

    texts: int
    num_beams: int
    max_new_tokens: int | None = None


# Requests that take nearly all the work that they may: many texts of many beams, and few texts that may become long.
MANY_TEXTS = Costly(90, 16)
LONG_TRANSLATIONS = Costly(5, 16, 2048)
# A request for a page of text, with the beams of most models.
MEDIUM = Costly(20, 4)
# What clients send while the short requests are measured; each client sends its request again when it is answered.
BUSY = {
    "many texts": [MANY_TEXTS],
    "long translations": [LONG_TRANSLATIONS],
    "one large, three medium": [MANY_TEXTS, MEDIUM, MEDIUM, MEDIUM],
}
# How often short requests are measured alone and beside costly ones.
TURNS = 5
# Requests of medium size for the throughput of long requests.
MEDIUM_REQUESTS = 10
# Beams of further costly requests, with as many terms of the longest translations as the server allows, and whether
# they are in one text.
WITH_TERMS = {"one text, 2 beams": (2, True), "one text, 16 beams": (16, True), "100 texts, 16 beams": (16, False)}
# Limits of a request, see docs/operations.md.
MOST_TERMS, MOST_FORMS, MOST_CHARACTERS = 100, 10, 200


@dataclass
class ServingArguments:
    """What to measure."""

    model_name_or_path: str = field(metadata={"help": "The folder of a model."})
    source_file: str | None = field(
        default=None, metadata={"help": "Sentences to translate, one per line; by default those of the number corpus."}
    )
    clients: list[int] = field(default_factory=lambda: [1, 8, 64], metadata={"help": "Numbers of clients."})
    requests: int = field(default=1000, metadata={"help": "Requests per figure."})
    memory_requests: int = field(
        default=20_000, metadata={"help": "Requests for the memory, by the most clients; 0: none."}
    )
    max_new_tokens: int | None = field(
        default=None,
        metadata={"help": "Most new tokens of short requests; a model with random weights ends no sentence earlier."},
    )
    max_digits: int = field(default=3, metadata={"help": "Digits of the longest numbers to translate."})
    engine: str = field(default="torch", metadata={"help": "Engine of the server."})
    compute_type: str | None = field(default=None, metadata={"help": "Precision of ctranslate2, such as int8."})
    beside: bool = field(
        default=True, metadata={"help": "Also measure beside the costliest requests, and their memory; on Linux."}
    )
    request_seconds: int = field(default=60, metadata={"help": "The server's limit of the same name."})
    terms: bool = field(default=False, metadata={"help": "The same beside requests with terms."})
    output: str | None = field(default=None, metadata={"help": "Write the figures to this JSON file."})

    def __post_init__(self) -> None:
        check_number("requests", self.requests, 1)
        check_number("memory_requests", self.memory_requests, 0)
        for clients in self.clients:
            check_number("clients", clients, 1, 500)


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Measure as the command line says; returns the figures."""
    args = parse(ServingArguments, __doc__, arguments)
    if args.source_file is not None:
        sentences = Path(args.source_file).read_text(encoding="utf-8").splitlines()
    else:
        sentences = list(load_pairs("numbers", max_digits=args.max_digits, train_size=1)["test"]["source"])
    short = short_requests(args, sentences)
    figures: dict[str, Any] = {"environment": describe_environment(), "load": {}, "beside": [], "memory": []}
    for name, options in SETTINGS.items():
        with server(args, options) as (address, _):
            asyncio.run(send(address, short, WARM_UP, 8))
            for clients in args.clients:
                sent = asyncio.run(send(address, short, args.requests, clients))
                figures["load"][f"{name}, {clients}"] = sent.figures()
            if name == "batches":
                medium = [costly_request(sentences, MEDIUM)]
                sent = asyncio.run(send(address, medium, MEDIUM_REQUESTS, 1))
                figures["load"][f"requests of {MEDIUM.texts} texts, 1"] = sent.figures()
    count = max(TURNS, args.requests // 4)
    if args.beside:
        for name, costly in BUSY.items():
            requests = [costly_request(sentences, each) for each in costly]
            with server(args, []) as (address, process):
                row = asyncio.run(measure_beside(address, process, short, count, name, requests))
                figures["beside"].append(row)
    if args.terms:
        for name, (num_beams, is_one_text) in WITH_TERMS.items():
            with server(args, []) as (address, process):
                request = asyncio.run(costliest_terms(address, num_beams, is_one_text))
                name = f"terms in {name}"
                row = asyncio.run(measure_beside(address, process, short, count, name, [request]))
                figures["beside"].append(row)
    if args.memory_requests:
        with server(args, []) as (address, process):
            figures["memory"] = list(memory(address, process, short, args.memory_requests, max(args.clients)))
    print(tables(figures))
    if args.output is not None:
        write_text(args.output, json.dumps(figures, indent=2) + "\n")
    return figures


@contextmanager
def server(args: ServingArguments, options: list[str]) -> Iterator[tuple[tuple[str, int], int]]:
    """A server on a free port: its address, and the number of its process."""
    # The launcher, as in `hf-vanilla-transformer serve`, because only it limits the spinning of OpenMP's threads.
    command = [sys.executable, "-m", "hf_vanilla_transformer_launcher", "serve", "--port", "0", "--engine", args.engine]
    command += ["--request_seconds", str(args.request_seconds)]
    command += ["--model_name_or_path", args.model_name_or_path, *options]
    if args.compute_type is not None:
        command += ["--compute_type", args.compute_type]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        printed: Any = process.stderr
        try:
            lines = []
            for line in printed:
                lines.append(line)
                if found := re.search(r"serving .* at http://(.*):(\d+)$", line):
                    yield (found[1], int(found[2])), process.pid
                    return
            raise OSError(f"the server did not start: {''.join(lines[-3:])}")
        finally:
            process.terminate()


def short_requests(args: ServingArguments, sentences: Sequence[str]) -> list[bytes]:
    """A request for each sentence."""
    parameters = None
    if args.max_new_tokens is not None:
        parameters = {"generate_parameters": {"max_new_tokens": args.max_new_tokens}}
    return [as_request(sentence, parameters) for sentence in sentences]


def costly_request(sentences: Sequence[str], costly: Costly) -> bytes:
    """A request for the longest sentences."""
    settings = {"num_beams": costly.num_beams}
    if costly.max_new_tokens is not None:
        settings["max_new_tokens"] = costly.max_new_tokens
    return as_request(sorted(sentences, key=len)[-costly.texts :], {"generate_parameters": settings})


@dataclass
class Sent:
    """Latencies in ms of requests that were answered, and the seconds from the first to the last."""

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: "Sent") -> None:
        """Add requests that were sent later."""
        self.latencies += other.latencies
        self.seconds += other.seconds

    def figures(self) -> dict[str, float]:
        """Return the throughput in requests/s, and the median, the 95th percentile and the highest of the latencies."""
        p50, p95 = np.percentile(self.latencies, [50, 95])
        throughput = len(self.latencies) / self.seconds
        return {"throughput": throughput, "p50": float(p50), "p95": float(p95), "most": max(self.latencies)}


async def send(address: tuple[str, int], requests: Sequence[bytes], count: int, clients: int) -> Sent:
    """Send `count` requests from several clients at once."""
    numbers = itertools.count()
    sent = Sent()

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*address)
        while (number := next(numbers)) < count:
            started = time.perf_counter()
            await exchange(reader, writer, requests[number % len(requests)])
            sent.latencies.append(1000 * (time.perf_counter() - started))
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    sent.seconds = time.perf_counter() - started
    return sent


async def send_beside(address: tuple[str, int], short: Sequence[bytes], count: int, costly: Sequence[bytes]) -> Sent:
    """Send short requests from one client while others send a costly request each, again when it is answered."""

    async def client(request: bytes) -> None:
        reader, writer = await asyncio.open_connection(*address)
        try:
            while True:
                await exchange(reader, writer, request)
        finally:
            writer.close()

    busy = []
    for request in costly:
        busy.append(asyncio.create_task(client(request)))
        # The work of a large request must have begun when the medium ones arrive.
        await asyncio.sleep(0.5)
    sent = await send(address, short, count, 1)
    for task in busy:
        task.cancel()
    for outcome in await asyncio.gather(*busy, return_exceptions=True):
        if isinstance(outcome, OSError):
            raise outcome
    return sent


async def measure_beside(
    address: tuple[str, int], process: int, short: Sequence[bytes], count: int, name: str, costly: Sequence[bytes]
) -> dict[str, Any]:
    """Send short requests alone and beside costly ones, by turns because the machine's speed may change.

    The server ends the costly requests when their clients disconnect. Its memory shows what they take.
    """
    await send(address, short, WARM_UP, 8)
    memory_alone = peak_megabytes(process)
    alone, beside = Sent(), Sent()
    for _ in range(TURNS):
        alone.add(await send(address, short, count // TURNS, 1))
        beside.add(await send_beside(address, short, count // TURNS, costly))
    return {
        "name": name,
        "bytes": sum(map(len, costly)),
        "alone": alone.figures(),
        "beside": beside.figures(),
        "megabytes_alone": memory_alone,
        "megabytes": peak_megabytes(process),
    }


async def costliest_terms(address: tuple[str, int], num_beams: int, is_one_text: bool) -> bytes:
    """The largest request with terms that the server allows, each with the longest translations that it may have.

    One text has as many terms as possible. Several texts have a term each, and as long translations as possible.
    """
    reader, writer = await asyncio.open_connection(*address)
    smallest, too_large = 0, MOST_TERMS + 1
    request = b""
    while smallest + 1 < too_large:
        size = (smallest + too_large) // 2
        tried = request_with_terms(size, num_beams, is_one_text)
        try:
            await exchange(reader, writer, tried)
            smallest, request = size, tried
        except OSError:
            too_large = size
    writer.close()
    return request


def request_with_terms(size: int, num_beams: int, is_one_text: bool) -> bytes:
    """A request with as many terms as `size` in one text, or with as many new tokens for each of many texts."""
    names = ["".join(letters) for letters in product("bcdfghklmnprstvwxz", "aeiou", "lmnrs")]
    names = names[: size if is_one_text else MOST_TERMS]
    draws = random.Random(0)
    glossary = {}
    for name in names:
        forms = ["".join(draws.choices(ascii_lowercase, k=MOST_CHARACTERS)) for _ in range(MOST_FORMS - 1)]
        # One is short, so that all terms fit into the translation.
        glossary[name] = ["a", *forms]
    # Enough for the short translations, and no more, because each new token makes the work of all terms larger.
    max_new_tokens = 3 * size + 1 if is_one_text else size
    settings = {"num_beams": num_beams, "max_new_tokens": max_new_tokens, "glossary": glossary}
    return as_request(" ".join(names) if is_one_text else names, {"generate_parameters": settings})


def peak_megabytes(process: int) -> float:
    """The most resident memory that a process has had, in MB."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, flags=re.MULTILINE)[1]) * 1024 / 1e6


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    """Send a request and read its answer; OSError if it is an error."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, flags=re.IGNORECASE)
    body = await reader.readexactly(int(length[1]) if length else 0)
    if not head.startswith(b"HTTP/1.1 200"):
        raise OSError(f"the server answered {head.decode().splitlines()[0]}: {body.decode()}")


def as_request(inputs: str | Sequence[str], parameters: dict[str, Any] | None = None) -> bytes:
    """A request of the Hub's client."""
    body = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    head = (
        f"POST / HTTP/1.1\r\nHost: benchmark\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def memory(
    address: tuple[str, int], process: int, short: Sequence[bytes], requests: int, clients: int
) -> Iterator[dict[str, float]]:
    """Resident memory of the server in MB, at ten points of so many requests."""
    step = max(1, requests // 10)
    for done in range(step, requests + 1, step):
        asyncio.run(send(address, short, step, clients))
        yield {"requests": done, "megabytes": resident_megabytes(process)}


def resident_megabytes(process: int) -> float:
    """Resident memory of a process and its child processes in MB; CTranslate2 translates in child processes."""
    server_process = psutil.Process(process)
    resident_bytes = server_process.memory_info().rss
    for child_process in server_process.children(recursive=True):
        resident_bytes += child_process.memory_info().rss
    return resident_bytes / 1e6


def tables(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = ["| server, clients | requests/s | p50, ms | p95, ms |", "|---|---|---|---|"]
    for name, row in figures["load"].items():
        lines.append(f"| {name} | {row['throughput']:.1f} | {row['p50']:.0f} | {row['p95']:.0f} |")
    if figures["beside"]:
        lines.append("")
        lines.append("| beside, kB of the requests | p50 alone; beside, ms | p95 | ratio | most | peak memory, MB |")
        lines.append("|---|---|---|---|---|---|")
    for row in figures["beside"]:
        alone, beside = row["alone"], row["beside"]
        cells = [
            f"{row['name']}, {row['bytes'] / 1000:.0f}",
            f"{alone['p50']:.0f}; {beside['p50']:.0f}",
            f"{alone['p95']:.0f}; {beside['p95']:.0f}",
            f"{beside['p95'] / alone['p95']:.2f}",
            f"{beside['most']:.0f}",
            f"{row['megabytes_alone']:.0f}; {row['megabytes']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    if figures["memory"]:
        lines += ["", "| requests | resident memory, MB |", "|---|---|"]
        lines += [f"| {row['requests']:,} | {row['megabytes']:.0f} |" for row in figures["memory"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
