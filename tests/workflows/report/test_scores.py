"""The lines that tell what each system reached."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparring.workflows.report import scores as stored
from sparring.workflows.report.scores import Scores
from sparring.workflows.store.dag import Step, step
from sparring.workflows.store.store import WRITTEN, Store
from sparring.workflows.systems.rows import Row
from tests.support import steps


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def system(name: str, **options: Any) -> Row:
    """A system that was measured by a step of its own."""
    metrics, data = (
        step(f"{name} {options} {subject}", steps.write, text=f"{name} {options} {subject}") for subject in "md"
    )
    return Row(
        **{
            "name": name,
            "round": None,
            "collection": "toy",
            "split": "test",
            "seed": 1,
            "metrics": metrics,
            "data": data,
            **options,
        }
    )


def finish(store: Store, node: Step, **measures: float) -> None:
    store.path(node).mkdir(parents=True)
    summary = {"measures": {name.replace("_at_", "@"): value for name, value in measures.items()}}
    store._write(node, {**dict.fromkeys(WRITTEN), "dropped": [], "cluster": None, "summary": summary})


def test_a_line_has_the_name_and_the_measures_in_columns(store: Store) -> None:
    bm25, warm = system("BM25"), system("warm retriever")
    finish(store, bm25.metrics, RR_at_10=0.661, R_at_100=1.0)
    scores = Scores([bm25, warm], store)
    assert scores.after(bm25.metrics) == ["  BM25            RR@10 .661  R@100 1.000"]
    assert scores.after(warm.metrics) == []  # it is not done
    assert scores.after(bm25.data) == []  # it measures nothing
    assert scores.steps.keys() == {bm25.metrics.fingerprint, warm.metrics.fingerprint}


def test_a_line_fits_the_terminal_and_has_the_first_measure_in_any_case(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    bm25 = system("BM25")
    finish(store, bm25.metrics, RR_at_10=0.661, R_at_100=0.9)
    for columns, line in (
        (30, "  BM25  RR@10 .661  R@100 .900"),
        (29, "  BM25  RR@10 .661"),
        (5, "  BM25  RR@10 .661"),
    ):
        monkeypatch.setattr(stored, "columns", lambda columns=columns: columns)
        assert Scores([bm25], store).after(bm25.metrics) == [line]


def test_seeds_and_collections_are_named_where_there_are_several(store: Store) -> None:
    """BM25 is the same for both seeds, and measured once."""
    bm25, trained = system("BM25"), [system("retriever", seed=seed) for seed in (1, 2)]
    systems = [bm25, replace(bm25, seed=2), *trained]
    for item in systems[1:]:
        if not store.is_done(item.metrics):
            finish(store, item.metrics, RR_at_10=0.5)
    assert Scores(systems, store).before([]) == [
        "  BM25                RR@10 .500",
        "  retriever (seed 1)  RR@10 .500",
        "  retriever (seed 2)  RR@10 .500",
    ]
    assert Scores(systems, store).before([trained[0].metrics]) == [
        "  BM25                RR@10 .500",
        "  retriever (seed 2)  RR@10 .500",
    ]
    elsewhere = system("BM25", collection="other")
    finish(store, elsewhere.metrics, RR_at_10=0.25)
    assert Scores([bm25, elsewhere], store).before([]) == [
        "  BM25 on toy    RR@10 .500",
        "  BM25 on other  RR@10 .250",
    ]
