"""A run whose retriever is of a kind that nothing in the package knows: trained, indexed, fused, searched, exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support import tiny
from tests.support.tiny import Place, Said

KINDS = {"tests.support.sparse_kind": "inverted", "tests.support.multi_vector_kind": None}
"""Each with an index of its own, if it has one."""


@pytest.fixture(scope="module", params=KINDS)
def run(request: Any, beir: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A finished run of such a retriever."""
    tree = tiny.dpr(beir, encoder)
    width = {"width": 8} if "multi" in request.param else {}
    model = {key: tree["retriever"][key] for key in ("model", "query_tokens", "document_tokens")}
    tree["retriever"] = {"kind": request.param, **model, **width}
    tree |= {"search": {"index": KINDS[request.param]}, "encode": {"shard": 16}}
    place = tiny.place(tmp_path_factory.mktemp("kind"), tree)
    assert place("run") == 0
    return place


def lists(run: Place, label: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in pq.read_table(run.artifact(label) / "ranking.parquet").to_pylist():
        found.setdefault(row["query_id"], []).append(row["doc_id"])
    return found


def test_the_table_has_it_alone_and_fused(run: Place) -> None:
    names = {row["system"] for row in run.metrics()["rows"]}
    assert {"BM25", "start model", "BM25 + start model, interpolated", "retriever"} <= names


@pytest.mark.parametrize("system", ["retriever", "BM25 + start model, reciprocal"])
def test_search_finds_what_the_run_found(run: Place, said: Said, system: str) -> None:
    label = f"{system} ranking (test)" if system == "retriever" else f"{system} (test)"
    rows = pq.read_table(run.artifact("data") / "queries.parquet", filters=[("split", "=", "test")]).to_pylist()
    query, ranked = next(iter(lists(run, label).items()))
    text = next(row["text"] for row in rows if row["query_id"] == query)
    said()
    assert run("search", text, "-k", "3", "--system", system) == 0
    shown = [line for line in said()[0].splitlines() if line[:2] in ("1.", "2.", "3.")]
    assert [line.split()[-1] for line in shown] == ranked[:3]


def test_export_writes_it_for_its_own_library_and_another_system_as_a_folder(run: Place, tmp_path: Path) -> None:
    assert run("export", str(tmp_path / "out"), "--system", "BM25") == 0
    config = json.loads((tmp_path / "out" / "retriever" / "sparring.json").read_text())
    assert config["kind"] in KINDS
    assert (tmp_path / "out" / "retriever" / "modules.json").exists()


def test_a_folder_that_cannot_hold_it_is_refused(run: Place, tmp_path: Path, said: Said) -> None:
    assert run("export", str(tmp_path / "out"), "--system", "retriever") == 2
    assert "is of the kind tests.support." in said()[1]
