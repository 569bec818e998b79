"""What labels and predictions look like, rank by rank: the numbers of paper 003's Figures 2 and 11 to 13."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Mark = tuple[int, float, float | None]
"""Where on the axis, the mean, and the standard deviation over queries or None."""
Curves = dict[str, list[Mark]]
Picture = dict[str, Any]
"""`title`, `about`, `x` and `curves`."""

Shares = npt.NDArray[np.float64]


def picture(title: str, about: str, x: str, curves: Curves) -> Picture:
    """One chart."""
    return {"title": title, "about": about, "x": x, "curves": curves}


def by_rank(values: Shares, there: npt.NDArray[np.bool_]) -> list[Mark]:
    """(Q, N) numbers in descending order for each query: at each rank mean and deviation over queries that have it."""
    ordered = -np.sort(-np.where(there, values, -np.inf), axis=1)
    found: list[Mark] = []
    for rank, column in enumerate(ordered.T, 1):
        own = column[np.isfinite(column)]
        if len(own):
            found.append((rank, float(own.mean()), float(own.std())))
    return found


def normalised(values: Shares, there: npt.NDArray[np.bool_], how: str) -> Shares:
    """Each query's numbers with the largest 1: divided by it, or with the least 0 too (Figure 13's two)."""
    low = np.where(there, values, np.inf).min(1, keepdims=True) if how == "max-min" else 0.0
    high = np.where(there, values, -np.inf).max(1, keepdims=True)
    span = np.where(high - low > 0, high - low, 1.0)
    return np.where(there, (values - low) / span, 0.0)


def softmax(scores: Shares, there: npt.NDArray[np.bool_], temperature: float) -> Shares:
    """(Q, N) shares that sum to 1 over what is there."""
    shifted = np.where(there, scores / temperature, -np.inf)
    powers = np.exp(shifted - shifted.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def of_training(lines: Sequence[dict[str, Any]]) -> list[Picture]:
    """Figure 2: what was seen of the development queries, step by step."""
    looks = [line for line in lines if any(name.startswith("dev ") for name in line)]
    names = list(dict.fromkeys(name for line in looks for name in line if name.startswith("dev ")))
    about = {
        "dev loss": "Divergence of the predicted distribution from the labels that are there. It may fall while ranks "
        "get no better, as labels are few.",
        "dev RR": "Reciprocal rank of the best relevant document among a query's own candidates.",
    }
    return [
        picture(
            f"{name.removeprefix('dev ')} on development queries", about.get(name, ""), "step",
            {name.removeprefix("dev "): [(line["step"], line[name], None) for line in looks if name in line]},
        )
        for name in names
    ]  # fmt: skip
