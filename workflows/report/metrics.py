"""`metrics.json`: what was measured, which differences are more than chance, and how long each step took."""

import re
from collections.abc import Collection, Sequence

from sparring.components.files import read_json
from sparring.workflows.experiments.expected import Expected
from sparring.workflows.report.deployment import deployment
from sparring.workflows.report.finished import Finished, Json
from sparring.workflows.report.numbers import numbers
from sparring.workflows.report.sections.sizes import sizes
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row, SystemCost

METRICS = "metrics.json"


def metrics_of(
    results: Step | None,
    steps: Finished,
    store: Store,
    executed: Collection[str],
    systems: Sequence[Row] = (),
    costs: Sequence[SystemCost] = (),
    expected: Expected | None = None,
    unmeasured: str = "",
) -> Json:
    """The rows, means and comparisons of the step `results`, which comparison leads, every finished step's time, and
    the notes of those that have something to say; the tables of sizes; what is expected of the rows, or why there are
    none; and where one of the systems was chosen to be deployed, which and what it takes."""
    measured: Json = {"rows": [], "means": [], "comparisons": [], "leading": None}
    if results is not None and store.is_done(results):
        store.fetch([results], METRICS)
        measured = read_json(store.path(results) / METRICS)
    times = [
        {
            "label": node.label,
            "function": node.function.__name__,
            "executed": node.fingerprint in executed,
            **time_of(record),
        }
        for node, record in steps
    ]
    metrics = {**{key: measured[key] for key in ("rows", "means", "comparisons", "leading")}, "steps": times}
    if notes := _notes(steps):
        metrics["notes"] = notes
    if unmeasured:
        metrics["unmeasured"] = unmeasured
    if tables := list(sizes(steps, store)):
        metrics["sizes"] = tables
    if expected is not None:
        further = numbers(expected, systems, costs, steps, store, metrics["rows"])
        metrics["expected"] = expected.beside([*metrics["means"], *further])
    deployed = deployment(metrics, systems, costs, store, results)
    return metrics if deployed is None else {**metrics, "deploy": deployed}


def _notes(steps: Finished) -> list[str]:
    """Collect the notes of steps. Notes of different steps that differ only in numbers, as for seeds and folds, become
    one.

    Each imported ranking has notes of its own.
    """
    alike: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for node, record in steps:
        for note in record["summary"].get("note", "").splitlines():
            owner = node.label if node.description.makes == "imported ranking" else ""
            alike.setdefault((re.sub(r"[0-9.]+", "", note), owner), []).append((node.label, note))
    notes = []
    for (label, note), *more in alike.values():
        variation = "" if all(text == note for _, text in more) else " with other numbers"
        addition = f", and {len(more)} more{variation}" if more else ""
        notes.append(f"{label.removesuffix(' weights')}{addition}: {note}")
    return notes


def time_of(record: Json) -> Json:
    """How long a step took, what it spent that on, and the least its models could have taken."""
    models = {name: record["summary"].get(name, 0.0) for name in ("model_seconds", "roofline_seconds")}
    return {"seconds": record["seconds"], "time": record.get("time", {}), **models}
