"""Which systems are selected, and which comparison leads a run's results."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from sparring.components.evaluation.budget import exceeded, nearest
from sparring.components.files import read_json

FILE = "selection.json"
"""The file that says which systems were selected, and why not where none was."""

Json = dict[str, Any]
Kind = Literal["all", "untrained"]


def selected(
    values: Mapping[str, Sequence[np.ndarray]],
    trained: Mapping[str, bool],
    costs: Mapping[str, float] | None = None,
    excluded: Collection[str] = (),
) -> Json:
    """Select the best trained system, and the best untrained system as its baseline.

    `values` has each system's (Q,) values of the same queries, one array a seed. A system's value is the mean over
    seeds and queries, and `behind` is its distance from the best system (with costs, from the best that has a cost).
    Standard errors are those of a mean over the queries, None for a single query. The first of equal systems is the
    best. If one of the two kinds is missing nothing is selected, and `why` names the reason.

    `costs` order the systems by cost. With costs, a system is chosen to `deploy`. If that system was trained, it
    replaces the best trained system. If nothing was trained, compare the chosen system with the cheapest. If they are
    the same system, compare it with the runner-up.

    `excluded` systems are candidates that are not selected.

    >>> values = {"BM25": [np.array([0.0, 1.0])], "retriever": [np.array([1.0, 1.0]), np.array([0.0, 1.0])]}
    >>> selection = selected(values, {"BM25": False, "retriever": True})
    >>> selection["system"], selection["baseline"], [candidate["value"] for candidate in selection["candidates"]]
    ('retriever', 'BM25', [0.5, 0.75])
    """
    means = {name: np.mean(seeds, axis=0) for name, seeds in values.items()}
    costs = {name: cost for name, cost in (costs or {}).items() if name in means}  # none is, where nothing was measured
    allowed = [name for name in means if name not in excluded]
    first = max(
        [name for name in costs if name in allowed] or allowed or means, key=lambda name: means[name].mean(), default=""
    )
    candidates: list[Json] = [
        {
            "system": name,
            "trained": trained[name],
            "value": float(by_query.mean()),
            "standard_error": standard_error(by_query),
            "behind": float((means[first] - by_query).mean()),
            "behind_error": standard_error(means[first] - by_query),
        }
        for name, by_query in means.items()
    ]
    costs = {name: cost for name, cost in costs.items() if name in allowed}
    cheapest = min(costs, key=costs.__getitem__, default="")
    deploy: Json = {"deploy": cheapest_of_the_best(means, costs)} if costs else {}
    kinds = {
        kind: [entry for entry in candidates if entry["trained"] is kind and entry["system"] in allowed]
        for kind in (True, False)
    }
    best = {
        kind: max(group, key=lambda candidate: candidate["value"])["system"] for kind, group in kinds.items() if group
    }
    if deploy and trained[deploy["deploy"]]:
        best[True] = deploy["deploy"]
    elif deploy and not kinds[True] and len(costs) > 1:
        remaining = [name for name in costs if name != deploy["deploy"]]
        dearer = max(remaining, key=lambda name: means[name].mean())
        best = {True: deploy["deploy"] if cheapest in remaining else dearer, False: cheapest}
    if len(best) == 2:
        return {"system": best[True], "baseline": best[False], "why": "", "candidates": candidates, **deploy}
    return {"system": None, "baseline": None, "why": _why(kinds, excluded), "candidates": candidates, **deploy}


def _why(kinds: Mapping[bool, Sequence[Json]], excluded: Collection[str]) -> str:
    """Say which of the trained and the untrained systems are missing."""
    if excluded:
        missing = "" if not any(kinds.values()) else "trained " if not kinds[True] else "untrained "
        return f"no {missing}system is within the budget"
    return "no system was trained" if not kinds[True] else "every system was trained"


def within_limits(
    values: Mapping[str, Sequence[np.ndarray]],
    trained: Mapping[str, bool],
    costs: Mapping[str, float] | None,
    needs: Mapping[str, Mapping[str, float] | None],
    limits: Mapping[str, float],
) -> Json:
    """Select among the systems that need no more than some limits (`components.evaluation.budget`).

    `needs` has what each system needs, None if nothing was measured. The `budget` of the result has the `limits`; the
    limits that each `excluded` system exceeds; `without`, the system that would have been selected without limits, if
    it is excluded, and its `gain` over the selected system; `kept`, which is False if no system keeps the limits, and
    then the `nearest`.
    """
    beyond = {name: reached for name in values if (reached := exceeded(needs[name], limits))}
    selection = selected(values, trained, costs, beyond)
    free = selected(values, trained, costs)
    without, within = (_leader(choice) for choice in (free, selection))
    means = {candidate["system"]: candidate["value"] for candidate in selection["candidates"]}
    return selection | {
        "budget": {
            "limits": dict(limits),
            "excluded": beyond,
            "without": without if without in beyond else None,
            "gain": means[without] - means[within] if without in beyond and within is not None else None,
            "kept": not beyond or len(beyond) < len(values),
            "nearest": nearest(beyond) if len(beyond) == len(values) else None,
        }
    }


def _leader(selection: Json) -> str | None:
    """Return the system that a selection stands for: the one to deploy, or the one of the main comparison."""
    leader: str | None = selection.get("deploy") or selection["system"]
    return leader


def standard_error(values: np.ndarray) -> float | None:
    """Return the standard error of the mean of (Q,) values."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None


def cheapest_of_the_best(means: Mapping[str, np.ndarray], costs: Mapping[str, float]) -> str:
    """Take the systems that are within one standard error of the best. Return the best of those that cost no more than
    the cheapest of them (the rule of one standard error: Breiman et al., 1984, 3.4.3). The error is that of the paired
    difference.

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


class Replaced(NamedTuple):
    """Differences from the chosen system on the selection queries at which a further system replaces it."""

    dearer: float
    """Least difference of a system that costs more."""
    cheaper: float
    """Least difference of a system that costs less. It is negative if such a system may be worse."""


def replaced_at(selection: Json) -> Replaced | None:
    """Tell how good a further system must be, so that the rule of one standard error takes it for the chosen one.

    The standard error of the difference from a system that is not measured yet is unknown. The median of those between
    the measured candidates and the best of them stands for it. None if no system was chosen, or if no two candidates
    differ.

    >>> values = {"BM25": [np.array([0.0, 0.5, 1.0])], "dense": [np.array([0.5, 1.0, 1.0])]}
    >>> selection = selected(values, {"BM25": False, "dense": False}, {"BM25": 0, "dense": 1})
    >>> selection["deploy"], [round(difference, 3) for difference in replaced_at(selection)]
    ('dense', [0.167, -0.167])
    """
    candidates = {candidate["system"]: candidate for candidate in selection["candidates"]}
    errors = [candidate["behind_error"] for candidate in candidates.values() if candidate["behind_error"]]
    if selection.get("deploy") is None or not errors:
        return None
    error, behind = float(np.median(errors)), candidates[selection["deploy"]]["behind"]
    return Replaced(dearer=max(behind, error), cheaper=behind - error)


def best_of(selection: Json, kind: Kind) -> str:
    """Return the system of a kind that a selection stands for.

    For `all` this is the system to deploy, if one was chosen, else the best of all. For `untrained` it is the best
    untrained system. KeyError if no system of the kind was measured.

    >>> values = {"BM25": [np.array([0.0, 1.0])], "retriever": [np.array([1.0, 1.0])]}
    >>> selection = selected(values, {"BM25": False, "retriever": True})
    >>> best_of(selection, "all"), best_of(selection, "untrained")
    ('retriever', 'BM25')
    """
    if kind == "all" and "deploy" in selection:
        return str(selection["deploy"])
    excluded = selection.get("budget", {}).get("excluded", {})
    candidates = [
        candidate
        for candidate in selection["candidates"]
        if (kind == "all" or not candidate["trained"]) and candidate["system"] not in excluded
    ]
    if not candidates:
        raise KeyError(f"no system of the kind {kind!r} was measured on {selection.get('split')!r}")
    return str(max(candidates, key=lambda candidate: candidate["value"])["system"])


def leading(selection: Path | str | None, comparisons: Sequence[Mapping[str, str]]) -> Json:
    """Return the comparison that leads.

    If `selection` is the folder of `selection.json`, compare the selected systems by its `measure`. Otherwise take the
    first requested comparison, if any; `why` then holds the reason why nothing was selected, from the file or
    `selection` itself. If a budget leaves only the system to deploy, compare it with the better system that the budget
    excludes. `selected_on` is the split of the selection with its number of judged `queries`. `deploy` is
    present if a system was chosen.
    """
    first = comparisons[0] if comparisons else {"system": None, "baseline": None}
    comparison = {"measure": None, "selected_on": None, "queries": None, "why": "", **first}
    if not isinstance(selection, Path):
        return {**comparison, "why": selection or ""}
    saved = read_json(selection / FILE)
    comparison |= {
        "selected_on": saved["split"],
        **{key: saved[key] for key in ("queries", "why", "deploy", "budget") if key in saved},
    }
    without = saved.get("budget", {}).get("without")
    if saved["system"] is None and without is not None and "deploy" in saved:
        return comparison | {"system": without, "baseline": saved["deploy"], "measure": saved["measure"]}
    if saved["system"] is None:
        return comparison
    return comparison | {key: saved[key] for key in ("system", "baseline", "measure")}
