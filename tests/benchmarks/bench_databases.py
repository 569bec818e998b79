"""Databases that an exported system is sent to: time, disk, and whether they find what Sparring finds.

    SPARRING_BENCH_SYSTEM=out/system SPARRING_BENCH_QUERIES=queries.jsonl make bench ARGS="-k databases"

`out/system` is a system of one dense retriever, `queries.jsonl` a BEIR file, of which SPARRING_BENCH_PAIRS queries are
asked (300). Databases whose clients are installed take part, and PostgreSQL if SPARRING_TEST_POSTGRESQL has the URL of
an empty database with pgvector. All compare a query with every vector, one query at a time. Sparring's own row is the
exported system in this process. A query's first ten documents count as equal if they are the same documents, whose
scores differ by less than 1e-4 at each rank.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from sparring.components.systems.database_sources import FolderSource
from sparring.components.systems.system import LoadedSystem
from sparring.workflows.distributed.limits import cores
from tests.benchmarks.table import machine, write
from tests.support.databases import Place

ROOT = Path(__file__).parents[2]
CLIENTS = {"sqlite": "sqlite_vec", "qdrant": "qdrant_client", "lancedb": "lancedb"}
QUERIES = int(os.environ.get("SPARRING_BENCH_PAIRS", "300"))
K = 10


def test_databases(tmp_path: Path) -> None:
    folder, file = (os.environ.get(f"SPARRING_BENCH_{name}") for name in ("SYSTEM", "QUERIES"))
    if not folder or not file:
        pytest.skip("SPARRING_BENCH_SYSTEM and SPARRING_BENCH_QUERIES name no system and no queries")
    system = LoadedSystem.load(folder, threads=cores())
    texts = [json.loads(line)["text"] for line in Path(file).read_text().splitlines()][:QUERIES]
    vectors = np.asarray(system.embed(texts, "query"), np.float32)
    source = FolderSource(Path(folder), system.config, threads=cores())
    (width,) = source.widths.values()
    stored = np.concatenate([next(iter(batch.vectors.values())) for batch in source.batches(1_000)])
    ids = [name for names in source.ids() for name in names]
    began = time.perf_counter()
    scores = np.stack([stored @ vector for vector in vectors])
    milliseconds = 1000 * (time.perf_counter() - began) / len(texts)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :K]
    disk = sum(path.stat().st_size for path in Path(folder).glob("index*")) + _size(Path(folder) / "documents.jsonl")
    rows = [["Sparring, products alone", "", f"{disk / 2**20:.0f}", f"{milliseconds:.1f}", ""]]
    urls = {
        name: f"{name}:///{tmp_path / name}" for name, module in CLIENTS.items() if importlib.util.find_spec(module)
    }
    if url := os.environ.get("SPARRING_TEST_POSTGRESQL"):
        urls["postgresql"] = url
    for name, url in urls.items():
        place = Place(url, tmp_path, lexical=None)
        place.kind = type("Plain", (place.kind.__mro__[1],), {})
        place.layout = place.layout._replace(vectors=source.widths)
        began = time.perf_counter()
        assert place.send(source).written == source.documents
        sending = time.perf_counter() - began
        column = next(iter(source.widths))
        equal, spent = 0, 0.0
        with place.searching() as (near, _):
            near(column, vectors[0], K)
            for number, vector in enumerate(vectors):
                began = time.perf_counter()
                hits = near(column, vector, K)
                spent += time.perf_counter() - began
                wanted = {ids[row] for row in best[number]}
                ranked = sorted((score for *_, score in hits), reverse=True)
                close = np.allclose(ranked, scores[number][best[number]], atol=1e-4)
                equal += close and {hit[0] for hit in hits} == wanted
        shown = "" if name == "postgresql" else f"{_size(tmp_path / name) / 2**20:.0f}"
        rows.append([name, f"{sending:.1f}", shown, f"{1000 * spent / len(texts):.1f}", f"{equal} of {len(texts)}"])
    lines = [f"{source.documents:,} documents with vectors of {width} numbers; {len(texts)} queries.", machine(ROOT)]
    head = ["database", "sending, s", "disk, MiB", "a query, ms", "equal first ten"]
    write("Vector databases", 'make bench ARGS="-k databases"', head, rows, lines)


def _size(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
