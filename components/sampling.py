"""Samplers of negatives: pure functions that choose from a query's candidates. Configs use their short names.

Each function gets the candidates' scores, best first, and a random generator. It returns the positions of at most
`count` different candidates. `positive` is the retriever's score of the group's positive. Only the first `depth`
documents of a ranking and a few more are read. If the positive is not among them, `positive` is the lowest of their
scores, the highest that it can have. A sampler may also have a parameter `visit`, keyword-only and without a default:
the number of earlier draws for the query.
"""

import numpy as np


def uniform(scores: np.ndarray, count: int, rng: np.random.Generator, positive: float) -> np.ndarray:
    """Draw every candidate with the same probability, as in AR2 (Zhang et al., 2022, section 3.1).

    >>> scores = np.array([9.0, 8.0, 7.0, 6.0])
    >>> uniform(scores, 2, np.random.default_rng(0), positive=8.5)
    array([2, 0])
    """
    return rng.permutation(len(scores))[:count]


def hardest(scores: np.ndarray, count: int, rng: np.random.Generator, positive: float) -> np.ndarray:
    """Choose the candidates with the highest scores.

    >>> hardest(np.array([9.0, 8.0, 7.0, 6.0]), 2, np.random.default_rng(0), positive=8.5)
    array([0, 1])
    """
    return np.arange(min(count, len(scores)))


def rotating(scores: np.ndarray, count: int, rng: np.random.Generator, positive: float, *, visit: int) -> np.ndarray:
    """Choose the candidates in turn, `count` at each visit of the query, as in SimLM's public code.

    After the last candidate comes the first again, so all candidates are chosen equally often. In the paper (Wang et
    al., 2023), candidates are drawn at random. The public code begins at a position that depends on the seed, and
    chooses the positives in turn too. Here every seed begins with the first candidate, and positives are drawn.

    >>> scores = np.array([9.0, 8.0, 7.0, 6.0, 5.0])
    >>> [rotating(scores, 2, np.random.default_rng(0), positive=8.5, visit=visit).tolist() for visit in range(3)]
    [[0, 1], [2, 3], [4, 0]]
    """
    return (visit * count + np.arange(min(count, len(scores)))) % max(1, len(scores))


def simans(
    scores: np.ndarray, count: int, rng: np.random.Generator, positive: float, *, a: float = 0.5, b: float = 0.0
) -> np.ndarray:
    """Draw candidates with scores near the positive's, by the weight `exp(-a (s - s+ - b)^2)`.

    This is SimANS (Zhou et al., 2022). Candidates with much lower scores teach little. Those with much higher scores
    are probably unjudged positives. With a larger `a`, scores are closer to the positive's. A `b` below 0 prefers
    scores below the positive's. The public code has no `b` and may draw a candidate more than once.

    >>> simans(np.array([9.0, 8.0, 7.0, 6.0]), 2, np.random.default_rng(0), positive=6.5, a=100.0)
    array([3, 2])
    """
    return _without_repetition(-a * (scores - positive - b) ** 2, count, rng)


def softmax(
    scores: np.ndarray, count: int, rng: np.random.Generator, positive: float, *, temperature: float = 1.0
) -> np.ndarray:
    """Draw candidates by the retriever's probability, with the weight `exp(s / temperature)`.

    This is the sampling of IRGAN (Wang et al., 2017; Zhang et al., 2022, Table 5).

    >>> softmax(np.array([9.0, 8.0, 7.0, 6.0]), 2, np.random.default_rng(0), positive=8.5, temperature=0.01)
    array([0, 1])
    """
    return _without_repetition(scores / temperature, count, rng)


def _without_repetition(log_weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw positions by weight without replacement: the largest log-weights after adding Gumbel noise."""
    noisy = log_weights.astype(np.float64) + rng.gumbel(size=len(log_weights))
    return np.argsort(-noisy, kind="stable")[:count]
