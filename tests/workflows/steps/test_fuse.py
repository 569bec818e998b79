"""What all expansions of a query find, in one ranking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from components.data.tables import RANKING as RANKED
from components.retrieval.fusion import FusionConfig, fuse
from tests.support import toy
from tests.support.expanded import place
from workflows.steps.fuse import fuse_expansions


@pytest.mark.parametrize("how", ["interleave", "reciprocal"])
def test_all_that_expansions_find_is_fused_in_any_pieces(
    chain: dict[str, Path], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    """Against the fusion of each query's lists by itself; what no expansion finds keeps the question's ranking."""
    config = FusionConfig(how=how, depth=9)
    where = {"data": data, "expanded": chain["expanded"], "ranking": chain["ranking"], "otherwise": chain["found"]}
    whole = place(tmp_path / "whole")
    fuse_expansions(whole, toy.INLINE, **where, split="train", config=config)
    monkeypatch.setattr("components.data.tables.pieces.__kwdefaults__", {"columns": None, "rows": 5})
    parts = place(tmp_path / "parts")
    fuse_expansions(parts, toy.INLINE, **where, split="train", config=config)
    found = pq.read_table(whole / "ranking.parquet")
    assert pq.read_table(parts / "ranking.parquet") == found
    lists: dict[str, dict[str, list[Any]]] = {}
    for row in pq.read_table(chain["ranking"] / "ranking.parquet").to_pylist():
        query = row["query_id"].partition("#")[0]
        lists.setdefault(query, {}).setdefault(row["query_id"], []).append({**row, "query_id": query})
    for query in set(found["query_id"].to_pylist()) - {"q4"}:
        own = [pa.Table.from_pylist(rows, schema=RANKED) for rows in lists[query].values()]
        wanted = fuse(own, config).to_pylist()
        assert [row for row in found.to_pylist() if row["query_id"] == query] == wanted
    assert len(found.filter(pc.equal(found["query_id"], "q4"))) == 5
