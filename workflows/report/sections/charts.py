"""Charts: measures by rounds, and those that steps of the recipe wrote."""

from sparring.components.charts.line_chart import Chart, Point, charts, svg
from sparring.workflows.report.finished import Finished, Json, shown
from sparring.workflows.report.page import drawing
from sparring.workflows.steps.pictures import PICTURES
from sparring.workflows.store.store import Store


def by_round(rows: list[Json]) -> list[Json]:
    """A chart of each measure, round by round."""
    return [{"measure": chart.measure, "svg": drawing(svg(chart))} for chart in charts(rows)]


def of_steps(steps: Finished, store: Store) -> dict[str, list[Json]]:
    """Draw the charts that steps wrote, by heading."""
    headings: dict[str, list[Json]] = {}
    for node, _, written in shown(steps, store, PICTURES):
        for picture in written:
            curves = {name: [Point(*point) for point in points] for name, points in picture["curves"].items()}
            chart = drawing(svg(Chart(picture["title"], curves, axis=picture["x"])))
            heading = node.description.heading.format(x=picture["x"])
            headings.setdefault(heading, []).append(
                {"title": picture["title"], "about": picture["about"], "svg": chart}
            )
    return headings
