"""Whitening (Su et al., 2021): a linear map that gives a set of vectors mean zero and the identity as covariance.

It makes the vectors of an untrained encoder suitable for comparison by cosine.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparring.components.config import UserError

Floats = npt.NDArray[np.float64]
SMALLEST = 1e-10
"""Smallest accepted variance in a direction, as a share of the largest. Below it, the vectors do not span the space."""


class Whitening(NamedTuple):
    """A linear map. Vectors (n, d) become `vectors @ matrix + shift`."""

    matrix: Floats
    """Matrix of the map: (d, d)."""
    shift: Floats
    """Shift of the map: (d,)."""


def whitening(blocks: Iterable[npt.NDArray]) -> Whitening:
    """Fit the map to vectors in blocks (n, d): W = U S^(-1/2) for the covariance U S U^T, with the shift -mean W.

    Raise UserError if the vectors do not span all dimensions, for example if there are fewer vectors than dimensions.

    >>> found = whitening([np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[2.0, 2.0], [2.0, -2.0]])])
    >>> white = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 2.0], [2.0, -2.0]]) @ found.matrix + found.shift
    >>> np.allclose(white.mean(0), 0), np.allclose(white.T @ white / 4, np.eye(2))
    (True, True)
    """
    count, first, sums, squares = 0, np.empty(0), np.empty(0), np.empty(0)
    for block in blocks:
        rows = np.asarray(block, np.float64)
        if not count:  # subtract a vector near the mean, so that squares are not much larger than variances
            first, sums, squares = rows[0], np.zeros(rows.shape[1]), np.zeros((rows.shape[1],) * 2)
        rows = rows - first
        count, sums, squares = count + len(rows), sums + rows.sum(0), squares + rows.T @ rows
    if not count:
        raise UserError("whitening: there are no texts to fit it to. Provide more texts than a vector has dimensions.")
    mean = sums / count
    variances, directions = np.linalg.eigh(squares / count - np.outer(mean, mean))
    if variances[0] <= SMALLEST * variances[-1]:
        raise UserError(
            f"whitening: the vectors of {count:,} texts do not span all {len(mean)} dimensions. Provide more than "
            f"{len(mean)} different texts."
        )
    matrix = directions / np.sqrt(variances)
    return Whitening(matrix, -(mean + first) @ matrix)
