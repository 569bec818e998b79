"""The charts as the XML they are."""

import itertools
from typing import Any
from xml.etree import ElementTree

import pytest

from sparring.components.charts.line_chart import Chart, Point, charts, svg
from sparring.components.charts.plot import WIDTH


def row(system: str, number: int | None, value: float, seed: int = 1, measure: str = "RR@10") -> dict[str, Any]:
    return {"system": system, "round": number, "value": value, "seed": seed, "measure": measure}


def drawn(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(svg(chart))


def test_rows_become_curves_and_levels() -> None:
    rows = [
        row("BM25", None, 0.4),
        row("warm retriever", 0, 0.5),
        row("retriever 1", 1, 0.6),
        row("retriever 1", 1, 0.7, seed=2),
        row("ranker 1 over retriever 1", 1, 0.8),
        row("retriever 2", 2, 0.75),
        row("ranker 2 over retriever 2", 2, 0.85),
        row("control: ANCE 1", 1, 0.55),
        row("retriever 1", 1, 0.9, measure="R@5"),
    ]
    first, second = charts(rows)
    assert first.measure == "RR@10"
    assert first.levels == {"BM25": 0.4, "warm retriever": 0.5}
    assert set(first.curves) == {"retriever", "ranker", "control: ANCE"}
    assert [(p.round, p.value) for p in first.curves["retriever"]] == [(0, 0.5), (1, pytest.approx(0.65)), (2, 0.75)]
    assert first.curves["retriever"][1].deviation == pytest.approx(0.0707, abs=1e-4)
    assert first.curves["retriever"][2].deviation is None
    assert (second.measure, set(second.curves)) == ("R@5", {"retriever"})


def test_rankers_of_one_round_over_different_lists_have_curves_of_their_own() -> None:
    rows = [row("ranker 1 over retriever 1", 1, 0.8), row("ranker 1 over BM25", 1, 0.7), row("retriever 1", 1, 0.5)]
    rows.append(row("warm retriever", 0, 0.4))
    (chart,) = charts(rows)
    assert set(chart.curves) == {"ranker over retriever", "ranker over BM25", "retriever"}


def test_of_many_horizontal_lines_single_systems_and_the_best_of_the_others_stay() -> None:
    """Nobody could tell more of them apart."""
    rest = ["BM25 + start model, reciprocal", "BM25 + start model, interpolated", "start model by neighbours"]
    names = ["BM25", "BM25 with RM3", *rest, "start model", "warm retriever"]
    rows = [row(name, None, 0.1 * number) for number, name in enumerate(names, start=1)]
    rows += [row("retriever 1", 1, 0.9), row("retriever 2", 2, 0.9)]
    (chart,) = charts(rows)
    assert list(chart.levels) == ["BM25", "start model by neighbours", "start model", "warm retriever"]


def test_without_rounds_there_is_no_chart() -> None:
    assert charts([row("BM25", None, 0.4), row("warm retriever", None, 0.5)]) == []


def test_a_single_round_has_no_chart() -> None:
    """One point is no curve."""
    assert charts([row("BM25", None, 0.4), row("retriever 1", 1, 0.5), row("ranker 1 over retriever 1", 1, 0.6)]) == []


def test_points_stand_where_their_values_are() -> None:
    points = [Point(0, 0.5), Point(1, 0.6, 0.05), Point(2, 0.7)]
    root = drawn(Chart("RR@10", {"retriever": points}, {"BM25": 0.4}))
    dots = [(float(dot.get("cx", "")), float(dot.get("cy", ""))) for dot in root.iter("circle")]
    assert len(dots) == 3
    assert dots[1][0] - dots[0][0] == pytest.approx(dots[2][0] - dots[1][0])
    assert dots[0][1] - dots[1][1] == pytest.approx(dots[1][1] - dots[2][1], abs=0.11)  # higher values stand higher
    assert dots[0][1] > dots[2][1]
    assert [path for path in root.iter("path") if "whisker" in path.get("class", "")]
    titles = [title.text for title in root.iter("title")]
    assert "retriever, round 1: 0.600, standard deviation 0.050" in titles
    assert "BM25: 0.400" in titles
    assert root.get("aria-label") == "RR@10 by round: retriever 0.500, 0.600, 0.700"


@pytest.mark.parametrize(
    "chart",
    [
        Chart("R@5", {"retriever": [Point(1, 0.5)]}, {}),
        Chart("R@5", {"retriever": [Point(1, 0.0), Point(2, 0.0)]}, {"BM25": 0.0}),
        Chart("R@5", {"retriever": [Point(n, 0.9 + n / 1e5) for n in range(40)]}, {}),
        Chart(
            "R@5", {f"r{n}": [Point(0, 0.5), Point(1, 0.5)] for n in range(8)}, {f"level {n}": 0.5 for n in range(8)}
        ),
    ],
)
def test_odd_charts_stay_inside_their_frame(chart: Chart) -> None:
    root = drawn(chart)
    height = float(root.get("viewBox", "").split()[-1])
    heights = [float(text.get("y", "")) for text in root.iter("text")]
    assert all(0 <= y <= height for y in heights)
    assert all(0 <= float(text.get("x", "")) <= WIDTH for text in root.iter("text"))
    names = sorted(float(text.get("y", "")) for text in root.iter("text") if "name" in text.get("class", ""))
    assert all(below - above >= 13.9 for above, below in itertools.pairwise(names))


def test_names_are_text_whatever_they_hold() -> None:
    root = drawn(Chart('R<5>"', {"<b>&": [Point(1, 0.5)]}, {"<i>": 0.4}))
    assert "<b>&" in [text.text for text in root.iter("text")]
    assert not list(root.iter("b"))


def test_long_names_take_two_lines_and_are_cut_beyond() -> None:
    names = ["BM25 + start model, interpolated", "a control with a very long name, longer than two lines"]
    texts = named(drawn(Chart("R@5", {name: [Point(1, 0.5)] for name in names}, {})))
    assert texts == {
        "BM25 + start model,": None,
        "interpolated": None,
        "a control with a": names[1],
        "very long name, lo…": names[1],
    }
    many = [f"{name} {number}" for name in names for number in range(6)]
    curve = {"r": [Point(1, 0.5)]}
    assert set(named(drawn(Chart("R@5", curve, dict.fromkeys(many, 0.5))))) - {"r"} == {
        "BM25 + start model…",
        "a control with a v…",
    }


def named(root: ElementTree.Element) -> dict[str | None, str | None]:
    """The lines of text beside the curves, each with the whole name where it is cut."""
    return {text.text: text.findtext("title") for text in root.iter("text") if "name" in text.get("class", "")}


def test_an_axis_may_be_another_than_rounds() -> None:
    root = drawn(Chart("share", {"labels": [Point(1, 0.5), Point(40, 0.1)]}, axis="rank"))
    message = [element.text for element in root.iter() if element.text]
    assert "rank" in message
    assert "labels, rank 40: 0.100" in message
    assert not [text for text in message if "round" in text]
    assert root.attrib["aria-label"].startswith("share by rank: labels 0.500")
