"""How the rankings that negatives are drawn from change from refresh to refresh."""

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
from sparring.workflows.steps.mine import mine
from sparring.workflows.steps.screen import screen
from sparring.workflows.store.dag import Step, graph
from sparring.workflows.store.store import Store

QUERIES = 1000
"""Training queries that are looked at: a sample that is the same for every ranking."""
TABLE = "ranking.parquet"


@dataclass
class _Drawn:
    """A ranking that training negatives are drawn from."""

    ranking: Step
    data: Step
    depth: int = 0
    """How many first candidates they are drawn from at most."""
    screens: dict[str, Json] = field(default_factory=dict)
    """The records of what screened it, by name."""
    before: "_Drawn | None" = None
    """The last such ranking that it stands on."""


def refreshes(steps: Finished, store: Store) -> Json | None:
    """A row for each ranking, its seeds together, and a picture of where the positives stand in it; None where no
    negatives were drawn from a ranking that is (still) there."""
    drawn = _drawn(steps)
    seeds: dict[str, list[Json]] = {}
    read_before: dict[str, tuple[dict[str, set[str]], int]] = {}
    for one in drawn:
        try:
            found = _measured(one, store, read_before)
        except FileNotFoundError:  # dropped by `clean`
            continue
        seeds.setdefault(without_seed(one.ranking.label), []).append(found)
    if not seeds:
        return None
    rows = [{"label": label, "seeds": len(of), **_mean(of)} for label, of in seeds.items()]
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
    """The rankings of training queries that groups were mined from, in the graph's order."""
    records = {node.fingerprint: record for node, record in steps}
    found: dict[str, _Drawn] = {}
    for node, _ in steps:
        ranking = node.inputs.get("ranking")
        if node.function is not mine or ranking is None or node.inputs["split"] != "train":
            continue
        screened = ranking if ranking.function is screen else None
        ranking = ranking if screened is None else screened.inputs["ranking"]
        one = found.get(ranking.fingerprint)
        if one is None:
            stands_on = {step.fingerprint for step in graph([ranking])}
            earlier = [other for fingerprint, other in found.items() if fingerprint in stands_on]
            one = found[ranking.fingerprint] = _Drawn(
                ranking, node.inputs["data"], before=earlier[-1] if earlier else None
            )
        one.depth = max(one.depth, node.inputs["config"].depth)
        if screened is not None:
            one.screens[without_seed(screened.label)] = records[screened.fingerprint]["summary"]
    return list(found.values())


def _measured(one: _Drawn, store: Store, tops: dict[str, tuple[dict[str, set[str]], int]]) -> Json:
    """What is said of one ranking. `tops` has the first documents of those before it, and is given its own."""
    store.fetch([one.ranking], TABLE)
    store.fetch([one.data], "qrels.parquet")
    asked = judged_queries(store.path(one.data), "train", QUERIES)
    ranking = of_queries(store.path(one.ranking) / TABLE, RANKING, asked)
    judged = read(store.path(one.data) / "qrels.parquet", QRELS, filters=[("split", "=", "train")])
    there = set(ranking["query_id"].unique().to_pylist())
    relevant = {query: of for query, of in relevant_of(judged).items() if query in there}
    ranks = [rank for rank, _, _ in first_relevant(ranking, relevant).values()]
    own = top(ranking, one.depth)
    tops[one.ranking.fingerprint] = own, one.depth
    before = tops.get(one.before.ranking.fingerprint) if one.before else None
    listed = int(ranking["rank"].to_numpy().max(initial=1))
    return {
        "queries": len(there),
        "depth": one.depth,
        "listed": listed,
        "bands": shares_by_band(ranks, listed),
        "median": median_rank(ranks),
        "overlap": overlap(before[0], own) if before else None,
        "since": without_seed(one.before.ranking.label) if before and one.before else "",
        "removed": [_removed(name, summary) for name, summary in one.screens.items()],
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
    """What is said of one ranking, the mean over its seeds."""
    first = seeds[0]
    overlaps = [one["overlap"] for one in seeds if one["overlap"] is not None]
    removed = [
        {"name": name, "share": fmean(one["share"] for one in of), "reasons": _means([one["reasons"] for one in of])}
        for name, of in _by_name(one for seed in seeds for one in seed["removed"]).items()
    ]
    middle = fmean(one["median"] for one in seeds)
    return {
        **{key: first[key] for key in ("queries", "depth", "listed", "since")},
        "bands": [fmean(column) for column in zip(*(one["bands"] for one in seeds), strict=True)],
        "median": None if math.isinf(middle) else middle,
        "overlap": fmean(overlaps) if overlaps else None,
        "removed": removed,
    }


def _by_name(removed: Iterable[Json]) -> dict[str, list[Json]]:
    names: dict[str, list[Json]] = {}
    for one in removed:
        names.setdefault(one["name"], []).append(one)
    return names


def _means(seeds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean share of each reason; a seed without it counts as 0."""
    names = dict.fromkeys(name for one in seeds for name in one)
    return {name: fmean(one.get(name, 0.0) for one in seeds) for name in names}
