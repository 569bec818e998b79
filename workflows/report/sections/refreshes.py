"""Changes from refresh to refresh of the rankings that negatives are sampled from."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from sparring.components.charts.row_charts import shares
from sparring.components.data.groups import judged_queries
from sparring.components.data.tables import QRELS, RANKING, of_queries, read
from sparring.components.evaluation.rank_changes import first_relevant, relevant_of
from sparring.components.evaluation.refreshes import bands, median_rank, overlap, shares_by_band, top
from sparring.workflows.report.finished import Finished, Json
from sparring.workflows.report.page import drawing
from sparring.workflows.report.sections.steps import without_seed
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store

QUERIES = 1000
"""Number of training queries that are examined. The sample is the same for every ranking."""
TABLE = "ranking.parquet"


@dataclass
class _Drawn:
    """A ranking that training negatives are sampled from."""

    ranking: Step
    data: Step
    depth: int = 0
    """Greatest number of first candidates that negatives are sampled from."""
    screens: dict[str, Json] = field(default_factory=dict)
    """Records of the screenings, by name."""
    before: "_Drawn | None" = None
    """The last such ranking that this one was made from."""


def refreshes(steps: Finished, store: Store) -> Json | None:
    """Return a row for each ranking, its seeds together, and a picture of the positives' ranks.

    Return None if no negatives were drawn from a ranking that is still there.
    """
    drawn = _drawn(steps)
    seeds: dict[str, list[Json]] = {}
    read_before: dict[str, tuple[dict[str, set[str]], int]] = {}
    for entry in drawn:
        try:
            measured = _measured(entry, store, read_before)
        except FileNotFoundError:  # dropped by `clean`
            continue
        seeds.setdefault(without_seed(entry.ranking.label), []).append(measured)
    if not seeds:
        return None
    rows = [
        {"label": label, "seeds": len(measurements), **_mean(measurements)} for label, measurements in seeds.items()
    ]
    listed = max(row["listed"] for row in rows)
    parts = [str(a) if a == b else f"{a} to {b}" for a, b in bands(listed)]
    names = [f"rank {parts[0]}", *parts[1:], "not found"]
    bars = {row["label"]: row["bands"] for row in rows if row["listed"] == listed}
    return {
        "rows": rows,
        "queries": max(row["queries"] for row in rows),
        "listed": listed,
        "screened": any(row["removed"] for row in rows),
        "picture": drawing(shares("rank of the first positive", names, bars)),
    }


def _drawn(steps: Finished) -> Sequence[_Drawn]:
    """Return the rankings of training queries that groups were mined from, in the graph's order."""
    records = {node.fingerprint: record for node, record in steps}
    rankings: dict[str, _Drawn] = {}
    for node, _ in steps:
        ranking = node.inputs.get("ranking")
        if node.description.makes != "groups" or ranking is None or node.inputs["split"] != "train":
            continue
        screened = ranking if ranking.description.makes == "screened ranking" else None
        ranking = ranking if screened is None else screened.inputs["ranking"]
        entry = rankings.get(ranking.fingerprint)
        if entry is None:
            stands_on = {step.fingerprint for step in graph([ranking])}
            earlier = [drawn for fingerprint, drawn in rankings.items() if fingerprint in stands_on]
            entry = rankings[ranking.fingerprint] = _Drawn(
                ranking, node.inputs["data"], before=earlier[-1] if earlier else None
            )
        entry.depth = max(entry.depth, node.inputs["config"].depth)
        if screened is not None:
            entry.screens[without_seed(screened.label)] = records[screened.fingerprint]["summary"]
    return list(rankings.values())


def _measured(drawn: _Drawn, store: Store, tops: dict[str, tuple[dict[str, set[str]], int]]) -> Json:
    """Measure a ranking. Add its first documents to `tops`, which holds those of earlier rankings."""
    store.fetch([drawn.ranking], TABLE)
    store.fetch([drawn.data], "qrels.parquet")
    queries = judged_queries(store.path(drawn.data), "train", QUERIES)
    ranking = of_queries(store.path(drawn.ranking) / TABLE, RANKING, queries)
    judged = read(store.path(drawn.data) / "qrels.parquet", QRELS, filters=[("split", "=", "train")])
    ranked = set(ranking["query_id"].unique().to_pylist())
    relevant = {query: positives for query, positives in relevant_of(judged).items() if query in ranked}
    ranks = [rank for rank, _, _ in first_relevant(ranking, relevant).values()]
    first = top(ranking, drawn.depth)
    tops[drawn.ranking.fingerprint] = first, drawn.depth
    before = tops.get(drawn.before.ranking.fingerprint) if drawn.before else None
    listed = int(ranking["rank"].to_numpy().max(initial=1))
    return {
        "queries": len(ranked),
        "depth": drawn.depth,
        "listed": listed,
        "bands": shares_by_band(ranks, listed),
        "median": median_rank(ranks),
        "overlap": overlap(before[0], first) if before else None,
        "since": without_seed(drawn.before.ranking.label) if before and drawn.before else "",
        "removed": [_removed(name, summary) for name, summary in drawn.screens.items()],
    }


def _removed(name: str, summary: Json) -> Json:
    """The share of a ranking's candidates that a screening removed, by reason."""
    whole = max(1, summary["before"])
    return {
        "name": name,
        "share": 1 - summary["after"] / whole,
        "reasons": {reason: count / whole for reason, count in summary["removed"].items()},
    }


def _mean(seeds: Sequence[Json]) -> Json:
    """Average the measurements of a ranking over its seeds."""
    first = seeds[0]
    overlaps = [entry["overlap"] for entry in seeds if entry["overlap"] is not None]
    removed = [
        {
            "name": name,
            "share": fmean(entry["share"] for entry in entries),
            "reasons": _means([entry["reasons"] for entry in entries]),
        }
        for name, entries in _by_name(entry for seed in seeds for entry in seed["removed"]).items()
    ]
    middle = fmean(entry["median"] for entry in seeds)
    return {
        **{key: first[key] for key in ("queries", "depth", "listed", "since")},
        "bands": [fmean(column) for column in zip(*(entry["bands"] for entry in seeds), strict=True)],
        "median": None if math.isinf(middle) else middle,
        "overlap": fmean(overlaps) if overlaps else None,
        "removed": removed,
    }


def _by_name(removed: Iterable[Json]) -> dict[str, list[Json]]:
    names: dict[str, list[Json]] = {}
    for entry in removed:
        names.setdefault(entry["name"], []).append(entry)
    return names


def _means(seeds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Average the share of each reason. A seed without the reason counts as 0."""
    names = dict.fromkeys(name for shares in seeds for name in shares)
    return {name: fmean(shares.get(name, 0.0) for shares in seeds) for name in names}
