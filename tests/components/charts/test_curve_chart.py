"""Charts of trainings: well-formed, with a label for screen readers, and texts escaped."""

import re
from xml.etree import ElementTree

from sparring.components.charts import curve_chart
from sparring.components.charts.curve_chart import CurveChart

SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def test_each_seed_has_a_thin_line_and_their_mean_a_thick_one() -> None:
    seeds = [[(1.0, 2.0), (2.0, 1.0)], [(1.0, 4.0), (2.0, 3.0)]]
    drawn = parsed(curve_chart.svg(CurveChart("loss", {"a <b>": seeds}, marks=[2])))
    kinds = [path.get("class", "").split()[0] for path in drawn.iter(f"{SVG}path")]
    assert kinds.count("seed") == 2
    assert kinds.count("line") == 2  # the mean, and the sample in the legend
    assert kinds.count("level") == 1
    assert drawn.get("aria-label") == "loss: a <b> ends at 2"
    single = parsed(curve_chart.svg(CurveChart("loss", {"a": seeds[:1]})))
    assert not [path for path in single.iter(f"{SVG}path") if path.get("class", "").startswith("seed")]


def test_seeds_that_share_no_update_have_no_mean() -> None:
    drawn = parsed(curve_chart.svg(CurveChart("loss", {"a": [[(1.0, 2.0), (2.0, 1.0)], [(3.0, 4.0)]]})))
    kinds = [path.get("class", "").split()[0] for path in drawn.iter(f"{SVG}path")]
    assert (kinds.count("seed"), kinds.count("line")) == (1, 1)  # the sample in the legend
    assert drawn.find(f"{SVG}circle") is not None


def test_learning_rates_have_round_marks() -> None:
    svg = curve_chart.svg(CurveChart("rate", {"learning rate": [[(1.0, 5e-5), (2.0, 1e-6)]]}))
    marks = re.findall(r'text-anchor="end">([^<]+)<', svg)
    assert marks == ["0", "2e-05", "4e-05", "6e-05"]


def test_a_long_log_is_drawn_with_few_points() -> None:
    points = [(float(update), 1.0 / update) for update in range(1, 100_000)]
    svg = curve_chart.svg(CurveChart("loss", {"a": [points]}))
    assert len(svg) < 4_000
    thin = curve_chart.thinned(points)
    assert len(thin) == curve_chart.MOST
    assert thin[0][1] > thin[-1][1]


def test_a_single_point_and_a_constant_are_drawn_too() -> None:
    assert parsed(curve_chart.svg(CurveChart("loss", {"a": [[(3.0, 0.0)]]}))).find(f"{SVG}circle") is not None
    assert parsed(curve_chart.svg(CurveChart("dev", {"a": [[(0.0, 1.0), (5.0, 1.0)]]}))) is not None
