"""Runs of adjacent rows with equal values, such as the rows of a query in a ranking."""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


def starts(values: npt.NDArray) -> Rows:
    """Return the rows at which a run starts: (R,). The value differs from that of the row before.

    >>> starts(np.array([4, 4, 7, 7, 7])).tolist()
    [0, 2]
    """
    return np.flatnonzero(np.r_[True, values[1:] != values[:-1]][: len(values)])


def ranks(values: npt.NDArray) -> Rows:
    """Return the position of each row in its run of equal values, from 0: (N,).

    >>> ranks(np.array([4, 4, 7, 7, 7])).tolist()
    [0, 1, 0, 1, 2]
    """
    first = starts(values)
    return np.arange(len(values)) - np.repeat(first, np.diff(np.r_[first, len(values)]))
