"""Which systems are selected, and which comparison leads a run's results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparring.components.files import read_json

FILE = "selection.json"
"""The file that says which systems were selected, and why not where none was."""

Json = dict[str, Any]
Kind = Literal["all", "untrained"]


def selected(
    values: Mapping[str, Sequence[np.ndarray]], trained: Mapping[str, bool], costs: Mapping[str, int] | None = None
) -> Json:
    """The best trained system, and the best untrained one as its baseline, with every candidate's value.

    `values` has each system's (Q,) values of the same queries, one array a seed. A system's value is the mean over
    seeds and queries, `behind` how far it is behind the best of all (with costs, of those that have one); standard
    errors are those of a mean over the queries, None of one query. Of equals the first is the best. Without a system of
    either kind nothing is selected, and `why` says so.

    With the systems' costs, of which only the order counts, one is chosen to `deploy`, and a trained one that is stands
    in for the best trained one. Where nothing was trained, it is compared with the cheapest one, and if it is that one
    itself, the best of the others with it.

    >>> values = {"BM25": [np.array([0.0, 1.0])], "retriever": [np.array([1.0, 1.0]), np.array([0.0, 1.0])]}
    >>> made = selected(values, {"BM25": False, "retriever": True})
    >>> made["system"], made["baseline"], [one["value"] for one in made["candidates"]]
    ('retriever', 'BM25', [0.5, 0.75])
    """
    means = {name: np.mean(seeds, axis=0) for name, seeds in values.items()}
    costs = {name: cost for name, cost in (costs or {}).items() if name in means}  # none is, where nothing was measured
    first = max(costs or means, key=lambda name: means[name].mean(), default="")
    candidates: list[Json] = [
        {
            "system": name,
            "trained": trained[name],
            "value": float(each.mean()),
            "standard_error": standard_error(each),
            "behind": float((means[first] - each).mean()),
            "behind_error": standard_error(means[first] - each),
        }
        for name, each in means.items()
    ]
    cheapest = min(costs, key=costs.__getitem__, default="")
    deploy: Json = {"deploy": cheapest_of_the_best(means, costs)} if costs else {}
    kinds = {kind: [one for one in candidates if one["trained"] is kind] for kind in (True, False)}
    best = {kind: max(of, key=lambda one: one["value"])["system"] for kind, of in kinds.items() if of}
    if deploy and trained[deploy["deploy"]]:
        best[True] = deploy["deploy"]
    elif deploy and not kinds[True] and len(costs) > 1:
        others = [name for name in costs if name != deploy["deploy"]]
        dearer = max(others, key=lambda name: means[name].mean())
        best = {True: deploy["deploy"] if cheapest in others else dearer, False: cheapest}
    if len(best) == 2:
        return {"system": best[True], "baseline": best[False], "why": "", "candidates": candidates, **deploy}
    why = "no system was trained" if not kinds[True] else "every system was trained"
    return {"system": None, "baseline": None, "why": why, "candidates": candidates, **deploy}


def standard_error(values: np.ndarray) -> float | None:
    """The standard error of the mean of (Q,) values."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def cheapest_of_the_best(means: Mapping[str, np.ndarray], costs: Mapping[str, int]) -> str:
    """The best of those systems that cost no more than the cheapest one which is no worse than the best of all by more
    than one standard error of their paired difference (the rule of one standard error: Breiman et al., 1984, 3.4.3).

    The rule alone can pass over a cheap system for a dearer and worse one, whose differences from the best vary more.

    `means` has each system's (Q,) values of the same queries, `costs` numbers of which only the order counts. With one
    query there is no error, and the best is taken.

    >>> means = {"cheap": np.array([0.4, 0.5, 0.9]), "dear": np.array([0.5, 0.4, 1.0]), "poor": np.zeros(3)}
    >>> cheapest_of_the_best(means, {"poor": 0, "cheap": 1, "dear": 2})
    'cheap'
    """
    best = max(costs, key=lambda name: means[name].mean())

    def near(name: str) -> bool:
        behind = means[best] - means[name]
        return bool(behind.mean() <= (standard_error(behind) or 0.0))

    enough = min(cost for name, cost in costs.items() if near(name))
    return max((name for name, cost in costs.items() if cost <= enough), key=lambda name: means[name].mean())


def best_of(selection: Json, kind: Kind) -> str:
    """The system of a kind that a selection stands for: of all systems the one to deploy, where one was chosen, else
    the best; of the untrained ones the best. KeyError where there is none, as nothing was measured.

    >>> values = {"BM25": [np.array([0.0, 1.0])], "retriever": [np.array([1.0, 1.0])]}
    >>> made = selected(values, {"BM25": False, "retriever": True})
    >>> best_of(made, "all"), best_of(made, "untrained")
    ('retriever', 'BM25')
    """
    if kind == "all" and "deploy" in selection:
        return str(selection["deploy"])
    of = [one for one in selection["candidates"] if kind == "all" or not one["trained"]]
    if not of:
        raise KeyError(f"no system of the kind {kind!r} was measured on {selection.get('split')!r}")
    return str(max(of, key=lambda one: one["value"])["system"])


def leading(selection: Path | str | None, comparisons: Sequence[Mapping[str, str]]) -> Json:
    """The comparison that leads. `selection` is the folder of `selection.json`: then it is that of the selected
    systems, by a `measure`. Otherwise it is the first that was asked for, if any, and `why` says why nothing was
    selected: what the file says, or `selection` itself. `selected_on` is the split of the selection, of so many judged
    `queries`; `deploy` is there where a system was chosen.
    """
    first = comparisons[0] if comparisons else {"system": None, "baseline": None}
    told = {"measure": None, "selected_on": None, "queries": None, "why": "", **first}
    if not isinstance(selection, Path):
        return {**told, "why": selection or ""}
    made = read_json(selection / FILE)
    told |= {"selected_on": made["split"], **{key: made[key] for key in ("queries", "why", "deploy") if key in made}}
    if made["system"] is None:
        return told
    return told | {key: made[key] for key in ("system", "baseline", "measure")}
