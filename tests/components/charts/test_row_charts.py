"""Charts with a row for each name: well-formed, with every mark, and texts escaped."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from sparring.components.charts.plot import WIDTH
from sparring.components.charts.row_charts import Bar, Difference, bars, differences, distributions, shares


def test_distributions_stand_below_each_other() -> None:
    curves = {
        "<one> & a very long name indeed": [0.0] * 40 + [0.5, 0.5] + [0.0] * 38,
        "two": [0.0] * 60 + [1.0] + [0.0] * 19,
    }
    root = ElementTree.fromstring(distributions("cosine", curves, (-1.0, 1.0)))
    lines = [path for path in root if path.get("class", "").startswith("line")]
    heights = []
    for line in lines:
        points = [point.split() for point in (line.get("d") or "").removeprefix("M").split("L")]
        assert all(16 <= float(x) <= WIDTH - 16 for x, _ in points)
        assert len(points) == 21  # from the first bin that holds something to the last
        heights.append({float(y) for _, y in points})
    assert min(heights[1]) >= max(heights[0])  # one below the other
    marks = [float(text.text or "") for text in root if text.get("text-anchor") == "middle"]
    assert marks[0] <= 0.0
    assert marks[-1] >= 0.525
    assert "<one> & a very long name indeed" in (root.get("aria-label") or "")


def test_a_distribution_of_nothing_is_a_picture_too() -> None:
    ElementTree.fromstring(distributions("ratio", {"a": [0.0] * 80}, (-1.0, 3.0)))


def test_bars_fill_the_whole_width() -> None:
    root = ElementTree.fromstring(shares("ranks", ["rank 1", "not found"], {"a & b": [0.25, 0.75]}))
    bars = [rect for rect in root.iter("rect") if rect.get("height") != "11.0"]
    assert [float(rect.get("width", 0)) for rect in bars] == [WIDTH / 4, WIDTH * 3 / 4]
    assert root.get("aria-label") == "ranks: a & b: rank 1 25%, not found 75%"


def test_differences_are_coloured_where_they_are_clear() -> None:
    clear = [Difference("up", 0.1, 0.05, clear=True), Difference("down", -0.1, 0.05, clear=True)]
    rows = [*clear, Difference("flat", 0.0, None, clear=False)]
    root = ElementTree.fromstring(differences("difference of RR", rows))
    assert [dot.get("class") for dot in root.iter("circle")] == ["dot c0", "dot c1", "dot part"]
    assert len([path for path in root.iter("path") if "whisker" in path.get("class", "")]) == 2


def test_bars_begin_at_zero_and_show_their_intervals() -> None:
    rows = [Bar("<a>", 0.6, 0.5, 0.7, "chosen"), Bar("b", 0.3, None, None, "baseline"), Bar("c", 0.15, 0.1, 0.2)]
    root = ElementTree.fromstring(bars("RR@10", rows))
    drawn = [rect for rect in root.iter("rect") if "bar" in rect.get("class", "")]
    widths = [float(rect.get("width", "")) for rect in drawn]
    assert len({rect.get("x") for rect in drawn}) == 1
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    assert [rect.get("class", "").split()[1] for rect in drawn] == ["c0", "c1", "part"]
    titles = [text[0].text for text in root.iter("text") if len(text)]
    assert titles == ["<a>", "b", "c"]
    assert drawn[0][0].text == "<a>: 0.600 [0.500, 0.700]"
    assert drawn[1][0].text == "b: 0.300"
    assert len([path for path in root.iter("path") if "whisker" in path.get("class", "")]) == 2 * 3
    assert all(0 <= float(text.get("x", "")) <= WIDTH - 30 for text in root.iter("text"))
