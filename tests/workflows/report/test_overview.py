"""The pictures below the verdict."""

from __future__ import annotations

import re
from typing import Any

from sparring.components.evaluation.averages import AVERAGE
from sparring.workflows.report.sections.overview import overview


def mean(
    system: str, value: float, *, collection: str = "c", measure: str = "RR@10", queries: int = 9
) -> dict[str, Any]:
    place = {"collection": collection, "split": "test", "measure": measure, "queries": queries}
    return {**place, "system": system, "value": value, "low": value - 0.1, "high": value + 0.3}


def cost(system: str, seconds: float) -> dict[str, Any]:
    return {"system": system, "measured": system, "query": seconds}


VERDICT = {
    "system": "retriever",
    "deploy": "retriever",
    "collection": "c",
    "split": "test",
    "measure": "RR@10",
    "comparison": {"system": "retriever", "baseline": "BM25"},
}
MEANS = [
    mean("BM25", 0.5),
    mean("BM25", 0.9, measure="R@5"),
    mean("retriever", 0.8),
    mean("ranker", 0.6, queries=4),
    mean("BM25", 0.1, collection="other"),
]


def test_bars_show_the_verdicts_measure_with_the_best_first() -> None:
    shown = overview({"means": MEANS, "verdict": VERDICT}, [])
    assert shown is not None
    titles = re.findall(r"<title>([^<]+)</title></rect>", shown["bars"])
    assert titles == [
        "retriever: 0.800 [0.700, 1.000]",
        "ranker (4 queries): 0.600 [0.500, 0.900]",
        "BM25: 0.500 [0.400, 0.800]",
    ]
    assert re.findall(r'class="bar (\w+)"', shown["bars"]) == ["c0", "part", "c1"]
    assert (shown["queries"], shown["deployed"], shown["trade_off"]) == (9, True, None)


def test_quality_is_shown_against_latency_if_two_systems_were_timed() -> None:
    timed = [cost("BM25", 0.002), cost("retriever", 0.004), cost("nothing measured", 1.0), cost("ranker", 0.0)]
    shown = overview({"means": MEANS, "verdict": VERDICT}, timed)
    assert shown is not None
    assert re.findall(r"<title>(\w+: [^<]+)</title></circle>", shown["trade_off"]) == [
        "BM25: 0.500, 2 ms",
        "retriever: 0.800, 4 ms",
    ]


def test_queries_asked_alone_are_drawn_with_the_budget() -> None:
    needs = [
        {"system": "BM25", "p95_ms": 3.0, "queries": 200},
        {"system": "retriever", "p95_ms": 20.0, "queries": 90},
        {"system": "ranker", "p95_ms": 400.0, "queries": 20},
        {"system": "vendor", "reason": "its model is elsewhere"},
    ]
    means = [*MEANS, mean("vendor", 0.7)]
    verdict = {**VERDICT, "budget": {"limits": {"p95_ms": 50.0}}}
    shown = overview({"means": means, "verdict": verdict, "needs": needs}, [cost("BM25", 0.002)])
    assert shown is not None
    assert re.findall(r"<title>(\w+: [^<]+)</title></circle>", shown["trade_off"]) == [
        "ranker: 0.600, 400 ms",
        "BM25: 0.500, 3 ms",
        "retriever: 0.800, 20 ms",
    ]
    (x,) = re.findall(r'class="limit" d="M([0-9.]+) ', shown["trade_off"])
    dots = sorted(float(place) for place in re.findall(r'class="dot \w+" cx="([0-9.]+)"', shown["trade_off"]))
    assert dots[1] < float(x) < dots[2]
    assert "the budget allows 50 ms" in shown["trade_off"]
    assert shown["alone"] == {
        "queries": [20, 90, 200],
        "limit": 50.0,
        "unmeasured": {"vendor": "its model is elsewhere"},
    }


def test_without_a_verdict_the_average_is_shown() -> None:
    means = [*MEANS, mean("BM25", 0.3, collection=AVERAGE)]
    shown = overview({"means": means, "verdict": None}, [])
    assert shown is not None
    assert (shown["collection"], shown["deployed"]) == (AVERAGE, False)
    assert overview({"means": [], "verdict": None}, []) is None
