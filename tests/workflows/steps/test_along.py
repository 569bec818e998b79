"""Measures along a number of their experiments: points by hand, and the report's chart of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparring.components.files import write_json
from sparring.workflows.report import report
from sparring.workflows.running.executor import execute
from sparring.workflows.steps.pictures import along
from sparring.workflows.store.dag import graph, step
from sparring.workflows.store.store import Store
from tests.support import toy

CURVES = {"standard": {"six": 6, "one": 1}, "SamToNe": {"one, too": 1}, "nowhere": {"never measured": 2}}


def results(out: Path, machine: Any) -> None:
    """Two seeds of three systems, and of one that stands on no line."""
    values = {"one": (0.1, 0.3), "six": (0.5, 0.5), "one, too": (0.4, 0.6), "BM25": (0.9, 0.9)}
    rows = [
        {
            "system": system,
            "round": None,
            "collection": "toy",
            "split": "test",
            "seed": seed,
            "measure": measure,
            "value": value / scale,
            "queries": 9,
        }
        for system, both in values.items()
        for seed, value in enumerate(both)
        for measure, scale in (("P@1", 1), ("RR", 2))
    ]
    write_json(out / "metrics.json", {"rows": rows, "comparisons": []})


def test_points_are_means_over_seeds_in_order_of_the_axis(tmp_path: Path) -> None:
    results(tmp_path, None)
    assert along(tmp_path, toy.INLINE, results=tmp_path, axis="layers", curves=CURVES) == {"measures": 2}
    first, second = json.loads((tmp_path / "pictures.json").read_text())
    assert (first["title"], first["x"], second["title"]) == ("P@1", "layers", "RR")
    assert first["curves"].keys() == {"standard", "SamToNe"}
    assert first["curves"]["standard"] == [[1, pytest.approx(0.2), pytest.approx(0.02**0.5)], [6, 0.5, 0.0]]
    assert second["curves"]["SamToNe"] == [[1, pytest.approx(0.25), pytest.approx(0.005**0.5)]]


def test_the_report_draws_them(tmp_path: Path) -> None:
    drawn = step("curves", along, results=step("results", results), axis="layers", curves=CURVES)
    store = Store(tmp_path / "store")
    for node in graph([drawn]):
        execute(node, store, toy.INLINE, on_wait=print)
    report.write(tmp_path / "run", title="t", wanted=[drawn], results=None, store=store, executed=set(), config={})
    text = (tmp_path / "run/report.html").read_text()
    assert ">By layers</h2>" in text
    assert "standard, layers 6: 0.500" in text
    assert "toy, test split; the mean and deviation over the seeds." in text
