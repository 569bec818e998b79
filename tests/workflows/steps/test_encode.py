"""Vectors of a collection: each document once, in order, whatever the shards, batches and workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import toy
from tests.support.power_cut import PowerCut, cut_power
from workflows.distributed.cluster import Cluster
from workflows.steps import encode as module
from workflows.steps.encode import EncodeConfig, encode, encode_queries

FULL = {"precision": "fp32", "vectors": "float32"}


@pytest.fixture
def encoded(data: Path, tokens: Path, retriever: Path) -> Any:
    """Encodes the toy collection at a place; its summary, documents' and queries' vectors."""

    def run(
        out: Path, *, cluster: Cluster = toy.INLINE, splits: tuple[str, ...] = ("test", "train"), **config: Any
    ) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
        out.mkdir(exist_ok=True)
        summary = encode(
            out, cluster, data=data, tokens=tokens, retriever=retriever, splits=list(splits),
            config=EncodeConfig(**{**FULL, **config}),
        )  # fmt: skip
        files = sorted(out.glob("documents-*.npy"))
        return summary, np.concatenate([np.load(file) for file in files]), np.load(out / "queries.npy")

    return run


def alone(retriever: Path, tokens: Path, side: Any, row: int) -> np.ndarray:
    """One text's vector, by itself."""
    from components.data.token_store import TokenStore
    from components.models.dual_encoder import DualEncoder

    model = DualEncoder.load(retriever / "model").eval()
    store = TokenStore(tokens, retriever / "model")
    texts = store.queries if side == "query" else store.documents
    with torch.no_grad():
        return model(store.template.texts(texts, np.array([row]), model.max_tokens(side)), side)[0].numpy()


def test_vectors_stand_in_the_order_of_the_tables(tmp_path: Path, encoded: Any, retriever: Path, tokens: Path) -> None:
    summary, documents, queries = encoded(tmp_path / "out", shard=7)
    for row in (0, 3, 13, 39):
        np.testing.assert_allclose(documents[row], alone(retriever, tokens, "document", row), atol=1e-5)
    ids = json.loads((tmp_path / "out/queries.json").read_text())
    assert len(ids) == len(queries) == summary["queries"]
    for place in (0, 5, len(ids) - 1):
        wanted = alone(retriever, tokens, "query", int(ids[place][1:]))
        np.testing.assert_allclose(queries[place], wanted, atol=1e-5)
    assert (summary["documents"], summary["queries"], summary["width"]) == (40, 20, 32)
    assert 0 < summary["query_seconds"] < summary["model_seconds"]


def test_queries_are_those_of_the_splits_in_the_tables_order(tmp_path: Path, encoded: Any) -> None:
    encoded(tmp_path / "out", splits=("test",), shard=2)
    assert json.loads((tmp_path / "out/queries.json").read_text()) == ["q0", "q6", "q12", "q18"]
    assert not list((tmp_path / "out").glob("part-*"))


@pytest.mark.parametrize(("shard", "batch"), [(1, 8), (7, 64), (39, 4096), (1000, 100)])
def test_each_text_is_encoded_once_and_alike_whatever_the_shards(
    tmp_path: Path, encoded: Any, monkeypatch: pytest.MonkeyPatch, shard: int, batch: int
) -> None:
    _, documents, queries = encoded(tmp_path / "wanted")
    seen: list[tuple[str, int]] = []
    real = module.Encoder.vectors

    def counting(self: Any, side: str, rows: np.ndarray) -> np.ndarray:
        seen.extend((side, int(row)) for row in rows)
        return real(self, side, rows)

    monkeypatch.setattr(module.Encoder, "vectors", counting)
    cluster = toy.INLINE.model_copy(update={"max_tokens_per_pass": batch})
    _, found, asked = encoded(tmp_path / "found", cluster=cluster, shard=shard)
    assert len(seen) == len(set(seen)) == 40 + 20
    np.testing.assert_allclose(found, documents, rtol=0, atol=1e-5)
    np.testing.assert_allclose(asked, queries, rtol=0, atol=1e-5)


def test_precision_of_the_pass_and_of_what_is_stored(tmp_path: Path, encoded: Any) -> None:
    _, full, _ = encoded(tmp_path / "a")
    _, half, queries = encoded(tmp_path / "b", precision="bf16", vectors="float16")
    assert (full.dtype, half.dtype, queries.dtype) == (np.float32, np.float16, np.float16)
    similarity = (full * half.astype(np.float32)).sum(1)  # both of length 1
    assert similarity.min() > 0.99
    assert not np.array_equal(full.astype(np.float16), half)


def test_an_interrupted_encoding_does_only_what_is_left(
    tmp_path: Path, encoded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as power:
        cut_power(power, module.Encoder, "vectors", after=5)  # two shards of queries, three of documents
        with pytest.raises(PowerCut):
            encoded(out, shard=10)
    assert len(list(out.glob("documents-*.npy"))) == 3
    half = out / ".documents-00003.npy.0a1b2c3d"  # what a kill in the middle of a write leaves
    half.write_bytes(b"half")
    with monkeypatch.context() as counting:
        calls = cut_power(counting, module.Encoder, "vectors", after=None, note=lambda self, side, rows: (side, rows))
        _, documents, _ = encoded(out, shard=10)
    assert sorted(int(row) for side, rows in calls for row in rows if side == "document") == list(range(30, 40))
    assert not half.exists()
    _, wanted, _ = encoded(tmp_path / "wanted")
    np.testing.assert_allclose(documents, wanted, rtol=0, atol=1e-5)


def test_no_query_of_the_splits_is_no_error(tmp_path: Path, encoded: Any) -> None:
    summary, documents, queries = encoded(tmp_path / "out", splits=("nothing",))
    assert summary["queries"] == len(queries) == 0
    assert len(documents) == 40


def test_through_ray_data_the_vectors_are_the_same(tmp_path: Path, encoded: Any, ray: Cluster) -> None:
    _, wanted, queries = encoded(tmp_path / "inline", shard=9)
    _, found, asked = encoded(tmp_path / "ray", shard=9, cluster=ray)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    np.testing.assert_allclose(asked, queries, rtol=0, atol=1e-6)


@pytest.mark.parametrize("links", [True, False])
def test_queries_alone_stand_beside_documents_of_another_artifact(
    tmp_path: Path,
    encoded: Any,
    data: Path,
    tokens: Path,
    retriever: Path,
    monkeypatch: pytest.MonkeyPatch,
    links: bool,
) -> None:
    """Linked where there are links: nothing of it is lost when the other is dropped."""
    if not links:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("no links here")))
    _, documents, queries = encoded(tmp_path / "all", shard=9)
    (out := tmp_path / "queries").mkdir()
    for _ in range(2):  # and again, as after an interruption
        summary = encode_queries(
            out, toy.INLINE, data=data, tokens=tokens, retriever=retriever, documents=tmp_path / "all",
            splits=["test", "train"], config=EncodeConfig(**FULL),
        )  # fmt: skip
    assert summary["queries"] == len(queries)
    assert (np.load(out / "queries.npy") == queries).all()
    assert (out / "queries.json").read_text() == (tmp_path / "all/queries.json").read_text()
    for path in sorted((tmp_path / "all").glob("documents-*.npy")):
        assert path.samefile(out / path.name) == links
        path.unlink()
    assert (np.concatenate([np.load(path) for path in sorted(out.glob("documents-*.npy"))]) == documents).all()
