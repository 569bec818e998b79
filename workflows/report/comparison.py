"""Two runs on one page: where their measures differ, what differs in their configs, and where it began."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sparring.components.charts import row_charts
from sparring.components.charts.row_charts import Difference
from sparring.components.evaluation.measures import PER_QUERY, PER_QUERY_FILE, by_measure
from sparring.components.evaluation.result_table import (
    BETTER,
    WORSE,
    by_collection,
    p_text,
    signed,
    unsigned,
)
from sparring.components.evaluation.significance import compare, corrected, layouts, paired
from sparring.workflows.report.differences import Differences, differences, text_of
from sparring.workflows.report.finished import Json
from sparring.workflows.report.page import drawing, write_page
from sparring.workflows.report.runs import Run
from sparring.workflows.report.sections.queries import Listed, embedded, queries
from sparring.workflows.report.verdict import in_prose
from sparring.workflows.systems.rows import Row

PAGE = "compare.html"

Place = tuple[str, str, str]
"""A system's name, its collection and its split."""
Seeds = dict[Place, dict[int, Row]]
"""The measured systems of a run, by seed."""


def write_comparison(path: Path, first: Run, second: Run) -> None:
    """Write the page. Differences are the second run's measures minus the first's, query by query."""
    difference = differences(first, second)
    first_systems, second_systems = _systems(first), _systems(second)
    shared = [
        place
        for place in second_systems
        if place in first_systems and _same(first_systems[place], second_systems[place], first, second)
    ]
    both = [place for place in second_systems if place in first_systems and place not in shared]
    compared, failed = _compared(both, first_systems, second_systems, first, second)
    results = _results(second.folder.metrics(), compared)
    page = {
        "title": f"{second.name} against {first.name}",
        "first": first.name,
        "second": second.name,
        "sentences": _verdict(results, first.name, second.name),
        "results": results,
        "failed": failed,
        "only": _only(first_systems, second_systems, first, second),
        "shared": [place[0] for place in shared],
        "changes": [(key, text_of(a), text_of(b)) for key, a, b in difference.config],
        "steps": _steps(difference),
        "costs": _costs(first, second),
        "queries": embedded(
            queries(_listed(first, second, first_systems, second_systems, shared)), _pair(first, second, both)
        ),
        "config": {},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(path, page, template=PAGE)


def _systems(run: Run) -> Seeds:
    """Return the measured systems of a run, by seed."""
    measured: Seeds = {}
    for system in run.experiment.outcome.rows:
        if run.store.is_done(system.metrics):
            measured.setdefault((system.name, system.collection, system.split), {})[system.seed] = system
    return measured


def _compared(
    places: Sequence[Place],
    first_systems: Seeds,
    second_systems: Seeds,
    first: Run,
    second: Run,
) -> tuple[list[Json], list[Json]]:
    """Compare each system that both runs have: an entry for each measure and test, with means `before` and `after`.

    The comparison is over the seeds and the queries that both runs have. Runs without a seed in common are compared by
    their means over seeds. The second list holds the systems that cannot be compared, and why.
    """
    entries, failed = [], []
    for place in places:
        identity = dict(zip(("system", "collection", "split"), place, strict=True))
        seeds = sorted(first_systems[place].keys() & second_systems[place].keys())
        before, after = (
            [_table(systems[place][seed], run) for seed in seeds or sorted(systems[place])]
            for systems, run in ((first_systems, first), (second_systems, second))
        )
        if not seeds:
            before, after = [_mean(before)], [_mean(after)]
        try:
            comparisons, both = compare(after, before, seed=0), paired(layouts(after), layouts(before))
        except ValueError as error:
            failed.append({**identity, "why": str(error)})
            continue
        for entry in comparisons:
            new, old = (float(values.mean()) for values in both[entry["measure"]])
            means = {"before": old, "after": new}
            entries.append({**identity, "baseline": place[0], "seeds": seeds, **entry, **means})
    return corrected(entries), failed


def _table(system: Row, run: Run) -> pa.Table:
    """Read the measures of each query."""
    run.store.fetch([system.metrics], PER_QUERY_FILE)
    return pq.read_table(run.store.path(system.metrics) / PER_QUERY_FILE)


def _mean(tables: Sequence[pa.Table]) -> pa.Table:
    """Average each query's values over trainings."""
    columns: list[list] = [[], [], []]
    merged = [by_measure(table) for table in tables]
    for name, (ids, _) in merged[0].items():
        values = np.mean([seed[name][1] for seed in merged], axis=0).tolist()
        for column, added in zip(columns, (ids, [name] * len(ids), values), strict=True):
            column += added
    return pa.table(columns, schema=PER_QUERY)


def _results(after: Json, compared: list[Json]) -> list[Json]:
    """Return a table for each collection of the second run, and a picture of the differences of each measure.

    A table has a line for each system of both runs, with the measures of each run and their difference.
    """
    results = []
    for result in by_collection({**after, "comparisons": compared}):
        lines = [
            {
                "system": entry["system"],
                "seeds": entry["seeds"],
                "cells": {
                    measure["name"]: {
                        **measure,
                        **{key: measure["training"][key] for key in ("before", "after", "queries")},
                    }
                    for measure in entry["measures"]
                },
            }
            for entry in result["comparisons"]
        ]
        if not lines:
            continue
        shown = list(dict.fromkeys(name for line in lines for name in line["cells"]))
        results.append(
            {
                **{key: result[key] for key in ("collection", "split", "about_tests")},
                "measures": shown,
                "queries": max(cell["queries"] for line in lines for cell in line["cells"].values()),
                "lines": lines,
                "pictures": [{"measure": name, "svg": drawing(_picture(name, lines))} for name in shown],
            }
        )
    return results


def _verdict(results: Sequence[Json], first: str, second: str) -> list[str]:
    """Say in how many systems the second run is clearly better or worse, and how its last system compares."""
    if not results:
        return [f"Nothing to compare: no system was measured on the same queries by {first} and {second} and differs."]
    measure, lines = results[0]["measures"][0], results[0]["lines"]
    cells = {line["system"]: line["cells"][measure] for line in lines if measure in line["cells"]}
    words = [cell["word"] for cell in cells.values()]
    counts = [f"clearly {word} in {words.count(word)}" for word in (BETTER, WORSE) if word in words]
    differing = f"of {len(words)} differing {'system' if len(words) == 1 else 'systems'}"
    summary = f"is {' and '.join(counts)}" if counts else "is neither clearly better nor clearly worse in any"
    system, cell = list(cells.items())[-1]
    values = f"{unsigned(cell['after'])} against {unsigned(cell['before'])}"
    tested = p_text((cell["method"] or cell["training"])["p_holm"])
    half = "" if cell["half"] is None else f" ± {unsigned(cell['half'])}"
    return [
        f"By {measure}, {second} {summary} {differing}.",
        f"{in_prose(system)} has {values} ({signed(cell['difference'])}{half}, {tested}): {cell['word']}.",
    ]


def _picture(measure: str, lines: Sequence[Json]) -> str:
    cells = [(line["system"], line["cells"][measure]) for line in lines if measure in line["cells"]]
    return row_charts.differences(
        f"difference of {measure}",
        [Difference(name, cell["difference"], cell["half"], cell["word"] in (BETTER, WORSE)) for name, cell in cells],
    )


def _only(first_systems: Seeds, second_systems: Seeds, first: Run, second: Run) -> list[Json]:
    """Return the systems that only one of the runs has measured."""
    named = [
        (run.name, [place for place in systems if place not in counterpart])
        for run, systems, counterpart in (
            (first, first_systems, second_systems),
            (second, second_systems, first_systems),
        )
    ]
    return [{"run": name, "systems": [f"{p[0]} ({p[1]}, {p[2]})" for p in places]} for name, places in named if places]


def _steps(difference: Differences) -> Json:
    """Summarise which steps are the same, and where the difference began."""
    return {
        "same": len(difference.same),
        "others": len(difference.began) + len(difference.followed),
        "gone": len(difference.removed),
        "began": [
            {"label": node.label, "inputs": [(key, text_of(a), text_of(b)) for key, a, b in inputs]}
            for node, inputs in difference.began
        ],
        "compared": difference.compared,
        "apart": [{"label": node.label, "files": files} for node, files in difference.apart],
    }


def _costs(first: Run, second: Run) -> list[Json]:
    """Sum the seconds of each part's steps in both runs, and of all steps."""
    spent: list[dict[str, float]] = []
    for run in (first, second):
        parts: dict[str, float] = {}
        for node, record in run.folder.finished_steps():
            parts[node.part] = parts.get(node.part, 0.0) + record["seconds"]
        spent.append(parts)
    rows = [
        {"part": part, "first": spent[0].get(part, 0.0), "second": spent[1].get(part, 0.0)}
        for part in dict.fromkeys([*spent[0], *spent[1]])
    ]
    return [*rows, {"part": "total", "first": sum(spent[0].values()), "second": sum(spent[1].values())}]


def _listed(
    first: Run, second: Run, first_systems: Seeds, second_systems: Seeds, shared: Sequence[Place]
) -> list[Listed]:
    """List the systems of both runs to choose from. A system that both have from the same artifacts is listed once."""
    listed = [
        Listed(place[0] if place in shared else f"{place[0]}, {first.name}", system, first.store)
        for place, seeds in first_systems.items()
        for system in seeds.values()
    ]
    return listed + [
        Listed(f"{place[0]}, {second.name}", system, second.store)
        for place, seeds in second_systems.items()
        if place not in shared
        for system in seeds.values()
    ]


def _same(first_seeds: dict[int, Row], second_seeds: dict[int, Row], first: Run, second: Run) -> bool:
    """Check whether a system is the very same artifacts in both runs."""
    return {first.store.location(system.metrics) for system in first_seeds.values()} == {
        second.store.location(system.metrics) for system in second_seeds.values()
    }


def _pair(first: Run, second: Run, both: Sequence[Place]) -> tuple[str, str] | None:
    """Return the pair that the reader sees first: the last system that both runs have and that differs."""
    return (f"{both[-1][0]}, {second.name}", f"{both[-1][0]}, {first.name}") if both else None
