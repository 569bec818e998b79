"""The curves of each training: its losses, its measures on dev rows and its learning rate, over the updates."""

from collections.abc import Iterator, Sequence

from sparring.components.charts.curve_chart import CurveChart, Points, svg
from sparring.components.training.config import LOG
from sparring.workflows.report.finished import Finished, Json, shown
from sparring.workflows.report.page import drawing
from sparring.workflows.report.sections.steps import without_seed
from sparring.workflows.store.store import Store

MOST = 24
"""Trainings whose curves are drawn."""
DEV, LOSS, RATE = "dev ", "dev loss", "learning_rate"
OTHERS = ("update", "seconds", "gradient_norm", RATE)
"""Keys of a log line other than losses and measures."""

Log = Sequence[Json]


def curves(steps: Finished, store: Store) -> Json:
    """Draw each training that kept a log, its seeds together.

    `trainings` holds their charts, `left_out` the number of trainings that are not drawn.
    """
    trainings: dict[str, list[tuple[Json, Log]]] = {}
    for node, record, lines in shown(steps, store, LOG):
        if lines:
            trainings.setdefault(without_seed(node.label), []).append((record["summary"], lines))
    drawn = [
        {
            "label": label,
            "seeds": len(seeds),
            "updates": max(summary["updates"] for summary, _ in seeds),
            "best": [summary["best"]["update"] for summary, _ in seeds if summary.get("best")],
            "charts": [{"title": chart.title, "svg": drawing(svg(chart))} for chart in _charts(seeds)],
        }
        for label, seeds in list(trainings.items())[:MOST]
    ]
    return {"trainings": drawn, "left_out": max(0, len(trainings) - MOST)}


def _charts(seeds: Sequence[tuple[Json, Log]]) -> Iterator[CurveChart]:
    """Yield charts of the losses (also on development rows), of the development measures, and of the learning rate."""
    logs = [lines for _, lines in seeds]
    names = list(dict.fromkeys(name for lines in logs for line in lines for name in line if name not in OTHERS))
    terms = [name for name in names if not name.startswith(DEV)]
    losses = _curves(logs, [*terms, *(name for name in names if name == LOSS)])
    if losses:
        yield CurveChart("loss", losses, dashed=frozenset({LOSS}))
    kept = sorted({summary["best"]["update"] for summary, _ in seeds if summary.get("best")})
    measures = _curves(logs, [name for name in names if name.startswith(DEV) and name != LOSS])
    for group in _of_one_scale(measures):
        plain = {name.removeprefix(DEV): lines_of_seeds for name, lines_of_seeds in group.items()}
        yield CurveChart("on dev rows", plain, marks=kept)
    if rate := _curves(logs, [RATE]):
        yield CurveChart("learning rate", {"learning rate": rate[RATE]})


def _curves(logs: Sequence[Log], names: Sequence[str]) -> dict[str, list[Points]]:
    """Return the curve of each log, by name. Logs without the name have none."""
    by_name: dict[str, list[Points]] = {
        name: [points for lines in logs if (points := [(line["update"], line[name]) for line in lines if name in line])]
        for name in names
    }
    return {name: seeds for name, seeds in by_name.items() if seeds}


def _of_one_scale(measures: dict[str, list[Points]]) -> Iterator[dict[str, list[Points]]]:
    """Measures between 0 and 1 share a chart; each other has its own."""
    shares = {
        name: seeds for name, seeds in measures.items() if all(0 <= y <= 1 for points in seeds for _, y in points)
    }
    if shares:
        yield shares
    yield from ({name: seeds} for name, seeds in measures.items() if name not in shares)
