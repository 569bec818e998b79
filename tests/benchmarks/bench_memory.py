"""Memory of a refresh: encode and search through Ray, a collection against one of ten times as many documents.

    make bench ARGS="-k memory"       (SPARRING_BENCH_LARGE: documents of the large one)

Documents are the beginnings of docstrings, repeated under new ids; the retriever is the start model's first layer.
Memory is that of the driver, of Ray and of all its workers. Measured once: it hardly changes from run to run.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sparring.components.models.configs import DualEncoderConfig
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.steps.start import start
from sparring.workflows.steps.tokenize import TokenizeConfig, tokenize
from tests.benchmarks.conftest import DEVICE, MODEL
from tests.benchmarks.processes import watched
from tests.benchmarks.repeated import repeated
from tests.benchmarks.table import machine, write

ROOT = Path(__file__).parents[2]
LARGE = int(os.environ.get("SPARRING_BENCH_LARGE", "1000000"))
CHARACTERS, TOKENS = 250, 32
WANTED = 1.2

REFRESH = """
import sys
from pathlib import Path
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.distributed.session import stop_ray
from sparring.workflows.steps.encode import EncodeConfig, encode_documents, encode_queries
from sparring.workflows.steps.search import SearchConfig, search

data, tokens, retriever, vectors, queries, ranking = map(Path, sys.argv[2:])
machine = resolve_machine(Cluster(device=sys.argv[1]))
inputs = {"data": data, "tokens": tokens, "retriever": retriever, "config": EncodeConfig()}
encode_documents(vectors, machine, **inputs)
encode_queries(queries, machine, split="test", **inputs)
search(ranking, machine, data=data, vectors=vectors, queries=queries, k=100, config=SearchConfig())
stop_ray()
"""


def test_memory(docstrings: Path, tmp_path: Path) -> None:
    inline = resolve_machine(Cluster(mode="inline", device="cpu", map=Pool(workers=1, threads=cores())))
    retriever = tmp_path / "retriever"
    retriever.mkdir()
    config = DualEncoderConfig(
        model=MODEL, layers=1, pooling="mean", similarity="cosine", query_tokens=TOKENS, document_tokens=TOKENS
    )
    start(retriever, inline, config=config)
    peaks, rows = [], []
    for count in (LARGE // 10, LARGE):
        data = repeated(docstrings, tmp_path / f"data-{count}", count, characters=CHARACTERS)
        places = [tmp_path / f"{name}-{count}" for name in ("tokens", "vectors", "queries", "ranking")]
        for place in places:
            place.mkdir()
        tokens, vectors, queries, ranking = places
        tokenize(tokens, inline, data=data, model=retriever, config=TokenizeConfig())
        arguments = [DEVICE, *map(str, (data, tokens, retriever, vectors, queries, ranking))]
        seconds, memory = watched([sys.executable, "-c", REFRESH, *arguments], cwd=ROOT)
        peak = memory.peak()
        peaks.append(peak)
        rows.append([f"{count:,}", f"{peak / 2**20:,.0f} MiB", f"{seconds:,.0f}"])
    ratio = peaks[1] / peaks[0]
    reached = "yes" if ratio <= WANTED else "no"
    lines = [
        f"{ratio:.2f}x the memory for 10x the documents; wanted: {WANTED}x at most; reached: {reached}.",
        machine(ROOT),
    ]
    head = ["documents", "peak memory (PSS)", "seconds"]
    write("Memory of a refresh", 'make bench ARGS="-k memory"', head, rows, lines)
