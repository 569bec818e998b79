"""Systems that a budget excludes, and the choice among the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.components.evaluation.selection import best_of, within_limits

VALUES = {
    "BM25": [np.tile([0.0, 1.0, 0.0, 1.0], 25)],
    "retriever": [np.tile([1.0, 1.0, 0.0, 1.0], 25)],
    "ranker": [np.ones(100)],
}
TRAINED = {"BM25": False, "retriever": True, "ranker": True}
COSTS = {"BM25": 0, "retriever": 1, "ranker": 2}
NEEDS: dict[str, Any] = {
    "BM25": {"p95_ms": 2.0, "memory_gb": 1.0, "disk_gb": 0.1},
    "retriever": {"p95_ms": 20.0, "memory_gb": 2.0, "disk_gb": 0.2},
    "ranker": {"p95_ms": 120.0, "memory_gb": 3.0, "disk_gb": 0.3},
}


def chosen(limits: dict[str, float], needs: dict[str, Any] | None = None, *, deploys: bool = True) -> dict[str, Any]:
    return within_limits(VALUES, TRAINED, COSTS if deploys else None, needs or NEEDS, limits)


def test_the_best_system_is_excluded_if_it_is_slow() -> None:
    free, selection = chosen({"p95_ms": 120.0}), chosen({"p95_ms": 50.0})
    assert (free["deploy"], free["budget"]["excluded"], free["budget"]["without"]) == ("ranker", {}, None)
    assert (selection["deploy"], selection["system"], selection["baseline"]) == ("retriever", "retriever", "BM25")
    assert selection["budget"] == {
        "limits": {"p95_ms": 50.0},
        "excluded": {"ranker": [{"limit": "p95_ms", "value": 120.0, "most": 50.0}]},
        "without": "ranker",
        "gain": 0.25,
        "kept": True,
        "nearest": None,
    }
    assert best_of(selection, "all") == "retriever"
    assert [candidate["system"] for candidate in selection["candidates"]] == list(VALUES)


def test_recipes_that_deploy_nothing_compare_systems_within_the_budget() -> None:
    selection = chosen({"p95_ms": 50.0}, deploys=False)
    assert (selection["system"], selection["baseline"], selection["budget"]["without"]) == (
        "retriever",
        "BM25",
        "ranker",
    )
    assert "deploy" not in selection
    assert best_of(selection, "all") == "retriever"
    untrained = chosen({"p95_ms": 5.0}, deploys=False)
    assert (untrained["system"], untrained["why"]) == (None, "no trained system is within the budget")


def test_an_excluded_system_that_would_not_be_chosen_gains_nothing() -> None:
    selection = chosen(
        {"memory_gb": 2.5}, {**NEEDS, "BM25": {**NEEDS["BM25"], "memory_gb": 9.0}, "ranker": NEEDS["BM25"]}
    )
    assert (selection["deploy"], list(selection["budget"]["excluded"])) == ("ranker", ["BM25"])
    assert (selection["budget"]["without"], selection["budget"]["gain"]) == (None, None)


@pytest.mark.parametrize("deploys", [True, False])
def test_if_no_system_is_within_the_budget_none_is_chosen(deploys: bool) -> None:
    selection = chosen({"p95_ms": 1.0, "memory_gb": 0.9}, deploys=deploys)
    assert (selection["system"], selection["baseline"], "deploy" in selection) == (None, None, False)
    assert selection["why"] == "no system is within the budget"
    assert selection["budget"]["nearest"] == "BM25"
    with pytest.raises(KeyError):
        best_of(selection, "all")


def test_a_system_that_was_not_measured_is_not_chosen() -> None:
    selection = chosen({"p95_ms": 500.0}, {**NEEDS, "ranker": None})
    assert selection["deploy"] == "retriever"
    assert selection["budget"]["excluded"] == {"ranker": [{"limit": "p95_ms", "value": None, "most": 500.0}]}
    assert selection["budget"]["without"] == "ranker"
    nothing = chosen({"p95_ms": 500.0}, dict.fromkeys(NEEDS))
    assert (nothing["budget"]["nearest"], nothing["why"]) == (None, "no system is within the budget")
