"""The pictures below the verdict: all systems with their intervals, and quality against latency."""

from collections.abc import Sequence

from sparring.components.charts.plot import Role
from sparring.components.charts.row_charts import Bar, bars
from sparring.components.charts.scatter_plot import Timed, trade_off
from sparring.components.evaluation.averages import AVERAGE
from sparring.components.evaluation.measures import within
from sparring.workflows.report.finished import Json
from sparring.workflows.report.page import drawing


def overview(metrics: Json, timed: Sequence[Json]) -> Json | None:
    """Draw the systems by the verdict's measure, on its collection. None if nothing was measured.

    Without a verdict the measure is the first one, of the average over collections if there is one. `timed` are the
    costs of systems, whose queries were asked together. If systems were measured with one query after another,
    `trade_off` draws these times (`alone`), with the budget's limit. It is None unless two systems were timed.
    """
    means = metrics["means"]
    if not means:
        return None
    verdict = metrics["verdict"]
    place = verdict or next((mean for mean in means if mean["collection"] == AVERAGE), means[0])
    keys = ("collection", "split", "measure")
    shown = [mean for mean in means if all(mean[key] == place[key] for key in keys)]
    shown.sort(key=lambda mean: -mean["value"])
    queries = max(mean["queries"] for mean in shown)
    values = {mean["system"]: mean["value"] for mean in shown}
    needs = [entry for entry in metrics.get("needs", []) if entry["system"] in values]
    alone = [
        Timed(entry["system"], entry["p95_ms"], values[entry["system"]], _role(entry["system"], verdict))
        for entry in needs
        if "p95_ms" in entry
    ]
    limits = ((verdict or {}).get("budget") or {}).get("limits", {})
    systems = alone or [
        Timed(cost["system"], 1000 * cost["query"], values[cost["measured"]], _role(cost["measured"], verdict))
        for cost in timed
        if cost["measured"] in values and cost["query"]
    ]
    return {
        **{key: place[key] for key in keys},
        "queries": queries,
        "bars": drawing(bars(f"{place['measure']} of all systems", [_bar(mean, verdict, queries) for mean in shown])),
        "trade_off": drawing(
            trade_off(
                place["measure"],
                systems,
                axis="milliseconds for 95 % of the queries" if alone else "milliseconds for a query",
                limit=limits.get("p95_ms") if alone else None,
            )
        )
        if len(systems) > 1
        else None,
        "alone": {
            "queries": sorted({entry["queries"] for entry in needs if "queries" in entry}),
            "limit": limits.get("p95_ms"),
            "unmeasured": {entry["system"]: entry["reason"] for entry in needs if "reason" in entry},
        }
        if alone
        else None,
        "deployed": bool(verdict and verdict["deploy"]),
    }


def _bar(mean: Json, verdict: Json | None, queries: int) -> Bar:
    """Draw a mean. Systems that were measured on a sample of the queries say so."""
    low, high = mean["low"], mean["high"]
    if low is not None:
        low, high = within(mean["measure"], low, high)
    sample = "" if mean["queries"] == queries else f" ({mean['queries']:,} queries)"
    return Bar(f"{mean['system']}{sample}", mean["value"], low, high, _role(mean["system"], verdict))


def _role(system: str, verdict: Json | None) -> Role:
    """Tell the verdict's system and its alternative from the rest."""
    if verdict is None:
        return "plain"
    if system == verdict["system"]:
        return "chosen"
    compared = verdict["comparison"] or {}
    return "baseline" if system in (compared.get("system"), compared.get("baseline")) else "plain"
