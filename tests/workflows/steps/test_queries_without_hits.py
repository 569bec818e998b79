"""A query that finds nothing moves no other: whatever takes a ranking keeps every other query's rows as they were."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparring.components.neighbours.reranking import NeighboursRerankConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.retrieval.screening import ScreenConfig
from sparring.workflows.steps.answers import AnswerConfig, answering
from sparring.workflows.steps.encode import EncodeConfig, encode_documents, encode_queries
from sparring.workflows.steps.evaluate import evaluate
from sparring.workflows.steps.fuse import fuse
from sparring.workflows.steps.neighbours import rerank_by_neighbours
from sparring.workflows.steps.score import RerankConfig, rerank
from sparring.workflows.steps.screen import screen
from sparring.workflows.steps.smooth import ContextConfig, contexts
from tests.support import toy

SILENT = {"train": "q7", "test": "q6"}
"""In the middle of its split."""
FOUND = {f"q{i}": [f"d{(5 * i + 11 * k) % 40}" for k in range(4 + i % 5)] for i in range(24)}

Place = dict[str, Path]

STEPS: dict[str, tuple[str, str, Callable[..., Any], Callable[[Place], dict[str, Any]]]] = {
    "answering": (
        "train",
        "ranking",
        answering,
        lambda places: {
            "data": places["data"],
            "ranking": places["ranking"],
            "splits": ["train"],
            "config": AnswerConfig(),
        },
    ),
    "screen": (
        "train",
        "ranking",
        screen,
        lambda places: {
            "data": places["data"],
            "tokens": places["tokens"],
            "ranking": places["ranking"],
            "split": "train",
            "votes": places["ranking"],
            "vectors": places["vectors"],
            "config": ScreenConfig(absolute=1.5, reciprocal=2, vote={"above": 0.5, "depth": 3}),
        },
    ),
    "contexts": (
        "train",
        "groups",
        contexts,
        lambda places: {
            "data": places["data"],
            "tokens": places["tokens"],
            "ranking": places["ranking"],
            "split": "train",
            "config": ContextConfig(size=5),
        },
    ),
    "rerank": (
        "test",
        "ranking",
        rerank,
        lambda places: {
            "data": places["data"],
            "tokens": places["tokens"],
            "ranking": places["ranking"],
            "split": "test",
            "ranker": places["ranker"],
            "config": RerankConfig(precision="fp32", depth=3),
        },
    ),
    "neighbours": (
        "train",
        "ranking",
        rerank_by_neighbours,
        lambda places: {
            "data": places["data"],
            "vectors": places["vectors"],
            "queries": places["vectors"],
            "ranking": places["ranking"],
            "config": NeighboursRerankConfig(k=2, context=3),
        },
    ),
    "fuse": (
        "train",
        "ranking",
        fuse,
        lambda places: {
            "data": places["data"],
            "rankings": [places["ranking"], places["ranking"]],
            "split": "train",
            "config": FusionConfig(how="reciprocal"),
        },
    ),
    "interpolate": (
        "train",
        "ranking",
        fuse,
        lambda places: {
            "data": places["data"],
            "rankings": [places["ranking"], places["ranking"]],
            "split": "train",
            "config": FusionConfig(how="interpolate"),
        },
    ),
    "evaluate": (
        "test",
        "per_query",
        evaluate,
        lambda places: {
            "data": places["data"],
            "ranking": places["ranking"],
            "split": "test",
            "measures": ["RR@10", "nDCG@10"],
        },
    ),
}


@pytest.fixture(scope="module")
def vectors(toys: Path, data: Path, tokens: Path, retriever: Path) -> Path:
    (out := toys / "vectors without hits").mkdir()
    inputs = {"data": data, "tokens": tokens, "retriever": retriever, "config": EncodeConfig()}
    encode_documents(out, toy.INLINE, **inputs)
    encode_queries(out, toy.INLINE, split="train", **inputs)
    return out


@pytest.mark.parametrize("name", STEPS)
def test_a_query_without_hits_moves_no_other(
    tmp_path: Path, name: str, data: Path, tokens: Path, ranker: Path, vectors: Path
) -> None:
    split, table, function, inputs = STEPS[name]
    places = {"data": data, "tokens": tokens, "ranker": ranker, "vectors": vectors}
    tables, queries = {}, pq.read_table(data / "queries.parquet", filters=[("split", "=", split)])
    query_ids = set(queries["query_id"].to_pylist())
    for place, silent in (("all", set()), ("one less", {SILENT[split]})):
        ranking = {query: FOUND[query] for query in sorted(query_ids - silent)}
        places["ranking"] = toy.write_ranking(tmp_path / f"{place} ranking", ranking)
        (out := tmp_path / place).mkdir()
        function(out, toy.INLINE, **inputs(places))
        tables[place] = pq.read_table(out / f"{table}.parquet").to_pylist()
    kept = [row for row in tables["all"] if row["query_id"] != SILENT[split]]
    assert len(kept) < len(tables["all"])
    rest = [row for row in tables["one less"] if row["query_id"] != SILENT[split]]
    for row, wanted in zip(rest, kept, strict=True):  # a pair's score is the same but for what is beside it in a batch
        assert row == {**wanted, **({"score": pytest.approx(wanted["score"], abs=1e-5)} if "score" in row else {})}
    silent_rows = [row for row in tables["one less"] if row["query_id"] == SILENT[split]]
    assert {row["value"] for row in silent_rows} == {0.0} if name == "evaluate" else silent_rows == []


def test_a_query_that_one_of_two_rankings_finds_nothing_for_keeps_the_others_order(tmp_path: Path, data: Path) -> None:
    both = {query: FOUND[query] for query in ("q1", "q2", "q4")}
    less = {query: documents[::-1] for query, documents in both.items() if query != "q2"}
    places = [toy.write_ranking(tmp_path / name, lists) for name, lists in (("one", both), ("other", less))]
    for rankings in (places, places[::-1]):
        (out := tmp_path / f"{rankings[0].name} first").mkdir()
        config = FusionConfig(how="interpolate", depth=9)
        fuse(out, toy.INLINE, data=data, rankings=rankings, split="train", config=config)
        rows = pq.read_table(out / "ranking.parquet").to_pylist()
        assert [row["doc_id"] for row in rows if row["query_id"] == "q2"] == FOUND["q2"]
