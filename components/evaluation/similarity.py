"""Agreement of the similarity of sentence vectors with human ratings (semantic textual similarity, STS).

As in SentEval (Conneau and Kiela, 2018), the similarity of two sentences is the cosine of their vectors, and nothing is
trained. SimCSE and DiffCSE (Chuang et al., 2022, Table 2.1) report Spearman's correlation over all pairs of a set
together, `all`; SentEval itself the mean over its subsets, `mean` or weighted by their sizes, `wmean`. The three differ
by several points on STS12 to STS16.

Systems are compared pair by pair, so each correlation is written as a mean over pairs. A pair's value is the
correlation plus the pair's influence on it (Hampel, 1974): the change if this pair had a little more weight. The
standard error of these values is the infinitesimal jackknife's (Jaeckel, 1972). It assumes no distribution, and a
hundred pairs or more.
"""

from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from sparring.components.config import Config, UserError, distinct
from sparring.components.evaluation.embedding_space import COSINES, alignment, histogram, uniformity, unit_length

Floats = npt.NDArray[np.float64]
Aggregation = Literal["all", "mean", "wmean"]
Measure = Literal["Spearman", "Pearson"]


DIGITS = 12
"""Digits of a correlation that count. Later digits change with the order in which pairs are added, and would make equal
systems differ."""
EQUAL = 1e-10
"""Largest distance from 1 of the cosine of equal sentences, whose vectors differ by rounding in the encoder."""
EQUAL_HALVES = 1e-7
"""The same for vectors that were stored in float16."""


class SimilarityConfig(Config):
    """Comparison of similarities with ratings."""

    measures: Annotated[list[Measure], AfterValidator(distinct)] = Field(["Spearman", "Pearson"], min_length=1)
    """Correlations to compute."""
    aggregation: Aggregation = "all"
    """For a set of several subsets: `all` is the correlation over all pairs together, `mean` the mean of the subsets'
    correlations, `wmean` their mean weighted by the numbers of pairs. Published numbers differ in this choice; SimCSE
    and DiffCSE have `all`."""
    aligned_above: float = 4.0
    """Pairs with a rating above this are the positive ones of the alignment, as in SimCSE (Gao et al., 2021)."""


class Correlation(NamedTuple):
    """A correlation of n pairs."""

    value: float
    influence: Floats
    """(n,) contribution of each pair, in the limit of a small weight. The mean is 0."""


def pearson(x: Floats, y: Floats) -> Correlation:
    """Return Pearson's correlation of (n,) numbers, or 0 if one of them is constant.

    >>> round(pearson(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 4.0])).value, 4)
    0.982
    """
    if _constant(x) or _constant(y):
        return Correlation(0.0, np.zeros(len(x)))
    a, b = (x - x.mean()) / x.std(), (y - y.mean()) / y.std()
    value = float((a * b).mean())
    return Correlation(value, a * b - value * (a**2 + b**2) / 2)


def spearman(x: Floats, y: Floats) -> Correlation:
    """Return Spearman's correlation of (n,) numbers: Pearson's of their ranks.

    Equal numbers share their mean rank. A constant column has no order, and the correlation is 0 (scipy returns NaN).
    One pair changes the ranks of all others, so its influence has more terms than Pearson's of the ranks.

    >>> round(spearman(np.array([1.0, 2.0, 3.0, 3.0]), np.array([1.0, 2.0, 30.0, 4.0])).value, 4)
    0.9487
    """
    if _constant(x) or _constant(y):
        return Correlation(0.0, np.zeros(len(x)))
    equal = np.ones(len(x))
    a, b = 1 - _share_above(x, equal), 1 - _share_above(y, equal)  # (rank - 1/2) / n: their means are 1/2
    covariance = _influence(a, b, _share_above(x, b) + _share_above(y, a))
    variances = [_influence(ranks, ranks, 2 * _share_above(numbers, ranks)) for numbers, ranks in ((x, a), (y, b))]
    scale = np.sqrt(a.var() * b.var())
    value = float(((a - 0.5) * (b - 0.5)).mean() / scale)
    relative = variances[0] / a.var() + variances[1] / b.var()
    return Correlation(value, covariance / scale - value * relative / 2)


def _share_above(x: Floats, weights: Floats) -> Floats:
    """Return for each number the mean over all n of the weights of larger numbers, and half of equal ones: (n,)."""
    _, rank = np.unique(x, return_inverse=True)
    sums = np.bincount(rank, weights)
    return ((weights.sum() - np.cumsum(sums) + sums / 2) / len(x))[rank]


def _influence(a: Floats, b: Floats, through_ranks: Floats) -> Floats:
    """Return a pair's influence (n,) on the mean of `a * b`, directly and through the ranks of the rest."""
    return a * b + through_ranks - 3 * (a * b).mean()


CORRELATIONS = {"Spearman": spearman, "Pearson": pearson}


def per_pair(
    measure: Measure, cosines: Floats, ratings: Floats, subsets: list[str], aggregation: Aggregation
) -> Floats:
    """Return a value for each pair (n,), whose mean is the correlation of the whole set.

    With `mean` and `wmean` each subset has its own correlation, and the values average to the mean of these. UserError
    for fewer than two pairs.
    """
    if len(cosines) < 2:
        raise UserError(f"{measure} needs two or more pairs, got {len(cosines)}")
    correlate = CORRELATIONS[measure]
    if aggregation == "all":
        correlation = correlate(cosines, ratings)
        return (correlation.value + correlation.influence).round(DIGITS)
    names, subset = np.unique(np.asarray(subsets), return_inverse=True)
    parts = [np.flatnonzero(subset == number) for number in range(len(names))]
    correlations = [correlate(cosines[part], ratings[part]) for part in parts]
    sizes = np.array([len(part) for part in parts])
    weights = sizes / sizes.sum() if aggregation == "wmean" else np.full(len(parts), 1 / len(parts))
    values = np.full(len(cosines), float(weights @ [correlation.value for correlation in correlations]))
    for part, correlation, weight in zip(parts, correlations, weights, strict=True):
        values[part] += weight * len(cosines) / len(part) * correlation.influence
    return values.round(DIGITS)


def cosines(first: npt.NDArray, second: npt.NDArray) -> Floats:
    """Return the cosines (n,) of paired (n, d) vectors: 1 if they are equal but for rounding (`equal_as_one`), 0 if
    one of them is zero.
    """
    within = EQUAL_HALVES if np.float16 in (first.dtype, second.dtype) else EQUAL
    return equal_as_one((unit_length(first) * unit_length(second)).sum(1), within)


def equal_as_one(cosines: Floats, within: float = EQUAL) -> Floats:
    """Set the cosines (n,) of equal sentences to 1. Their last digits would put such pairs in random order.

    No other is rounded: an encoder whose vectors lie close together orders its pairs by late digits.
    """
    return np.where(np.abs(1 - cosines) < within, 1.0, cosines)


def space(first: npt.NDArray, second: npt.NDArray, ratings: Floats, config: SimilarityConfig) -> dict[str, Any]:
    """Describe the sentences' vectors (n, d) of n pairs, as JSON.

    Alignment is over the pairs that are rated above `aligned_above` (None where there are none), uniformity over all
    sentences, both of vectors of length 1 (Wang and Isola, 2020; Table 2.11, which follows SimCSE).
    `cosines` has their distribution in each group of ratings from one whole number to the next (Figure 2-2).
    """
    a, b = unit_length(first), unit_length(second)
    close = ratings > config.aligned_above
    return {
        "pairs": len(ratings),
        "aligned": int(close.sum()),
        "alignment": alignment(a[close], b[close]) if close.any() else None,
        "uniformity": uniformity(np.concatenate([a, b])),
        "cosines": by_rating((a * b).sum(1), ratings),
    }


def by_rating(cosines: Floats, ratings: Floats) -> list[dict[str, Any]]:
    """Return the distribution of (n,) cosines in groups of ratings, the highest first. The highest rating, such as 5,
    is in the group below it.

    >>> [(one["ratings"], one["pairs"]) for one in by_rating(np.zeros(4), np.array([0.0, 0.9, 4.0, 5.0]))]
    [('4 to 5', 2), ('0 to 1', 2)]
    """
    groups = np.minimum(np.floor(ratings), max(0, np.ceil(ratings.max()) - 1)).astype(int)
    return [
        {
            "ratings": f"{group} to {group + 1}",
            "pairs": int((groups == group).sum()),
            "mean": float(cosines[groups == group].mean()),
            "histogram": histogram(cosines[groups == group], COSINES),
        }
        for group in sorted(set(groups.tolist()), reverse=True)
    ]


def _constant(x: Floats) -> bool:
    return bool(np.ptp(x) == 0)
