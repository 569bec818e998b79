"""A run whose retriever is of a kind that nothing in the package knows: trained, indexed, fused, searched, exported."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparring.components.systems.system import LoadedSystem
from tests.support import tiny
from tests.support.tiny import Place, Said

pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # the programs' files

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
    ranking: dict[str, list[str]] = {}
    for row in pq.read_table(run.artifact(label) / "ranking.parquet").to_pylist():
        ranking.setdefault(row["query_id"], []).append(row["doc_id"])
    return ranking


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


def test_export_writes_it_for_its_own_library_and_as_a_system(run: Place, tmp_path: Path, said: Said) -> None:
    assert run("export", str(tmp_path / "out"), "--system", "retriever") == 0
    config = json.loads((tmp_path / "out" / "retriever" / "sparring.json").read_text())
    assert config["kind"] in KINDS
    assert (tmp_path / "out" / "retriever" / "modules.json").exists()
    system = tmp_path / "out" / "system"
    stage = json.loads((system / "system.json").read_text())["stages"]["dense"]
    assert (stage["kind"], stage["factory"]) == (config["kind"], KINDS[config["kind"]])
    rows = pq.read_table(run.artifact("data") / "queries.parquet", filters=[("split", "=", "test")]).to_pylist()
    texts = {row["query_id"]: row["text"] for row in rows}
    searching = LoadedSystem.load(system, threads=1)
    for query, ranked in list(lists(run, "retriever ranking (test)").items())[:3]:
        assert [hit.doc_id for hit in searching.search(texts[query], 5)] == ranked[:5]
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", ["example.py", texts[query], "5"])
            said()
            runpy.run_path(str(system / "example.py"), run_name="__main__")
        assert [line.split("\t")[0] for line in said()[0].splitlines() if line] == ranked[:5]
