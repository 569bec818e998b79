"""Retrieve the k best documents of every query by their representations, exactly or with an index."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from sparring.components.compute.processor import configure_process
from sparring.components.config import Config
from sparring.components.data.groups import IdOrder, check_k
from sparring.components.data.own_documents import LeftOut
from sparring.components.data.tables import RANKED, counts, notes, write_ranking_part
from sparring.components.data.vectors import document_lengths, document_shards, read_query_ids, read_rows
from sparring.components.files import read_json, save_array, write_json
from sparring.components.retrieval import topk
from sparring.components.retrieval.kind import (
    DEFAULT,
    IndexFile,
    IndexOptions,
    Rows,
    VectorIndex,
    kind_named,
    kind_stored,
)
from sparring.components.retrieval.kinds.dense import EF, PROBES
from sparring.components.retrieval.quantised import Kind
from sparring.workflows.distributed.indexing import build_index_files, on_gpu
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards
from sparring.workflows.store import transfer
from sparring.workflows.store.dag import Description

EF_CONSTRUCTION = 40
"""FAISS's default number of candidates while it builds a graph."""
QUERIES_OF_INDEX = 1024
QUERIES_OF_PART = 1024
"""Largest number of queries in a part of the ranking."""
QUERIES_MERGED = 512
"""Number of queries of a part's row group."""
FILE, ORDER, TIMES = "ranking.parquet", ".order", "times.json"
SHARES = "shares"
"""Key of a part's note with the recall of sampled queries."""


class Cuts(NamedTuple):
    """Largest size of one shard of the work, in queries, documents and scores. It changes no result."""

    queries: int
    documents: int
    scores: int


ON_CPU, ON_GPU = Cuts(QUERIES_OF_PART, 2**20, 2**30), Cuts(topk.GPU_QUERY_BLOCK, 2**23, 2**36)
"""Shards for a GPU are larger. A shard's documents are copied to the GPU, and most of them are read twice until each
query has its first k."""


class SearchConfig(Config):
    """Index, vectors and rescoring of a search among documents."""

    index: str | None = None
    """FAISS factory string, for example `Flat`, `HNSW32` or `IVF1024,Flat`. Null searches exactly, without an index."""
    probes: int = Field(default=PROBES, ge=1)
    """Number of cells of an inverted file that are searched for each query."""
    ef: int = Field(default=EF, ge=1)
    """Number of candidates that an HNSW graph holds during a search."""
    ef_construction: int = Field(default=EF_CONSTRUCTION, ge=1)
    """Number of candidates that an HNSW graph holds while it is built. More give a better graph and take longer."""
    sample: int = Field(default=200, ge=1)
    """Number of queries for which an index is compared with exact search."""
    dimensions: int | None = Field(default=None, ge=1, exclude_if=lambda dimensions: dimensions is None)
    """Number of leading dimensions to search. With cosine similarity the shortened vectors are normalised again. They
    are cut from the encoded vectors, so the retriever must be trained for it (`dimensions` of a loss). Null searches
    all dimensions."""
    vectors: Kind = Field(default="encoded", exclude_if=lambda vectors: vectors == "encoded")
    """Form of the stored document vectors. `encoded`: the type that `encode.vectors` names. `int8`: 8 bits per
    dimension, in ranges taken from the collection's own vectors. `binary`: one bit per dimension, its sign; documents
    are found by Hamming distance."""
    rescore: int | None = Field(default=None, ge=1, exclude_if=lambda rescore: rescore is None)
    """Retrieve this many times as many documents as requested, and keep the best of them by `rescore_by`. Null does not
    rescore."""
    rescore_by: Kind = Field(default="encoded", exclude_if=lambda by: by == "encoded")
    """Document vectors that candidates are ordered by. The query's vector is never rounded. `encoded`: the whole
    vectors as they were encoded, which are then kept too. `int8` and `binary`: rounded vectors of the same dimensions.
    An inner product with a document's bits tells more than their distance from the query's bits."""

    def of_candidates(self) -> Self:
        """Return the config of the search for candidates, which does not depend on the vectors that are searched or
        rescored."""
        return self.model_copy(
            update={"dimensions": None, "vectors": "encoded", "rescore": None, "rescore_by": "encoded"}
        )

    def unfit(self, dimensions: int) -> str:
        """Describe the mistake if this config does not fit vectors of `dimensions` dimensions. Return "" if it fits, as
        far as that is known without FAISS."""
        if self.dimensions is not None and self.dimensions > dimensions:
            return f"dimensions: got {self.dimensions}, but the retriever's vectors have {dimensions} dimensions."
        width, parts = self.dimensions or dimensions, re.match(r"(?:IVF\d+,)?PQ([1-9]\d*)", self.index or "")
        if parts is not None and width % int(parts[1]):
            return (
                f"index: {self.index}: {width} dimensions cannot be cut into {parts[1]} equal parts; accepted: "
                f"a number of parts that divides {width}"
            )
        return ""

    @model_validator(mode="after")
    def _has_vectors(self) -> Self:
        if self.index is not None and self.vectors != "encoded":
            raise ValueError(
                f"vectors: {self.vectors}: an index has its own form of vectors, such as 8 bits with `SQ8`; "
                "accepted: encoded, or no `index`"
            )
        if self.rescore is None and self.rescore_by != "encoded":
            raise ValueError("rescore_by: nothing is rescored without `rescore`; accepted: both, or neither")
        cut = self.dimensions is not None and self.rescore_by == "encoded"  # candidates are ordered by whole vectors
        same = self.index is None and self.rescore_by == self.vectors != "binary" and not cut
        if self.rescore is not None and same:
            raise ValueError(
                f"rescore_by: {self.rescore_by}: the candidates are found by these vectors; accepted: "
                "other vectors, or no `rescore`"
            )
        return self


def _refuses_index(factory: str, kind: str) -> None:
    """Refuse an index that retrievers of this kind do not have."""
    kind_named(kind).check_index(factory)


@Description(part="search", droppable=("index.*",), workers_read={"out": ("index.*", "part-*")}, refuses=_refuses_index)
def build_index(
    out: Path,
    machine: Machine,
    *,
    vectors: Path,
    factory: str,
    ef_construction: int = EF_CONSTRUCTION,
    kind: str = DEFAULT,
) -> dict[str, Any]:
    """Write the files of an index over the documents' representations. For a dense retriever it is `index.faiss`, in
    which row i is document i.

    The arguments are only those that an index is built with, not the whole config: `probes` and `ef` need no other
    index.
    """
    shards = document_shards(vectors)
    kind_named(kind).check_index(factory, shards[0])
    gpu = on_gpu(out, machine, kind_named(kind), factory)
    index = VectorIndex(factory, ef_construction, gpu=gpu)
    files = build_index_files(out, machine, kind=kind, documents=vectors, index=index, factory=factory, gpu=gpu)
    finished = transfer.finished_sizes(out)
    return {"documents": sum(map(len, shards)), "bytes": sum(finished[file.name] for file in files)}


def _refuses(data: Path, k: int) -> None:
    """Refuse to retrieve more documents for a query than the collection has."""
    check_k(k, data)


VECTORS = {
    "data": ("documents.parquet",),
    "vectors": ("documents-*.npy",),
    "queries": ("queries.npy",),
    "index": ("*",),
    "out": ("found-*.npy", "sample-*.npy", "ranking.parquet/*"),
}
"""Files that only the workers read."""


@Description(part="search", version=2, refuses=_refuses, workers_read=VECTORS)
def search(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    vectors: Path,
    queries: Path,
    k: int,
    config: SearchConfig,
    index: Path | None = None,
) -> dict[str, Any]:
    """Write `ranking.parquet`: the k best documents of every query in `queries`, in the order of the queries.

    `vectors` are the documents' representations in the order of the documents table (`components.data.vectors`), or
    smaller vectors made of them (`components.retrieval.quantised`). The scores are those of the vectors that are
    searched. With `index` the ranking is what the index finds. The summary then has the recall of the exact ranking on
    a sample of the queries, and the share of the time that the index took.
    """
    if (config.index is None) != (index is None):
        raise ValueError("search takes an index where its config names one, and only there")
    documents, count = check_k(k, data), len(read_query_ids(queries))
    kind = kind_stored(vectors)
    factory = config.index if index is not None else None
    gpu = on_gpu(out, machine, kind, factory) if factory else machine.cuda
    workers = machine.workers(machine.cluster.map, documents, gpu=True) if gpu else 1
    cut = partial(_pieces, vectors, documents, cuts=ON_GPU if gpu else ON_CPU, workers=workers)
    pieces = cut(count, files=kind.index_files(factory, documents) if factory else [])
    sampled = cut(min(config.sample, count), name="sample") if index and count else []
    parts = _parts(out, pieces)
    # A worker without a GPU writes the part of a block of queries itself if it searches all documents.
    whole = len(parts) == len(pieces) and not (gpu or index)
    options: dict[str, Any] = {
        "out": out,
        "machine": machine,
        "pool": machine.cluster.map,
        "work": str(out),
        "data": str(data),
        "queries": str(queries),
        "k": k,
    }
    finished = transfer.finished_sizes(out)
    if not all(part.file in finished for part in parts):
        counted = map_shards(
            _Searching,
            [piece._replace(file=part.file) for piece, part in zip(pieces, parts, strict=True)]
            if whole
            else [*pieces, *sampled],
            unit="million scores",
            gpu=gpu,
            vectors=str(vectors),
            device="cuda" if gpu else "cpu",
            index=str(index) if index else None,
            options=IndexOptions(config.probes, config.ef),
            sample=config.sample,
            whole=whole,
            **options,
        )
        if index is not None:
            write_json(out / TIMES, counted)
        if not whole:
            map_shards(_Merging, parts, unit="queries", exact=list(_blocks(out, sampled).values()), **options)
    transfer.remove(out, "found-*.npy", "sample-*.npy", f"{ORDER}*")
    return {"queries": count, **counts(out / FILE), **(_recall(out, k) if index else {})}


@Description(part="search", version=2, refuses=_refuses, workers_read=VECTORS)
def candidates(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    vectors: Path,
    queries: Path,
    k: int,
    times: int,
    config: SearchConfig,
    index: Path | None = None,
) -> dict[str, Any]:
    """Search for `times` times `k` documents, or for all if there are fewer. The step `rescore` keeps the best `k`."""
    most = min(k * times, check_k(k, data))
    return search(out, machine, data=data, vectors=vectors, queries=queries, k=most, config=config, index=index)


def _sampled(count: int, sample: int) -> np.ndarray:
    """Return the queries, evenly spaced, for which an index is compared with exact search."""
    return np.arange(min(sample, count)) * count // max(1, min(sample, count))


def _pieces(
    vectors: Path,
    documents: int,
    queries: int,
    *,
    cuts: Cuts,
    workers: int = 1,
    name: str = "found",
    files: Sequence[IndexFile] = (),
) -> list[Shard]:
    """Cut the work into blocks of queries and runs of document shards, enough for every worker. With an index, the runs
    are the rows that its files cover."""
    lengths = document_lengths(vectors)
    if sum(lengths) != documents:
        raise ValueError(f"{vectors}: vectors of {sum(lengths)} documents, and the collection has {documents}")
    many = QUERIES_OF_INDEX if files else cuts.queries
    parts = -(-workers // max(1, -(-queries // many)))  # of the documents, so that each worker has one
    run = max(1, min(cuts.documents, cuts.scores // max(1, min(queries, many))) // lengths[0])
    run = min(run, -(-len(lengths) // parts))
    whole: list[tuple[str | None, int, int]] = [(*file,) for file in files]
    runs = whole or [(None, first, min(first + run, len(lengths))) for first in range(0, len(lengths), run)]
    begins = range(documents + 1) if files else np.cumsum([0, *lengths]).tolist()
    pieces = []
    for start in range(0, max(1, queries), many):  # without queries, one part without rows
        for index, first, last in runs:
            stop = min(start + many, queries)
            task = {"queries": name, "start": start, "stop": stop, "index": index}
            file = f"{name}-{start:08d}-{stop:08d}-{first:05d}-{last:05d}.npy"
            size = -(-(stop - start) * (begins[last] - begins[first]) // 10**6)
            order = [begins[first], begins[last]]
            pieces.append(Shard(file, size, {**task, "first": first, "last": last, "order": order}))
    return pieces


def _blocks(out: Path, pieces: list[Shard]) -> dict[tuple[int, int], list[str]]:
    """Return the files of keys of each block of queries: one file a run of documents."""
    blocks: dict[tuple[int, int], list[str]] = {}
    for piece in pieces:
        blocks.setdefault((piece.task["start"], piece.task["stop"]), []).append(str(out / piece.file))
    return blocks


def _parts(out: Path, pieces: list[Shard]) -> list[Shard]:
    """Cut the ranking into parts of at most `QUERIES_OF_PART` queries of a block."""
    parts = []
    for (block, end), files in _blocks(out, pieces).items():
        for start in range(block, max(end, block + 1), QUERIES_OF_PART):
            stop = min(end, start + QUERIES_OF_PART)
            task = {"files": files, "block": block, "start": start, "stop": stop}
            parts.append(Shard(f"{FILE}/{start:08d}.parquet", stop - start, task))
    return parts


def _merged(runs: Sequence[topk.Keys], k: int) -> Iterator[topk.Keys]:
    """Yield the k best documents over all runs, for some queries at a time, in order."""
    for first in range(0, len(runs[0]), QUERIES_MERGED):
        yield topk.merge([run[first : first + QUERIES_MERGED] for run in runs], k)


def _recall(out: Path, k: int) -> dict[str, Any]:
    """Compute the share of the sample's exact k best documents that the index found. Add the seconds that it took."""
    shares = list(chain.from_iterable(filter(None, notes(out / FILE, SHARES))))
    recall = {f"recall@{k} of exact": float(np.mean(shares)), "recall queries": len(shares)} if shares else {}
    return {**recall, **read_json(out / TIMES)}


RANKS = {"work": ("*",), "data": ("documents.parquet",)}
"""Files of `_Writer`'s arguments that tasks name, or of which it reads a part."""


class _Writer:
    """Writes keys as a part of the ranking: with the documents' ids and rows, and without documents left out."""

    def __init__(self, *, work: str, data: str, queries: str, k: int) -> None:
        self.order = IdOrder(Path(data), Path(work) / ORDER)
        self.query_ids, self._left_out, self._k = read_query_ids(Path(queries)), LeftOut(Path(data)), k
        self.most = min(k + self._left_out.most, len(self.order.rows))
        """Number of documents to retrieve, so that lists of `k` remain."""

    def write(self, path: Path, start: int, lists: Iterable[topk.Keys], **noted: Any) -> None:
        """Write the lists of consecutive queries from `start` on. Each item of `lists` becomes a row group."""
        write_ranking_part(path, self._tables(start, lists), RANKED, **noted)

    def _tables(self, start: int, lists: Iterable[topk.Keys]) -> Iterator[pa.Table]:
        for keys in lists:
            present = keys != topk.NO_DOCUMENT
            row, rank = np.nonzero(present)
            documents = self.order.rows[topk.tie_ranks_of(keys[present])]
            columns = [
                self.query_ids.take(pa.array(start + row)),
                self.order.ids.take(pa.array(documents)),
                pa.array(rank + 1, pa.int32()),
                pa.array(topk.scores_of(keys[present])),
                pa.array(documents),
            ]
            yield self._left_out(pa.table(columns, schema=RANKED), self._k)
            start += len(keys)


class _Merging:
    """A worker that merges the lists of all runs into a part of the ranking.

    `exact` are the files with the exact lists of sampled queries, of one block after another. For each sampled query in
    a part, the part notes the share of the exact k best documents that the index found.
    """

    on_demand: ClassVar = RANKS

    def __init__(self, *, threads: int, exact: list[list[str]], k: int, **ranking: str) -> None:
        self._writer, self._k = _Writer(k=k, **ranking), k
        lists = [keys for files in exact for keys in _merged(_opened(files), self._writer.most)]
        self._exact = topk.tie_ranks_of(np.concatenate(lists)) if lists else np.empty((0, 0), np.int64)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        start, stop, block = task["start"], task["stop"], task["block"]
        runs = [keys[start - block : stop - block] for keys in _opened(task["files"])]
        noted = {SHARES: self._shares(start, stop, runs)} if len(self._exact) else {}
        self._writer.write(path, start, _merged(runs, self._writer.most), **noted)

    def _shares(self, start: int, stop: int, runs: list[topk.Keys]) -> list[float]:
        sampled, shares = _sampled(len(self._writer.query_ids), len(self._exact)), []
        for number in np.flatnonzero((sampled >= start) & (sampled < stop)):
            row = sampled[number] - start
            keys = topk.merge([run[row : row + 1] for run in runs], self._writer.most)
            retrieved = topk.tie_ranks_of(keys[keys != topk.NO_DOCUMENT])
            shares.append(len(np.intersect1d(retrieved, self._exact[number])) / self._k)
        return shares


def _opened(files: Iterable[str]) -> list[topk.Keys]:
    return [np.load(file, mmap_mode="r") for file in files]


class _Searching:
    """A worker that finds the best documents for a block of queries, exactly in a run of document shards or with the
    index."""

    on_demand: ClassVar = {**RANKS, "vectors": ("documents-*.npy",), "index": ("*",)}

    def __init__(
        self,
        *,
        threads: int,
        vectors: str,
        queries: str,
        device: str,
        index: str | None,
        options: IndexOptions,
        sample: int,
        whole: bool,
        **ranking: Any,
    ) -> None:
        self._threads, self._device, self._whole, self._sample = threads, device, whole, sample
        self._vectors, self._queries = Path(vectors), Path(queries)
        self._index, self._options = Path(index or ""), options
        self._kind = kind_stored(self._vectors)
        self._writer = _Writer(queries=queries, **ranking)
        self._k = self._writer.most
        self._opened: dict[str, Callable[[Rows, topk.Keys, int], topk.Keys]] = {}

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        began = time.perf_counter()
        rows = np.arange(task["start"], task["stop"])
        queries = read_rows(self._queries / "queries.npy")
        rows = _sampled(len(queries), self._sample)[rows] if task["queries"] == "sample" else rows
        order = self._writer.order.places[slice(*task["order"])]
        if not len(rows):
            keys = np.empty((0, 0), np.int64)
        elif task["index"] is None:
            keys = self._exact(queries[rows], order, task["first"], task["last"])
        else:
            keys = self._approximate(queries[rows], order, task["index"])
        if self._whole:
            self._writer.write(path, task["start"], _merged([keys], self._k))
        else:
            save_array(path, keys)
        took = time.perf_counter() - began
        return {"search_seconds": took, "index_seconds": 0.0 if task["index"] is None else took}

    def _exact(self, queries: Rows, order: topk.Keys, first: int, last: int) -> topk.Keys:
        configure_process(self._threads)
        documents = document_shards(self._vectors)[first:last]
        transfer.download(*documents.paths)
        return self._kind.top_k(
            queries,
            documents,
            order,
            self._k,
            folder=self._vectors,
            device=self._device,
            threads=self._threads,
        )

    def _approximate(self, queries: Rows, order: topk.Keys, file: str) -> topk.Keys:
        if file not in self._opened:
            transfer.download(self._index / file)
            self._opened[file] = self._kind.open_index(
                self._index / file,
                folder=self._vectors,
                options=self._options,
                threads=self._threads,
                gpu=self._device != "cpu",
            )
        return self._opened[file](queries, order, self._k)
