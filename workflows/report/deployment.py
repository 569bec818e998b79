"""Which system to deploy, how good it is, and what it takes: what a run of `adapt` ends with."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow.parquet as pq

from components.evaluation.measures import by_measure
from components.evaluation.result_table import p_text
from workflows.report.finished import Json
from workflows.report.sections.costs import SEARCHED, costs
from workflows.stages.results import Cost, System
from workflows.steps.evaluate import PER_QUERY
from workflows.store.store import Store

TO_TRAIN = "nothing was trained; that needs judged queries in a split `train`, some hundred of them"


def deployment(metrics: Json, systems: Sequence[System], spent: Sequence[Cost], store: Store) -> Json | None:
    """The system that was chosen to be deployed, with a `sentence` that says all of this; None where none was.

    `value` is the measure that was chosen by, on the measured split, with its 95 % `interval` over the queries.
    `milliseconds` is a query's time, `bytes` are those of its models and of what is searched.
    """
    lead = metrics["leading"] or {}
    name = lead.get("deploy")
    own = [system for system in systems if system.name == name]
    if not own:
        return None
    measure, values = _values(own, store)
    cost = next(one for one in spent if one.system == name)
    timed = next(iter(costs([cost], store, metrics["rows"])), None)
    compared = [e for e in metrics["comparisons"] if e["measure"] == measure
                and (e["system"], e["baseline"]) == (lead["system"], lead["baseline"])]  # fmt: skip
    against = {key: compared[0][key] for key in ("system", "baseline", "difference", "p")} if compared else None
    made: Json = {
        "system": name, "split": own[0].split, "measure": measure, "value": float(values.mean()),
        "interval": interval(values), "queries": len(values), "trained": own[0].trained, "against": against,
        "milliseconds": None if timed is None else 1000 * timed["query"],
        "bytes": {"models": sum(store.sizes(list(cost.models), "model/*")),
                  "indexes": sum(store.sizes(list(cost.index), *SEARCHED))},
    }  # fmt: skip
    return {**made, "sentence": sentence(made, anything_trained=any(one.trained for one in systems))}


def _values(systems: Sequence[System], store: Store) -> tuple[str, np.ndarray]:
    """The measure that was chosen by, and the queries' values, each the mean over the seeds."""
    store.fetch([system.metrics for system in systems], PER_QUERY)
    tables = [by_measure(pq.read_table(store.path(system.metrics) / PER_QUERY)) for system in systems]
    measure = next(iter(tables[0]))
    return measure, np.mean([table[measure][1] for table in tables], axis=0)


def interval(values: np.ndarray) -> list[float] | None:
    """The ends of the 95 % interval of a mean over queries, by Student's t; None for one query."""
    from scipy import stats

    if len(values) < 2:
        return None
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return [float(values.mean()) - half, float(values.mean()) + half]


def sentence(made: Json, *, anything_trained: bool) -> str:
    """All that is to be said, in one sentence."""
    between = "" if made["interval"] is None else " (95 % interval {} to {})".format(*map(_number, made["interval"]))
    parts = [f"Deploy {made['system']}: {made['measure']} {_number(made['value'])}{between} on the "
             f"{made['queries']:,} queries of {made['split']}"]  # fmt: skip
    if (against := made["against"]) is not None:
        difference = f"{against['difference']:+.3f}".replace("0.", ".", 1)
        told = f"{difference} against {against['baseline']}, the best untrained system, {p_text(against['p'])}"
        parts.append(told if made["trained"] else f"training does not pay: {against['system']} has {told}")
    if not anything_trained:
        parts.append(TO_TRAIN)
    if made["milliseconds"] is not None:
        parts.append(f"a query took {made['milliseconds']:.1f} ms here, many at once")
    size = {name: f"{count / 2**20:,.1f} MB" for name, count in made["bytes"].items()}
    parts.append(f"it needs {size['indexes']} of indexes and vectors and {size['models']} of models")
    return "; ".join(parts) + "."


def _number(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1)
