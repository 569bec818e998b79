"""On a GPU the steps give what they give on a CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.data.batches import Batch
from sparring.components.neighbours.reranking import NeighboursRerankConfig
from sparring.components.retrieval import topk
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.steps.encode import EncodeConfig, encode_documents, encode_queries
from sparring.workflows.steps.neighbours import rerank_by_neighbours
from sparring.workflows.steps.score import RerankConfig, rerank
from sparring.workflows.steps.search import SearchConfig, search
from sparring.workflows.steps.smooth import ContextConfig, SmoothConfig, contexts, smooth
from sparring.workflows.steps.train import train
from tests.support import toy
from tests.support.machines import changed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

GPU = replace(toy.INLINE, cluster=Cluster(mode="inline", device="cuda", max_tokens_per_pass=256), gpus=1.0)
BOTH = {"cpu": toy.INLINE, "gpu": GPU}


def on_both(tmp_path: Path, step: Any, **inputs: Any) -> dict[str, Path]:
    """The artifacts of a step on both."""
    places = {name: tmp_path / f"{step.__name__} {name}" for name in BOTH}
    for name, out in places.items():
        out.mkdir()
        step(
            out, BOTH[name], **{key: value[name] if isinstance(value, dict) else value for key, value in inputs.items()}
        )
    return places


@pytest.fixture
def encoding(data: Path, tokens: Path, retriever: Path) -> dict[str, Any]:
    config = EncodeConfig(precision="fp32", vectors="float32")
    return {"data": data, "tokens": tokens, "retriever": retriever, "config": config}


@pytest.fixture
def vectors(tmp_path: Path, encoding: dict[str, Any]) -> dict[str, Path]:
    return on_both(tmp_path, encode_documents, **encoding)


@pytest.fixture
def queries(tmp_path: Path, encoding: dict[str, Any]) -> dict[str, Path]:
    return on_both(tmp_path, encode_queries, split="train", **encoding)


def test_vectors(vectors: dict[str, Path], queries: dict[str, Path]) -> None:
    for name, places in {"documents-00000.npy": vectors, "queries.npy": queries}.items():
        cpu, gpu = (np.load(places[where] / name) for where in BOTH)
        np.testing.assert_allclose(gpu, cpu, atol=1e-5)


def test_rankings(
    tmp_path: Path, data: Path, tokens: Path, ranker: Path, vectors: dict[str, Path], queries: dict[str, Path]
) -> None:
    same = {"vectors": dict.fromkeys(BOTH, vectors["cpu"]), "queries": dict.fromkeys(BOTH, queries["cpu"])}
    folders = on_both(tmp_path, search, data=data, **same, k=10, config=SearchConfig())
    cpu, gpu = (pq.read_table(folders[where] / "ranking.parquet") for where in BOTH)
    assert cpu["doc_id"].equals(gpu["doc_id"])
    again = on_both(
        tmp_path,
        rerank,
        data=data,
        tokens=tokens,
        ranking=dict.fromkeys(BOTH, folders["cpu"]),
        split="train",
        ranker=ranker,
        config=RerankConfig(precision="fp32", depth=10),
    )
    cpu, gpu = (pq.read_table(again[where] / "ranking.parquet") for where in BOTH)
    assert cpu["doc_id"].equals(gpu["doc_id"])
    np.testing.assert_allclose(gpu["score"].to_numpy(), cpu["score"].to_numpy(), atol=1e-4)


def test_neighbours_and_soft_labels(
    tmp_path: Path, data: Path, tokens: Path, vectors: dict[str, Path], queries: dict[str, Path]
) -> None:
    """All elements are neighbours: which of two copies of a text is nearer, rounding decides, here and there."""
    (ranking := tmp_path / "found").mkdir()
    inputs: dict[str, Any] = {"data": data, "vectors": vectors["cpu"], "queries": queries["cpu"]}
    search(ranking, toy.INLINE, **inputs, k=20, config=SearchConfig())
    again = on_both(
        tmp_path,
        rerank_by_neighbours,
        **inputs,
        ranking=ranking,
        config=NeighboursRerankConfig(k=20, k_exp=1, context=12),
    )
    cpu, gpu = (pq.read_table(again[where] / "ranking.parquet") for where in BOTH)
    np.testing.assert_allclose(gpu["score"].to_numpy(), cpu["score"].to_numpy(), atol=1e-4)
    (groups := tmp_path / "groups").mkdir()
    contexts(
        groups, toy.INLINE, data=data, tokens=tokens, ranking=ranking, split="train", config=ContextConfig(size=12)
    )
    config = SmoothConfig.model_validate({"similarity": {"k": 20, "k_exp": 1}})
    soft = on_both(tmp_path, smooth, **inputs, groups=groups, config=config)
    cpu, gpu = (pq.read_table(soft[where] / "groups.parquet")["targets"].combine_chunks().flatten() for where in BOTH)
    np.testing.assert_allclose(gpu.to_numpy(), cpu.to_numpy(), atol=1e-4)


@pytest.mark.parametrize("recompute", [False, True])
def test_training(tmp_path: Path, data: Path, tokens: Path, retriever: Path, recompute: bool) -> None:
    rows = [{"query_id": f"q{i}", "doc_ids": [f"d{i}", f"d{i + 13}"]} for i in range(12)]
    groups = toy.write_groups(tmp_path / "groups", rows)
    losses = [{"function": toy.CROSS_ENTROPY, "over": "batch"}]
    curves = {}
    for where, machine in BOTH.items():
        out = tmp_path / where
        out.mkdir()
        train(
            out,
            changed(machine, {"recompute": recompute}),
            objective="retriever",
            rows=groups,
            dev=None,
            data=data,
            tokens=tokens,
            start=retriever,
            seed=[1],
            config=toy.train_config(losses=losses, log_every=1, precision="fp32"),
        )
        lines = (out / "metrics.jsonl").read_text().splitlines()
        curves[where] = [json.loads(line)["cross_entropy (batch)"] for line in lines]
    np.testing.assert_allclose(curves["gpu"], curves["cpu"], rtol=1e-3)


def test_a_batch_in_bf16(retriever: Path) -> None:
    """Nothing is fused there: that is for a CPU."""
    from sparring.components.models import inference
    from sparring.components.models.dual_encoder import DualEncoder

    device = torch.device("cuda")
    ids = torch.randint(5, 40, (6, 24), generator=torch.Generator().manual_seed(0))
    batch = Batch(ids.to(device), torch.ones_like(ids).to(device))
    model = DualEncoder.load(retriever / "model").eval().to(device)
    with torch.inference_mode():
        exact = model(batch, "document")
        ready = inference.ready(model, device=device, precision="bf16")
        assert not any(isinstance(part, inference.FusedLayer) for part in ready.modules())
        assert float((ready(batch, "document") * exact).sum(-1).min()) > 0.999


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_exact_search(kind: type) -> None:
    """Documents in halves or not, in shards: what a CPU finds, with scores as exact as float32's."""
    rng = np.random.default_rng(0)
    shards = [rng.normal(size=(count, 96)).astype(kind) for count in (30_000, 7, 50_001)]
    queries = rng.normal(size=(300, 96)).astype(np.float32)
    queries[0] *= 1e6  # more than float16 holds
    for vectors in (queries, queries[1:]):
        cpu, gpu = (topk.top_k(vectors, shards, None, 20, device=device) for device in ("cpu", "cuda"))
        exact = vectors.astype(np.float64) @ np.concatenate(shards).T.astype(np.float64)
        best = np.sort(exact, axis=1)[:, :-21:-1]
        np.testing.assert_allclose(topk.scores_of(gpu), best, rtol=2e-6)
        assert np.mean(topk.tie_ranks_of(gpu) == topk.tie_ranks_of(cpu)) > 0.999
    shards[2][-1, 0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        topk.top_k(queries, shards, None, 20, device="cuda")
