"""Quantise or shorten encoded vectors, and rescore what they find with better vectors."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sparring.components.compute.processor import configure_process
from sparring.components.config import UserError
from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.data.vectors import SHARDS, DocumentVectors, Lists, QueryVectors, document_shards
from sparring.components.files import read_json, remove, save_array, write_json
from sparring.components.neighbours.reranking import Reranking
from sparring.components.retrieval import quantised
from sparring.components.retrieval.kind import DEFAULT
from sparring.components.retrieval.quantised import Kind, Quantiser
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_rows, map_shards, row_shards
from sparring.workflows.store import transfer
from sparring.workflows.store.dag import Description

QUERIES = 1024
"""Number of queries in one shard of a rescoring. It changes no result."""


def _refuses(retriever: Path) -> None:
    """Refuse a retriever that makes no vectors."""
    if (kind := read_json(retriever / "model" / MODEL_CONFIG)["kind"]) != DEFAULT:
        raise UserError(
            f"`search.dimensions` and `search.vectors` need vectors, and a {kind} retriever has none. Remove both keys."
        )


FILES_AT_ONCE = 64
"""Number of files of vectors that a worker reads for the largest values. It changes no result."""


@Description(
    part="search",
    version=2,
    droppable=("documents-*.npy",),
    workers_read={"vectors": ("documents-*.npy",), "out": ("documents-*.npy",)},
    refuses=_refuses,
)
def smaller_vectors(
    out: Path, machine: Machine, *, vectors: Path, retriever: Path, dimensions: int | None, kind: Kind
) -> dict[str, Any]:
    """Write `documents-*.npy`, smaller vectors of the documents in the same order, and `smaller.json`, how they were
    made.

    `smaller.json` has the dimensions. For int8 it also has the widths of the steps, which hold for the whole
    collection.
    """
    settings, lengths = read_json(retriever / "model" / MODEL_CONFIG), read_json(vectors / SHARDS)
    plain = {"kind": kind, "normalize": settings["similarity"] == "cosine"}

    def run(worker: type, shards: list[Shard], unit: str, **more: Any) -> None:
        pool = machine.cluster.map
        map_shards(worker, shards, out=out, machine=machine, pool=pool, unit=unit, vectors=str(vectors), **more)

    # Without 8 bits the first file tells all that is needed.
    groups = row_shards(len(lengths) if kind == "int8" else 1, FILES_AT_ONCE, "largest-{:05d}.npy")
    run(_Largest, groups, "files", dimensions=dimensions, **plain)
    largest = np.max([np.load(out / group.file) for group in groups], axis=0)
    quantiser = Quantiser.unscaled(len(largest), None, **plain)
    quantiser = quantiser.scaled(largest) if kind == "int8" else quantiser
    quantiser.save(out)
    work = [Shard(name, length, {"file": name}) for name, length in lengths.items()]
    run(_Shrinking, work, "documents", work=str(out))
    transfer.remove(out, "largest-*.npy")
    sizes = transfer.finished_sizes(out)
    write_json(out / SHARDS, lengths)
    size = sum(sizes[name] for name in lengths)
    return {"documents": sum(lengths.values()), "dimensions": quantiser.dimensions, "bytes": size}


@Description(part="search", workers_read={"data": ("documents.parquet",), "vectors": ("documents-*.npy",)})
def rescore(
    out: Path, machine: Machine, *, data: Path, vectors: Path, queries: Path, ranking: Path, k: int
) -> dict[str, Any]:
    """Write `ranking.parquet`: each query's k best of the candidates in `ranking`, by inner products with other vectors
    of the documents than those that found them. Ties are in order of id."""
    reranking = Reranking(ranking, data, queries)
    lists = reranking.lists()
    lists.save(out)
    scores, _ = map_rows(
        _Rescoring,
        len(lists.queries),
        QUERIES,
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="queries",
        lists=out,
        vectors=vectors,
        queries=queries,
    )
    rows, _ = reranking.write(scores, out / "ranking.parquet", k)
    remove(out, "lists.*.npy", "part-*.npy")
    return {"queries": len(lists.queries), "candidates": len(lists.documents), "rows": rows}


class _Largest:
    """A worker that computes the largest absolute values of each dimension in some files of vectors."""

    on_demand: ClassVar = {"vectors": ("documents-*.npy",)}

    def __init__(self, *, threads: int, vectors: str, dimensions: int | None, kind: Kind, normalize: bool) -> None:
        self._shards = document_shards(Path(vectors))
        self._quantiser = partial(Quantiser.unscaled, dimensions=dimensions, kind=kind, normalize=normalize)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        shards = self._shards[task["start"] : task["stop"]]
        transfer.download(*shards.paths)
        save_array(path, self._quantiser(shards[0].shape[1]).largest(shards))


class _Shrinking:
    """A worker that writes one file of smaller vectors."""

    on_demand: ClassVar = {"vectors": ("documents-*.npy",), "work": ("documents-*.npy",)}

    def __init__(self, *, threads: int, work: str, vectors: str) -> None:
        quantiser = quantised.read(Path(work))
        assert quantiser is not None
        self._quantiser, self._vectors = quantiser, Path(vectors)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        transfer.download(self._vectors / task["file"])
        save_array(path, self._quantiser.documents(np.load(self._vectors / task["file"], mmap_mode="r")))


class _Rescoring:
    """A worker that scores lists of candidates."""

    def __init__(self, *, lists: Path, vectors: Path, queries: Path, cuda: bool, threads: int) -> None:
        configure_process(threads)
        self._lists, self._queries = lists, QueryVectors(queries)
        self._documents, self._quantiser = DocumentVectors(vectors), quantised.read(vectors)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        lists = Lists.load(self._lists, task["start"], task["stop"])
        rows = lists.padded(lists.documents)
        scores = quantised.products(self._queries[lists.queries], self._documents, rows, self._quantiser)
        save_array(path, scores[lists.mask])
