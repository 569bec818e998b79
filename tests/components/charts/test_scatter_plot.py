"""The measure against a key: where points stand, on even and log scales and without any."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from sparring.components.charts.plot import LETTER
from sparring.components.charts.scatter_plot import Dot, Scatter, Timed, frontier, space_map, svg, trade_off


def chart(ats: list[Any], *, log: bool = False) -> str:
    dots = [
        Dot(position, 0.1 * place, "best" if place == 1 else "whole", f"trial {place}")
        for place, position in enumerate(ats)
    ]
    return svg(Scatter("RR@10", "a.rate", dots, log=log))


def places(drawn: str) -> dict[str, float]:
    """Where each trial's point stands from left to right."""
    result = re.findall(r'cx="([\d.]+)"[^>]*><title>trial (\d)', drawn)
    return {number: float(x) for x, number in result}


def test_numbers_stand_in_proportion() -> None:
    x = places(chart([1.0, 2.0, 4.0]))
    assert (x["1"] - x["0"]) / (x["2"] - x["0"]) == pytest.approx(1 / 3, abs=0.01)


def test_on_a_log_scale_factors_do() -> None:
    drawn = chart([1e-5, 1e-4, 1e-3], log=True)
    x = places(drawn)
    assert x["1"] - x["0"] == pytest.approx(x["2"] - x["1"], abs=0.2)
    assert re.findall(r'text-anchor="middle">([^<]+)<', drawn)[:-1] == ["1e-05", "3e-05", "0.0001", "0.0003", "0.001"]
    between = places(chart([2.0, 3.0, 4.5], log=True))
    assert (between["1"] - between["0"]) / (between["2"] - between["0"]) == pytest.approx(
        math.log(1.5) / math.log(2.25), abs=0.01
    )


def test_other_values_stand_side_by_side() -> None:
    drawn = chart(["x", None, "a very long name of a value", "x"])
    x = places(drawn)
    assert x["0"] == x["3"]
    assert x["0"] < x["1"] < x["2"]
    assert "a very long…" in drawn
    assert len({*places(chart([True, False])).values()}) == 2
    assert len({*places(chart([3, 3])).values()}) == 1  # one value is no scale


@pytest.mark.parametrize(("odd", "text"), [(0.0, "0"), (None, "null"), (True, "true"), ("learnt", "learnt")])
def test_what_is_not_on_the_scale_stands_left_of_it(odd: Any, text: str) -> None:
    """Such as the config's own value: the others keep their scale."""
    drawn = chart([odd, 1e-5, 1e-4, 1e-3], log=True)
    x = places(drawn)
    assert x["0"] < x["1"] - 20
    assert x["2"] - x["1"] == pytest.approx(x["3"] - x["2"], abs=0.2)
    assert re.findall(r'text-anchor="middle">([^<]+)<', drawn)[:3] == [text, "1e-05", "3e-05"]
    even = places(chart([None, 1.0, 2.0, 4.0]))
    assert (even["2"] - even["1"]) / (even["3"] - even["1"]) == pytest.approx(1 / 3, abs=0.01)
    assert even["0"] < even["1"]


def test_every_point_says_what_it_is_and_the_best_lies_on_top() -> None:
    drawn = chart([1, 2, 3])
    assert "<title>trial 2: 0.200 at 3</title>" in drawn
    assert drawn.rindex("c1") > drawn.rindex("c0")
    assert 'aria-label="RR@10 against a.rate: 1: 0.000; 2: 0.100; 3: 0.200"' in drawn
    dot = Dot("<b>", 0.1, "part", "<i>")
    assert "<b>" not in svg(Scatter("m", "k", [dot]))


def test_a_map_has_every_point() -> None:
    root = ElementTree.fromstring(space_map("<a>", [[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0]]))
    assert [dot.get("class") for dot in root] == ["spot c1", "spot c0", "spot c0"]
    assert root[0].get("cx") == "252.0"


SYSTEMS = [
    Timed("BM25", 2.0, 0.4, "baseline"),
    Timed("retriever", 4.0, 0.5),
    Timed("slow and poor", 40.0, 0.45),
    Timed("ranker", 80.0, 0.6, "chosen"),
]


def test_frontier_has_no_system_that_a_faster_one_equals() -> None:
    assert [timed.name for timed in frontier(SYSTEMS)] == ["BM25", "retriever", "ranker"]
    assert frontier([*SYSTEMS, Timed("as good", 90.0, 0.6)]) == frontier(SYSTEMS)


def test_quality_is_drawn_against_latency_on_a_logarithmic_axis() -> None:
    root = ElementTree.fromstring(trade_off("RR@10", SYSTEMS))
    dots = {(dot[0].text or "").partition(":")[0]: dot for dot in root.iter("circle")}
    x = {name: float(dot.get("cx", "")) for name, dot in dots.items()}
    assert x["retriever"] - x["BM25"] == pytest.approx(x["ranker"] - x["slow and poor"], abs=0.2)
    assert {name: dot.get("class", "").split()[1] for name, dot in dots.items()} == {
        "BM25": "c1",
        "retriever": "part",
        "slow and poor": "part",
        "ranker": "c0",
    }
    names = [text.text for text in root.iter("text") if "halo" in text.get("class", "")]
    assert sorted(names, key=str) == ["BM25", "ranker", "retriever"]
    assert root.get("aria-label", "").startswith("RR@10 against milliseconds for a query: BM25 0.400 at 2 ms; ")


def test_names_at_dots_do_not_cover_each_other() -> None:
    crowd = [Timed(f"a system with a long name {number}", 10.0 + number / 9, 0.5 + number / 1e3) for number in range(9)]
    root = ElementTree.fromstring(trade_off("RR@10", crowd))
    boxes = [
        (float(text.get("x", "")), float(text.get("y", "")), LETTER * len(text.text or ""))
        for text in root.iter("text")
        if "halo" in text.get("class", "")
    ]
    assert boxes
    for first, second in itertools.combinations(boxes, 2):
        overlaps = first[0] < second[0] + second[2] and second[0] < first[0] + first[2]
        assert not (overlaps and abs(first[1] - second[1]) < 12)
