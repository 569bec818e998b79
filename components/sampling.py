"""Which of a query's candidates become negatives: pure functions found by dotted path.

Each takes the candidates' scores, best first, and a generator keyed by (seed, purpose, query, visit), and returns
positions of at most `count` of them, without repetition.
"""

import numpy as np


def uniform(scores: np.ndarray, count: int, draw: np.random.Generator, positive: float | None) -> np.ndarray:
    """Any of them alike: AR2's choice (paper 004, section 3.1)."""
    return draw.permutation(len(scores))[:count]


def hardest(scores: np.ndarray, count: int, draw: np.random.Generator, positive: float | None) -> np.ndarray:
    """The first ones."""
    return np.arange(min(count, len(scores)))
