"""Exact top-k: `components.retrieval.topk` against faiss IndexFlatIP, and the memory of the search step.

    make bench ARGS="-k topk"      (SPARRING_BENCH_VECTORS, SPARRING_BENCH_ASKED: how many; SPARRING_BENCH_DEVICE)

Vectors are mixtures of those that the start model makes of real docstrings, and queries mixtures of those of first
sentences, in fp32 on both sides. Ours lie in files, as `encode` leaves them; theirs are in faiss's memory already. On a
GPU documents are halves on both sides; where faiss was not built for one, torch's product and top-k of blocks take its
place, with all vectors on the GPU already. Of 8 million of BERT-base's 768: SPARRING_BENCH_VECTORS=8000000.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.nn import functional

from sparring.components.compute.processor import configure_process
from sparring.components.data.tables import DOCUMENTS, QUERIES
from sparring.components.data.vectors import document_shards
from sparring.components.retrieval import blocks, topk
from sparring.workflows.distributed.limits import cores
from sparring.workflows.steps.encode import EncodeConfig
from tests.benchmarks.bench_encode import an_encoder
from tests.benchmarks.conftest import DOCUMENTS as ENCODED
from tests.benchmarks.conftest import World
from tests.benchmarks.measure import HEAD, PAIRS, by_turns, seconds_of
from tests.benchmarks.processes import watched
from tests.benchmarks.table import machine, write
from tests.support import toy

ROOT = Path(__file__).parents[2]
COUNT = int(os.environ.get("SPARRING_BENCH_VECTORS", "1000000"))
ASKED = int(os.environ.get("SPARRING_BENCH_ASKED", "10000"))
K = 100
SHARD = EncodeConfig().shard
COMMAND = 'make bench ARGS="-k topk"'
FLAT = 1.1
"""How much more memory four times the documents may take."""

SEARCH = """
import sys
from pathlib import Path
from sparring.workflows.distributed.cluster import Cluster, Pool
from sparring.workflows.distributed.machine import resolve_machine
from sparring.workflows.steps.search import SearchConfig, search

place, out = Path(sys.argv[1]), Path(sys.argv[2])
machine = resolve_machine(Cluster(mode="inline", device="cpu", map=Pool(workers=1, threads=int(sys.argv[3]))))
search(out, machine, data=place, vectors=place, queries=place, k=int(sys.argv[4]), config=SearchConfig())
"""


def test_topk(world: World) -> None:
    place = _collection(world)
    configure_process(cores())
    device = "cuda" if world.machine.cuda else "cpu"
    documents = list(document_shards(place))
    queries = np.load(place / "queries.npy")
    against, search = _peer(documents, queries, device)
    results: dict[str, Any] = {}

    def ours() -> None:
        results["ours"] = topk.top_k(queries, documents, None, K, device=device)

    def theirs() -> None:
        results["theirs"] = search()

    compared = by_turns(ours, theirs)
    scores, rows = results["theirs"]
    close, least = (1e-2, 0.9) if device == "cuda" else (1e-4, 0.99)  # theirs are products of halves there
    np.testing.assert_allclose(topk.scores_of(results["ours"]), scores, rtol=close)
    same = [len(np.intersect1d(*pair)) for pair in zip(topk.tie_ranks_of(results["ours"]), rows, strict=True)]
    alike = float(np.mean(same)) / K
    assert alike > least  # sums in another order change places now and then
    job = f"exact top-{K}{' on a GPU' if device == 'cuda' else ''}"
    lines = [
        f"{COUNT:,} vectors of {queries.shape[1]} numbers in {documents[0].dtype}. "
        f"{alike:.2%} of the documents found are those of the other side.",
        machine(ROOT),
    ]
    if device == "cuda":
        alone = median(seconds_of(lambda: _read(documents, device)) for _ in range(PAIRS))
        lines[0] += f" To read all blocks and copy them to the GPU takes {alone:.2f} s alone."
    write("Exact top-k", COMMAND, HEAD, [compared.row(job, against, "queries/s", ASKED, 0.95)], lines)


def _read(documents: list[np.ndarray], device: str) -> None:
    """Copy all documents to the GPU, a block at a time."""
    deque(blocks.read(documents, device), maxlen=1)
    torch.cuda.synchronize()


def _peer(
    documents: list[np.ndarray], queries: np.ndarray, device: str
) -> tuple[str, Callable[[], tuple[np.ndarray, np.ndarray]]]:
    """Who it is, and its search, for scores and rows; all documents are in its memory."""
    import faiss

    gpus = faiss.get_num_gpus() if hasattr(faiss, "get_num_gpus") else 0
    if device == "cuda" and not gpus:
        document_tensor = torch.cat([torch.from_numpy(np.array(shard)).to(device) for shard in documents])
        query_tensor = torch.from_numpy(queries).to(device, document_tensor.dtype)
        return "torch.mm and topk by blocks, on the GPU", lambda: _by_blocks(query_tensor, document_tensor)
    faiss.omp_set_num_threads(cores())
    index = _in_halves(queries.shape[1]) if gpus else faiss.IndexFlatIP(queries.shape[1])
    for shard in documents:
        index.add(np.asarray(shard, np.float32))
    return f"faiss IndexFlatIP{' on the GPU' if gpus else ''}, {cores()} threads", lambda: index.search(queries, K)


def _in_halves(width: int) -> Any:
    """FAISS's flat index on a GPU, whose vectors are halves there."""
    import faiss

    config = faiss.GpuIndexFlatConfig()
    config.useFloat16 = True
    return faiss.GpuIndexFlatIP(faiss.StandardGpuResources(), width, config)


def _by_blocks(queries: torch.Tensor, documents: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Products of halves in fp32, the best of each block, and the best of those."""
    blocks = []
    for part in queries.split(2048):
        best: list[tuple[torch.Tensor, torch.Tensor]] = []
        for start in range(0, len(documents), 262_144):
            block = documents[start : start + 262_144]
            scores, rows = torch.mm(part, block.T, out_dtype=torch.float32).topk(K)
            best.append((scores, rows + start))
        scores, places = torch.cat([part_scores for part_scores, _ in best], 1).topk(K)
        blocks.append(
            (
                scores.cpu().numpy(),
                torch.cat([part_places for _, part_places in best], 1).gather(1, places).cpu().numpy(),
            )
        )
    return np.concatenate([block_scores for block_scores, _ in blocks]), np.concatenate(
        [block_places for _, block_places in blocks]
    )


def test_topk_peak(world: World) -> None:
    place, peaks = _collection(world), {}
    for count in (COUNT // 4 // SHARD * SHARD, COUNT):
        part, out = _first(place, count, world), world.place("searched")
        command = [sys.executable, "-c", SEARCH, str(part), str(out), str(cores()), str(K)]
        _, memory = watched(command, cwd=ROOT)
        peaks[count] = memory.peak()
    few, many = peaks.values()
    size = sum(path.stat().st_size for path in place.glob("documents-*.npy"))
    rows = [[f"{count:,}", f"{peak / 2**20:,.0f} MiB"] for count, peak in peaks.items()]
    lines = [
        f"The step `search`, exact, {ASKED:,} queries, vectors of {size / 2**20:,.0f} MiB in all: "
        f"{many / few:.2f}x the memory for 4x the documents; wanted: {FLAT}x at most; "
        f"reached: {'yes' if many <= FLAT * few else 'no'}.",
        machine(ROOT),
    ]
    write("Memory of exact top-k", COMMAND, ["documents", "peak memory (PSS)"], rows, lines)


def _collection(world: World) -> Path:
    """Vectors and ids as the step finds them; made once."""
    place = world.root / "mixed"
    if place.exists():
        return place
    place.mkdir()
    rows = np.arange(ENCODED)
    encoder = an_encoder(world)
    base = encoder.represent("document", rows)[0]
    kind = torch.float16 if world.machine.cuda else torch.float32
    parts = (_mixed(base, min(SHARD, COUNT - start), start, world.device, kind) for start in range(0, COUNT, SHARD))
    toy.write_document_vectors(place, parts)
    np.save(place / "queries.npy", _mixed(encoder.represent("query", rows)[0], ASKED, COUNT, world.device))
    ids = [f"q{number}" for number in range(ASKED)]
    (place / "queries.json").write_text(json.dumps(ids))
    columns = {"query_id": ids, "text": ids, "answers": [[]] * ASKED, "split": ["test"] * ASKED}
    pq.write_table(pa.table(columns, schema=QUERIES), place / "queries.parquet")
    return place


def _mixed(base: np.ndarray, count: int, seed: int, device: str, kind: torch.dtype = torch.float32) -> np.ndarray:
    """Vectors of length 1, each between two of the base."""
    rng = torch.Generator(device).manual_seed(seed)
    first, second = (
        torch.from_numpy(base).to(device)[torch.randint(len(base), (2, count), generator=rng, device=device)].unbind()
    )
    share = torch.rand(count, 1, generator=rng, device=device)
    mixture: np.ndarray = functional.normalize(share * first + (1 - share) * second).to(kind).cpu().numpy()
    return mixture


def _first(place: Path, count: int, world: World) -> Path:
    """The first documents of a collection."""
    part = world.place("part")
    lengths = dict(list(json.loads((place / "documents.json").read_text()).items())[: -(-count // SHARD)])
    for path in [*(place / name for name in lengths), *place.glob("queries.*")]:
        (part / path.name).symlink_to(path)
    (part / "documents.json").write_text(json.dumps(lengths))
    ids = [f"d{number}" for number in range(count)]
    pq.write_table(pa.table({"doc_id": ids, "title": ids, "text": ids}, schema=DOCUMENTS), part / "documents.parquet")
    return part
