"""Which of a query's candidates become negatives: pure functions found by dotted path.

Each takes the candidates' scores, best first, and a generator keyed by (seed, purpose, query, visit), and returns
positions of at most `count` of them, without repetition. `positive` is the score that the retriever gives the group's
positive; where that was not retrieved, the lowest score that was, which is the most it can be.
"""

import numpy as np


def uniform(scores: np.ndarray, count: int, draw: np.random.Generator, positive: float) -> np.ndarray:
    """Any of them alike: AR2's choice (paper 004, section 3.1)."""
    return draw.permutation(len(scores))[:count]


def hardest(scores: np.ndarray, count: int, draw: np.random.Generator, positive: float) -> np.ndarray:
    """The first ones."""
    return np.arange(min(count, len(scores)))


def simans(
    scores: np.ndarray, count: int, draw: np.random.Generator, positive: float, *, a: float = 0.5, b: float = 0.0
) -> np.ndarray:
    """Those about as near to the query as the positive: weight `exp(-a (s - s+ - b)^2)` (SimANS, Zhou et al. 2022).

    Neither too easy to teach anything nor so near that they are likely unjudged answers; a larger `a` keeps closer, and
    a `b` below 0 seeks them below the positive. The public code has no `b`, and draws with repetition.
    """
    return _without_repetition(-a * (scores - positive - b) ** 2, count, draw)


def softmax(
    scores: np.ndarray, count: int, draw: np.random.Generator, positive: float, *, temperature: float = 1.0
) -> np.ndarray:
    """As the retriever would choose them: weight `exp(s / temperature)`, IRGAN's choice (paper 004, Table 5)."""
    return _without_repetition(scores / temperature, count, draw)


def _without_repetition(log_weights: np.ndarray, count: int, draw: np.random.Generator) -> np.ndarray:
    """Draw one after another by weight from what is left: the largest of log-weights with Gumbel noise."""
    noisy = log_weights.astype(np.float64) + draw.gumbel(size=len(log_weights))
    return np.argsort(-noisy, kind="stable")[:count]
