"""Retrieve the k best documents of every query by their representations, exactly or with an index."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from sparring.components.compute.processor import configure_process
from sparring.components.config import Config
from sparring.components.data.groups import check_k, id_order, ids_of
from sparring.components.data.own_documents import LeftOut
from sparring.components.data.tables import RANKING, counts
from sparring.components.data.vectors import document_lengths, document_shards, read_query_ids, read_rows
from sparring.components.files import read_json, remove, replacing, save_array, write_array, write_json
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
from sparring.workflows.distributed.indexing import build_index_files
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards
from sparring.workflows.store import transfer
from sparring.workflows.store.dag import Description

EF_CONSTRUCTION = 40
"""FAISS's default number of candidates while it builds a graph."""
QUERIES_OF_INDEX = 1024
QUERIES_MERGED = 512


class Cuts(NamedTuple):
    """Largest size of one shard of the work, in queries, documents and scores. It changes no result."""

    queries: int
    documents: int
    scores: int


ON_CPU, ON_GPU = Cuts(4096, 2**20, 2**30), Cuts(topk.GPU_QUERY_BLOCK, 2**23, 2**36)
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


@Description(part="search", droppable=("index.*",), refuses=_refuses_index)
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
    index = VectorIndex(factory, ef_construction)
    files = build_index_files(out, machine, kind=kind, documents=vectors, index=index, factory=factory)
    return {"documents": sum(map(len, shards)), "bytes": sum((out / file.name).stat().st_size for file in files)}


def _refuses(data: Path, k: int) -> None:
    """Refuse to retrieve more documents for a query than the collection has."""
    check_k(k, data)


VECTORS = {
    "data": ("documents.parquet",),
    "vectors": ("documents-*.npy",),
    "queries": ("queries.npy",),
    "index": ("*",),
}
"""Inputs that only the workers read."""


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
    documents = check_k(k, data)
    query_ids = read_query_ids(queries)
    ranking, recall = out / "ranking.parquet", out / "recall.json"
    left_out = LeftOut(data)
    most = min(k + left_out.most, documents)
    if not ranking.exists():
        doc_ids = _prepare(out, data, len(query_ids), config.sample)
        kind = kind_stored(vectors)
        gpu = machine.cuda and (index is None or kind.index_on_gpu())
        workers = machine.workers(machine.cluster.map, documents, gpu=True) if gpu else 1
        cut = partial(_pieces, vectors, documents, cuts=ON_GPU if gpu else ON_CPU, workers=workers)
        factory = config.index if index is not None else None
        pieces = cut(len(query_ids), files=kind.index_files(factory, len(document_lengths(vectors))) if factory else [])
        sampled = cut(min(config.sample, len(query_ids)), name="sample") if index else []
        counted = map_shards(
            _Searching,
            pieces + sampled,
            out=out,
            machine=machine,
            pool=machine.cluster.map,
            unit="million scores",
            gpu=gpu,
            work=str(out),
            vectors=str(vectors),
            queries=str(queries),
            k=most,
            device="cuda" if gpu else "cpu",
            index=str(index) if index else None,
            options=IndexOptions(config.probes, config.ef),
        )
        write_json(recall, _recall(out, pieces, sampled, k) | counted if index else {})
        _write_ranking(ranking, query_ids, doc_ids, _merged(out, pieces, most), left_out, k)
    remove(out, "found-*.npy", "sample-*.npy", "order.npy", "sample.npy")
    return {"queries": len(query_ids), **counts(ranking), **read_json(recall)}


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


def _prepare(out: Path, data: Path, queries: int, sample: int) -> pa.Array:
    """Write what the workers read: each document's place in the order of ids, and the sampled queries. Return the ids
    in order."""
    doc_ids = ids_of(data / "documents.parquet", "doc_id")
    by_id, order = id_order(doc_ids)
    for name, array in {"order.npy": order, "sample.npy": _sampled(queries, sample)}.items():
        write_array(out / name, array)
    return doc_ids.take(pa.array(by_id))


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
    """Cut the work into blocks of queries and runs of document shards. With an index, the runs are those that its files
    cover. In exact search there are enough runs for every worker."""
    lengths = document_lengths(vectors)
    if sum(lengths) != documents:
        raise ValueError(f"{vectors}: vectors of {sum(lengths)} documents, and the collection has {documents}")
    many = QUERIES_OF_INDEX if files else cuts.queries
    parts = -(-workers // max(1, -(-queries // many)))  # of the documents, so that each worker has one
    run = max(1, min(cuts.documents, cuts.scores // max(1, min(queries, many))) // lengths[0])
    run = min(run, -(-len(lengths) // parts))
    whole: list[tuple[str | None, int, int]] = [(*file,) for file in files]
    runs = whole or [(None, first, min(first + run, len(lengths))) for first in range(0, len(lengths), run)]
    begins = np.cumsum([0, *lengths]).tolist()
    pieces = []
    for start in range(0, queries, many):
        for index, first, last in runs:
            stop = min(start + many, queries)
            task = {"queries": name, "start": start, "stop": stop, "index": index}
            file = f"{name}-{start:08d}-{stop:08d}-{first:05d}-{last:05d}.npy"
            size = -(-(stop - start) * (begins[last] - begins[first]) // 10**6)
            order = [begins[first], begins[last]]
            pieces.append(Shard(file, size, {**task, "first": first, "last": last, "order": order}))
    return pieces


def _merged(out: Path, pieces: list[Shard], k: int) -> Iterator[topk.Keys]:
    """Yield the best documents over all runs, for some queries at a time, in order."""
    blocks: dict[int, list[np.ndarray]] = {}
    for piece in pieces:
        blocks.setdefault(piece.task["start"], []).append(np.load(out / piece.file, mmap_mode="r"))
    for start in sorted(blocks):
        for first in range(0, len(blocks[start][0]), QUERIES_MERGED):
            yield topk.merge([run[first : first + QUERIES_MERGED] for run in blocks[start]], k)


def _recall(out: Path, pieces: list[Shard], sampled: list[Shard], k: int) -> dict[str, Any]:
    """Compute the share of the sample's exact k best documents that the index found."""
    exact = list(_merged(out, sampled, k))
    if not exact:
        return {}
    truth = topk.tie_ranks_of(np.concatenate(exact))
    queries = sum(piece.task["stop"] - piece.task["start"] for piece in pieces)
    wanted = _sampled(queries, len(truth))
    shares, first = [], 0
    for lists in _merged(out, pieces, k):
        for number in np.flatnonzero((wanted >= first) & (wanted < first + len(lists))):
            row = lists[wanted[number] - first]
            shares.append(len(np.intersect1d(topk.tie_ranks_of(row[row != topk.NO_DOCUMENT]), truth[number])) / k)
        first += len(lists)
    return {f"recall@{k} of exact": float(np.mean(shares)), "recall queries": len(shares)}


def _write_ranking(
    to: Path, query_ids: pa.Array, doc_ids: pa.Array, merged: Iterator[topk.Keys], left_out: LeftOut, k: int
) -> None:
    """Write the lists as one table. Documents that `left_out` names are removed, and each list is cut to `k`."""
    first = 0
    with replacing(to) as path, pq.ParquetWriter(path, RANKING) as writer:
        for lists in merged:
            present = lists != topk.NO_DOCUMENT
            row, rank = np.nonzero(present)
            columns = [
                query_ids.take(pa.array(first + row)),
                doc_ids.take(pa.array(topk.tie_ranks_of(lists[present]))),
                pa.array(rank + 1, pa.int32()),
                pa.array(topk.scores_of(lists[present])),
            ]
            writer.write_table(left_out(pa.table(columns, schema=RANKING), k))
            first += len(lists)


class _Searching:
    """A worker that finds the best documents for a block of queries, exactly in a run of document shards or with the
    index."""

    on_demand: ClassVar = {"vectors": ("documents-*.npy",), "index": ("*",)}

    def __init__(
        self,
        *,
        threads: int,
        work: str,
        vectors: str,
        queries: str,
        k: int,
        device: str,
        index: str | None,
        options: IndexOptions,
    ) -> None:
        self._threads, self._k, self._device = threads, k, device
        self._work, self._vectors, self._queries = Path(work), Path(vectors), Path(queries)
        self._index, self._options = Path(index or ""), options
        self._kind = kind_stored(self._vectors)
        self._opened: dict[str, Callable[[Rows, topk.Keys, int], topk.Keys]] = {}

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        began = time.perf_counter()
        rows = np.arange(task["start"], task["stop"])
        rows = np.load(self._work / "sample.npy")[rows] if task["queries"] == "sample" else rows
        queries = read_rows(self._queries / "queries.npy")[rows]
        order = np.load(self._work / "order.npy", mmap_mode="r")[slice(*task["order"])]
        if task["index"] is None:
            save_array(path, self._exact(queries, order, task["first"], task["last"]))
        else:
            save_array(path, self._approximate(queries, order, task["index"]))
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
