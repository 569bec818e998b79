"""The search service under growing load, against FastAPI with sentence-transformers, by turns.

    SPARRING_BENCH_SYSTEM=out/system make bench ARGS="-k serve"

`out/system` is the folder of a retriever as `export --system "retriever 1"` writes it: both open its model, its index
and its documents. Both run in their own processes on the same cores as the clients. A client asks for ten documents of
one query, waits for the answer and asks again; every query of a level is another one. `-k embeddings` asks for the
vector of each query instead, from `/v1/embeddings`. With the folder of `ranker over retriever 1`, a client asks for the
order of ten documents, from `/v1/rerank`. An answer that is not whole, or an error, counts as lost.
SPARRING_BENCH_REQUESTS is for all levels together, SPARRING_BENCH_PEER_REQUESTS for the peer where it is slow.
SPARRING_BENCH_CLUSTER names the profile of a joined cluster: the peer is then our own service on Ray Serve.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import numpy as np
import pytest

from sparring.workflows.serving.deployment import free_port
from tests.benchmarks.table import machine, write

ROOT = Path(__file__).parents[2]
CLIENTS = {1: 0.05, 8: 0.15, 32: 0.4, 64: 0.4}
"""How many ask at once, and their share of all requests."""
REQUESTS = int(os.environ.get("SPARRING_BENCH_REQUESTS", "10000"))
PEER_REQUESTS = int(os.environ.get("SPARRING_BENCH_PEER_REQUESTS", str(REQUESTS)))
TURNS = 5
"""How often both take turns at one level."""
START_SECONDS = 300
K = 10
HEAD = ["clients", "who", "requests", "lost", "requests/s", "p50 ms", "p95 ms", "p99 ms"]


class Asking(NamedTuple):
    """A kind of request."""

    title: str
    stage: str
    """Stage that a system must end with."""
    path: str
    body: Callable[[list[str]], dict[str, Any]]
    """Function from a query and more texts to the request."""
    is_whole: Callable[[dict[str, Any]], bool]
    """Function that tells whether an answer has what was asked for."""


SEARCH = Asking(
    "Search service",
    "dense",
    "/search",
    lambda texts: {"queries": texts[:1], "k": K},
    lambda tree: len(tree["results"][0]["documents"]) == K,
)
EMBED = Asking(
    "Service of embeddings",
    "dense",
    "/v1/embeddings",
    lambda texts: {"input": texts[:1], "model": "dense"},
    lambda tree: len(tree["data"][0]["embedding"]) > 1,
)
RERANK = Asking(
    "Service of reranking",
    "ranker",
    "/v1/rerank",
    lambda texts: {"query": texts[0], "documents": texts[1:], "model": "ranker"},
    lambda tree: len(tree["results"]) == K,
)


class Load(NamedTuple):
    """What one level of load came to."""

    seconds: float
    times: list[float]
    lost: Counter[str]
    """Requests without a whole answer, by what came instead."""

    def __add__(self, load: Load) -> Load:  # type: ignore[override]
        return Load(self.seconds + load.seconds, self.times + load.times, self.lost + load.lost)

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    def row(self, clients: int, who: str) -> list[str]:
        parts = [f"{1000 * value:,.1f}" for value in np.percentile(self.times, [50, 95, 99])]
        return [str(clients), who, f"{len(self.times):,}", str(self.lost.total()), f"{self.rate:,.0f}", *parts]


@pytest.mark.parametrize("asking", [SEARCH, EMBED, RERANK], ids=["search", "embeddings", "rerank"])
def test_serve(asking: Asking) -> None:
    folder = os.environ.get("SPARRING_BENCH_SYSTEM")
    if not folder:
        pytest.skip("SPARRING_BENCH_SYSTEM names no exported system")
    place = Path(folder).resolve()
    stages = json.loads((place / "system.json").read_text())["stages"]
    if asking.stage != list(stages)[-1]:
        pytest.skip(f"{place} does not end with a stage {asking.stage}")
    server_port, peer_port = free_port("127.0.0.1", 0), free_port("127.0.0.1", 0)
    serve = [sys.executable, "-m", "workflows", "serve", str(place), "--port"]
    peer = [sys.executable, "-m", "tests.benchmarks.peer_search", str(place), str(peer_port)]
    names, title = ("Sparring", "peer"), asking.title
    if cluster := os.environ.get("SPARRING_BENCH_CLUSTER"):
        peer = [*serve, str(peer_port), "--cluster", cluster]
        names, title = ("uvicorn", "Ray Serve"), f"{title}, uvicorn and Ray Serve"
    queries, rows, ratios, lost = _queries(place), [], [], Counter[str]()
    with _started([*serve, str(server_port)], server_port), _started(peer, peer_port):
        for port in (server_port, peer_port):
            asyncio.run(
                _load(port, asking, queries[:50], 4)
            )  # the first requests warm caches, and Java or torch compile
        for clients, share in CLIENTS.items():
            loads = [Load(0.0, [], Counter()) for _ in range(2)]
            for turn in range(TURNS):
                for side, (port, count) in enumerate(((server_port, REQUESTS), (peer_port, PEER_REQUESTS))):
                    numbers = range(turn, round(count * share), TURNS)
                    requests = [queries[number % len(queries)] for number in numbers]
                    loads[side] += asyncio.run(_load(port, asking, requests, clients))
            rows += [load.row(clients, who) for load, who in zip(loads, names, strict=True)]
            ratios.append(f"{clients} clients {loads[0].rate / loads[1].rate:.2f}x")
            lost += loads[0].lost
            print(rows[-2:], *(load.lost for load in loads), flush=True)
    reranked = f" and {K} documents" if asking is RERANK else ""
    lines = [
        f"A collection of {len(queries):,} documents; one query of eight words{reranked} in each request to "
        f"{asking.path}. Both compute in {stages[asking.stage]['precision']}.",
        f"Throughput, {names[0]} over {names[1]}: {', '.join(ratios)}. Wanted: not slower.",
        f"Load of the machine when it ended: {os.getloadavg()[1]:.0f} processes that could run.",
        machine(ROOT, "fastapi", "sentence-transformers"),
    ]
    write(title, 'make bench ARGS="-k serve"', HEAD, rows, lines)
    assert lost == Counter()


def _queries(folder: Path) -> list[list[str]]:
    """Eight words from the middle of each document, and ten documents from there on."""
    with (folder / "documents.jsonl").open(encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    words = [text.split() for text in texts]
    queries = [" ".join(parts[len(parts) // 2 :][:8]) for parts in words]
    return [[query, *(texts * 2)[place : place + K]] for place, query in enumerate(queries)]


@contextmanager
def _started(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        until = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.5)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


async def _load(port: int, asking: Asking, queries: list[list[str]], clients: int) -> Load:
    """So many clients at once ask all queries."""
    coming, times, lost = iter(queries), [], Counter[str]()
    url = f"http://127.0.0.1:{port}{asking.path}"

    async def client(session: aiohttp.ClientSession) -> None:
        for query in coming:
            began = time.perf_counter()
            try:
                async with session.post(url, json=asking.body(query)) as answer:
                    tree = await answer.json()
                    if answer.status != 200 or not asking.is_whole(tree):
                        lost[f"{answer.status} {tree}"] += 1
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                lost[repr(error)] += 1
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return Load(time.perf_counter() - began, times, lost)
