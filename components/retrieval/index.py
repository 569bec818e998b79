"""FAISS indexes over document vectors, by inner product; row i of an index is document i.

A factory string says which index: `Flat`, `HNSW32`, `IVF1024,Flat`, `IVF4096,PQ64`. For cosine similarity the vectors
must be normalised already.
"""

import math
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from sparring.components.config import Damaged, UserError
from sparring.components.retrieval import topk

# Vectors converted to float32 and added together.
BLOCK = 65_536
# An index is trained on at most so many rows, or so many for each cell of an inverted file if that is more.
SAMPLE = 65_536
SAMPLE_PER_CELL = 64
DIMENSIONS = 64, 384, 1024
"""Dimensions that are tried if the number is not known."""
# The classes of indexes that FAISS has on a GPU too.
ON_GPU = {"IndexFlat", "IndexFlatIP", "IndexIVFFlat", "IndexIVFPQ", "IndexIVFScalarQuantizer", "IndexPreTransform"}


def create(factory: str, dimension: int) -> Any:
    """Create an empty index. UserError if FAISS rejects the factory string or it does not fit the dimension."""
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise UserError(
            f"search.index: FAISS cannot make {factory!r} for {dimension} dimensions: {_message(error)}",
            code="unknown-index",
        ) from None
    check(index, factory)
    for part in _parts(index):
        if hasattr(part, "do_polysemous_training"):
            # It orders the centroids of a product quantizer for a search by the codes' Hamming distance, which nobody
            # asks for here, and takes most of the training (48 codes of 4,950 documents: 110 of 124 s).
            part.do_polysemous_training = False
    return index


def check(index: Any, factory: str) -> None:
    """Raise UserError for an index that does not rank by inner products, or that renames its rows.

    A graph over product quantizers (`HNSW32,PQ48`, `NSG32,PQ48`) and spectral hashes rank by distance, whatever metric
    is requested. The best document would be the last of the list.
    """
    parts = list(_parts(index))
    if any(part.metric_type != faiss.METRIC_INNER_PRODUCT for part in parts):
        raise UserError(
            f"search.index: {factory!r}: FAISS ranks by distance with it, not by inner product; accepted: "
            "another, such as HNSW32, HNSW32,SQ8, PQ48 or IVF1024,PQ48",
            code="unsupported-index",
        )
    if (inverted := faiss.try_extract_index_ivf(index)) is not None and inverted.nlist == 0:
        raise UserError(f"search.index: {factory!r}: an inverted file of no cells; accepted: IVF1 or more")
    if any(isinstance(part, faiss.IndexIDMap) for part in parts):
        raise UserError(f"search.index: {factory!r}: row i of an index is document i here; accepted: without IDMap")


def check_factory(factory: str) -> None:
    """Raise UserError if a factory string makes no index for any of the usual dimensions."""
    _any(factory)


def merges(factory: str) -> bool:
    """Check whether FAISS can merge indexes that have the same training into one: all but graphs and those that keep
    vectors for a second look. Vectors may be transformed first."""
    index = _any(factory)  # its parts do not keep it
    inside = [part for part in _parts(index) if not isinstance(part, faiss.IndexPreTransform)]
    return all(isinstance(part, (faiss.IndexIVF, faiss.IndexFlatCodes, faiss.IndexFastScan)) for part in inside)


def on_gpu(factory: str) -> bool:
    """Check whether this machine's FAISS has such an index on a GPU."""
    return built_for_gpus() and fits_a_gpu(_any(factory))


def _any(factory: str) -> Any:
    """Create an empty index of any of the usual dimensions. UserError if there is none."""
    parts = math.lcm(*(max(1, int(number)) for number in re.findall(r"(?:PQ|PRQ|PLSQ)(\d+)", factory)))
    *first, last = (parts * -(-dimension // parts) for dimension in DIMENSIONS)
    for dimension in first:
        with suppress(UserError):
            return create(factory, dimension)
    return create(factory, last)


def train(factory: str, documents: Sequence[npt.NDArray], *, threads: int, gpu: bool = False) -> Any:
    """Make an empty index, trained on every n-th row of all shards if it needs training, on a GPU if `gpu`."""
    faiss.omp_set_num_threads(threads)
    index = create(factory, documents[0].shape[1])
    if index.is_trained:
        return index
    sample = _even_rows(documents, _sample_size(index))
    index = to_gpu(index) if gpu else index
    try:
        index.train(sample)
    except RuntimeError as error:
        raise UserError(
            f"search.index: {factory!r} cannot be trained on {len(sample)} documents: {_message(error)}"
        ) from None
    return faiss.index_gpu_to_cpu(index) if gpu else index


def build(
    factory: str,
    documents: Sequence[npt.NDArray],
    *,
    threads: int,
    ef_construction: int = 40,
    on_added: Callable[[int], None] = lambda _: None,
    trained: Path | None = None,
    gpu: bool = False,
) -> Any:
    """Build an index over the rows of all shards, in order. `on_added` is called with the size of each added block.

    `ef_construction` is the size of HNSW's candidate list in the search for a document's neighbours (Malkov and
    Yashunin, 2018, Algorithm 1). `trained` is a file with a trained, empty index, which other parts of the same index
    share. If None, an index that needs training is trained on these documents. With `gpu` the index is filled on a GPU.
    """
    faiss.omp_set_num_threads(threads)
    empty = partial(train, factory, documents, threads=threads, gpu=gpu)
    index = empty() if trained is None else faiss.read_index(str(trained))
    graph = _graph(index)
    if graph is not None:
        graph.hnsw.efConstruction = ef_construction
    index = to_gpu(index) if gpu else index
    for shard in documents:
        for start in range(0, len(shard), BLOCK):
            block = np.asarray(shard[start : start + BLOCK], np.float32)
            try:
                index.add(block)
            except RuntimeError as error:
                raise UserError(
                    f"search.index: {factory!r}: FAISS could not add the documents' vectors: {_message(error)}"
                ) from None
            on_added(len(block))
    return faiss.index_gpu_to_cpu(index) if gpu else index


def merge(parts: Sequence[Path]) -> Any:
    """Merge indexes with the same training (`merges`), so that row i of all parts, in order, is document i."""
    first, *rest = parts
    index = faiss.read_index(str(first))
    lists = faiss.try_extract_index_ivf(index)  # they hold the number of each row
    for part in rest:
        index.merge_from(faiss.read_index(str(part)), index.ntotal if lists is not None else 0)
    return index


def of_int8(scale: Sequence[float], documents: Sequence[npt.NDArray[np.int8]]) -> Any:
    """Make an index of int8 vectors (`components.retrieval.quantised`) without loss: FAISS's `SQ8`, whose numbers are
    `least + (code + 1/2) / 255 range`. With these ranges a code is the int8 value plus 127."""
    index = faiss.IndexScalarQuantizer(len(scale), faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    distances = np.asarray(scale, np.float64)
    numbers = np.concatenate([-127.5 * distances, 255 * distances]).astype(np.float32)
    faiss.copy_array_to_vector(numbers, index.sq.trained)
    codes = np.concatenate([(np.asarray(shard, np.int16) + 127).astype(np.uint8) for shard in documents])
    faiss.copy_array_to_vector(codes.ravel(), index.codes)
    index.ntotal, index.is_trained = len(codes), True
    return index


def write(index: Any, path: Path) -> None:
    """Write an index as `faiss.read_index` reads it."""
    faiss.write_index(index, str(path))


def read(path: Path, *, threads: int, gpu: bool, probes: int | None = None, ef: int | None = None) -> Any:
    """Open an index for searching, on a GPU if `gpu` (`on_gpu`). Damaged where FAISS cannot read it.

    `probes` is the number of cells that an inverted file visits, `ef` the size of HNSW's candidate list; None for what
    the file has.
    """
    faiss.omp_set_num_threads(threads)
    # Memory-mapped, so that the workers of a machine share one copy.
    try:
        index = faiss.read_index(str(path), 0 if gpu else faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise Damaged(f"{path}: FAISS cannot read it: {_message(error).partition(' (')[0]}", path) from None
    check(index, str(path))
    inverted, graph = faiss.try_extract_index_ivf(index), _graph(index)
    if inverted is not None and probes is not None:
        inverted.nprobe = min(probes, inverted.nlist)
    if graph is not None and ef is not None:
        graph.hnsw.efSearch = ef
    return to_gpu(index) if gpu else index


def to_gpu(index: Any) -> Any:
    """Copy an index to this process's GPU. UserError if FAISS cannot."""
    if not built_for_gpus() or not faiss.get_num_gpus():
        raise UserError(
            f"search.index: the FAISS of {platform.node()} sees no GPU, but another node's does; accepted: the same "
            "faiss-gpu on all nodes with GPUs, or device: cpu in the cluster file",
            code="no-faiss-gpu",
        )
    try:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
    except RuntimeError as error:
        raise UserError(
            f"search.index: FAISS cannot put this index on the GPU: {_message(error)}; accepted: device: cpu in the "
            "cluster file, or another index"
        ) from None


def fits_a_gpu(index: Any) -> bool:
    """Check whether FAISS has this type of index on a GPU: plain vectors, or inverted files of vectors, of scalar
    quantizers, or of product quantizers of 8 bits. Vectors may be transformed first."""
    parts = list(_parts(index))
    if (inverted := faiss.try_extract_index_ivf(index)) is not None:
        parts.append(faiss.downcast_index(inverted.quantizer))
    eight = all(part.pq.nbits == 8 for part in parts if hasattr(part, "pq"))
    return eight and all(type(part).__name__ in ON_GPU for part in parts)


GPU_LIST = 2048
"""The longest list that FAISS makes on a GPU."""


def search(index: Any, queries: npt.NDArray, order: npt.NDArray, k: int) -> topk.Keys:
    """Return (Q, k) keys of the documents that the index retrieves for each query, best first, as `topk.top_k` does.

    `order` has the tie rank of each row. Lists of fewer than k documents are padded with `topk.NO_DOCUMENT`.

    FAISS keeps any of the documents with the score of a list's last. So more than k are searched for, until the last
    score is below the k-th. A graph is searched for k alone: with more it would look elsewhere.
    """
    vectors = np.asarray(queries, np.float32)
    limit = min(index.ntotal, GPU_LIST) if type(index).__name__.startswith("Gpu") else index.ntotal
    count = k if _graph(index) is not None else min(2 * k, max(k, limit))
    while True:
        scores, rows = index.search(vectors, count)
        keys = topk.keys(scores, np.asarray(order[np.maximum(rows, 0)]))
        keys = np.sort(np.where(rows < 0, topk.NO_DOCUMENT, keys), axis=1)  # FAISS returns -1 for no document
        cut = (keys[:, -1] != topk.NO_DOCUMENT) & (keys[:, k - 1] >> 32 == keys[:, -1] >> 32)
        if count == k or count >= limit or not cut.any():
            return np.ascontiguousarray(keys[:, :k])
        count = min(2 * count, limit)


def holds_vectors(index: Any) -> bool:
    """Check whether an index holds the documents' vectors without compression or projection."""
    storage = faiss.downcast_index(index.storage) if isinstance(index, faiss.IndexHNSW) else index
    return isinstance(storage, (faiss.IndexFlat, faiss.IndexIVFFlat))


def reader(index: Any) -> Callable[[npt.NDArray], npt.NDArray[np.float32]]:
    """Return a function that reads rows' vectors (n, d) from an index that holds them and is not on a GPU."""
    if (inverted := faiss.try_extract_index_ivf(index)) is not None:
        inverted.make_direct_map()
    return lambda rows: index.reconstruct_batch(rows)


def built_for_gpus() -> bool:
    """Return whether this build of FAISS can use GPUs. It says nothing of the GPUs that there are."""
    return hasattr(faiss, "StandardGpuResources")


def _graph(index: Any) -> Any:
    """Return the HNSW index, perhaps behind a transform of the vectors, or None."""
    return next((part for part in _parts(index) if isinstance(part, faiss.IndexHNSW)), None)


def _parts(index: Any) -> Iterator[Any]:
    """Yield an index and the indexes inside it: behind a transform, under a graph, before a refinement."""
    index = faiss.downcast_index(index)
    yield index
    for name in ("index", "storage", "base_index"):
        if isinstance(inside := getattr(index, name, None), faiss.Index):
            yield from _parts(inside)


def _sample_size(index: Any) -> int:
    inverted = faiss.try_extract_index_ivf(index)
    return max(SAMPLE, SAMPLE_PER_CELL * inverted.nlist if inverted is not None else 0)


def _even_rows(documents: Sequence[npt.NDArray], most: int) -> npt.NDArray[np.float32]:
    """Return at most `most` evenly spaced rows."""
    every = math.ceil(sum(len(shard) for shard in documents) / most)
    parts, first = [], 0
    for shard in documents:
        parts.append(np.asarray(shard[first::every], np.float32))
        first = (first - len(shard)) % every
    return np.concatenate(parts)


def _message(error: RuntimeError) -> str:
    """Return the error's message without the place in FAISS's source."""
    return str(error).rpartition("failed: ")[2].rpartition("Error: ")[2].strip()
