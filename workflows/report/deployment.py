"""Which system to deploy, how good it is, and what it takes: what a run of `adapt` ends with."""

import json
from collections.abc import Sequence

from components.evaluation.result_table import chosen_on, p_number, p_text, signed, unsigned
from components.evaluation.selection import FILE
from components.evaluation.significance import THE_METHOD
from workflows.report.finished import Json
from workflows.report.sections.costs import SEARCHED, costs
from workflows.stages.results import Cost, System
from workflows.store.dag import Step
from workflows.store.store import Store

TO_TRAIN = (
    "nothing was trained; that needs judged queries in a split `train`, some hundred of them (`recipe: folds` measures "
    "what training on a part of the others would give)"
)


def deployment(
    metrics: Json, systems: Sequence[System], spent: Sequence[Cost], store: Store, results: Step | None
) -> Json | None:
    """The system that was chosen to be deployed, with a `sentence` that says all of this; None where none was.

    `best` is the best on the split that was chosen by. `value` is the measure that was chosen by, on the measured
    split, with the ends of its 95 % interval. `against` is the leading comparison. `milliseconds` is a query's time,
    `bytes` are those of its models and of what is searched.
    """
    lead = metrics["leading"] or {}
    name = lead.get("deploy")
    means = [one for one in metrics["means"] if one["system"] == name]
    if not means:
        return None
    mean = next(one for one in means if lead["measure"] in (None, one["measure"]))
    cost = next(one for one in spent if one.system == name)
    timed = next(iter(costs([cost], store, metrics["rows"])), None)
    compared = [one for one in metrics["comparisons"] if one["measure"] == mean["measure"]
                and (one["system"], one["baseline"]) == (lead["system"], lead["baseline"])]  # fmt: skip
    told = ("system", "baseline", "difference", "p", "p_holm", "test")
    against = {key: compared[-1][key] for key in told} if compared else None
    made: Json = {
        **{key: mean[key] for key in ("system", "split", "measure", "value", "low", "high", "queries")},
        "chosen_on": chosen_on(lead), "best": _best(results, store),
        "trained": any(one.trained for one in systems if one.name == name), "against": against,
        "milliseconds": None if timed is None else 1000 * timed["query"],
        "bytes": {"models": sum(store.sizes(list(cost.models), "model/*")),
                  "indexes": sum(store.sizes(list(cost.index), *SEARCHED))},
    }  # fmt: skip
    return {**made, "sentence": sentence(made, anything_trained=any(one.trained for one in systems))}


def _best(results: Step | None, store: Store) -> str | None:
    """The best system on the split that was chosen by."""
    selection = None if results is None else results.inputs.get("selection")
    if not isinstance(selection, Step):
        return None
    store.fetch([selection], FILE)
    candidates = json.loads((store.path(selection) / FILE).read_text())["candidates"]
    return str(max(candidates, key=lambda one: one["value"])["system"])


def sentence(made: Json, *, anything_trained: bool) -> str:
    """All that is to be said, in one sentence."""
    between = "" if made["low"] is None else f" (95 % interval {unsigned(made['low'])} to {unsigned(made['high'])})"
    dearer = f" ({made['best']} is better there, by too little for what it costs)"
    why = "" if made["best"] in (None, made["system"]) else dearer
    parts = [f"Deploy {made['system']}, chosen on {made['chosen_on']}{why}: {made['measure']} "
             f"{unsigned(made['value'])}{between} on the {made['queries']:,} queries of {made['split']}"]  # fmt: skip
    if (against := made["against"]) is not None:
        counted = "the method" if against["test"] == THE_METHOD else "this training"
        best = ", the best untrained system" if anything_trained else ""
        told = (
            f"{signed(against['difference'])} against {against['baseline']}{best} ({p_text(against['p'])}, corrected "
            f"{p_number(against['p_holm'])}, {counted})"
        )
        other = against["system"] != made["system"]  # the best trained one, which is not worth what it costs
        parts.append(f"these trainings do not pay: {against['system']} has {told}" if other else told)
    if not anything_trained:
        parts.append(TO_TRAIN)
    if made["milliseconds"] is not None:
        parts.append(f"a query took {made['milliseconds']:.1f} ms here, many at once")
    size = {name: f"{count / 2**20:,.1f} MB" for name, count in made["bytes"].items()}
    parts.append(f"it needs {size['indexes']} of indexes and vectors and {size['models']} of models")
    return "; ".join(parts) + "."
