"""BM25 through Ray Data against Pyserini: queries/s of one worker and of two, and documents/s of the index.

    make bench ARGS="-k bm25"             (SPARRING_BENCH_QUERIES, SPARRING_BENCH_INDEXED: how many)

Both sides have the packaged Java with as many processors as they have threads, and begin each turn with a new one.
Ours is the whole step in a running Ray session: its process, Java's start, the writing of its files. Of theirs the
start of Python and Java and Pyserini's import are left out: what counts are the searcher, `batch_search` and reading
ids and scores of the hits, and for the index all that its command does once Java runs. For the index the documents are
repeated under new ids, as Java's first seconds are slow on both sides.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from components.lucene import contents
from tests.benchmarks.measure import HEAD, by_turns
from tests.benchmarks.pyserini_side import digest
from tests.benchmarks.repeated import repeated
from tests.benchmarks.table import machine, write
from workflows.cluster import Cluster, Pool, cores, ray_session, stop_ray
from workflows.steps.lucene import BM25Config, LuceneIndexConfig, lucene_index, lucene_search

ROOT = Path(__file__).parents[2]
QUERIES = int(os.environ.get("SPARRING_BENCH_QUERIES", "10000"))
INDEXED = int(os.environ.get("SPARRING_BENCH_INDEXED", "100000"))
K = 100
COMMAND = 'make bench ARGS="-k bm25"'


def cluster(workers: int, threads: int) -> Cluster:
    return Cluster(device="cpu", java=Pool(workers=workers, threads=threads))


@pytest.fixture(scope="module", autouse=True)
def _session() -> Iterator[None]:
    ray_session(cluster(1, 1))
    yield
    stop_ray()


def test_bm25(collection: tuple[str, Path], tmp_path: Path) -> None:
    name, source = collection
    data = _asked(source, tmp_path / "data")
    index = tmp_path / "index"
    index.mkdir()
    lucene_index(index, cluster(1, cores()), data=data, config=LuceneIndexConfig())
    whole, one, two = (_Search(data, index, tmp_path, cluster(*shape)) for shape in ((1, cores()), (1, 1), (2, 1)))
    theirs = _PyseriniSearch(data, index)
    queries = pq.read_metadata(data / "queries.parquet").num_rows
    against = f"Pyserini batch_search, {cores()} threads"
    rows = [by_turns(whole, theirs).row("BM25 retrieval", against, "queries/s", queries, 0.95)]
    assert whole.ranking == theirs.ranking
    rows.append(by_turns(two, one).row("two workers of one thread", "one of one thread", "queries/s", queries, 1.7))
    assert two.ranking == one.ranking == whole.ranking
    documents = pq.read_metadata(data / "documents.parquet").num_rows
    lines = [f"The first {K} of {documents:,} documents for {queries:,} queries of {name}.", machine(ROOT, "pyserini")]
    write(f"BM25 retrieval on {name}", COMMAND, HEAD, rows, lines)


def test_bm25_index(collection: tuple[str, Path], tmp_path: Path) -> None:
    name, source = collection
    data = repeated(source, tmp_path / "data", INDEXED)
    ours, theirs = _Index(data, tmp_path), _PyseriniIndex(data, tmp_path)
    compared = by_turns(ours, theirs)
    against = f"Pyserini's index command, {cores()} threads"
    rows = [compared.row("BM25 index", against, "documents/s", INDEXED, 0.95)]
    lines = [f"{INDEXED:,} documents: those of {name}, repeated under new ids.", machine(ROOT, "pyserini")]
    write(f"BM25 index on {name}", COMMAND, HEAD, rows, lines)


class _Search:
    def __init__(self, data: Path, index: Path, place: Path, cluster: Cluster) -> None:
        self._inputs: dict[str, Any] = {"data": data, "index": index, "k": K, "config": BM25Config()}
        splits = pq.read_table(data / "queries.parquet", columns=["split"])["split"]
        self._inputs["splits"] = splits.unique().to_pylist()
        self._place, self._cluster = place, cluster
        self._out = place

    def __call__(self) -> None:
        self._out = _fresh(self._place, "found")
        lucene_search(self._out, self._cluster, **self._inputs)

    @property
    def ranking(self) -> str:
        found = pq.read_table(self._out / "ranking.parquet", columns=["query_id", "doc_id"]).to_pylist()
        return digest(pair.values() for pair in found)


class _PyseriniSearch:
    def __init__(self, data: Path, index: Path) -> None:
        table = pq.read_table(data / "queries.parquet", columns=["query_id", "text"])
        self._queries = json.dumps(list(zip(*table.to_pydict().values(), strict=True)))
        self._index, self.ranking = index, ""

    def __call__(self) -> float:
        said = _pyserini("search", str(self._index / "index"), str(K), input=self._queries)
        self.ranking = said["ranking"]
        return said["seconds"]


class _Index:
    def __init__(self, data: Path, place: Path) -> None:
        self._data, self._place = data, place

    def __call__(self) -> None:
        out = _fresh(self._place, "ours")
        lucene_index(out, cluster(1, cores()), data=self._data, config=LuceneIndexConfig())


class _PyseriniIndex:
    def __init__(self, data: Path, place: Path) -> None:
        self._input, self._place = place / "json", place
        self._input.mkdir()
        table = pq.read_table(data / "documents.parquet")
        step = -(-len(table) // (4 * cores()))  # a file is one thread's work
        for start in range(0, len(table), step):
            with (self._input / f"{start:08d}.jsonl").open("w") as file:
                for row in table.slice(start, step).to_pylist():
                    text = contents(row["title"], row["text"])
                    file.write(json.dumps({"id": row["doc_id"], "contents": text}) + "\n")

    def __call__(self) -> float:
        return _pyserini("index", str(self._input), str(_fresh(self._place, "theirs")))["seconds"]


def _pyserini(work: str, *arguments: str, input: str = "") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.pyserini_side", work, str(cores()), *arguments], cwd=ROOT, input=input,
        env={**os.environ, "OPENAI_API_KEY": "none"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _fresh(place: Path, name: str) -> Path:
    out = place / f"{name}-{len(list(place.glob(f'{name}-*')))}"
    out.mkdir()
    return out


def _asked(source: Path, data: Path) -> Path:
    """The collection with so many of its queries."""
    data.mkdir()
    (data / "documents.parquet").symlink_to(source / "documents.parquet")
    pq.write_table(pq.read_table(source / "queries.parquet").slice(0, QUERIES), data / "queries.parquet")
    return data
