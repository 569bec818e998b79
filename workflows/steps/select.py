"""Select the best trained system and the best untrained one, on queries of a split other than the measured one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.data.groups import judged_queries
from sparring.components.data.tables import QRELS, RANKING, of_queries, read
from sparring.components.evaluation.budget import FILE as NEEDED
from sparring.components.evaluation.budget import GUARD
from sparring.components.evaluation.measures import PER_QUERY_FILE, by_measure, means, per_query
from sparring.components.evaluation.selection import FILE, selected, within_limits
from sparring.components.files import read_json, write_json
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description


@Description(part="evaluation", version=5, in_worker=True, workers_read={"data": ("documents.parquet",)})
def select(
    out: Path, machine: Machine, *, data: Path, split: str, measure: str, systems: list[dict[str, Any]]
) -> dict[str, Any]:
    """Write `selection.json`: the best trained system and, as its baseline, the best untrained one, by a measure's mean
    over the split's judged queries (`components.evaluation.selection`).

    A system is {system, seed, trained, ranking, queries}. `queries` is the number of the split's judged queries that
    the ranking has, None for all. All systems are measured on the queries that all of them have. If one system is
    chosen to be deployed, a system has its rank of `cost` too. If there are `limits`, a system beyond one is not
    selected. Then `measured` is the artifact of `measure_latency`, or a reason why nothing was measured. `guard` has,
    for each trained retriever, its `metrics` on another collection, and those of the start model (`start`).
    """
    few = [entry["queries"] for entry in systems if entry["queries"] is not None]
    judged = judged_queries(data, split, min(few, default=None))
    qrels = read(data / "qrels.parquet", QRELS, filters=[("split", "=", split)])
    qrels = qrels.filter(pc.is_in(qrels["query_id"], value_set=judged))
    by_ranking: dict[Path, np.ndarray] = {}
    values: dict[str, list[np.ndarray]] = {}
    for entry in systems if len(judged) else []:
        path = entry["ranking"] / "ranking.parquet"
        if path not in by_ranking:  # all seeds may share it
            table = per_query(of_queries(path, RANKING, judged), qrels, [measure])
            by_ranking[path] = by_measure(table)[measure][1]
        values.setdefault(entry["system"], []).append(by_ranking[path])
    costs = {entry["system"]: entry["cost"] for entry in systems if "cost" in entry}
    trained = {entry["system"]: entry["trained"] for entry in systems}
    limits: dict[str, float] = next((entry["limits"] for entry in systems if "limits" in entry), {})
    if limits:
        by_system = {name: [entry for entry in systems if entry["system"] == name] for name in values}
        needs = {name: _needs(entries, limits, measure) for name, entries in by_system.items()}
        selection = within_limits(values, trained, costs, needs, limits)
    else:
        selection = selected(values, trained, costs)
    if not len(judged):
        selection["why"] = f"no query of {split!r} is judged, so weights of fusions are the defaults too"
    write_json(out / FILE, {"split": split, "measure": measure, "queries": len(judged), **selection})
    summary: dict[str, Any] = {"candidates": len(values), "queries": len(judged)}
    return summary | {key: selection[key] for key in ("system", "baseline", "deploy") if key in selection}


def _needs(entries: list[dict[str, Any]], limits: Mapping[str, float], measure: str) -> dict[str, float] | None:
    """Read what a system needs, and what its retrievers lose on another collection: the largest of their mean losses
    over the seeds. None if a limit needs what was not measured."""
    needs: dict[str, float] = {}
    if limits.keys() - {GUARD}:
        measured = entries[-1]["measured"]
        latency = {} if isinstance(measured, str) else read_json(measured / NEEDED)
        if not latency or "reason" in latency:
            return None
        needs |= latency
    by_retriever = zip(*(entry["guard"] for entry in entries if "guard" in entry), strict=True)
    lost = [
        float(np.mean([_mean(part["start"], measure) - _mean(part["metrics"], measure) for part in seeds]))
        for seeds in by_retriever
    ]
    return {**needs, GUARD: max(lost, default=0.0)}


def _mean(metrics: Path, measure: str) -> float:
    return means(pq.read_table(metrics / PER_QUERY_FILE))[measure]
