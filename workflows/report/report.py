"""Write `metrics.json` and the report of a run, one HTML file that needs no network."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from sparring.components.evaluation.budget import excess
from sparring.components.evaluation.result_table import (
    across,
    averages_compared,
    by_collection,
)
from sparring.components.files import write_json
from sparring.workflows.experiments.expected import Expected
from sparring.workflows.report.finished import Json, finished_steps, shown
from sparring.workflows.report.metrics import METRICS, metrics_of
from sparring.workflows.report.page import REPORT, write_page
from sparring.workflows.report.sections import charts
from sparring.workflows.report.sections.choice import choice
from sparring.workflows.report.sections.costs import costs as costs_of
from sparring.workflows.report.sections.costs import spent_by
from sparring.workflows.report.sections.curves import curves
from sparring.workflows.report.sections.entropies import entropies
from sparring.workflows.report.sections.examples import examples as examples_of
from sparring.workflows.report.sections.overview import overview
from sparring.workflows.report.sections.queries import Listed, embedded, queries
from sparring.workflows.report.sections.refreshes import refreshes
from sparring.workflows.report.sections.screens import screens
from sparring.workflows.report.sections.similarities import similarities
from sparring.workflows.report.sections.spaces import spaces
from sparring.workflows.report.sections.steps import run_steps
from sparring.workflows.steps.expansion_examples import STUDY
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Interim, Row, SystemCost

GAME = (
    "A retriever finds documents for a query in the whole collection. A ranker reads the query together with each "
    "retrieved document and orders these documents anew. Sparring trains the two against each other in rounds. "
)
UNSEEN = "No system was trained on the measured queries."
SEEN = "Some systems were trained on the measured queries. On new queries they are worse."


def write(
    run: Path,
    *,
    title: str,
    wanted: Iterable[Step],
    results: Step | None,
    systems: Sequence[Row] = (),
    store: Store,
    executed: Collection[str],
    config: Json,
    note: str = "",
    costs: Sequence[SystemCost] = (),
    expected: Expected | None = None,
    unmeasured: str = "",
    needs: Mapping[str, Step | str] | None = None,
    interim: Interim | None = None,
) -> Json:
    """Write `metrics.json` and `report.html` of a run, and return the metrics.

    `results` is the step that gathered the measures of `systems`; None, or unfinished, if there are none yet.
    `executed` are the fingerprints of the steps that ran just now. `note` is what a reader must know about the start
    model. `costs` are the costs that a recipe states, by default those of its systems. `expected` are the numbers of a
    paper. `unmeasured` says why nothing can be measured. `needs` are the measurements of what systems need.
    `interim` is the place of an early outcome in its run.
    """
    steps = finished_steps(wanted, store)
    metrics = metrics_of(results, steps, store, executed, systems, costs, expected, unmeasured, needs, interim)
    pair = (metrics["verdict"] or {}).get("comparison")
    compared = None if pair is None else (pair["system"], pair["baseline"])
    timed = list(costs_of(spent_by(systems, costs), store, metrics["rows"]))
    page = {
        "title": title,
        "about": _about(metrics["rows"], systems),
        "asked": any(system.ranking is not None for system in systems),
        "note": note,
        "verdict": metrics["verdict"],
        "overview": overview(metrics, timed),
        "notes": metrics.get("notes", []),
        "results": [{**result, "charts": charts.by_round(result["rows"])} for result in by_collection(metrics)],
        "pictures": charts.of_steps(steps, store),
        "across": across(metrics),
        "averages": averages_compared(metrics),
        "choice": choice(results, store),
        "expected": metrics.get("expected"),
        "unmeasured": unmeasured,
        "entropies": entropies(systems, store),
        "examples": examples_of(systems, store, compared) if compared is not None else None,
        "queries": embedded(queries([Listed(system.name, system, store) for system in systems]), compared),
        "curves": curves(steps, store),
        "refreshes": refreshes(steps, store),
        "screens": list(screens(steps, store)),
        "studies": [study for _, _, study in shown(steps, store, STUDY)],
        "needs": _needs(metrics),
        "limited": bool(metrics["verdict"] and metrics["verdict"]["budget"]),
        "costs": timed,
        "sizes": metrics.get("sizes", []),
        "spaces": spaces(systems, store),
        "similarities": similarities(systems, store),
        "config": config,
        **run_steps(steps, store, executed),
    }
    run.mkdir(parents=True, exist_ok=True)
    write_json(run / METRICS, metrics)
    write_page(run / REPORT, page)
    return metrics


def _needs(metrics: Json) -> list[Json]:
    """List what systems need to answer queries, the fastest first, with the limits that they exceed in words."""
    excluded = ((metrics["verdict"] or {}).get("budget") or {}).get("excluded", {})
    rows = [
        {**row, "beyond": [excess(entry) for entry in excluded.get(row["system"], [])]}
        for row in metrics.get("needs", [])
    ]
    return sorted(rows, key=lambda row: row.get("p95_ms", math.inf))


def _about(rows: Sequence[Json], systems: Sequence[Row]) -> str:
    """Explain the game, if this run plays one, and say whether the measured queries were trained on."""
    game = GAME if any(system.round is not None for system in systems) else ""
    if not rows:
        return game
    saw_split = any(row["split"] == "train" for row in rows) and any(system.trained for system in systems)
    return game + (SEEN if saw_split else UNSEEN)
