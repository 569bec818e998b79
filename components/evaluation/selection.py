"""Which systems are selected, and which comparison leads a run's results."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FILE = "selection.json"
"""The file that says which systems were selected, and why not where none was."""

Json = dict[str, Any]


def selected(values: Mapping[str, Sequence[np.ndarray]], trained: Mapping[str, bool]) -> Json:
    """The best trained system, and the best untrained one as its baseline, with every candidate's value.

    `values` has each system's (Q,) values of the same queries, one array a seed. A system's value is the mean over
    seeds and queries; its standard error is that of a mean over the queries. Of equals the first is the best. Without a
    system of either kind nothing is selected, and `why` says so.

    >>> values = {"BM25": [np.array([0.0, 1.0])], "retriever": [np.array([1.0, 1.0]), np.array([0.0, 1.0])]}
    >>> made = selected(values, {"BM25": False, "retriever": True})
    >>> made["system"], made["baseline"], [one["value"] for one in made["candidates"]]
    ('retriever', 'BM25', [0.5, 0.75])
    """
    means = {name: np.mean(seeds, axis=0) for name, seeds in values.items()}
    candidates: list[Json] = [
        {"system": name, "trained": trained[name], "value": float(each.mean()),
         "standard_error": float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else None}
        for name, each in means.items()
    ]  # fmt: skip
    kinds = {kind: [one for one in candidates if one["trained"] is kind] for kind in (True, False)}
    best = {kind: max(of, key=lambda one: one["value"])["system"] for kind, of in kinds.items() if of}
    if len(best) == 2:
        return {"system": best[True], "baseline": best[False], "why": "", "candidates": candidates}
    why = "no system was trained" if not kinds[True] else "every system was trained"
    return {"system": None, "baseline": None, "why": why, "candidates": candidates}


def leading(selection: Path | str | None, comparisons: Sequence[Mapping[str, str]]) -> Json:
    """The comparison that leads. `selection` is the folder of `selection.json`: then it is that of the selected
    systems, `selected_on` a split, by `measure`. Otherwise it is the first that was asked for, if any, and `why` says
    why nothing was selected: what the file says, or `selection` itself.
    """
    first = comparisons[0] if comparisons else {"system": None, "baseline": None}
    why = selection if isinstance(selection, str) else ""
    if isinstance(selection, Path):
        made = json.loads((selection / FILE).read_text())
        if made["system"] is not None:
            return {**{key: made[key] for key in ("system", "baseline", "measure")}, "selected_on": made["split"],
                    "why": ""}  # fmt: skip
        why = made["why"]
    return {"system": first["system"], "baseline": first["baseline"], "measure": None, "selected_on": None, "why": why}
