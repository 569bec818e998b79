"""Whitening: a linear map after which a set of vectors has the mean zero and the identity as its covariance, a way to
make an encoder's vectors fit for cosines without training it (Su et al., 2021)."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparring.components.config import UserError

Floats = npt.NDArray[np.float64]
SMALLEST = 1e-10
"""The least variance in any direction, as a share of the greatest, below which vectors are taken to lie in a plane."""


class Whitening(NamedTuple):
    """The map: vectors (n, d) become `vectors @ matrix + shift`."""

    matrix: Floats
    """(d, d)."""
    shift: Floats
    """(d,)."""


def whitening(blocks: Iterable[npt.NDArray]) -> Whitening:
    """Fit the map to vectors that come in blocks (n, d): W = U S^(-1/2) for the covariance U S U^T, and -mean W.

    UserError for vectors that do not spread in all directions, as fewer vectors than dimensions do.

    >>> found = whitening([np.array([[1.0, 0.0], [3.0, 0.0]]), np.array([[2.0, 2.0], [2.0, -2.0]])])
    >>> white = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 2.0], [2.0, -2.0]]) @ found.matrix + found.shift
    >>> np.allclose(white.mean(0), 0), np.allclose(white.T @ white / 4, np.eye(2))
    (True, True)
    """
    count, first, sums, squares = 0, np.empty(0), np.empty(0), np.empty(0)
    for block in blocks:
        rows = np.asarray(block, np.float64)
        if not count:  # near the mean, so that squares are not far greater than variances
            first, sums, squares = rows[0], np.zeros(rows.shape[1]), np.zeros((rows.shape[1],) * 2)
        rows = rows - first
        count, sums, squares = count + len(rows), sums + rows.sum(0), squares + rows.T @ rows
    if not count:
        raise UserError("whitening: no texts to fit it to; accepted: more of them than a vector has dimensions")
    mean = sums / count
    variances, directions = np.linalg.eigh(squares / count - np.outer(mean, mean))
    if variances[0] <= SMALLEST * variances[-1]:
        raise UserError(
            f"whitening: the vectors of {count:,} texts do not spread in all {len(mean)} directions; "
            f"accepted: more different texts than {len(mean)}"
        )
    matrix = directions / np.sqrt(variances)
    return Whitening(matrix, -(mean + first) @ matrix)
