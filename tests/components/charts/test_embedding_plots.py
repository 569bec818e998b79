"""Pictures of a space: well formed, with every curve and point, whatever names are."""

from __future__ import annotations

from xml.etree import ElementTree

from sparring.components.charts.embedding_plots import SIDES, WIDTH, distributions, scatter


def test_distributions_stand_below_each_other() -> None:
    curves = {
        "<one> & a very long name indeed": [0.0] * 40 + [0.5, 0.5] + [0.0] * 38,
        "two": [0.0] * 60 + [1.0] + [0.0] * 19,
    }
    root = ElementTree.fromstring(distributions("cosine", curves, (-1.0, 1.0)))
    lines = [one for one in root if one.get("class", "").startswith("line")]
    heights = []
    for line in lines:
        points = [point.split() for point in (line.get("d") or "").removeprefix("M").split("L")]
        assert all(SIDES <= float(x) <= WIDTH - SIDES for x, _ in points)
        assert len(points) == 21  # from the first bin that holds something to the last
        heights.append({float(y) for _, y in points})
    assert min(heights[1]) >= max(heights[0])  # one below the other
    marks = [float(one.text or "") for one in root if one.get("text-anchor") == "middle"]
    assert marks[0] <= 0.0
    assert marks[-1] >= 0.525
    assert "<one> & a very long name indeed" in (root.get("aria-label") or "")


def test_a_distribution_of_nothing_is_a_picture_too() -> None:
    ElementTree.fromstring(distributions("ratio", {"a": [0.0] * 80}, (-1.0, 3.0)))


def test_a_map_has_every_point() -> None:
    root = ElementTree.fromstring(scatter("<a>", [[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.0]]))
    assert [one.get("class") for one in root] == ["spot c1", "spot c0", "spot c0"]
    assert root[0].get("cx") == "252.0"
