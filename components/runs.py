"""Rows of one query stand together in a ranking: where each such run begins, and each row's place in its own."""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


def starts(of: npt.NDArray) -> Rows:
    """(R,) the rows that have another value than the one before."""
    return np.flatnonzero(np.r_[True, of[1:] != of[:-1]][: len(of)])


def places(of: npt.NDArray) -> Rows:
    """(N,) how many rows of its run stand before each: a rank, counted from 0."""
    first = starts(of)
    return np.arange(len(of)) - np.repeat(first, np.diff(np.r_[first, len(of)]))
