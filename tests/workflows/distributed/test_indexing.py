"""Indexes in parts: what one worker builds and several build is the same, and is found as in one piece."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest

from sparring.components.config import UserError
from sparring.components.data.vectors import document_shards
from sparring.components.retrieval import index, kind, topk
from sparring.components.retrieval.kind import IndexFile, IndexOptions
from sparring.components.retrieval.kinds import dense
from sparring.components.retrieval.kinds.dense import Dense
from sparring.workflows.distributed import indexing
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.ray_map import Shard
from sparring.workflows.steps.search import build_index
from tests.support import toy
from tests.support.machines import changed

INLINE = replace(resolve_machine(Cluster(mode="inline", device="cpu")), cores=1, cpus=1)
ROWS, WIDTH, K = 900, 16, 20
PARTS = [900, 450, 200]
"""Documents in a part: one part, two, and five, which do not end with a file of vectors."""


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    rows = np.random.default_rng(0).standard_normal((ROWS, WIDTH), dtype=np.float32).astype(np.float16)
    toy.write_document_vectors(folder, [rows[start : start + 70] for start in range(0, ROWS, 70)])
    return folder


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch, vectors: Path, tmp_path: Path) -> Callable[..., Path]:
    """Builds an index in parts of so many documents."""
    map_shards = indexing.map_shards

    def build(factory: str, rows: int, machine: Machine = INLINE) -> Path:
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        out.mkdir()
        monkeypatch.setattr(kind, "PART", rows)
        names: list[str] = []

        def noted(worker: Any, shards: list[Shard], **more: Any) -> None:
            names.extend(shard.file for shard in shards)
            map_shards(worker, shards, **more)

        monkeypatch.setattr(indexing, "map_shards", noted)
        build_index(out, machine, vectors=vectors, factory=factory)
        assert not [*out.glob("part-*"), *out.glob("trained")]
        if index.merges(factory):
            parts = -(-ROWS // rows)
            assert len(names) == (parts + 2 if parts > 1 else 1)
        return out

    return build


def found(folder: Path, vectors: Path, files: list[IndexFile]) -> topk.Keys:
    """The documents that an index finds for the first of them."""
    options, order = IndexOptions(probes=4, ef=64), np.arange(ROWS)[::-1].copy()
    queries = np.asarray(document_shards(vectors)[0], np.float32)
    lists = []
    for file in files:
        search = Dense().open_index(folder / file.name, folder=vectors, options=options, threads=1, gpu=False)
        lists.append(search(queries, order[file.first : file.stop], K))
    return topk.merge(lists, K)


@pytest.mark.parametrize(
    "factory", ["Flat", "SQ8", "IVF8,Flat", "IVF8,PQ8x4", "OPQ8,IVF8,PQ8x4", "PCA8,IVF8,SQ8", "IVF8,PQ8x4fs"]
)
@pytest.mark.filterwarnings("default")
def test_an_index_in_parts_finds_what_one_in_one_piece_finds(
    built: Callable[..., Path], vectors: Path, factory: str
) -> None:
    whole = [IndexFile(dense.INDEX, 0, ROWS)]
    assert Dense().index_files(factory, ROWS) == whole
    lists = []
    for rows in PARTS:
        folder = built(factory, rows)
        assert faiss.read_index(str(folder / dense.INDEX)).ntotal == ROWS
        lists.append(found(folder, vectors, whole))
    assert (lists[0] != topk.NO_DOCUMENT).all()
    for row in lists[1:]:
        np.testing.assert_array_equal(row, lists[0])


def test_two_workers_build_the_file_that_one_builds(built: Callable[..., Path], ray: Machine) -> None:
    files = [
        (built("IVF4,SQ8", 200, machine) / dense.INDEX).read_bytes()
        for machine in (INLINE, changed(ray, {"map": Pool(workers=2)}))
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize("factory", ["HNSW16", "PCA8,HNSW16", "HNSW16,SQ8"])
def test_very_many_documents_get_several_graphs_of_one_size(
    built: Callable[..., Path], vectors: Path, monkeypatch: pytest.MonkeyPatch, factory: str
) -> None:
    """The cut depends on the documents alone, and all graphs share what is trained."""
    monkeypatch.setattr(dense, "GRAPH", 400)
    files = Dense().index_files(factory, ROWS)
    assert files == [IndexFile(f"index.{first:010d}.faiss", first, first + 300) for first in (0, 300, 600)]
    folder = built(factory, 100)
    assert sorted(path.name for path in folder.glob("*.faiss")) == [file.name for file in files]
    graphs = [faiss.read_index(str(folder / file.name)) for file in files]
    assert [graph.ntotal for graph in graphs] == [300] * 3
    exact = topk.tie_ranks_of(
        topk.top_k(document_shards(vectors)[0], document_shards(vectors), np.arange(ROWS)[::-1].copy(), K)
    )
    lists = topk.tie_ranks_of(found(folder, vectors, files))
    shares = [len(np.intersect1d(*pair)) / K for pair in zip(lists, exact, strict=True)]
    assert np.mean(shares) > (0.9 if factory != "PCA8,HNSW16" else 0.3)
    if factory == "PCA8,HNSW16":
        matrices = [faiss.vector_to_array(faiss.downcast_VectorTransform(graph.chain.at(0)).A) for graph in graphs]
        assert all(np.array_equal(matrix, matrices[0]) for matrix in matrices)


@pytest.mark.parametrize("factory", ["PQ8,RFlat", "NSG16", "HNSW8", "IVF8,PQ8x4,RFlat", "PCA8,HNSW8", "HNSW8,SQ8"])
def test_what_faiss_cannot_merge_is_built_in_one_piece(factory: str) -> None:
    assert not index.merges(factory)


@pytest.mark.parametrize("factory", ["RQ4x8", "IVF8_HNSW4,Flat", "IVF8,RaBitQ", "IVF65536,PQ64", "L2norm,Flat"])
def test_what_faiss_can_merge_is_known_before_it_is_trained(factory: str) -> None:
    assert index.merges(factory)


@pytest.mark.parametrize("rows", [1, kind.PART, kind.PART + 1, 8_841_823, 10**9])
def test_parts_cover_all_rows_once_and_are_not_too_many(rows: int) -> None:
    parts = IndexFile("index", 0, rows).parts()
    assert [parts[0].first, parts[-1].stop] == [0, rows]
    assert all(part.stop == following.first for part, following in pairwise(parts))
    assert len(parts) == min(kind.MAX_PARTS, -(-rows // kind.PART))
    assert max(part.rows for part in parts) - min(part.rows for part in parts) <= 1


@pytest.mark.parametrize(
    ("pieces", "pool", "threads", "workers"),
    [
        (1, Pool(), 63, 2),
        (3, Pool(), 42, 3),
        (64, Pool(), 2, 64),
        (64, Pool(workers=4, threads=2), 2, 4),
        (1, Pool(workers=4, threads=2), 8, 1),
        (1, Pool(workers=1), 1, 1),
    ],
)
def test_few_pieces_get_more_threads_each(pieces: int, pool: Pool, threads: int, workers: int) -> None:
    """On two nodes of 64 cores, of which one stays free for others."""
    machine = Machine(Cluster(address="auto"), nodes=2, cores=64, cpus=128, gpus=0, memory=1e9)
    divided = indexing._divided(pool, machine, pieces, gpu=False)
    assert (divided.threads, divided.workers) == (threads, workers)


# GPUs


class FakeGPU:
    """FAISS with a GPU: copies of an index stay on the processor, and are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpus: int = 1) -> None:
        self.copies: list[tuple[bool, int]] = []
        monkeypatch.setattr(faiss, "StandardGpuResources", SimpleNamespace, raising=False)
        monkeypatch.setattr(faiss, "get_num_gpus", lambda: gpus, raising=False)
        monkeypatch.setattr(faiss, "index_cpu_to_gpu", self.copied, raising=False)
        monkeypatch.setattr(faiss, "index_gpu_to_cpu", lambda index: index, raising=False)

    def copied(self, resources: Any, gpu: int, index: Any) -> Any:
        assert gpu == 0
        self.copies.append((index.is_trained, index.ntotal))
        return index


def test_an_index_is_trained_filled_and_searched_on_a_gpu(
    built: Callable[..., Path], vectors: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [IndexFile(dense.INDEX, 0, ROWS)]
    expected = found(built("IVF8,SQ8", 200), vectors, whole)
    gpu = FakeGPU(monkeypatch)
    machine = replace(INLINE, gpus=1.0)
    folder = built("IVF8,SQ8", 200, machine)
    assert gpu.copies == [(False, 0)] + [(True, 0)] * 5
    np.testing.assert_array_equal(found(folder, vectors, whole), expected)
    options = IndexOptions(probes=4, ef=64)
    Dense().open_index(folder / dense.INDEX, folder=vectors, options=options, threads=1, gpu=True)
    assert gpu.copies[-1] == (True, ROWS)


def test_an_index_that_faiss_has_on_no_gpu_is_built_on_processors(
    built: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = FakeGPU(monkeypatch)
    built("HNSW8", ROWS, replace(INLINE, gpus=1.0))
    assert gpu.copies == []


def test_a_worker_on_a_node_with_a_gpu_says_whether_faiss_has_the_index_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the driver, which may have another FAISS, and no GPU."""
    flags: list[bool] = []
    joined = Machine(Cluster(address="auto"), nodes=2, cores=4, cpus=8, gpus=2, memory=1e9)

    def map_on_workers(worker: Any, shards: list[Shard], *, gpu: bool, out: Path, kind: Any, **_: Any) -> None:
        flags.append(gpu)
        with monkeypatch.context() as patch:
            FakeGPU(patch)
            for shard in shards:
                worker(threads=1, kind=kind)(shard.task, out / shard.file)

    monkeypatch.setattr(indexing, "map_shards", map_on_workers)
    assert not index.built_for_gpus()
    assert indexing.on_gpu(tmp_path, joined, Dense(), "IVF8,Flat")
    assert not indexing.on_gpu(tmp_path, joined, Dense(), "HNSW8")
    assert flags == [True, True]
    assert not indexing.on_gpu(tmp_path, replace(joined, gpus=0), Dense(), "Flat")
    alone = replace(joined, cluster=Cluster())
    assert not indexing.on_gpu(tmp_path, alone, Dense(), "Flat")
    FakeGPU(monkeypatch)
    assert indexing.on_gpu(tmp_path, alone, Dense(), "IVF8,Flat")
    assert len(flags) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_worker_whose_faiss_sees_no_gpu_is_named(vectors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGPU(monkeypatch, gpus=0)
    with pytest.raises(UserError, match=r"the FAISS of \S+ sees no GPU"):
        index.train("IVF8,Flat", document_shards(vectors), threads=1, gpu=True)
