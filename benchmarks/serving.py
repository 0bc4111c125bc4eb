"""Throughput and latency of `serve` on loopback: in batches, one request at a time, beside costly ones; its memory.

Each setting has a server of its own, in a process of its own. Clients send one sentence per request, over connections
that stay open, and the next one when the last is answered.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from hf_vanilla_transformer import load_pairs
from hf_vanilla_transformer.cli.parser import parse, program
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.machine_and_versions import describe_environment


SETTINGS = {"batches": [], "one at a time": ["--tokens_per_batch", "1", "--max_wait_ms", "0"]}
# Requests before the first figure.
WARM_UP = 50
# Requests that take nearly all the work that one may: many texts of many beams, and few that may become very long.
COSTLY = {"many texts": (90, {}), "long translations": (5, {"max_new_tokens": 2048})}


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
    figures: dict[str, Any] = {"environment": describe_environment(), "load": {}, "memory": []}
    for name, options in SETTINGS.items():
        with server(args, options) as address:
            asyncio.run(send(address, sentences, WARM_UP, 8))
            for clients in args.clients:
                figures["load"][f"{name}, {clients}"] = asyncio.run(send(address, sentences, args.requests, clients))
            for costly in COSTLY if name == "batches" else ():
                figures["load"][f"beside {costly}, 1"] = asyncio.run(send_beside(address, sentences, args, costly))
    if args.memory_requests:
        with server(args, []) as address:
            figures["memory"] = list(memory(address, sentences, args.memory_requests, max(args.clients)))
    print(tables(figures))
    if args.output is not None:
        write_text(args.output, json.dumps(figures, indent=2) + "\n")
    return figures


@contextmanager
def server(args: ServingArguments, options: list[str]) -> Iterator[tuple[str, int]]:
    """A server on a free port."""
    command = [sys.executable, "-m", "hf_vanilla_transformer", "serve", "--port", "0", "--engine", args.engine]
    command += ["--model_name_or_path", args.model_name_or_path, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        printed: Any = process.stderr
        try:
            lines = []
            for line in printed:
                lines.append(line)
                if found := re.search(r"serving .* at http://(.*):(\d+)$", line):
                    yield found[1], int(found[2])
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
    return {"throughput": requests / (time.perf_counter() - started), "p50": float(p50), "p95": float(p95)}


async def send_beside(
    address: tuple[str, int], sentences: Sequence[str], args: ServingArguments, costly: str
) -> dict[str, float]:
    """Send short requests from one client, while another sends costly ones, the next when the last is answered."""
    texts, settings = COSTLY[costly]
    inputs = sorted(sentences, key=len)[-texts:]
    request = as_request(inputs, {"generate_parameters": {"num_beams": 16, **settings}})

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
    if figures["memory"]:
        lines += ["", "| requests | resident memory, MB |", "|---|---|"]
        lines += [f"| {row['requests']:,} | {row['megabytes']:.0f} |" for row in figures["memory"]]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
