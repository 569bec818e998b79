"""The best trained system and the best untrained one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.components.data.groups import judged_queries, measured_queries
from sparring.components.evaluation.selection import leading
from sparring.components.files import write_json
from sparring.workflows.steps.select import select
from tests.support import toy

DEV = ["q3", "q9", "q15", "q21"]
"""Those of the toy collection, each with the document of its number."""


def entry(place: Path, name: str, ranks: list[int], *, trained: bool, seed: int = 1, **more: Any) -> dict[str, Any]:
    """A system that has the right document of each dev query at a rank; 0 for nowhere."""
    lists = {}
    for query, rank in zip(DEV, ranks, strict=True):
        distractors = [f"d{number}" for number in (1, 2, 4, 5)]
        lists[query] = (
            distractors if not rank else [*distractors[: rank - 1], f"d{query[1:]}", *distractors[rank - 1 :]]
        )
    ranking = toy.write_ranking(place / f"{name} {seed}", lists)
    return {"system": name, "seed": seed, "trained": trained, "ranking": ranking, "queries": None, **more}


def selected(place: Path, data: Path, systems: list[dict[str, Any]], split: str = "dev") -> dict[str, Any]:
    out = place / "out"
    out.mkdir()
    select(out, toy.INLINE, data=data, split=split, measure="RR@10", systems=systems)
    selection: dict[str, Any] = json.loads((out / "selection.json").read_text())
    return selection


def test_the_planted_winners_are_selected_by_the_mean_over_seeds(tmp_path: Path, data: Path) -> None:
    selection = selected(
        tmp_path,
        data,
        [
            entry(tmp_path, "BM25", [1, 2, 2, 2], trained=False),
            entry(tmp_path, "fusion", [1, 1, 2, 2], trained=False),
            entry(tmp_path, "lucky", [1, 1, 1, 1], trained=True),
            entry(tmp_path, "steady", [1, 1, 1, 2], trained=True),
            entry(tmp_path, "lucky", [2, 2, 2, 2], trained=True, seed=2),
            entry(tmp_path, "steady", [1, 1, 2, 1], trained=True, seed=2),
        ],
    )
    assert (selection["system"], selection["baseline"], selection["why"], selection["queries"]) == (
        "steady",
        "fusion",
        "",
        4,
    )
    values = {candidate["system"]: candidate["value"] for candidate in selection["candidates"]}
    assert values == {"BM25": 0.625, "fusion": 0.75, "lucky": 0.75, "steady": 0.875}
    (steady,) = [candidate for candidate in selection["candidates"] if candidate["system"] == "steady"]
    sample = np.array([1, 1, 0.75, 0.75])
    assert steady["standard_error"] == pytest.approx(sample.std(ddof=1) / 2)
    (fusion,) = [candidate for candidate in selection["candidates"] if candidate["system"] == "fusion"]
    assert fusion["behind"] == pytest.approx(0.125)
    assert fusion["behind_error"] == pytest.approx((sample - [1, 1, 0.5, 0.5]).std(ddof=1) / 2)
    assert (steady["behind"], steady["behind_error"]) == (0, 0)


def test_of_equals_the_first_is_selected(tmp_path: Path, data: Path) -> None:
    systems = [entry(tmp_path, name, [1, 1, 2, 0], trained=name < "c") for name in "abcd"]
    selection = selected(tmp_path, data, systems)
    assert (selection["system"], selection["baseline"]) == ("a", "c")


def test_all_are_measured_on_the_queries_that_all_have(tmp_path: Path, data: Path) -> None:
    """One that ranks a sample alone does not win by what others do on the rest."""
    (row,) = judged_queries(data, "dev", 1).to_pylist()
    assert [row] == measured_queries(data, "dev", 1)
    ranks = [1 if query == row else 0 for query in DEV]
    selection = selected(
        tmp_path,
        data,
        [
            entry(tmp_path, "BM25", [3, 3, 3, 3], trained=False),
            entry(tmp_path, "ranker", ranks, trained=True, queries=1),
            entry(tmp_path, "retriever", [2, 2, 2, 2], trained=True),
        ],
    )
    assert selection["queries"] == 1
    assert selection["system"] == "ranker"
    assert [candidate["standard_error"] for candidate in selection["candidates"]] == [None] * 3


@pytest.mark.parametrize(
    ("kinds", "split", "reason"),
    [
        ([False, False], "dev", "no system was trained"),
        ([True, True], "dev", "every system was trained"),
        ([True, False], "validation", "no query of 'validation' is judged, so weights of fusions are the defaults too"),
    ],
)
def test_where_nothing_is_selected_the_file_says_why(
    tmp_path: Path, data: Path, kinds: list[bool], split: str, reason: str
) -> None:
    systems = [entry(tmp_path, str(number), [1] * 4, trained=kind) for number, kind in enumerate(kinds)]
    selection = selected(tmp_path, data, systems, split)
    assert (selection["system"], selection["baseline"], selection["why"]) == (None, None, reason)


def test_where_no_query_is_judged_costs_choose_nothing(tmp_path: Path, data: Path) -> None:
    systems = [entry(tmp_path, name, [1] * 4, trained=False, cost=cost) for cost, name in enumerate("ab")]
    selection = selected(tmp_path, data, systems, "validation")
    assert (selection["candidates"], "deploy" in selection) == ([], False)


def measured(place: Path, name: str, milliseconds: float) -> Path:
    """Write the needs of a system as `measure_latency` does."""
    (place / f"{name} latency").mkdir()
    write_json(place / f"{name} latency" / "latency.json", {"queries": 200, "p95_ms": milliseconds, "memory_gb": 1.0})
    return place / f"{name} latency"


def test_a_slow_contender_that_is_best_is_not_chosen(tmp_path: Path, data: Path) -> None:
    """Nor is one whose latency nobody knows."""
    slow = {"limits": {"p95_ms": 50.0}, "measured": measured(tmp_path, "slow", 120.0)}
    fast = {"limits": {"p95_ms": 50.0}, "measured": measured(tmp_path, "fast", 20.0)}
    vendor = {"limits": {"p95_ms": 50.0}, "measured": "its ranking comes from http://vendor"}
    systems = [
        entry(tmp_path, "fast", [1, 1, 2, 2], trained=True, cost=1, **fast),
        entry(tmp_path, "slow", [1, 1, 1, 1], trained=False, cost=4, **slow),
        entry(tmp_path, "vendor", [1, 1, 1, 2], trained=False, cost=4, **vendor),
    ]
    selection = selected(tmp_path, data, systems)
    assert selection["deploy"] == "fast"
    assert selection["budget"]["excluded"] == {
        "slow": [{"limit": "p95_ms", "value": 120.0, "most": 50.0}],
        "vendor": [{"limit": "p95_ms", "value": None, "most": 50.0}],
    }
    lead = leading(tmp_path / "out", [])
    assert (lead["deploy"], lead["system"], lead["baseline"]) == ("fast", selection["budget"]["without"], "fast")
    (tmp_path / "out" / "selection.json").unlink()
    (tmp_path / "out").rmdir()
    without_limits = [{**system, "limits": {}} for system in systems]
    assert "budget" not in selected(tmp_path, data, without_limits)
