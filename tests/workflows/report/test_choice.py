"""What the report calls the systems that were measured on other queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.components.evaluation.selection import FILE, selected
from sparring.components.files import write_json
from sparring.workflows.report.sections.choice import choice
from sparring.workflows.running.executor import execute
from sparring.workflows.store.dag import graph, step
from sparring.workflows.store.store import Store

EVEN = np.tile([1.0, 0.0], 50)


def selecting(
    out: Path, machine: Any, *, values: dict[str, float], trained: list[str], costs: dict[str, int]
) -> dict[str, Any]:
    """Systems whose values differ by a constant, so that no difference is within its standard error."""
    of_each = {name: [EVEN + value] for name, value in values.items()}
    output = selected(of_each, {name: name in trained for name in values}, costs)
    write_json(out / FILE, {"split": "dev", "measure": "RR@10", "queries": len(EVEN), **output})
    return {}


def results(out: Path, machine: Any, *, selection: Path) -> dict[str, Any]:
    return {}


BM25, START, FUSION, RETRIEVER = "BM25", "start model", "fusion", "retriever"
VALUES = {BM25: 0.1, START: 0.2, FUSION: 0.3}
COSTS = {BM25: 0, START: 1, FUSION: 2}


@pytest.mark.parametrize(
    ("values", "trained", "costs", "called"),
    [
        (VALUES, [], COSTS, {FUSION: "to deploy", START: "", BM25: "cheapest"}),
        ({**VALUES, BM25: 0.4}, [], COSTS, {BM25: "to deploy", FUSION: "best of the others", START: ""}),
        (
            {**VALUES, RETRIEVER: 0.4},
            [RETRIEVER],
            {**COSTS, RETRIEVER: 1},
            {RETRIEVER: "to deploy", FUSION: "best untrained", START: "", BM25: ""},
        ),
        (
            {**VALUES, RETRIEVER: 0.25},
            [RETRIEVER],
            {**COSTS, RETRIEVER: 1},
            {FUSION: "to deploy", RETRIEVER: "best trained", START: "", BM25: ""},
        ),
        (
            {**VALUES, RETRIEVER: 0.25},
            [RETRIEVER],
            {},
            {FUSION: "best untrained", RETRIEVER: "best trained", START: "", BM25: ""},
        ),
    ],
)
def test_only_the_best_untrained_system_is_called_so(
    tmp_path: Path, values: dict[str, float], trained: list[str], costs: dict[str, int], called: dict[str, str]
) -> None:
    """Where nothing was trained, the chosen system is compared with the cheapest, above which better ones stand."""
    output = step("selection", selecting, values=values, trained=trained, costs=costs)
    last, store = step("results", results, selection=output), Store(tmp_path)
    for node in graph([last]):
        execute(node, store, None, on_wait=print)
    shown = choice(last, store)
    assert shown is not None
    assert {item["system"]: item["chosen"] for item in shown["candidates"]} == called
    assert [item["system"] for item in shown["candidates"]] == list(called)
