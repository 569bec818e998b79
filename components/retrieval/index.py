"""FAISS indexes over document vectors, by inner product; row i is document i.

FAISS names them by factory strings: `Flat`, `HNSW32`, `IVF1024,Flat`, `IVF4096,PQ64`. Vectors that mean cosine are
normalised before they come here.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from components import topk
from components.config import UserError

# Vectors that go into the index at once, as float32.
BLOCK = 65_536
# Training looks at no more rows than this, or this many for each cell of an inverted file.
SAMPLE = 65_536
SAMPLE_A_CELL = 64


def empty(factory: str, dimension: int) -> Any:
    """The index that a factory string names; UserError where FAISS does not know it or it does not fit."""
    try:
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UserError(f"search.index: FAISS makes no {factory!r} of {dimension} dimensions: {_said(error)}") from None


def build(
    factory: str, documents: Sequence[npt.NDArray], *, threads: int, added: Callable[[int], None] = lambda _: None
) -> Any:
    """An index of the shards' rows, in order; `added` hears of each block's rows.

    It is trained on rows at even distances, the same ones every time, and filled a block at a time.
    """
    faiss.omp_set_num_threads(threads)
    index = empty(factory, documents[0].shape[1])
    if not index.is_trained:
        sample = _even_rows(documents, _sample_size(index))
        try:
            index.train(sample)
        except RuntimeError as error:
            raise UserError(
                f"search.index: {factory!r} cannot be trained on {len(sample)} documents: {_said(error)}"
            ) from None
    for shard in documents:
        for start in range(0, len(shard), BLOCK):
            block = np.asarray(shard[start : start + BLOCK], np.float32)
            index.add(block)
            added(len(block))
    return index


def write(index: Any, path: Path) -> None:
    """Write an index that `faiss.read_index` opens."""
    faiss.write_index(index, str(path))


def read(path: Path, *, probes: int, ef: int, threads: int, gpu: bool) -> Any:
    """Open an index to search it; on a GPU where FAISS was built for one and the index can live there."""
    faiss.omp_set_num_threads(threads)
    on_gpu = gpu and gpus() > 0
    # Mapped, so that the workers of a machine share one copy.
    index = faiss.read_index(str(path), 0 if on_gpu else faiss.IO_FLAG_MMAP_IFC)
    inverted, graph = faiss.try_extract_index_ivf(index), _graph(index)
    if inverted is not None:
        inverted.nprobe = min(probes, inverted.nlist)
    if graph is not None:
        graph.hnsw.efSearch = ef
    elif on_gpu:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
    return index


def search(index: Any, queries: npt.NDArray, order: npt.NDArray, k: int) -> topk.Keys:
    """The keys of what the index finds for each query, best first; lists are filled up where it finds less than k."""
    scores, rows = index.search(np.asarray(queries, np.float32), k)
    found = topk.keys(scores, np.asarray(order[np.maximum(rows, 0)]))
    return np.sort(np.where(rows < 0, topk.NOTHING, found), axis=1)  # FAISS says -1 for no document


def gpus() -> int:
    """GPUs that this build of FAISS can use."""
    return int(faiss.get_num_gpus()) if hasattr(faiss, "get_num_gpus") else 0


def _graph(index: Any) -> Any:
    """The HNSW graph, also behind a transform of the vectors; None where there is none."""
    while isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.index)
    return index if isinstance(index, faiss.IndexHNSW) else None


def _sample_size(index: Any) -> int:
    inverted = faiss.try_extract_index_ivf(index)
    return max(SAMPLE, SAMPLE_A_CELL * inverted.nlist if inverted is not None else 0)


def _even_rows(documents: Sequence[npt.NDArray], most: int) -> npt.NDArray[np.float32]:
    """At most so many rows, every n-th of all."""
    every = math.ceil(sum(len(shard) for shard in documents) / most)
    parts, first = [], 0
    for shard in documents:
        parts.append(np.asarray(shard[first::every], np.float32))
        first = (first - len(shard)) % every
    return np.concatenate(parts)


def _said(error: RuntimeError) -> str:
    """What FAISS complains about, without where in its source."""
    return str(error).rpartition("failed: ")[2].rpartition("Error: ")[2].strip()
