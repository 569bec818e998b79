"""Weights of fusions that are chosen by what they do for queries."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sparring.components.data.tables import DOCUMENTS, QRELS, QUERIES, TEXT
from sparring.components.evaluation.measures import means, per_query
from sparring.components.retrieval.fusion import FusionConfig, fuse, read_chosen
from sparring.components.rng import keyed_int
from sparring.workflows.steps import fuse as step
from sparring.workflows.steps.fit_fusion import CONSTANTS, WEIGHTS, fit_fusion
from tests.support import toy

DOCS = "abcdefghij"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Six dev queries, and one of another split; `j` is the right document, which loses where scores are equal."""
    folder = tmp_path / "data"
    folder.mkdir()
    queries = [*(f"q{i}" for i in range(6)), "other"]
    splits = ["dev"] * 6 + ["test"]
    pq.write_table(
        pa.table({"query_id": queries, "text": queries, "answers": [[]] * 7, "split": splits}, schema=QUERIES),
        folder / "queries.parquet",
    )
    qrels = {"query_id": queries, "doc_id": ["j"] * 7, "relevance": [1] * 7, "split": splits}
    pq.write_table(pa.table(qrels, schema=QRELS), folder / "qrels.parquet")
    documents = {"doc_id": list(DOCS), "title": [""] * len(DOCS), "text": list(DOCS)}
    pq.write_table(pa.table(documents, schema=DOCUMENTS), folder / "documents.parquet")
    return folder


def fit(
    tmp_path: Path, data: Path, found: list[dict[str, str]], method: str, **options: Any
) -> tuple[FusionConfig, Any]:
    """What is chosen for rankings of one-letter documents, and the file that says so."""
    places = [
        toy.write_ranking(tmp_path / f"list {number}", {query: list(docs) for query, docs in letters.items()})
        for number, letters in enumerate(found)
    ]
    (out := tmp_path / "out").mkdir()
    settings = {"split": "dev", "measure": "RR@10", "config": FusionConfig(how=method), **options}
    fit_fusion(out, toy.INLINE, data=data, rankings=places, **settings)
    return read_chosen(out), json.loads((out / "fusion.json").read_text())


def planted() -> list[dict[str, str]]:
    """Three queries are right where the second list weighs less than .5, three where it weighs more than about .2."""
    first = {**dict.fromkeys(("q0", "q1", "q2"), "jbc"), **dict.fromkeys(("q3", "q4", "q5"), "bjcde")}
    second = {**dict.fromkeys(("q0", "q1", "q2"), "bjc"), **dict.fromkeys(("q3", "q4", "q5"), "jcdeb")}
    return [{**first, "other": "bj"}, {**second, "other": "jb"}]


@pytest.mark.parametrize("method", ["reciprocal", "interpolate"])
def test_a_planted_optimum_is_found(tmp_path: Path, data: Path, method: Any) -> None:
    """Every trial's value is that of the fusion itself, and the best of all is chosen, nearest the default."""
    chosen, record = fit(tmp_path, data, planted(), method)
    tables = [pq.read_table(tmp_path / f"list {number}" / "ranking.parquet") for number in (0, 1)]
    qrels = pq.read_table(data / "qrels.parquet", filters=[("split", "=", "dev")])
    values = {}
    for weight, c in itertools.product(WEIGHTS, CONSTANTS if method == "reciprocal" else (60.0,)):
        fused = fuse(tables, FusionConfig(how=method, weight=weight, c=c))
        values[weight, c] = means(per_query(fused, qrels, ["RR@10"]))["RR@10"]
    assert {(trial["weight"], trial.get("c", 60.0)): trial["value"] for trial in record["tried"]} == pytest.approx(
        values
    )
    assert {weight for (weight, _), value in values.items() if value == 1.0} == {0.3, 0.4}
    assert (chosen.weight, chosen.c) == (0.4, 60.0)
    assert record["chosen"] == chosen.model_dump(mode="json")


def test_one_good_ranking_gets_the_weight(tmp_path: Path, data: Path) -> None:
    right, wrong = ({f"q{i}": docs for i in range(6)} for docs in ("jabcdefg", "gfedcb"))
    chosen, record = fit(tmp_path, data, [wrong, right], "reciprocal")
    assert chosen.weight > 0.5
    assert max(trial["value"] for trial in record["tried"]) == 1.0


@pytest.mark.parametrize("method", ["reciprocal", "interpolate"])
def test_what_makes_no_difference_stays_as_it_was(tmp_path: Path, data: Path, method: str) -> None:
    same = {f"q{i}": "abc" for i in range(6)}
    config = FusionConfig(how=method, weight=0.37, c=13.0, depth=7)
    chosen, record = fit(tmp_path, data, [same, same], method, config=config)
    assert chosen == config
    assert len(record["tried"]) == (12 * 5 if method == "reciprocal" else 12)


def test_without_judged_queries_the_default_stands(tmp_path: Path, data: Path) -> None:
    judged = pq.read_table(data / "qrels.parquet", filters=[("split", "=", "test")])
    pq.write_table(judged, data / "qrels.parquet")
    chosen, record = fit(tmp_path, data, planted(), "reciprocal")
    assert chosen == FusionConfig(how="reciprocal")
    tables = [pq.read_table(tmp_path / f"list {number}" / "ranking.parquet") for number in (0, 1)]
    dev = [table.filter(pc.not_equal(table["query_id"], "other")) for table in tables]
    ranking = pq.read_table(tmp_path / "out" / "ranking.parquet").sort_by(
        [("query_id", "ascending"), ("rank", "ascending")]
    )
    assert ranking == fuse(dev, chosen).sort_by([("query_id", "ascending"), ("rank", "ascending")])
    assert (record["queries"], record["tried"]) == (0, [])


def test_no_querys_own_judgements_choose_how_it_is_fused(tmp_path: Path, data: Path) -> None:
    """Each half is fused with the best trial for the other half, by hand; so another judgement of a query changes the
    rankings of the other half alone."""
    fit(tmp_path, data, planted(), "interpolate")
    tables = [pq.read_table(tmp_path / f"list {number}" / "ranking.parquet") for number in (0, 1)]
    qrels = pq.read_table(data / "qrels.parquet", filters=[("split", "=", "dev")])
    names = [f"q{i}" for i in range(6)]
    halves = {half: [name for name in names if keyed_int("half", name) % 2 == half] for half in (0, 1)}
    assert all(halves.values())
    ranking = pq.read_table(tmp_path / "out" / "ranking.parquet")
    assert set(ranking["query_id"].to_pylist()) == set(names)
    for half, queries in halves.items():
        mask = pc.is_in(qrels["query_id"], value_set=pa.array(halves[1 - half], TEXT))
        trials = [FusionConfig(how="interpolate", weight=weight) for weight in WEIGHTS]
        trials.sort(key=lambda trial: round(abs(trial.weight - 0.5), 9))
        values = [means(per_query(fuse(tables, trial), qrels.filter(mask), ["RR@10"]))["RR@10"] for trial in trials]
        best = trials[int(np.argmax(values))]
        for query in queries:
            alone = [table.filter(pc.equal(table["query_id"], query)) for table in tables]
            assert ranking.filter(pc.equal(ranking["query_id"], query)) == fuse(alone, best), query


def test_rankings_are_fused_as_was_chosen(tmp_path: Path, data: Path) -> None:
    chosen, _ = fit(tmp_path, data, planted(), "interpolate")
    (out := tmp_path / "fused").mkdir()
    places = [tmp_path / f"list {number}" for number in (0, 1)]
    step.fuse(out, toy.INLINE, data=data, rankings=places, split="test", config=tmp_path / "out")
    ranking = pq.read_table(out / "ranking.parquet")
    tables = [pq.read_table(place / "ranking.parquet", filters=[("query_id", "=", "other")]) for place in places]
    assert ranking == fuse(tables, chosen)
    assert set(ranking["query_id"].to_pylist()) == {"other"}
