"""Compute curves of labels and predictions by rank: the data of Zerveas et al. (2023), Figures 11-13."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Mark = tuple[int, float, float | None]
"""Position on the axis, mean, and standard deviation over queries (or None)."""
Curves = dict[str, list[Mark]]
Picture = dict[str, Any]
"""`title`, `about`, `x` and `curves`."""

Shares = npt.NDArray[np.float64]


def picture(title: str, caption: str, x: str, curves: Curves) -> Picture:
    """Describe a chart, as a file holds it."""
    return {"title": title, "about": caption, "x": x, "curves": curves}


def by_rank(values: Shares, mask: npt.NDArray[np.bool_]) -> list[Mark]:
    """Sort (Q, N) numbers in descending order for each query; compute mean and deviation at each rank.

    `mask` (Q, N) is False at padding. Queries with fewer numbers than a rank do not count there.
    """
    ordered = -np.sort(-np.where(mask, values, -np.inf), axis=1)
    marks: list[Mark] = []
    for rank, column in enumerate(ordered.T, 1):
        numbers = column[np.isfinite(column)]
        if len(numbers):
            marks.append((rank, float(numbers.mean()), float(numbers.std())))
    return marks


def normalised(values: Shares, mask: npt.NDArray[np.bool_], scaling: str) -> Shares:
    """Divide each query's numbers by the largest one, or for `max-min` scale them to 0 to 1 (Figure 13 has both)."""
    low = np.where(mask, values, np.inf).min(1, keepdims=True) if scaling == "max-min" else 0.0
    high = np.where(mask, values, -np.inf).max(1, keepdims=True)
    span = np.where(high - low > 0, high - low, 1.0)
    return np.where(mask, (values - low) / span, 0.0)


def softmax(scores: Shares, mask: npt.NDArray[np.bool_], temperature: float) -> Shares:
    """Compute the softmax of (Q, N) scores over the candidates; 0 at padding, where `mask` is False."""
    shifted = np.where(mask, scores / temperature, -np.inf)
    exponentials = np.exp(shifted - shifted.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)
