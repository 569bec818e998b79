"""BM25 through Ray against Pyserini: queries/s, documents/s of the index, and two workers against one.

    make bench ARGS="-k bm25"      (SPARRING_BENCH_QUERIES, _INDEXED, _SHARED: queries, for two workers twelve
                                    times as many; documents of the index, and four times as many in parts; documents
                                    that two workers search)

Both sides have the packaged Java with as many processors as they have threads, and begin each turn with a new one.
Ours is the whole step in a running Ray session: its process, Java's start, the writing of its files. Of Pyserini's
search the start of Python and Java and the imports are left out: what counts are the searcher, `batch_search` and
reading ids and scores of the hits. Its index command counts whole, as our step does. For the index, and for two
workers, documents are repeated under new ids. With few queries or documents much of what two workers take is Java's
compiler, which keeps a core busy for some seconds in each, and has a core of its own beside one worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparring.components.retrieval import kind
from sparring.components.retrieval.lucene import BM25Config, contents
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.session import ray_session, stop_ray
from sparring.workflows.steps.lucene import LuceneIndexConfig, lucene_index, lucene_search
from tests.benchmarks.measure import HEAD, by_turns
from tests.benchmarks.pyserini_side import digest
from tests.benchmarks.repeated import repeated
from tests.benchmarks.table import machine, write

ROOT = Path(__file__).parents[2]
QUERIES = int(os.environ.get("SPARRING_BENCH_QUERIES", "5000"))
INDEXED = int(os.environ.get("SPARRING_BENCH_INDEXED", "100000"))
SHARED = int(os.environ.get("SPARRING_BENCH_SHARED", "500000"))
SEARCHED_BY_TWO = 12 * QUERIES  # as many as Natural Questions has to train with, which AR2 retrieves for
K = 100
COMMAND = 'make bench ARGS="-k bm25"'


def with_java(workers: int, threads: int) -> Machine:
    return resolve_machine(Cluster(device="cpu", java=Pool(workers=workers, threads=threads)))


@pytest.fixture(scope="module", autouse=True)
def _session() -> Iterator[None]:
    ray_session(with_java(1, 1).cluster)
    yield
    stop_ray()


def test_bm25_retrieval(collection: tuple[str, Path], tmp_path: Path) -> None:
    name, source = collection
    data = _asked(source, source, tmp_path / "data", QUERIES)
    index = _indexed(data, tmp_path)
    subject, peer = _Search(data, index, tmp_path, with_java(1, cores())), _PyseriniSearch(data, index)
    compared = by_turns(subject, peer)
    assert subject.ranking == peer.ranking
    against = f"Pyserini batch_search, {cores()} threads"
    rows = [compared.row("BM25 retrieval", against, "queries/s", QUERIES, 0.95)]
    documents = pq.read_metadata(data / "documents.parquet").num_rows
    lines = [f"The first {K} of {documents:,} documents for {QUERIES:,} queries of {name}.", machine(ROOT, "pyserini")]
    write(f"BM25 retrieval on {name}", COMMAND, HEAD, rows, lines)


def test_bm25_workers(docstrings: Path, tmp_path: Path) -> None:
    many = repeated(docstrings, tmp_path / "many", SHARED)
    data = _asked(many, docstrings, tmp_path / "data", SEARCHED_BY_TWO)
    index = _indexed(data, tmp_path)
    single, two = (_Search(data, index, tmp_path, with_java(workers, 1)) for workers in (1, 2))
    compared = by_turns(two, single)
    assert two.ranking == single.ranking
    rows = [compared.row("BM25, two workers of one thread", "one such worker", "queries/s", SEARCHED_BY_TWO, 1.7)]
    note = f"The first {K} of {SHARED:,} documents (docstrings, repeated)."
    write(f"BM25 over workers, {SEARCHED_BY_TWO:,} queries", COMMAND, HEAD, rows, [note, machine(ROOT, "pyserini")])


def test_bm25_index(collection: tuple[str, Path], tmp_path: Path) -> None:
    name, source = collection
    data = repeated(source, tmp_path / "data", INDEXED)
    subject, peer = _Index(data, tmp_path, with_java(1, cores())), _PyseriniIndex(data, tmp_path)
    compared = by_turns(subject, peer)
    against = f"Pyserini's index command, {cores()} threads"
    rows = [compared.row("BM25 index", against, "documents/s", INDEXED, 0.95)]
    lines = [f"{INDEXED:,} documents: those of {name}, repeated under new ids.", machine(ROOT, "pyserini")]
    write(f"BM25 index on {name}", COMMAND, HEAD, rows, lines)


def test_bm25_index_in_parts(docstrings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 4 * INDEXED
    data = repeated(docstrings, tmp_path / "data", count)
    build = {
        count // 4: _Index(data, tmp_path, with_java(2, 1), name="parts"),
        count: _Index(data, tmp_path, with_java(1, 2), name="whole"),
    }

    def built(documents: int) -> None:
        monkeypatch.setattr(kind, "PART", documents)
        build[documents]()

    compared = by_turns(*(partial(built, documents) for documents in build))
    rows = [
        compared.row(
            "BM25 index in four parts, two workers of one thread",
            "one worker of two threads",
            "documents/s",
            count,
            0.95,
        )
    ]
    lines = [f"{count:,} documents (docstrings, repeated).", machine(ROOT, "pyserini")]
    write("BM25 index in parts", COMMAND, HEAD, rows, lines)


class _Search:
    def __init__(self, data: Path, index: Path, place: Path, machine: Machine) -> None:
        splits = pq.read_table(data / "queries.parquet", columns=["split"])["split"].unique().to_pylist()
        self._inputs: dict[str, Any] = {"data": data, "index": index, "splits": splits, "k": K, "config": BM25Config()}
        self._place, self._machine = place, machine
        self._out = place

    def __call__(self) -> None:
        self._out = _fresh(self._place, "found")
        lucene_search(self._out, self._machine, **self._inputs)

    @property
    def ranking(self) -> str:
        pairs = pq.read_table(self._out / "ranking.parquet", columns=["query_id", "doc_id"]).to_pylist()
        return digest(pair.values() for pair in pairs)


class _PyseriniSearch:
    def __init__(self, data: Path, index: Path) -> None:
        table = pq.read_table(data / "queries.parquet", columns=["query_id", "text"])
        self._queries = json.dumps(list(zip(*table.to_pydict().values(), strict=True)))
        self._index, self.ranking = index, ""

    def __call__(self) -> float:
        output = _pyserini("search", str(self._index / "index"), str(K), input=self._queries)
        self.ranking = output["ranking"]
        return output["seconds"]


class _Index:
    def __init__(self, data: Path, place: Path, machine: Machine, name: str = "ours") -> None:
        self._data, self._place, self._machine, self._name = data, place, machine, name

    def __call__(self) -> None:
        out = _fresh(self._place, self._name)
        lucene_index(out, self._machine, data=self._data, config=LuceneIndexConfig())


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

    def __call__(self) -> None:
        _pyserini("index", str(self._input), str(_fresh(self._place, "theirs")))


def _pyserini(work: str, *arguments: str, input: str = "") -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.pyserini_side", work, str(cores()), *arguments],
        cwd=ROOT,
        input=input,
        env={**os.environ, "OPENAI_API_KEY": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _fresh(place: Path, name: str) -> Path:
    out = place / f"{name}-{len(list(place.glob(f'{name}-*')))}"
    out.mkdir()
    return out


def _asked(documents: Path, queries: Path, data: Path, count: int) -> Path:
    """A collection's documents with so many queries, repeated under new ids where there are fewer."""
    data.mkdir()
    (data / "documents.parquet").symlink_to(documents / "documents.parquet")
    table = pq.read_table(queries / "queries.parquet")
    table = table.take([number % len(table) for number in range(count)])
    place = table.schema.get_field_index("query_id")
    ids = pa.array([f"{id} {number}" for number, id in enumerate(table["query_id"].to_pylist())])
    pq.write_table(table.set_column(place, "query_id", ids), data / "queries.parquet")
    return data


def _indexed(data: Path, place: Path) -> Path:
    index = place / "index"
    index.mkdir()
    lucene_index(index, with_java(1, cores()), data=data, config=LuceneIndexConfig())
    return index
