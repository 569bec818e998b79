"""`metrics.json`: the measures, the comparisons with their p, the verdict, and the time of each step."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from sparring.components.files import read_json
from sparring.workflows.experiments.expected import Expected
from sparring.workflows.report.conclusion import verdict_of
from sparring.workflows.report.finished import Finished, Json
from sparring.workflows.report.numbers import numbers
from sparring.workflows.report.sections.costs import spent_by
from sparring.workflows.report.sections.sizes import sizes
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Interim, Row, SystemCost

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
    needs: Mapping[str, Step | str] | None = None,
    interim: Interim | None = None,
) -> Json:
    """Return the content of `metrics.json`.

    It has the rows, means, comparisons and the leading comparison of the step `results`, and the time of every finished
    step. `needs` are the measurements of what systems need to answer queries, or the reasons why there are none.
    Optional keys are these `needs`, the `notes` of steps, tables of `sizes`, a paper's `expected` numbers, and
    `unmeasured`, the reason why there are no rows. `verdict` is None if nothing was compared. `interim` is the place of
    an early outcome.
    """
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
    if read := list(_needs(needs or {}, store)):
        metrics["needs"] = read
    if tables := list(sizes(steps, store)):
        metrics["sizes"] = tables
    if expected is not None:
        further = numbers(expected, systems, costs, steps, store, metrics["rows"])
        metrics["expected"] = expected.beside([*metrics["means"], *further])
    verdict = verdict_of(metrics, systems, spent_by(systems, costs), store, results, interim)
    return {**metrics, "verdict": None if verdict is None else verdict.json}


def _needs(measured: Mapping[str, Step | str], store: Store) -> Iterator[Json]:
    """Yield what each system needs to answer queries, or the reason why nothing was measured."""
    for name, node in measured.items():
        if isinstance(node, str):
            yield {"system": name, "reason": node}
        elif (record := store.record(node)) is not None:
            yield {"system": name, **record["summary"]}


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
    """Return the time of a step, how it was spent, and the roofline time of its models."""
    models = {name: record["summary"].get(name, 0.0) for name in ("model_seconds", "roofline_seconds")}
    return {"seconds": record["seconds"], "time": record.get("time", {}), **models}
