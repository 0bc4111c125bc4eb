"""Throughput and latency of `serve` on loopback: in batches, one request at a time, beside costly ones; its memory.

Each setting has a server of its own, in a process of its own. Clients send one sentence per request, over connections
that stay open, and the next one when the last is answered.
"""

import asyncio
import json
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

from hf_vanilla_transformer import load_pairs
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.machine_and_versions import describe_environment


SETTINGS = {"batches": [], "one at a time": ["--tokens_per_batch", "1", "--max_wait_ms", "0"]}
# Requests before the first figure.
WARM_UP = 50
# Requests that take nearly all the work that one may: many texts of many beams, and few that may become very long.
COSTLY = {"many texts": (90, {}), "long translations": (5, {"max_new_tokens": 2048})}
# Beams of further costly requests, with as many terms of the longest translations as the server allows, and whether
# they are in one text.
WITH_TERMS = {"one text, 2 beams": (2, True), "one text, 16 beams": (16, True), "100 texts, 16 beams": (16, False)}
# Limits of a request, see docs/serving.md.
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
    max_digits: int = field(default=3, metadata={"help": "Digits of the longest numbers to translate."})
    engine: str = field(default="torch", metadata={"help": "Engine of the server."})
    terms: bool = field(
        default=False, metadata={"help": "Also measure beside requests with terms, and their memory; on Linux."}
    )
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
    figures: dict[str, Any] = {"environment": describe_environment(), "load": {}, "memory": [], "terms": []}
    for name, options in SETTINGS.items():
        with server(args, options) as (address, _):
            asyncio.run(send(address, sentences, WARM_UP, 8))
            for clients in args.clients:
                figures["load"][f"{name}, {clients}"] = asyncio.run(send(address, sentences, args.requests, clients))
            for costly, (texts, settings) in COSTLY.items() if name == "batches" else ():
                inputs = sorted(sentences, key=len)[-texts:]
                request = as_request(inputs, {"generate_parameters": {"num_beams": 16, **settings}})
                figures["load"][f"beside {costly}, 1"] = asyncio.run(send_beside(address, sentences, args, request))
    for name in WITH_TERMS if args.terms else ():
        figures["terms"].append(measure_beside_terms(args, sentences, name))
    if args.memory_requests:
        with server(args, []) as (address, _):
            figures["memory"] = list(memory(address, sentences, args.memory_requests, max(args.clients)))
    print(tables(figures))
    if args.output is not None:
        write_text(args.output, json.dumps(figures, indent=2) + "\n")
    return figures


@contextmanager
def server(args: ServingArguments, options: list[str]) -> Iterator[tuple[tuple[str, int], int]]:
    """A server on a free port: its address, and the number of its process."""
    # The launcher, as in `hf-vanilla-transformer serve`, because only it limits the spinning of OpenMP's threads.
    command = [sys.executable, "-m", "hf_vanilla_transformer_launcher", "serve", "--port", "0", "--engine", args.engine]
    command += ["--model_name_or_path", args.model_name_or_path, *options]
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


async def send(address: tuple[str, int], sentences: Sequence[str], requests: int, clients: int) -> dict[str, float]:
    """Send requests from so many clients at once; returns throughput in sentences/s and latencies in ms."""
    numbers, latencies = count(), []

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*address)
        while (number := next(numbers)) < requests:
            started = time.perf_counter()
            await exchange(reader, writer, as_request(sentences[number % len(sentences)]))
            latencies.append(1000 * (time.perf_counter() - started))
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    p50, p95 = np.percentile(latencies, [50, 95])
    throughput = requests / (time.perf_counter() - started)
    return {"throughput": throughput, "p50": float(p50), "p95": float(p95), "most": max(latencies)}


async def send_beside(
    address: tuple[str, int], sentences: Sequence[str], args: ServingArguments, request: bytes
) -> dict[str, float]:
    """Send short requests from one client, while another sends a costly one, again when it is answered."""

    async def client() -> None:
        reader, writer = await asyncio.open_connection(*address)
        while True:
            await exchange(reader, writer, request)

    beside = asyncio.create_task(client())
    figures = await send(address, sentences, args.requests // 4, 1)
    if beside.done():
        beside.result()
    beside.cancel()
    return figures


def measure_beside_terms(args: ServingArguments, sentences: Sequence[str], name: str) -> dict[str, Any]:
    """Send short requests beside one with terms, to a server of its own, whose memory shows what the terms take."""
    with server(args, []) as (address, process):
        alone = asyncio.run(send(address, sentences, args.requests // 4, 1))
        memory_before = peak_megabytes(process)
        request = asyncio.run(costliest_terms(address, *WITH_TERMS[name]))
        beside = asyncio.run(send_beside(address, sentences, args, request))
        return {
            "name": name,
            "bytes": len(request),
            "p50_alone": alone["p50"],
            "p95_alone": alone["p95"],
            "p50": beside["p50"],
            "p95": beside["p95"],
            "most": beside["most"],
            "megabytes": peak_megabytes(process) - memory_before,
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
    address: tuple[str, int], sentences: Sequence[str], requests: int, clients: int
) -> Iterator[dict[str, float]]:
    """Resident memory of the server in MB, at ten points of so many requests."""
    step = max(1, requests // 10)
    for done in range(step, requests + 1, step):
        asyncio.run(send(address, sentences, step, clients))
        with urllib.request.urlopen(f"http://{address[0]}:{address[1]}/metrics") as response:
            found = re.search(r"^process_resident_memory_bytes (\S+)$", response.read().decode(), flags=re.MULTILINE)
        yield {"requests": done, "megabytes": float(found[1]) / 1e6 if found else float("nan")}


def tables(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = ["| server, clients | sentences/s | p50, ms | p95, ms |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {row['throughput']:.0f} | {row['p50']:.0f} | {row['p95']:.0f} |"
        for name, row in figures["load"].items()
    ]
    if figures["terms"]:
        lines += ["", "| terms in, kB of the request | p50 alone; beside it, ms | p95 | most | memory, MB |"]
        lines += ["|---|---|---|---|---|"]
        lines += [
            f"| {row['name']}, {row['bytes'] / 1000:.0f} | {row['p50_alone']:.0f}; {row['p50']:.0f} | "
            f"{row['p95_alone']:.0f}; {row['p95']:.0f} | {row['most']:.0f} | {row['megabytes']:.0f} |"
            for row in figures["terms"]
        ]
    if figures["memory"]:
        lines += ["", "| requests | resident memory, MB |", "|---|---|"]
        lines += [f"| {row['requests']:,} | {row['megabytes']:.0f} |" for row in figures["memory"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
