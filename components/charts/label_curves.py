"""Curves of labels and predictions by rank: the data of Zerveas et al. (2023), Figures 11-13."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Mark = tuple[int, float, float | None]
"""Position on the axis, mean, and standard deviation over queries or None."""
Curves = dict[str, list[Mark]]
Picture = dict[str, Any]
"""`title`, `about`, `x` and `curves`."""

Shares = npt.NDArray[np.float64]


def picture(title: str, about: str, x: str, curves: Curves) -> Picture:
    """One chart."""
    return {"title": title, "about": about, "x": x, "curves": curves}


def by_rank(values: Shares, mask: npt.NDArray[np.bool_]) -> list[Mark]:
    """Mean and deviation, at each rank, of (Q, N) numbers sorted in descending order for each query.

    `mask` (Q, N) is False at padding; a rank counts the queries that have so many numbers.
    """
    ordered = -np.sort(-np.where(mask, values, -np.inf), axis=1)
    marks: list[Mark] = []
    for rank, column in enumerate(ordered.T, 1):
        own = column[np.isfinite(column)]
        if len(own):
            marks.append((rank, float(own.mean()), float(own.std())))
    return marks


def normalised(values: Shares, mask: npt.NDArray[np.bool_], how: str) -> Shares:
    """Each query's numbers divided by the largest, or for `max-min` scaled to 0 to 1 (Figure 13 has both)."""
    low = np.where(mask, values, np.inf).min(1, keepdims=True) if how == "max-min" else 0.0
    high = np.where(mask, values, -np.inf).max(1, keepdims=True)
    span = np.where(high - low > 0, high - low, 1.0)
    return np.where(mask, (values - low) / span, 0.0)


def softmax(scores: Shares, mask: npt.NDArray[np.bool_], temperature: float) -> Shares:
    """(Q, N) softmax over the candidates; 0 at padding, where `mask` is False."""
    shifted = np.where(mask, scores / temperature, -np.inf)
    exponentials = np.exp(shifted - shifted.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)
