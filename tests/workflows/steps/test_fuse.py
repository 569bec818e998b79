"""What all expansions of a query find, in one ranking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.data.tables import RANKING as RANKED
from sparring.components.retrieval.fusion import FusionConfig, fuse
from sparring.workflows.steps.fuse import fuse as fuse_step
from sparring.workflows.steps.fuse import fuse_expansions
from tests.support import toy
from tests.support.expanded import place


@pytest.mark.parametrize("method", ["interleave", "reciprocal", "interpolate"])
def test_rankings_in_pieces_are_fused_as_whole_ones(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    draw, documents = np.random.default_rng(0), pq.read_table(data / "documents.parquet")["doc_id"].to_pylist()
    queries = pq.read_table(data / "queries.parquet", filters=[("split", "==", "train")])["query_id"].to_pylist()
    lists = [
        {query: draw.permutation(documents)[:6].tolist() for query in draw.permutation(queries)[: len(queries) - 2]}
        for _ in range(2)
    ]
    rankings = [toy.write_ranking(tmp_path / f"ranking-{number}", documents) for number, documents in enumerate(lists)]
    config = FusionConfig(how=method, depth=9, weight=0.5 if method == "interleave" else 0.3)
    wanted = fuse([pq.read_table(ranking / "ranking.parquet") for ranking in rankings], config)
    for rows in (1, 20, 1_000):
        monkeypatch.setattr("sparring.components.data.tables.side_by_side.__kwdefaults__", {"rows": rows})
        out = place(tmp_path / f"out-{rows}")
        summary = fuse_step(out, toy.INLINE, data=data, rankings=rankings, split="train", config=config)
        assert pq.read_table(out / "ranking.parquet") == wanted
        assert summary == {"queries": len(set(wanted["query_id"].to_pylist())), "rows": len(wanted)}


@pytest.mark.parametrize("method", ["interleave", "reciprocal"])
def test_all_that_expansions_find_is_fused_in_any_pieces(
    chain: dict[str, Path], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    """Against the fusion of each query's lists by itself; what no expansion finds keeps the question's ranking."""
    config = FusionConfig(how=method, depth=9)
    where = {"data": data, "expanded": chain["expanded"], "ranking": chain["ranking"], "otherwise": chain["found"]}
    whole = place(tmp_path / "whole")
    fuse_expansions(whole, toy.INLINE, **where, split="train", config=config)
    monkeypatch.setattr("sparring.components.data.tables.pieces.__kwdefaults__", {"columns": None, "rows": 5})
    parts = place(tmp_path / "parts")
    fuse_expansions(parts, toy.INLINE, **where, split="train", config=config)
    table = pq.read_table(whole / "ranking.parquet")
    assert pq.read_table(parts / "ranking.parquet") == table
    lists: dict[str, dict[str, list[Any]]] = {}
    for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist():
        query = row["query_id"].partition("#")[0]
        lists.setdefault(query, {}).setdefault(row["query_id"], []).append({**row, "query_id": query})
    for query in set(table["query_id"].to_pylist()) - {"q4"}:
        tables = [pa.Table.from_pylist(rows, schema=RANKED) for rows in lists[query].values()]
        wanted = fuse(tables, config).to_pylist()
        assert [row for row in table.to_pylist() if row["query_id"] == query] == wanted
    assert len(table.filter(pc.equal(table["query_id"], "q4"))) == 5
