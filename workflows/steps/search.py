"""Dense retrieval: the k best documents of every query by inner product, exactly or with a FAISS index."""

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, model_validator

from sparring.components.compute.processor import configure_process
from sparring.components.config import Config
from sparring.components.data.groups import check_k, id_order, ids_of
from sparring.components.data.own_documents import LeftOut
from sparring.components.data.tables import RANKING, counts
from sparring.components.data.vectors import document_shards, read_query_ids
from sparring.components.files import read_json, remove, replacing, save_array, write_array, write_json
from sparring.components.retrieval import quantised, topk
from sparring.components.retrieval.quantised import Kind, Smaller
from sparring.workflows.distributed.cluster import Pool
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards
from sparring.workflows.store.dag import Description
from sparring.workflows.store.progress import Progress

INDEX = "index.faiss"
EF_CONSTRUCTION = 40
"""FAISS's own number of candidates while a graph is built."""
QUERIES_OF_INDEX = 1024
QUERIES_MERGED = 512


class Cuts(NamedTuple):
    """How the work is cut into shards, which changes no result: the most of one shard."""

    queries: int
    documents: int
    scores: int


ON_CPU, ON_GPU = Cuts(4096, 2**20, 2**30), Cuts(topk.GPU_QUERY_BLOCK, 2**23, 2**36)
"""To a GPU a shard's documents are copied, and until each query has its first k, most of them are looked at twice: so
its shards are larger."""


class SearchConfig(Config):
    """How documents are searched."""

    index: str | None = None
    """FAISS factory string, for example `Flat`, `HNSW32` or `IVF1024,Flat`; null for exact search without an index."""
    probes: int = Field(default=16, ge=1)
    """Cells of an inverted file that are searched for a query."""
    ef: int = Field(default=128, ge=1)
    """Candidates that an HNSW graph holds while it is searched."""
    ef_construction: int = Field(default=EF_CONSTRUCTION, ge=1)
    """Candidates that an HNSW graph holds while it is built: more give a better graph, and take longer."""
    sample: int = Field(default=200, ge=1)
    """Queries for which an index is compared with exact search."""
    dimensions: int | None = Field(default=None, ge=1, exclude_if=lambda dimensions: dimensions is None)
    """Search the first so many dimensions of the vectors, which cosine similarity normalizes again. They are cut from
    the vectors that were encoded, for retrievers that learnt so (`dimensions` of a loss). Null for all."""
    vectors: Kind = Field(default="encoded", exclude_if=lambda vectors: vectors == "encoded")
    """What is kept of a document's vector. `encoded`: as `encode.vectors` says. `int8`: 8 bits a dimension, in ranges
    of the collection's own vectors. `binary`: one bit, its sign; documents are found by Hamming distance."""
    rescore: int | None = Field(default=None, ge=1, exclude_if=lambda rescore: rescore is None)
    """Find so many times as many documents as are wanted, and keep the best of them by `rescore_by`; null for none."""
    rescore_by: Kind = Field(default="encoded", exclude_if=lambda by: by == "encoded")
    """The vectors of documents that candidates are ordered by; a query's has all its bits. `encoded`: whole vectors as
    they were encoded, which are then kept too. `int8`, `binary`: of the same dimensions; the bits themselves tell more
    than their distance from the query's bits."""

    def of_candidates(self) -> Self:
        """How candidates are found, whatever they are found in and ordered by."""
        return self.model_copy(
            update={"dimensions": None, "vectors": "encoded", "rescore": None, "rescore_by": "encoded"}
        )

    def unfit(self, dimensions: int) -> str:
        """What does not fit vectors of so many dimensions, as far as that is known without FAISS; empty where all
        does."""
        if self.dimensions is not None and self.dimensions > dimensions:
            return f"dimensions: {self.dimensions}: the retriever's vectors have {dimensions}; accepted: at most these"
        left, parts = self.dimensions or dimensions, re.match(r"(?:IVF\d+,)?PQ([1-9]\d*)", self.index or "")
        if parts is not None and left % int(parts[1]):
            return f"index: {self.index}: {left} dimensions cannot be cut into {parts[1]} equal parts; accepted: others"
        return ""

    @model_validator(mode="after")
    def _has_vectors(self) -> Self:
        if self.index is not None and self.vectors != "encoded":
            raise ValueError(
                f"vectors: {self.vectors}: an index says itself what it keeps, as `SQ8` does 8 bits; "
                "accepted: encoded, or no `index`"
            )
        if self.rescore is None and self.rescore_by != "encoded":
            raise ValueError("rescore_by: nothing is rescored; accepted: with `rescore`")
        cut = self.dimensions is not None and self.rescore_by == "encoded"  # candidates are ordered by whole vectors
        same = self.index is None and self.rescore_by == self.vectors != "binary" and not cut
        if self.rescore is not None and same:
            raise ValueError(
                f"rescore_by: {self.rescore_by}: the candidates are found by these vectors; accepted: "
                "others, or no `rescore`"
            )
        return self


def _refuses_index(factory: str) -> None:
    """A factory string that FAISS does not know, or that makes no ranking by inner products."""
    from sparring.components.retrieval import index  # heavy

    index.check_factory(factory)


@Description(part="search", droppable=(INDEX,), refuses=_refuses_index)
def faiss_index(
    out: Path, machine: Machine, *, vectors: Path, factory: str, ef_construction: int = EF_CONSTRUCTION
) -> dict[str, Any]:
    """Write `index.faiss`, in which row i is document i.

    It takes what an index is built with alone, not the whole config: `probes` and `ef` need no other index.
    """
    from sparring.components.retrieval import index

    shards = document_shards(vectors)
    rows, dimension = sum(len(shard) for shard in shards), shards[0].shape[1]
    index.create(factory, dimension)
    most = machine.cores
    pool = Pool(workers=1, threads=min(most, (machine.cluster.map.workers or most) * machine.cluster.map.threads))
    map_shards(
        _Indexing,
        [Shard(INDEX, rows, {})],
        out=out,
        machine=machine,
        pool=pool,
        unit="documents",
        vectors=str(vectors),
        factory=factory,
        ef_construction=ef_construction,
    )
    return {"documents": rows, "dimension": dimension, "bytes": (out / INDEX).stat().st_size}


def _refuses(data: Path, k: int) -> None:
    """More documents for a query than there are."""
    check_k(k, data)


@Description(part="search", version=2, refuses=_refuses)
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
    """Write `ranking.parquet`: for every query whose vector is in `queries`, in their order, its k best documents.

    `vectors` are the documents', in the order of the documents table (`components.data.vectors`), or smaller ones that
    were made of them (`components.retrieval.quantised`), of which the scores then are. With `index` the
    ranking is what the index finds. The summary then has its recall of the exact ranking on a sample of the queries,
    and the share of the time that the index took.
    """
    if (config.index is None) != (index is None):
        raise ValueError("search takes an index where its config names one, and only there")
    documents = check_k(k, data)
    query_ids = read_query_ids(queries)
    ranking, about = out / "ranking.parquet", out / "recall.json"
    left_out = LeftOut(data)
    most = min(k + left_out.most, documents)
    if not ranking.exists():
        doc_ids = _prepare(out, data, len(query_ids), config.sample)
        gpu = _on_gpu(machine, index)
        workers = machine.workers(machine.cluster.map, documents, gpu=True) if gpu else 1
        cut = partial(_pieces, vectors, documents, cuts=ON_GPU if gpu else ON_CPU, workers=workers)
        pieces = cut(len(query_ids), approximate=index is not None)
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
            index=str(index / INDEX) if index else None,
            probes=config.probes,
            ef=config.ef,
        )
        write_json(about, _recall(out, pieces, sampled, k) | counted if index else {})
        _write_ranking(ranking, query_ids, doc_ids, _merged(out, pieces, most), left_out, k)
    remove(out, "found-*.npy", "sample-*.npy", "order.npy", "sample.npy")
    return {"queries": len(query_ids), **counts(ranking), **read_json(about)}


@Description(part="search", version=2, refuses=_refuses)
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
    """`search` for so many times as many documents as are wanted, or all, of which `rescore` keeps the best `k`."""
    most = min(k * times, check_k(k, data))
    return search(out, machine, data=data, vectors=vectors, queries=queries, k=most, config=config, index=index)


def _prepare(out: Path, data: Path, queries: int, sample: int) -> pa.Array:
    """Write what the workers read: each document's place in the order of ids, and the sample. The ids in order."""
    doc_ids = ids_of(data / "documents.parquet", "doc_id")
    by_id, order = id_order(doc_ids)
    for name, array in {"order.npy": order, "sample.npy": _sampled(queries, sample)}.items():
        write_array(out / name, array)
    return doc_ids.take(pa.array(by_id))


def _sampled(count: int, sample: int) -> np.ndarray:
    """The queries that an index is compared on, evenly spaced."""
    return np.arange(min(sample, count)) * count // max(1, min(sample, count))


def _pieces(
    vectors: Path,
    documents: int,
    queries: int,
    *,
    cuts: Cuts,
    workers: int = 1,
    name: str = "found",
    approximate: bool = False,
) -> list[Shard]:
    """The work, cut into blocks of queries and, for exact search, runs of document shards, so many that none of the
    workers lacks work."""
    lengths = [len(shard) for shard in document_shards(vectors)]
    if sum(lengths) != documents:
        raise ValueError(f"{vectors}: vectors of {sum(lengths)} documents, and the collection has {documents}")
    many = QUERIES_OF_INDEX if approximate else cuts.queries
    parts = -(-workers // max(1, -(-queries // many)))  # of the documents, for each worker to have one
    run = max(1, min(cuts.documents, cuts.scores // max(1, min(queries, many))) // lengths[0])
    run = len(lengths) if approximate else min(run, -(-len(lengths) // parts))
    begins = np.cumsum([0, *lengths]).tolist()
    pieces = []
    for start in range(0, queries, many):
        for first in range(0, len(lengths), run):
            stop, last = min(start + many, queries), min(first + run, len(lengths))
            task = {"queries": name, "start": start, "stop": stop, "approximate": approximate}
            file = f"{name}-{start:08d}-{stop:08d}-{first:05d}-{last:05d}.npy"
            size = -(-(stop - start) * (begins[last] - begins[first]) // 10**6)
            order = [begins[first], begins[last]]
            pieces.append(Shard(file, size, {**task, "first": first, "last": last, "order": order}))
    return pieces


def _on_gpu(machine: Machine, index: Path | None) -> bool:
    """Whether the search runs on GPUs. Of an index the installed FAISS decides too: most builds know no GPU."""
    if index is None or not machine.cuda:
        return machine.cuda
    from sparring.components.retrieval.index import built_for_gpus

    return built_for_gpus()


def _merged(out: Path, pieces: list[Shard], k: int) -> Iterator[topk.Keys]:
    """The best of all runs of documents, some queries at a time, in order."""
    blocks: dict[int, list[np.ndarray]] = {}
    for piece in pieces:
        blocks.setdefault(piece.task["start"], []).append(np.load(out / piece.file, mmap_mode="r"))
    for start in sorted(blocks):
        for at in range(0, len(blocks[start][0]), QUERIES_MERGED):
            yield topk.merge([run[at : at + QUERIES_MERGED] for run in blocks[start]], k)


def _recall(out: Path, pieces: list[Shard], sampled: list[Shard], k: int) -> dict[str, Any]:
    """How many of the sample's exact k best the index found, as a share."""
    exact = list(_merged(out, sampled, k))
    if not exact:
        return {}
    truth = topk.tie_ranks_of(np.concatenate(exact))
    queries = sum(piece.task["stop"] - piece.task["start"] for piece in pieces)
    wanted = _sampled(queries, len(truth))
    shares, at = [], 0
    for lists in _merged(out, pieces, k):
        for number in np.flatnonzero((wanted >= at) & (wanted < at + len(lists))):
            row = lists[wanted[number] - at]
            shares.append(len(np.intersect1d(topk.tie_ranks_of(row[row != topk.NO_DOCUMENT]), truth[number])) / k)
        at += len(lists)
    return {f"recall@{k} of exact": float(np.mean(shares)), "recall queries": len(shares)}


def _write_ranking(
    to: Path, query_ids: pa.Array, doc_ids: pa.Array, merged: Iterator[topk.Keys], left_out: LeftOut, k: int
) -> None:
    """Write the lists as one table, cut to `k` documents that are not left out."""
    at = 0
    with replacing(to) as path, pq.ParquetWriter(path, RANKING) as writer:
        for lists in merged:
            there = lists != topk.NO_DOCUMENT
            row, rank = np.nonzero(there)
            columns = [
                query_ids.take(pa.array(at + row)),
                doc_ids.take(pa.array(topk.tie_ranks_of(lists[there]))),
                pa.array(rank + 1, pa.int32()),
                pa.array(topk.scores_of(lists[there])),
            ]
            writer.write_table(left_out(pa.table(columns, schema=RANKING), k))
            at += len(lists)


class _Searching:
    """Lists of the best documents for a block of queries: exactly, of a run of document shards, or by the index."""

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
        probes: int,
        ef: int,
    ) -> None:
        self._threads, self._k, self._device = threads, k, device
        self._work, self._vectors, self._queries = Path(work), Path(vectors), Path(queries)
        self._index, self._options = index, {"probes": probes, "ef": ef}
        self._opened: Any = None

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        began = time.perf_counter()
        rows = np.arange(task["start"], task["stop"])
        rows = np.load(self._work / "sample.npy")[rows] if task["queries"] == "sample" else rows
        queries = np.load(self._queries / "queries.npy", mmap_mode="r")[rows]
        how = quantised.read(self._vectors)
        order = np.load(self._work / "order.npy", mmap_mode="r")
        if task["approximate"]:
            save_array(path, self._approximate(queries if how is None else how.queries(queries), order))
        else:
            save_array(path, self._exact(queries, how, order[slice(*task["order"])], task["first"], task["last"]))
        took = time.perf_counter() - began
        return {"search_seconds": took, "index_seconds": took if task["approximate"] else 0.0}

    def _exact(self, queries: np.ndarray, how: Smaller | None, order: np.ndarray, first: int, last: int) -> topk.Keys:
        configure_process(self._threads)
        run = document_shards(self._vectors)[first:last]
        return quantised.top_k(queries, run, how, order, self._k, device=self._device, threads=self._threads)

    def _approximate(self, queries: np.ndarray, order: np.ndarray) -> topk.Keys:
        from sparring.components.retrieval import index

        if self._opened is None:
            gpu = self._device != "cpu"
            self._opened = index.read(Path(self._index or ""), threads=self._threads, gpu=gpu, **self._options)
            if self._opened.ntotal != len(order):
                raise ValueError(f"{self._index}: {self._opened.ntotal} documents, and the collection has {len(order)}")
        return index.search(self._opened, queries, order, self._k)


class _Indexing:
    """The one shard of an index: all documents."""

    def __init__(self, *, threads: int, vectors: str, factory: str, ef_construction: int) -> None:
        self._vectors = Path(vectors)
        self._options: dict[str, Any] = {"threads": threads, "ef_construction": ef_construction}
        self._factory = factory

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        from sparring.components.retrieval import index

        shards = document_shards(self._vectors)
        with Progress(path.parent, sum(len(shard) for shard in shards), "documents") as progress:
            built = index.build(self._factory, shards, on_added=progress.add, **self._options)
        index.write(built, path)
