"""Contenders: systems that the user runs today, as rows, candidates and baselines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sparring.components.config import UserError
from sparring.components.data.tables import document_text
from sparring.components.evaluation.selection import FILE
from sparring.components.files import read_json, write_json
from sparring.workflows.experiments import loading
from sparring.workflows.experiments.loading import Experiment
from sparring.workflows.store.dag import graph
from sparring.workflows.store.object_store import open_store
from sparring.workflows.systems import deployable
from sparring.workflows.systems.deployable import Deployment
from tests.support import tiny, toy
from tests.support.endpoint import KEY, Endpoint, every_third_fails

BGE = {"embedder": "BAAI/bge-small-en-v1.5", "reranker": {"model": "BAAI/bge-reranker-base", "pair_tokens": 300}}
VENDOR = {"rerank_url": "http://localhost:9000/v1/rerank", "key_from": "RERANK_KEY", "model": "rerank-2"}


def untrained(beir: Path, encoder: Path, contenders: dict[str, Any]) -> dict[str, Any]:
    """DPR without its training."""
    tree = tiny.dpr(beir, encoder)
    return {**{key: tree[key] for key in ("recipe", "data", "k", "encode", "retriever")}, "contenders": contenders}


def read(folder: Path, tree: dict[str, Any], *assignments: str) -> Experiment:
    return loading.read(tiny.write(folder / "tiny.yaml", tree), list(assignments), folder)


@pytest.fixture
def classifier(tmp_path: Path, encoder: Path) -> Path:
    """The folder of a ranker with a classification head."""
    return toy.started(tmp_path / "classifier", toy.ranker_config(encoder, pooling="cls")) / "model"


@pytest.mark.parametrize("recipe", ["dpr", "ar2", "simlm", "ear", "coder", "adapt"])
def test_every_recipe_that_measures_a_table_has_contenders(
    tmp_path: Path, beir: Path, encoder: Path, recipe: str
) -> None:
    """A plan needs neither their files nor the addresses."""
    tree = {**getattr(tiny, recipe)(beir, encoder), "contenders": {"what we run": BGE, "vendor": VENDOR}}
    outcome = read(tmp_path, tree).outcome
    rows = {row.name: row for row in outcome.rows}
    assert {name for name, row in rows.items() if row.contender} == {"what we run", "vendor"}
    assert not rows["what we run"].trained
    pairs = outcome.results.inputs["comparisons"]
    assert [pair["baseline"] for pair in pairs if pair["system"] is None] == ["what we run", "vendor"]
    candidates = {entry["system"]: entry for entry in outcome.results.inputs["selection"].inputs["systems"]}
    assert {"what we run", "vendor"} <= candidates.keys()
    if recipe == "adapt":
        assert candidates["vendor"]["cost"] == candidates["what we run"]["cost"] == 4
        assert {"vendor", "what we run"} <= {cost.system for cost in outcome.costs}


def test_other_steps_stay_the_same(tmp_path: Path, beir: Path, encoder: Path) -> None:
    tree = tiny.adapt(beir, encoder)
    before = {node.fingerprint for node in graph([read(tmp_path, tree).outcome.results])}
    after = read(tmp_path, {**tree, "contenders": {"vendor": VENDOR}}).outcome
    assert len(before - {node.fingerprint for node in graph([after.results])}) == 2  # the selection and the results


def test_a_reranker_reads_the_row_that_it_names(tmp_path: Path, beir: Path, encoder: Path) -> None:
    chat = {"chat_url": "http://localhost:9000/v1/chat/completions", "of": "b", "depth": 3}
    contenders = {"a": VENDOR, "b": {**VENDOR, "of": "start model"}, "c": chat}
    rows = {row.name: row for row in read(tmp_path, untrained(beir, encoder, contenders)).outcome.rows}
    for name, over in {"a": "BM25", "b": "start model", "c": "b"}.items():
        assert rows[name].system.over is rows[over].system  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("contender", "key", "says"),
    [
        ({}, "contenders.x", "it has no part"),
        ({"rerank_url": "localhost:9000"}, "contenders.x.rerank_url", "an address such as"),
        ({"rerank_url": "http://me:word@a/v1"}, "contenders.x.rerank_url", "by `key_from`"),
        ({"reranker": "a/b", "rerank_url": "http://a/v1"}, "contenders.x.rerank_url", "there is `reranker` too"),
        ({"embedder_url": "http://a/v1", "rerank_url": "http://a/v1"}, "contenders.x.rerank_url", "names it as `of`"),
        ({"reranker": "a/b", "chat_url": "http://a/v1"}, "contenders.x.chat_url", "there is `reranker` too"),
        ({"embedder": "a/b", "of": "BM25"}, "contenders.x.of", "a reranker without an embedder"),
        ({"reranker": "a/b", "model": "m"}, "contenders.x.model", "it is for an address"),
        ({"reranker": "a/b", "query_prompt": "q: "}, "contenders.x", "are for `embedder_url`"),
        ({"rerank_url": "http://a/v1", "price": {}}, "contenders.x.price", "it needs one unit"),
        ({"reranker": "a/b", "of": "nothing"}, "contenders.x.of", "no row before it is called 'nothing'"),
    ],
)
def test_a_contender_that_cannot_be_is_refused(
    tmp_path: Path, beir: Path, encoder: Path, contender: dict[str, Any], key: str, says: str
) -> None:
    with pytest.raises(UserError, match=re.escape(says)) as caught:
        read(tmp_path, untrained(beir, encoder, {"x": contender}))
    assert caught.value.key.startswith(key)


def test_a_run_measures_models_and_addresses(
    tmp_path: Path,
    beir: Path,
    encoder: Path,
    retriever: Path,
    classifier: Path,
    endpoint: Endpoint,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A ranker that was exported as a classifier gives sentence-transformers' order. The address fails a third of its
    calls; nobody is asked twice, and the report has the bill. The key is nowhere."""
    endpoint.fails = every_third_fails
    address = {"key_from": "RERANK_KEY", "price": {"thousand_searches": 2.0}}
    contenders = {
        "ours": {"embedder": str(retriever / "model"), "reranker": str(classifier), "depth": 5},
        "vendor": {**address, "rerank_url": f"{endpoint.url}/rerank", "of": "ours", "depth": 4},
        "bare": {"embedder": str(encoder)},
        "embeddings": {**address, "embedder_url": f"{endpoint.url}/embeddings"},
    }
    place_tree = untrained(beir, encoder, contenders)
    place = tiny.place(tmp_path / "place", place_tree)
    assert place("run") == 0
    metrics = place.metrics()
    assert contenders.keys() <= {row["system"] for row in metrics["rows"]}
    selection = read_json(place.artifact("selection") / FILE)
    assert contenders.keys() <= {entry["system"] for entry in selection["candidates"]}
    assert not [pair for pair in metrics["comparisons"] if pair["system"] == pair["baseline"]]
    assert contenders.keys() <= {name for pair in metrics["comparisons"] for name in (pair["system"], pair["baseline"])}
    reranked = [pair for pair in endpoint.asked_twice if pair[0]]
    assert reranked == []

    queries = {
        row["query_id"]: row["text"] for row in pq.read_table(place.artifact("data") / "queries.parquet").to_pylist()
    }
    documents = pq.read_table(place.artifact("data") / "documents.parquet").to_pylist()
    by_id = {row["doc_id"]: document_text(row["title"], row["text"]) for row in documents}
    check_order(classifier, place, queries, by_id)

    page = (place.runs / "tiny" / "report.html").read_text()
    assert '<th scope="col">1,000 queries</th>' in page
    assert "<td>2.00</td>" in page
    record = read_json(place.artifact("vendor (test)") / "artifact.json")
    assert record["summary"]["searches"] == record["summary"]["answers"] == record["summary"]["queries"]
    assert "key_from" not in str(record["inputs"])
    printed = "".join(capsys.readouterr())
    files = [path for path in place.folder.rglob("*") if path.is_file()]
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert KEY not in printed

    rows = read(place.folder, place_tree).outcome.ranked
    assert [type(stage).__name__ for stage in Deployment.of_row(rows["ours"]).stages.values()] == ["Dense", "Reranked"]
    for name, path in {"vendor": "rerank", "embeddings": "embeddings"}.items():
        with pytest.raises(UserError, match=re.escape(f"its ranking comes from {endpoint.url}/{path}")):
            Deployment.of_row(rows[name])
    write_json(place.artifact("selection") / FILE, {**selection, "deploy": "vendor"})
    best = sorted(selection["candidates"], key=lambda candidate: -candidate["value"])
    answering = deployable.asked(read(place.folder, place_tree).outcome, open_store(place.where))
    assert answering is not None
    assert answering.name == next(entry["system"] for entry in best if entry["system"] not in ("vendor", "embeddings"))
    assert place("export", str(tmp_path / "out"), "--system", "vendor") == 2
    assert place("export", str(tmp_path / "out"), "--system", "ours") == 0


def check_order(classifier: Path, place: tiny.Place, queries: dict[str, str], documents: dict[str, str]) -> None:
    """The first documents are in the order of sentence-transformers' scores."""
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(classifier))
    ranking = pq.read_table(place.artifact("ours (test)") / "ranking.parquet").to_pylist()
    first: dict[str, list[str]] = {}
    for row in ranking:
        if row["rank"] <= 5:
            first.setdefault(row["query_id"], []).append(row["doc_id"])
    assert len(first) > 3
    for query, names in first.items():
        scores = model.predict([(queries[query], documents[name]) for name in names]).tolist()
        assert scores == pytest.approx(sorted(scores, reverse=True), abs=0.02)  # bf16 here
