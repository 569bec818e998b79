"""Through Ray a GPU gives what it gives in one process, also where two workers share it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.retrieval.kind import DEFAULT, kind_named
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.distributed.session import ray_session, stop_ray
from sparring.workflows.steps.encode import EncodeConfig, encode_documents, encode_queries
from sparring.workflows.steps.score import RerankConfig, rerank
from sparring.workflows.steps.search import SearchConfig, build_index, search
from sparring.workflows.steps.train import train
from tests.support import toy
from tests.support.trainings import lines

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

INLINE = replace(toy.INLINE, cluster=Cluster(mode="inline", device="cuda", max_tokens_per_pass=256), gpus=1.0)
ENCODE = EncodeConfig(precision="fp32", vectors="float32", shard=8)


@pytest.fixture(scope="module")
def shared() -> Iterator[Machine]:
    """A profile whose workers have half a GPU each, but for trainings."""
    cluster = Cluster(
        device="cuda",
        object_store_mb=200,
        max_tokens_per_pass=256,
        retries=0,
        train={"workers": 1, "threads": 1},
        map={"workers": 2, "threads": 1, "gpus": 0.5},
    )
    ray_session(cluster)
    yield resolve_machine(cluster)
    stop_ray()


def through_both(tmp_path: Path, shared: Machine, step: Any, **inputs: Any) -> list[Path]:
    """The artifacts of a step: in this process, and through Ray."""
    places = [tmp_path / f"{step.__name__} inline", tmp_path / f"{step.__name__} ray"]
    for out, machine in zip(places, (INLINE, shared), strict=True):
        out.mkdir()
        step(out, machine, **inputs)
    return places


def test_vectors_and_rankings(
    tmp_path: Path, shared: Machine, data: Path, tokens: Path, retriever: Path, ranker: Path
) -> None:
    inputs: dict[str, Any] = {"data": data, "tokens": tokens}
    vectors = through_both(tmp_path, shared, encode_documents, **inputs, retriever=retriever, config=ENCODE)
    names = sorted(path.name for path in vectors[0].glob("documents-*.npy"))
    assert len(names) > 2
    for name in names:
        inline, distributed = (np.load(place / name) for place in vectors)
        np.testing.assert_allclose(distributed, inline, atol=1e-6)
    queries, _ = through_both(
        tmp_path, shared, encode_queries, **inputs, split="train", retriever=retriever, config=ENCODE
    )
    folders = through_both(
        tmp_path, shared, search, data=data, vectors=vectors[0], queries=queries, k=10, config=SearchConfig()
    )
    again = through_both(
        tmp_path,
        shared,
        rerank,
        **inputs,
        ranking=folders[0],
        split="train",
        ranker=ranker,
        config=RerankConfig(precision="fp32", depth=10, shard=6),
    )
    for places in (folders, again):
        inline, distributed = (pq.read_table(place / "ranking.parquet") for place in places)
        assert inline["doc_id"].equals(distributed["doc_id"])
        np.testing.assert_allclose(distributed["score"].to_numpy(), inline["score"].to_numpy(), atol=1e-5)


@pytest.mark.parametrize("factory", ["Flat", "IVF2,Flat"])
def test_an_index_is_built_and_searched_on_the_gpu(
    tmp_path: Path, shared: Machine, data: Path, tokens: Path, retriever: Path, factory: str
) -> None:
    """FAISS in workers with a GPU finds what it finds on a processor."""
    assert kind_named(DEFAULT).index_on_gpu(factory), "FAISS has no GPUs here: install faiss-gpu (cluster/gpu.lock)"
    inputs: dict[str, Any] = {"data": data, "tokens": tokens, "retriever": retriever, "config": ENCODE}
    vectors, queries = tmp_path / "vectors", tmp_path / "queries"
    for out in (vectors, queries):
        out.mkdir()
    encode_documents(vectors, toy.INLINE, **inputs)
    encode_queries(queries, toy.INLINE, **inputs, split="train")
    rankings = []
    for name, machine in {"cpu": toy.INLINE, "gpu": shared}.items():
        index, out = tmp_path / f"index {name}", tmp_path / f"ranking {name}"
        for folder in (index, out):
            folder.mkdir()
        build_index(index, machine, vectors=vectors, factory=factory)
        config = SearchConfig(index=factory, probes=2)
        search(out, machine, data=data, vectors=vectors, queries=queries, k=10, config=config, index=index)
        rankings.append(pq.read_table(out / "ranking.parquet"))
    cpu, gpu = rankings
    assert cpu["doc_id"].equals(gpu["doc_id"])
    np.testing.assert_allclose(gpu["score"].to_numpy(), cpu["score"].to_numpy(), atol=1e-5)


def test_training(tmp_path: Path, shared: Machine, data: Path, tokens: Path, retriever: Path) -> None:
    rows = [{"query_id": f"q{i}", "doc_ids": [f"d{i}", f"d{i + 13}"]} for i in range(12)]
    groups = toy.write_groups(tmp_path / "groups", rows)
    losses = [{"function": toy.CROSS_ENTROPY, "over": "batch"}]
    inline, distributed = through_both(
        tmp_path,
        shared,
        train,
        objective="retriever",
        rows=groups,
        dev=None,
        data=data,
        tokens=tokens,
        start=retriever,
        seed=[1],
        config=toy.train_config(losses=losses, log_every=1, precision="fp32"),
    )
    for a, b in zip(lines(inline), lines(distributed), strict=True):
        assert b == pytest.approx(a, rel=1e-3, abs=1e-5)
    assert (distributed / "model").is_dir()
