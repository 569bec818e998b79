"""Vectors of a collection: each document once, in order, whatever the shards, batches and workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparring.components.compute.precision import has_bf16
from sparring.components.models.inference import TimedInference
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps import encode as module
from sparring.workflows.steps.encode import EncodeConfig, encode_documents, encode_queries
from tests.support import toy
from tests.support.errors import refused
from tests.support.machines import changed
from tests.support.power_cut import PowerCut, cut_power

FULL = {"precision": "fp32", "vectors": "float32"}


@pytest.fixture
def encoded(data: Path, tokens: Path, retriever: Path) -> Any:
    """Encodes the toy collection's documents and queries at one place; the summaries, and both vectors."""

    def run(
        out: Path, *, machine: Machine = toy.INLINE, split: str = "train", **config: Any
    ) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
        out.mkdir(exist_ok=True)
        inputs = {"data": data, "tokens": tokens, "retriever": retriever, "config": EncodeConfig(**{**FULL, **config})}
        summary = {**encode_queries(out, machine, split=split, **inputs), **encode_documents(out, machine, **inputs)}
        files = sorted(out.glob("documents-*.npy"))
        assert not list(out.glob("part-*")) + list(out.glob("rows*"))
        return summary, np.concatenate([np.load(file) for file in files]), np.load(out / "queries.npy")

    return run


def alone(retriever: Path, tokens: Path, side: Any, row: int) -> np.ndarray:
    """One text's vector, by itself."""
    from sparring.components.data.token_store import TokenStore
    from sparring.components.models.dual_encoder import DualEncoder

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
    assert (summary["documents"], summary["queries"], summary["width"]) == (40, 16, 32)


def test_queries_are_those_of_the_split_in_the_tables_order(tmp_path: Path, encoded: Any) -> None:
    encoded(tmp_path / "out", split="test", shard=2)
    assert json.loads((tmp_path / "out/queries.json").read_text()) == ["q0", "q6", "q12", "q18"]


def rows_of(encoder: Any, task: dict[str, Any]) -> tuple[str, np.ndarray]:
    """Return the side and the rows of the token store that a shard has."""
    rows = np.arange(task["start"], task["stop"])
    return task["side"], rows if encoder._rows is None else encoder._rows[rows]


@pytest.mark.parametrize(("shard", "batch"), [(1, 8), (7, 64), (39, 4096), (1000, 100)])
def test_each_text_is_encoded_once_and_alike_whatever_the_shards(
    tmp_path: Path, encoded: Any, monkeypatch: pytest.MonkeyPatch, shard: int, batch: int
) -> None:
    _, documents, queries = encoded(tmp_path / "wanted")
    machine = changed(toy.INLINE, {"max_tokens_per_pass": batch})
    calls = cut_power(monkeypatch, module.Encoder, "prepare", after=None, note=rows_of)
    _, document_vectors, query_vectors = encoded(tmp_path / "found", machine=machine, shard=shard)
    seen = [(side, int(row)) for side, rows in calls for row in rows]
    assert len(seen) == len(set(seen)) == 40 + 16
    np.testing.assert_allclose(document_vectors, documents, rtol=0, atol=1e-5)
    np.testing.assert_allclose(query_vectors, queries, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("bf16")
def test_copies_have_the_vector_of_the_first_whatever_their_batches_round(
    tmp_path: Path, encoded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents 30 and 31 say what 0 and 1 say; here every row has noise of its own."""
    prepare, compute = module.Encoder.prepare, TimedInference.timed_outputs

    def with_rows(self: Any, task: dict[str, Any]) -> dict[str, Any]:
        task = prepare(self, task)
        return {**task, "inputs": (task["inputs"], rows_of(self, task)[1])}

    def noisy(self: Any, inputs: Any, side: str) -> Any:
        vectors, took = compute(self, inputs[0], side)
        return vectors + 1e-4 * inputs[1][:, None].astype(np.float32), took

    monkeypatch.setattr(module.Encoder, "prepare", with_rows)
    monkeypatch.setattr(TimedInference, "timed_outputs", noisy)
    monkeypatch.setattr(module, "FILES_AT_ONCE", 2)
    _, documents, _ = encoded(tmp_path / "out", shard=7)
    np.testing.assert_array_equal(documents[[30, 31]], documents[[0, 1]])
    assert not (documents[29] == documents[28]).any()
    assert not list((tmp_path / "out").glob("equal-*"))


def test_precision_of_the_pass_and_of_what_is_stored(tmp_path: Path, encoded: Any) -> None:
    _, full, _ = encoded(tmp_path / "a")
    _, half, queries = encoded(tmp_path / "b", precision="bf16", vectors="float16")
    assert (full.dtype, half.dtype, queries.dtype) == (np.float32, np.float16, np.float16)
    similarity = (full * half.astype(np.float32)).sum(1)  # both of length 1
    assert similarity.min() > 0.99
    assert np.array_equal(full.astype(np.float16), half) is not has_bf16("cpu")


def test_an_interrupted_encoding_does_only_what_is_left(
    tmp_path: Path, encoded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as power:
        cut_power(power, module.Encoder, "prepare", after=5)  # two shards of queries, three of documents
        with pytest.raises(PowerCut):
            encoded(out, shard=10)
    assert len(list(out.glob("documents-*.npy"))) == 3
    half = out / ".documents-00003.npy.0a1b2c3d"  # what a kill in the middle of a write leaves
    half.write_bytes(b"half")
    with monkeypatch.context() as counting:
        calls = cut_power(counting, module.Encoder, "prepare", after=None, note=rows_of)
        _, documents, _ = encoded(out, shard=10)
    assert sorted(int(row) for side, rows in calls for row in rows if side == "document") == list(range(30, 40))
    assert not half.exists()
    _, wanted, _ = encoded(tmp_path / "wanted")
    np.testing.assert_allclose(documents, wanted, rtol=0, atol=1e-5)


def test_a_split_without_queries_is_a_mistake_that_changes_nothing(tmp_path: Path, encoded: Any) -> None:
    with refused("splits", "unknown-split"):
        encoded(tmp_path / "out", split="tset")
    assert list((tmp_path / "out").iterdir()) == []


def test_through_ray_the_vectors_are_the_same(tmp_path: Path, encoded: Any, ray: Machine) -> None:
    _, wanted, queries = encoded(tmp_path / "inline", shard=9)
    _, document_vectors, query_vectors = encoded(tmp_path / "ray", shard=9, machine=ray)
    np.testing.assert_allclose(document_vectors, wanted, rtol=0, atol=1e-6)
    np.testing.assert_allclose(query_vectors, queries, rtol=0, atol=1e-6)
