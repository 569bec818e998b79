"""`adapt`, whole runs in seconds: with training queries and without, and where the collection is gone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from sparring.components.evaluation.measures import means, per_query
from sparring.components.evaluation.result_table import unsigned
from sparring.components.neighbours.reranking import best
from sparring.components.systems.system import LoadedSystem
from sparring.workflows.report.page import prose
from sparring.workflows.report.verdict import in_prose
from tests.support import tiny
from tests.support.tiny import ROOT, Place


@pytest.fixture(scope="module")
def adapted(toys: Path, beir: Path, encoder: Path) -> Place:
    """A finished run on a folder of its own."""
    folder = shutil.copytree(beir, toys / "own")
    place = tiny.place(toys / "adapted", tiny.adapt(folder, encoder))
    assert place("run") == 0
    return place


def test_it_ends_with_what_to_deploy(adapted: Place, said: tiny.Said) -> None:
    metrics = adapted.metrics()
    verdict = metrics["verdict"]
    systems = {row["system"] for row in metrics["rows"]}
    assert {
        "BM25",
        "start model",
        "warm retriever",
        "BM25 + warm retriever, interpolated",
        "ranker over retriever 1",
        "start model by neighbours",
        "retriever 1 by neighbours",
    } <= systems
    assert verdict["chosen"] in systems
    value = next(
        row["value"]
        for row in metrics["rows"]
        if (row["system"], row["measure"]) == (verdict["system"], verdict["measure"])
    )
    assert verdict["value"] == pytest.approx(value)
    assert verdict["low"] <= value <= verdict["high"]
    assert verdict["milliseconds"] > 0
    assert verdict["bytes"]["indexes"] > 0
    assert adapted("show") == 0
    printed = " ".join("".join(said()).split())
    assert printed.endswith(" ".join(verdict["sentences"]))
    assert f"Deploy {in_prose(verdict['deploy'])}. " in printed
    selection = json.loads((adapted.artifact("selection") / "selection.json").read_text())
    chosen = f"{in_prose(verdict['chosen'])} was chosen on the {selection['queries']} dev queries"
    values = {candidate["system"]: candidate["value"] for candidate in selection["candidates"]}
    assert verdict["selection_values"] == values
    assert f"{chosen}, where it has {verdict['measure']} {unsigned(values[verdict['chosen']])}" in printed
    page = (adapted.runs / "tiny" / "report.html").read_text()
    assert all(str(prose(sentence)) in page for sentence in verdict["sentences"])
    assert "How the systems were chosen" in page


def test_what_to_deploy_is_what_is_exported(adapted: Place, tmp_path: Path) -> None:
    assert adapted("export", str(tmp_path / "out")) == 0
    system = json.loads((tmp_path / "out" / "system" / "system.json").read_text())
    assert system["name"] == adapted.metrics()["verdict"]["chosen"]


def test_what_to_deploy_is_what_searches(adapted: Place, said: tiny.Said) -> None:
    """The run's folder alone tells the same: it links to its store."""
    name = adapted.metrics()["verdict"]["chosen"]
    command = [sys.executable, "-m", "workflows", *adapted.words("search", "baven")]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stderr == f"{name} searches here; --system NAME asks another\n"
    assert done.stdout == searched(*adapted.words("search", "baven", "--system", name))
    assert tiny.main(["show", str(adapted.runs / "tiny")]) == 0
    assert " ".join(said()[0].split()).endswith(adapted.metrics()["verdict"]["sentences"][-1])


def test_any_system_can_be_searched_with(adapted: Place, tmp_path: Path, said: tiny.Said) -> None:
    """A run's own and the exported one find the same; a name that is none is answered with those that there are."""
    name = "BM25 + start model, reciprocal"
    output = searched(*adapted.words("search", "baven", "--system", name))
    assert output.count("BM25 ") > 0
    assert adapted("export", str(tmp_path / "out"), "--system", name) == 0
    said()
    assert searched("search", str(tmp_path / "out" / "system"), "baven") == output
    assert adapted("search", "barami", "--system", "none") == 2
    assert "BM25 + start model, reciprocal" in said()[1]


def test_neighbours_compete_by_what_they_do_for_queries_that_did_not_choose_them(
    adapted: Place, tmp_path: Path, said: tiny.Said
) -> None:
    """On dev each query is reranked by the others' choice; on the measured split, and as exported, by that of all."""
    name = "retriever 1 by neighbours"
    chose = adapted.artifact(f"{name} numbers")
    candidates = json.loads((adapted.artifact("selection") / "selection.json").read_text())["candidates"]
    value = next(candidate["value"] for candidate in candidates if candidate["system"] == name)
    qrels = pq.read_table(adapted.artifact("data") / "qrels.parquet", filters=[("split", "=", "dev")])
    measure = adapted.metrics()["verdict"]["measure"]
    assert value == means(per_query(pq.read_table(chose / "ranking.parquet"), qrels, [measure]))[measure]
    assert adapted("export", str(tmp_path / "out"), "--system", name) == 0
    stages = json.loads((tmp_path / "out" / "system" / "system.json").read_text())["stages"]
    neighbours = {key: value for key, value in stages["neighbours"].items() if key not in ("kind", "of")}
    assert neighbours == best(chose).model_dump(mode="json")
    rows = pq.read_table(adapted.artifact(f"{name} (test)") / "ranking.parquet").to_pylist()
    assert neighbours["context"] < 10 < len(rows) / 4
    queries = pq.read_table(adapted.artifact("data") / "queries.parquet", filters=[("split", "=", "test")]).to_pylist()
    system = LoadedSystem.load(tmp_path / "out" / "system", threads=1)
    for query in queries:
        scores = [hit.score for hit in system.search([query["text"]], 10)[0]]
        wanted = [row["score"] for row in rows if row["query_id"] == query["query_id"]][:10]
        assert scores == pytest.approx(wanted, abs=1e-5)


def searched(*words: str) -> str:
    """What a command prints, in a process of its own: the search starts Java, which other tests watch for in theirs."""
    command = [sys.executable, "-m", "workflows", *words]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_search_reorders_as_the_run_did(adapted: Place, tmp_path: Path) -> None:
    """By the sum of the ranker's, the retriever's and BM25's scores, as the exported system does."""
    assert adapted("export", str(tmp_path / "out"), "--system", "ranker over retriever 1") == 0
    by_run = searched(*adapted.words("search", "gira cotol", "-k", "5", "--system", "ranker over retriever 1"))
    assert searched("search", str(tmp_path / "out" / "system"), "gira cotol", "-k", "5") == by_run
    assert "BM25" in by_run
    assert "ranker" in by_run


def test_once_run_the_numbers_hold_without_the_collection(adapted: Place, tmp_path: Path, said: tiny.Said) -> None:
    place = adapted.copy(tmp_path / "there")
    tree = yaml.safe_load(place.config.read_text())
    source = Path(tree["data"]["path"])
    away = source.rename(source.with_name("away"))
    try:
        assert place("plan") == 0
        out, _ = said()
        assert " 0 to run" in out
        assert "95 % have at most" in out
        shutil.rmtree(place.runs)
        assert place("plan") == 0
        assert " 0 to run" in said()[0]  # the store keeps them
        shutil.rmtree(place.store / ".configs")
        assert place("plan") == 0
        out, _ = said()
        assert "source missing: not yet that of the collection" in out
    finally:
        away.rename(source)


def test_without_training_queries_only_what_needs_none_is_compared(
    beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said
) -> None:
    folder = shutil.copytree(beir, tmp_path / "judged")
    (folder / "qrels" / "train.tsv").rename(folder / "qrels" / "test.tsv")
    (folder / "qrels" / "dev.tsv").unlink()
    tree = {**tiny.adapt(folder, encoder), "neighbours": {"folds": 20}}  # more than there are dev queries
    place = tiny.place(tmp_path / "place", tree)
    assert place("run") == 0
    metrics = place.metrics()
    values = {row["system"]: row["value"] for row in metrics["rows"] if row["measure"] == metrics["verdict"]["measure"]}
    assert values["start model by neighbours"] == values["start model"]
    assert not any("retriever" in row["system"] for row in metrics["rows"])
    assert any(
        detail.startswith("Nothing was trained: training needs a few") for detail in metrics["verdict"]["details"]
    )
    assert place("plan", "--set", "train=false") == 0
    config = yaml.safe_load((place.runs / "tiny" / "config.yaml").read_text())
    assert config["train"] is False
    assert config["data"]["hold_out"] == {"dev": {"of": "test", "share": 0.5, "start": None}}
    assert {row["split"] for row in metrics["rows"]} == {"test"}


def test_a_collection_that_nobody_asked_anything(beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said) -> None:
    """It learns from pairs made of the documents, measures nothing and says so; the retriever can be searched with and
    exported."""
    folder = shutil.copytree(beir, tmp_path / "own")
    shutil.rmtree(folder / "qrels")
    (folder / "queries.jsonl").write_text("")
    tree = {**tiny.adapt(folder, encoder), "pretrain": {"updates": 2, "batch": 8}}
    place = tiny.place(tmp_path / "place", tree)
    assert place("run", "--until", "data") == 0
    assert place("show") == 0
    assert "Nothing was measured" not in said()[0], "nothing has learnt anything yet"
    assert place("report") == 2
    assert place("run") == 0
    assert "Nothing was measured, because no query of the collection has a relevant document." in " ".join(
        said()[0].split()
    )
    assert place.metrics()["rows"] == []
    assert "Nothing was measured" in (place.runs / "tiny" / "report.html").read_text()
    assert place("export", str(tmp_path / "out")) == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["retriever"]
    assert place("run") == 0
    assert "nothing to run" in said()[0]
