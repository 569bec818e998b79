"""Size against quality as a recipe's key: rows, a table, commands over smaller vectors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.retrieval import quantised
from sparring.workflows.experiments import loading
from sparring.workflows.store.dag import graph
from sparring.workflows.store.store import Store
from sparring.workflows.systems import deployable
from tests.support import tiny
from tests.support.tiny import Place, Said

SIZES: dict[str, Any] = {
    "8 dimensions": {"dimensions": 8},
    "int8": {"vectors": "int8"},
    "binary": {"vectors": "binary"},
    "binary, rescored": {"vectors": "binary", "rescore": 2},
    "8 dimensions, SQ8": {"dimensions": 8, "index": "SQ8"},
}


def tree(beir: Path, encoder: Path, **options: Any) -> dict[str, Any]:
    small = tiny.dpr(beir, encoder)
    losses = [{"function": tiny.CROSS_ENTROPY, "over": "batch", "dimensions": [32, 8]}]
    return {**small, "train": {**small["train"], "losses": losses}, "sizes": SIZES, **options}


@pytest.fixture(scope="module")
def run(beir: Path, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = tiny.place(tmp_path_factory.mktemp("sizes"), tree(beir, encoder))
    assert place("run") == 0
    return place


def test_nothing_is_encoded_anew(beir: Path, encoder: Path, tmp_path: Path) -> None:
    def encodings(requests: dict[str, Any]) -> list[str]:
        place = tiny.place(tmp_path / str(len(requests)), tree(beir, encoder, sizes=requests))
        outcome = loading.read(place.config, [], place.runs).outcome
        return [item.fingerprint for item in graph([outcome.results, *outcome.pictures]) if "encode" in item.name]

    assert encodings(SIZES) == encodings({})


def test_the_run_has_a_row_for_each_size_and_a_table(run: Place) -> None:
    metrics = run.metrics()
    names = ["retriever", *(f"retriever, {size}" for size in SIZES)]
    assert {row["system"] for row in metrics["rows"]} >= set(names)
    (table,) = metrics["sizes"]
    assert [row["system"] for row in table["rows"]] == names
    rows = {row["system"].removeprefix("retriever, "): row for row in table["rows"]}
    header = 128 / 7  # a file of 7 documents says what it holds
    for name, width in {
        "retriever": 4 * 32,
        "8 dimensions": 4 * 8,
        "int8": 32,
        "binary": 4,
        "binary, rescored": 4,
    }.items():
        assert width < rows[name]["document"] < width + 1.2 * header, name
    assert rows["retriever"]["overlap"] == 1
    assert 0 < rows["binary"]["overlap"] <= rows["int8"]["overlap"] <= 1
    assert rows["int8"]["overlap"] > 0.9
    assert rows["binary, rescored"]["rescoring_document"] == rows["retriever"]["document"]
    assert rows["int8"]["rescoring_document"] == 0
    assert rows["int8"]["milliseconds"] > 0
    means = {(metric["system"], metric["measure"]): metric["value"] for metric in metrics["rows"]}
    for row in table["rows"]:
        assert all(row[name] == pytest.approx(means[row["system"], name]) for name in table["measures"])
    page = (run.runs / "tiny/report.html").read_text()
    assert "Size against quality" in page
    assert all(f'<td data-value="{row["bytes"]}">' in page for row in table["rows"])  # sorted by bytes, not by 9 kB
    assert "binary, rescored" in page


def ranked(place: Place, label: str) -> dict[str, list[tuple[str, float]]]:
    result: dict[str, list[tuple[str, float]]] = {}
    for row in pq.read_table(place.artifact(label) / "ranking.parquet").to_pylist():
        result.setdefault(row["query_id"], []).append((row["doc_id"], row["score"]))
    return result


@pytest.mark.parametrize("size", ["8 dimensions", "int8", "binary, rescored", "8 dimensions, SQ8"])
def test_a_run_searches_as_its_config_says(
    beir: Path, encoder: Path, run: Place, tmp_path: Path, said: Said, size: str
) -> None:
    """`search` in `search:` makes the retriever's own ranking of it, and the command finds the same."""
    place = run.copy(tmp_path / "copy")
    tiny.write(place.config, tree(beir, encoder, sizes={}, search=SIZES[size]))
    assert place("run") == 0
    wanted = ranked(place, "retriever ranking (test)")
    assert wanted == ranked(run, f"retriever, {size} ranking (test)")
    queries = pq.read_table(place.artifact("data") / "queries.parquet").to_pylist()
    text = next(row["text"] for row in queries if row["query_id"] == next(iter(wanted)))
    assert place("clean") == 0  # what is searched stays
    said()
    assert place("search", text, "-k", "3", "--system", "retriever") == 0
    lines = [line for line in said()[0].splitlines() if line[:2] in ("1.", "2.", "3.")]
    assert [line.split()[-1] for line in lines] == [doc_id for doc_id, _ in next(iter(wanted.values()))[:3]]


@pytest.mark.parametrize("size", SIZES)
def test_every_size_can_be_asked(run: Place, said: Said, monkeypatch: pytest.MonkeyPatch, size: str) -> None:
    """Also those that no folder can have; what is asked of a store has all that they are read from."""
    fetched = set[str]()
    monkeypatch.setattr(Store, "fetch", lambda store, nodes, *parts: fetched.update(parts))
    queries = pq.read_table(run.artifact("data") / "queries.parquet").to_pylist()
    query, result = next(iter(ranked(run, f"retriever, {size} ranking (test)").items()))
    text = next(row["text"] for row in queries if row["query_id"] == query)
    said()
    assert run("search", text, "-k", "3", "--system", f"retriever, {size}") == 0
    lines = [line for line in said()[0].splitlines() if line[:2] in ("1.", "2.", "3.")]
    assert [line.split()[-1] for line in lines] == [doc_id for doc_id, _ in result[:3]]
    assert quantised.FILE in fetched


@pytest.mark.parametrize("size", ["8 dimensions", "int8", "8 dimensions, SQ8"])
def test_a_size_is_deployed(run: Place, tmp_path: Path, said: Said, size: str) -> None:
    """The folder finds what the run found, and so does its program without this project."""
    assert run("export", str(tmp_path / "out"), "--system", f"retriever, {size}") == 0
    folder = tmp_path / "out/system"
    dense = json.loads((folder / "system.json").read_text())["stages"]["dense"]
    cut = size.startswith("8")
    assert (dense.get("dimensions"), dense.get("normalize")) == ((8, True) if cut else (None, None))
    assert faiss.read_index(str(folder / "index.faiss")).d == (8 if cut else 32)
    wanted = ranked(run, f"retriever, {size} ranking (test)")
    queries = pq.read_table(run.artifact("data") / "queries.parquet").to_pylist()
    query, text = next((row["query_id"], row["text"]) for row in queries if row["query_id"] in wanted)
    said()
    from sparring.workflows.command_line import main

    assert main(["search", str(folder), text, "-k", "3"]) == 0
    lines = [line for line in said()[0].splitlines() if line[:2] in ("1.", "2.", "3.")]
    best = [doc_id for doc_id, _ in wanted[query][:3]]
    assert [line.split()[-1] for line in lines] == best
    if size == "8 dimensions":
        done = subprocess.run(
            [sys.executable, "example.py", text, "3"], cwd=folder, capture_output=True, text=True, check=True
        )
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == best


def test_bits_cannot_be_deployed_in_a_faiss_index(run: Place, tmp_path: Path, said: Said) -> None:
    assert run("export", str(tmp_path / "out"), "--system", "retriever, binary") == 2
    assert "Hamming distance of bits" in said()[1]
    assert run("export", str(tmp_path / "out"), "--system", "retriever, binary, rescored") == 2
    assert "orders what is found by other vectors; accepted: one kind of vectors" in said()[1]
    assert not (tmp_path / "out").exists()


def test_the_best_is_asked_and_the_best_that_a_folder_can_have_is_exported(
    run: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, store = loading.read(run.config, [], run.runs).outcome, Store(run.store)
    names = ["retriever, int8", "retriever, binary", "retriever, binary, rescored"]
    output = {"candidates": [{"system": name, "value": value} for value, name in enumerate(names)]}
    monkeypatch.setattr(deployable, "_selected", lambda *_: output)
    system = deployable.asked(outcome, store)
    assert system is not None
    assert system.name == "retriever, binary, rescored"
    assert deployable.exported(outcome, store).name == "retriever, int8"
    output["candidates"] = output["candidates"][1:]
    with pytest.raises(UserError, match=r"'retriever, binary, rescored' cannot be deployed: .* by other vectors"):
        deployable.exported(outcome, store)


def test_a_mistake_names_the_size(beir: Path, encoder: Path, tmp_path: Path) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder, sizes={"small": {"vectors": "int4"}}))
    with pytest.raises(UserError, match=r"sizes\.small\.vectors: .*got 'int4'"):
        loading.read(place.config, [], place.runs)


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["sizes={a: {dimensions: 33}}"], "dimensions: got 33, but the retriever's vectors have 32 dimensions"),
        (
            ["retriever.truncate=9", "sizes={a: {dimensions: 20}}", "train.losses.0.dimensions=null"],
            "dimensions: got 20, but the retriever's vectors have 9 ",
        ),
        (["sizes={a: {index: PQ7}}"], "search: index: PQ7: 32 dimensions cannot be cut into 7 equal parts"),
        (["search.index='IVF8,PQ9'"], "search: index: IVF8,PQ9: 32 dimensions cannot be cut into 9 equal parts"),
        (
            ["train.losses.0.dimensions=[64, 8]"],
            "retriever: losses: dimensions: got 64, but the retriever's vectors have 32 dimensions",
        ),
    ],
)
def test_what_cannot_fit_the_vectors_is_known_before_anything_runs(
    beir: Path, encoder: Path, tmp_path: Path, sets: list[str], says: str
) -> None:
    place = tiny.place(tmp_path, tree(beir, encoder))
    with pytest.raises(UserError, match=re.escape(says)):
        loading.read(place.config, sets, place.runs)


def test_an_index_that_faiss_cannot_make_is_refused_first(
    beir: Path, encoder: Path, tmp_path: Path, said: tiny.Said
) -> None:
    for factory, says in {"nonsense": "cannot make 'nonsense'", "HNSW8,PQ8": "ranks by distance with it"}.items():
        place = tiny.place(tmp_path / factory, tree(beir, encoder, sizes={"a": {"index": factory}}))
        assert place("run") == 2
        assert re.search(rf"retriever, a index: search\.index: .*{says}", said()[1])
        assert not place.store.exists()
