"""Conclude a run: compute its verdict from its metrics and artifacts."""

from collections.abc import Sequence

from sparring.components.evaluation.measures import within
from sparring.components.evaluation.result_table import UNCLEAR, WORSE, leading_entry, means_compared, outcome
from sparring.components.evaluation.selection import replaced_at
from sparring.components.evaluation.significance import sample_factor
from sparring.workflows.report.finished import Json
from sparring.workflows.report.sections.choice import choice
from sparring.workflows.report.sections.costs import costs
from sparring.workflows.report.verdict import BM25, Budget, Comparison, Verdict
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Interim, Row, SystemCost, is_imported
from sparring.workflows.systems.system import SEARCHED, Computed


def verdict_of(
    metrics: Json,
    systems: Sequence[Row] = (),
    spent: Sequence[SystemCost] = (),
    store: Store | None = None,
    results: Step | None = None,
    interim: Interim | None = None,
) -> Verdict | None:
    """Return the verdict on measured systems. None if nothing was compared or chosen.

    `metrics` has the rows, means, comparisons and the leading comparison of the step `results`. `spent` are the costs
    of systems, with artifacts in the store. `interim` is the place of an early outcome in its run.
    """
    lead = metrics["leading"] or {}
    chosen = lead.get("deploy")
    budget = lead.get("budget") or {}
    subject = chosen or budget.get("nearest") or lead.get("system")
    if subject is None:
        return None
    place = leading_entry(metrics, lead["measure"])
    comparison = None if place is None else _comparison(metrics, place, systems)
    if comparison is not None and comparison.outcome == WORSE and comparison.system == chosen:
        subject = comparison.baseline
    mean = _mean(metrics, subject, lead, place)
    if mean is None:
        return None
    low, high = mean["low"], mean["high"]
    if low is not None:
        low, high = within(mean["measure"], low, high)
    rival = None if comparison is None else comparison.baseline
    same = ("collection", "split", "measure", "queries")
    plain = (entry for entry in metrics["means"] if entry["system"] == BM25 and all(entry[k] == mean[k] for k in same))
    return Verdict(
        **{key: mean[key] for key in ("system", "collection", "split", "measure", "value", "queries")},
        needs=_needs(metrics, subject),
        budget=_budget(metrics, subject, mean, systems) if budget else None,
        low=low,
        high=high,
        deploy=None if chosen is None else subject,
        chosen=chosen,
        collections=len(mean["over"]) if "over" in mean else None,
        comparison=comparison,
        imported=[
            entry
            for entry in _against_present(metrics, subject, mean, systems)
            if comparison is None or {entry.system, entry.baseline} != {comparison.system, comparison.baseline}
        ],
        selected_on=lead["selected_on"],
        selection_queries=lead.get("queries"),
        why_unselected=lead["why"],
        bm25=next((entry["value"] for entry in plain), None),
        trained=any(row.trained for row in systems if row.name == subject),
        anything_trained=any(row.trained for row in systems),
        **({} if store is None else _artifacts(subject, rival, metrics, systems, spent, store, results)),
        **({} if store is None or interim is None else _early(interim, results, store)),
    )


def _early(interim: Interim, results: Step | None, store: Store) -> Json:
    """Return what a verdict takes from the place of an early outcome, and from its selection."""
    values: Json = {"moment": interim.moment, "missing": list(interim.missing)}
    selection = choice(results, store)
    differences = None if selection is None else replaced_at(selection)
    if selection is None or differences is None:
        return values
    level = interim.measured[selection["deploy"]]
    if any(missing > level for missing in interim.missing.values()):
        values["dearer"] = differences.dearer
    if any(missing < level for missing in interim.missing.values()):
        values["cheaper"] = differences.cheaper
    return values


def _comparison(metrics: Json, entry: Json, systems: Sequence[Row]) -> Comparison:
    """Read a comparison from its entry in the metrics."""
    system, baseline = entry["system"], entry["baseline"]
    values = means_compared(entry, metrics["rows"])
    word = outcome(entry["difference"], entry["p_holm"])
    alike = ("collection", "split", "test")
    family = sum(all(member[key] == entry[key] for key in alike) for member in metrics["comparisons"])
    expenses = {
        row.name: row.system.expense
        for row in systems
        if row.system is not None and not isinstance(row.system, Computed) and not is_imported(row)
    }
    trained = {row.name: row.trained for row in systems}
    return Comparison(
        **{key: entry[key] for key in ("system", "baseline", "difference", "p", "p_holm", "test", "queries")},
        low=entry["low"],
        high=entry["high"],
        system_value=values[0],
        baseline_value=values[1],
        outcome=word,
        sample_factor=sample_factor(entry["difference"], entry["low"], entry["high"], family)
        if word == UNCLEAR
        else None,
        baseline_is_cheaper={system, baseline} <= expenses.keys() and expenses[baseline] < expenses[system],
        only_system_trained=trained.get(system, False) and not trained.get(baseline, True),
    )


def _needs(metrics: Json, system: str) -> dict[str, float] | None:
    """Read the numbers that were measured of a system."""
    entry: Json = next((entry for entry in metrics.get("needs", []) if entry["system"] == system), {})
    return {key: value for key, value in entry.items() if not isinstance(value, str)} or None


def _budget(metrics: Json, system: str, mean: Json, systems: Sequence[Row]) -> Budget:
    """Read the budget of the selection, and the comparison of the best system that it excludes."""
    budget = metrics["leading"]["budget"]
    entries = [
        entry
        for entry in metrics["comparisons"]
        if (entry["system"], entry["baseline"]) == (budget["without"], system)
        and all(entry[key] == mean[key] for key in ("collection", "split", "measure"))
    ]
    return Budget(**budget, comparison=_comparison(metrics, entries[-1], systems) if entries else None)


def _against_present(metrics: Json, system: str, mean: Json, systems: Sequence[Row]) -> list[Comparison]:
    """Return the comparisons of a system with contenders and rankings from files, on the queries of its mean."""
    names = {row.name for row in systems if row.contender or is_imported(row)}
    entries = {
        entry["baseline"]: entry  # the last entry is by the test that counts the most sources of chance
        for entry in metrics["comparisons"]
        if entry["baseline"] in names
        and entry["system"] == system
        and all(entry[key] == mean[key] for key in ("collection", "split", "measure"))
    }
    return [_comparison(metrics, entry, systems) for entry in entries.values()]


def _mean(metrics: Json, system: str, lead: Json, entry: Json | None) -> Json | None:
    """Return a system's mean by the leading measure, on the collection of the main comparison."""
    means = [mean for mean in metrics["means"] if mean["system"] == system]
    if entry is not None:
        keys = ("collection", "split", "measure")
        means = [mean for mean in means if all(mean[key] == entry[key] for key in keys)]
    return next((mean for mean in means if lead["measure"] in (None, mean["measure"])), None)


def _artifacts(
    name: str,
    baseline: str | None,
    metrics: Json,
    systems: Sequence[Row],
    spent: Sequence[SystemCost],
    store: Store,
    results: Step | None,
) -> Json:
    """Return what a verdict takes from the records and sizes of a system's artifacts, and from its baseline's."""
    compared = [cost for cost in spent if cost.system in (name, baseline)]
    cost = next((cost for cost in compared if cost.system == name), None)
    timed = {entry["system"]: entry for entry in costs(compared, store, metrics["rows"])}
    milliseconds = {system: 1000 * entry["query"] for system, entry in timed.items() if entry["query"]}
    selection = choice(results, store)
    data = next((row.data for row in systems if row.name == name), None)
    summary = {} if data is None else (store.record(data) or {}).get("summary", {})
    trainings = [] if results is None else [node for node in graph([results]) if node.description.models == "training"]
    return {
        "selection_values": {entry["system"]: entry["value"] for entry in selection["candidates"]} if selection else {},
        "judgements": summary.get("judgements", {}).get("train", 0),
        "documents": summary.get("documents") if summary.get("of_documents") else None,
        "of_documents": summary.get("of_documents"),
        "updates": sorted({node.inputs["config"].updates for node in trainings}),
        "milliseconds": milliseconds.get(name),
        "baseline_milliseconds": milliseconds.get(baseline or ""),
        "money": timed[name]["money"] if name in timed else None,
        "bytes": {}
        if cost is None
        else {
            "models": sum(store.sizes(list(cost.models), "model/*")),
            "indexes": sum(store.sizes(cost.searched, *SEARCHED)),
        },
    }
