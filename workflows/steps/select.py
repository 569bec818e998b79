"""Select the best trained system and the best untrained one, on queries of a split other than the measured one."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from sparring.components.data.groups import judged_queries
from sparring.components.data.tables import QRELS, RANKING, of_queries, read
from sparring.components.evaluation.budget import FILE as NEEDED
from sparring.components.evaluation.measures import by_measure, per_query
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
    chosen to be deployed, a system has its rank of `cost` too. If there is a budget, it has {limits, measured} too:
    `measured` is the artifact of `measure_latency`, or a reason why nothing was measured. A system beyond a limit is
    not selected.
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
        needs = {entry["system"]: _needs(entry["measured"]) for entry in systems}
        selection = within_limits(values, trained, costs, needs, limits)
    else:
        selection = selected(values, trained, costs)
    if not len(judged):
        selection["why"] = f"no query of {split!r} is judged, so weights of fusions are the defaults too"
    write_json(out / FILE, {"split": split, "measure": measure, "queries": len(judged), **selection})
    summary: dict[str, Any] = {"candidates": len(values), "queries": len(judged)}
    return summary | {key: selection[key] for key in ("system", "baseline", "deploy") if key in selection}


def _needs(measured: Path | str) -> dict[str, float] | None:
    """Read what a system needs. None if nothing was measured."""
    if isinstance(measured, str):
        return None
    needs: dict[str, float] = read_json(measured / NEEDED)
    return None if "reason" in needs else needs
