"""Samplers of negatives: pure functions that choose from a query's candidates. Configs name them by short name.

Each takes the candidates' scores, best first, and a random generator, and returns the positions of at most `count`
different candidates. `positive` is the retriever's score of the group's positive; if that is not among the
documents that are read, the first `depth` of a ranking and some more, the lowest score of these, which is the highest
that it can have. A sampler may take `visit` too, keyword-only and without a
default: how often the query was drawn from before.
"""

import numpy as np


def uniform(scores: np.ndarray, count: int, rng: np.random.Generator, positive: float) -> np.ndarray:
    """Every candidate with the same probability, as AR2 samples (Zhang et al., 2022, section 3.1).

    >>> scores = np.array([9.0, 8.0, 7.0, 6.0])
    >>> uniform(scores, 2, np.random.default_rng(0), positive=8.5)
    array([2, 0])
    """
    return rng.permutation(len(scores))[:count]


def hardest(scores: np.ndarray, count: int, rng: np.random.Generator, positive: float) -> np.ndarray:
    """The candidates with the highest scores.

    >>> hardest(np.array([9.0, 8.0, 7.0, 6.0]), 2, np.random.default_rng(0), positive=8.5)
    array([0, 1])
    """
    return np.arange(min(count, len(scores)))


def rotating(scores: np.ndarray, count: int, rng: np.random.Generator, positive: float, *, visit: int) -> np.ndarray:
    """The candidates in turn, `count` at each visit of the query and from the first again after the last: as SimLM's
    public code does (Wang et al., 2023, draw at random in the paper).

    So all candidates are seen equally often. The code begins at a place that depends on the seed, and takes the
    positives in turn too; here every seed begins with the first, and positives are drawn.

    >>> scores = np.array([9.0, 8.0, 7.0, 6.0, 5.0])
    >>> [rotating(scores, 2, np.random.default_rng(0), positive=8.5, visit=visit).tolist() for visit in range(3)]
    [[0, 1], [2, 3], [4, 0]]
    """
    return (visit * count + np.arange(min(count, len(scores)))) % max(1, len(scores))


def simans(
    scores: np.ndarray, count: int, rng: np.random.Generator, positive: float, *, a: float = 0.5, b: float = 0.0
) -> np.ndarray:
    """Candidates with about the positive's score: weight `exp(-a (s - s+ - b)^2)` (SimANS, Zhou et al., 2022).

    Much lower scores teach little; much higher ones are likely unjudged positives. A larger `a` keeps closer, a `b`
    below 0 prefers scores below the positive's. The public code has no `b` and may draw a candidate more than once.

    >>> simans(np.array([9.0, 8.0, 7.0, 6.0]), 2, np.random.default_rng(0), positive=6.5, a=100.0)
    array([3, 2])
    """
    return _without_repetition(-a * (scores - positive - b) ** 2, count, rng)


def softmax(
    scores: np.ndarray, count: int, rng: np.random.Generator, positive: float, *, temperature: float = 1.0
) -> np.ndarray:
    """Candidates by the retriever's probability: weight `exp(s / temperature)`, as IRGAN samples (Wang et al., 2017;
    Zhang et al., 2022, Table 5).

    >>> softmax(np.array([9.0, 8.0, 7.0, 6.0]), 2, np.random.default_rng(0), positive=8.5, temperature=0.01)
    array([0, 1])
    """
    return _without_repetition(scores / temperature, count, rng)


def _without_repetition(log_weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Positions drawn by weight without replacement: the largest log-weights after adding Gumbel noise."""
    noisy = log_weights.astype(np.float64) + rng.gumbel(size=len(log_weights))
    return np.argsort(-noisy, kind="stable")[:count]
