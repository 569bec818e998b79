"""Confidence intervals of means, and tests of differences between systems.

Chance has two sources. Other queries would have other values, and another training, of another seed, would make another
model. What is measured of one training speaks of that model; only several trainings speak of the method.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparring.components.evaluation.measures import by_measure
from sparring.components.evaluation.similarity import CORRELATIONS
from sparring.components.rng import keyed_rng

THIS_TRAINING = "paired randomization over queries (this training)"
"""The test that takes the trained models as they are: `paired_randomization` of each query's mean over the seeds."""
THE_METHOD = "crossed over seeds and queries (the method)"
"""The test that takes seeds and queries as samples of all there could be: p of `estimate`."""
CONFIDENCE = 0.95
"""The share of samples whose interval holds the true mean."""
POWER = 0.8
"""The chance of finding a difference with the sample size that `sample_factor` names."""

_MAX_SIGNS = 4_000_000  # random signs drawn together, which bounds memory to some tens of megabytes

Layout = np.ndarray
"""(S, Q) values: a row a seed, a column a query."""
Json = dict[str, Any]


class Estimate(NamedTuple):
    """A mean, the variance of that mean, and how many degrees of freedom the variance has: 0 if it is not known."""

    mean: float
    variance: float
    freedom: float

    def interval(self) -> tuple[float, float] | None:
        """Return the ends of the mean's 95 % interval, by Student's t, or None if the variance is unknown."""
        from scipy import stats

        if self.freedom == 0:
            return None
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.freedom)) * math.sqrt(self.variance)
        return self.mean - half, self.mean + half

    def p(self) -> float:
        """Two-sided p of the mean against 0, by Student's t; 1 where the variance is not known."""
        from scipy import stats

        if self.freedom == 0 or self.mean == 0:
            return 1.0
        return float(2 * stats.t.sf(abs(self.mean) / math.sqrt(self.variance), self.freedom)) if self.variance else 0.0


def estimate(layouts: Sequence[Layout], weights: Sequence[float] = (1.0,)) -> Estimate:
    """Return the weighted mean of the means of (S, Q) layouts, one a collection, with a variance that counts queries
    and trainings.

    One layout with one seed gives the usual error of a mean over queries. With several seeds the values of every seed
    and query are a crossed two-way layout without replication, both random: value = mean + seed + query + interaction,
    as in Clark (1973, quasi F), with queries for his words and trainings for his subjects. With variances a, b and e of
    the three, the mean's is

        V = a / S + b / Q + e / (S Q) = (MS_seeds + MS_queries - MS_interaction) / (S Q)

    in mean squares of the analysis of variance, and its degrees of freedom are Satterthwaite's (1946): V squared over
    the sum of the squares of its terms, each divided by its own degrees of freedom. A source whose mean square is not
    above the interaction's has an estimate of a or b that is not above 0: it is taken as 0 (Thompson, 1962), and that
    mean square leaves both sums. So what is the same for all seeds has exactly the paired t test over queries.

    Over collections, queries and interactions are independent and their weighted variances add up, while a seed is one
    training for all of them: the seeds' part is taken of each seed's weighted mean.

    In the simulations of the tests this rejects 3 to 7 % of true null hypotheses at 3 and at 5 seeds. With the fewest
    seeds it rejects too many where the trainings outweigh the queries: at 1,000 queries, a deviation of .3 over them
    and one of .05 over seeds, 13 % at 2 seeds, 8 % at 3 and 6 % at 5. It is conservative where seeds do not differ and
    all else is interaction: 3 %.

    >>> values = np.array([[0.0, 0.5, 1.0], [0.25, 0.25, 1.0]])
    >>> [round(number, 4) for number in estimate([values])]
    [0.5, 0.0677, 2.0]
    """
    squared, counts = np.square(weights), np.array([values.shape[1] for values in layouts])
    by_seed = np.sum([w * values.mean(1) for w, values in zip(weights, layouts, strict=True)], axis=0)
    mean, seeds = float(by_seed.mean()), len(by_seed)
    if counts.min() < 2:
        return Estimate(mean, math.inf, 0.0)
    queries = _Source(squared * [values.mean(0).var(ddof=1) for values in layouts] / counts, counts - 1)
    terms = [(1, queries)]
    if seeds > 1:
        trainings = _Source(np.array([by_seed.var(ddof=1) / seeds]), np.array([seeds - 1]))
        freedom = (seeds - 1) * (counts - 1)
        residuals = np.array([(_residuals(values) ** 2).sum() for values in layouts])
        interaction = _Source(squared * residuals / freedom / (seeds * counts), freedom)
        # Mean squares that are equal differ in their last bits.
        counted = [source for source in (trainings, queries) if source.total > interaction.total * (1 + 1e-9)]
        terms = [*((1, source) for source in counted), (1 - len(counted), interaction)]
    variance = sum(sign * source.total for sign, source in terms)
    squares = sum(sign**2 * source.squares for sign, source in terms)
    return Estimate(mean, variance, variance**2 / squares if squares else math.inf)


class _Source(NamedTuple):
    """Share of one source of chance in the variance of a mean, for each collection, with degrees of freedom."""

    variances: np.ndarray
    freedom: np.ndarray

    @property
    def total(self) -> float:
        return float(self.variances.sum())

    @property
    def squares(self) -> float:
        """Satterthwaite's denominator."""
        return float((self.variances**2 / self.freedom).sum())


def _residuals(values: Layout) -> Layout:
    """Return the part of the values that neither the seed nor the query explains."""
    return values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()


def layouts(tables: Sequence[pa.Table]) -> dict[str, tuple[list[str], Layout]]:
    """Return for each measure the query ids in order and the (S, Q) values of per-query tables, one a seed.

    ValueError if the queries differ between the seeds.

    >>> table = pa.table({"query_id": ["q2", "q1"], "measure": ["RR", "RR"], "value": [1.0, 0.5]})
    >>> layouts([table, table])
    {'RR': (['q1', 'q2'], array([[0.5, 1. ],
           [0.5, 1. ]]))}
    """
    first, *rest = [by_measure(table) for table in tables]
    merged = {}
    for name, (queries, values) in first.items():
        if any(name not in layout or layout[name][0] != queries for layout in rest):
            raise ValueError(f"{name}: the seeds of one system were measured on different queries")
        merged[name] = (queries, np.stack([values, *(layout[name][1] for layout in rest)]))
    return merged


def compare(system: Sequence[pa.Table], baseline: Sequence[pa.Table], *, seed: int, rounds: int = 10_000) -> list[Json]:
    """Difference of the means, its interval and p, of every measure that both systems have: an entry a test.

    `system` and `baseline` have one per-query table for each seed, the same seeds in the same order. The test
    `THIS_TRAINING` is over each query's mean over the seeds, and its interval counts the queries alone. From two seeds
    on there is `THE_METHOD` too. If one system was measured on a sample of the other's queries, both are compared on
    that sample. ValueError if the queries differ otherwise, as those of a correlation never may, or between the seeds
    of a system.

    >>> table = pa.table({"query_id": ["q1", "q2"], "measure": ["RR", "RR"], "value": [0.5, 1.0]})
    >>> lower = pa.table({"query_id": ["q1", "q2"], "measure": ["RR", "RR"], "value": [0.0, 1.0]})
    >>> [one] = compare([table], [lower], seed=1)
    >>> one["difference"], one["p"], one["test"]
    (0.25, 1.0, 'paired randomization over queries (this training)')
    """
    return compare_averages([(system, baseline)], [1.0], seed=seed, rounds=rounds)


def compare_averages(
    pairs: Sequence[tuple[Sequence[pa.Table], Sequence[pa.Table]]],
    weights: Sequence[float],
    *,
    seed: int,
    rounds: int = 10_000,
) -> list[Json]:
    """Compare weighted means over collections, as `compare` does for one collection.

    `pairs` holds the two systems' tables of each collection, `weights` a weight for each. Measures that all collections
    have are compared. Randomization swaps a query's two values independently of its collection. A query counts as much
    as it does in the mean.
    """
    measured = [paired(layouts(system), layouts(baseline)) for system, baseline in pairs]
    comparisons = []
    for name in (name for name in measured[0] if all(name in values for values in measured)):
        both = [values[name] for values in measured]
        queries = [a.shape[1] for a, _ in both]
        mean = estimate([(a - b).mean(0, keepdims=True) for a, b in both], weights)
        share = np.repeat(np.divide(weights, queries), queries)
        system_means, baseline_means = (
            share * np.concatenate([values.mean(0) for values in side]) for side in zip(*both, strict=True)
        )
        tests = [(THIS_TRAINING, mean, paired_randomization(system_means, baseline_means, seed=seed, rounds=rounds))]
        if len(both[0][0]) > 1:
            crossed = estimate([a - b for a, b in both], weights)
            tests.append((THE_METHOD, crossed, crossed.p()))
        for test, estimated, p in tests:
            shared = {"measure": name, "difference": estimated.mean, **ends(estimated)}
            comparisons.append({**shared, "p": p, "test": test, "queries": sum(queries)})
    return comparisons


def paired(
    system: dict[str, tuple[list[str], Layout]], baseline: dict[str, tuple[list[str], Layout]]
) -> dict[str, tuple[Layout, Layout]]:
    """Return the values of two systems on the queries that both have, by measure.

    ValueError if neither system's queries contain the other's, or if the pairs of a correlation differ.
    """
    both = {}
    for name in (name for name in system if name in baseline):
        (queries, a), (baseline_queries, b) = system[name], baseline[name]
        if queries != baseline_queries:
            common = set(queries) & set(baseline_queries)
            if len(common) < min(len(queries), len(baseline_queries)):
                raise ValueError(f"{name}: the systems to compare were measured on different queries")
            if name in CORRELATIONS:  # a mean of some pairs' values is no correlation of these
                raise ValueError(f"{name}: the systems to compare were measured on different pairs")
            a = a[:, [query in common for query in queries]]
            b = b[:, [query in common for query in baseline_queries]]
        both[name] = (a, b)
    return both


def ends(estimated: Estimate) -> Json:
    """Return `low` and `high`, the ends of the interval, both None for a single query."""
    low, high = estimated.interval() or (None, None)
    return {"low": low, "high": high}


def sample_factor(difference: float, low: float | None, high: float | None, family: int) -> float | None:
    """Return how many times as large a sample must be to find a difference of this size with a chance of 80 %.

    `low` and `high` are the ends of the difference's 95 % interval. The difference is found if its p, multiplied by
    the number of comparisons in the `family`, is below .05: Holm's first step, by the normal approximation. Return None
    for a difference of 0 and for an unknown interval.

    >>> round(sample_factor(0.02, -0.02, 0.06, 1), 2)
    8.17
    >>> sample_factor(0.0, -0.02, 0.02, 1)
    """
    from scipy import stats

    if low is None or high is None or difference == 0:
        return None
    error = (high - low) / 2 / stats.norm.ppf((1 + CONFIDENCE) / 2)
    wanted = stats.norm.isf((1 - CONFIDENCE) / 2 / family) + stats.norm.ppf(POWER)
    return max(1.0, float(wanted * error / difference) ** 2)


def paired_randomization(a: np.ndarray, b: np.ndarray, *, seed: int, rounds: int = 10_000) -> float:
    """p of a two-sided paired randomization test of the difference in means of (n,) paired values.

    If the systems do not differ, each query's two values could as well be swapped. p is the share of `rounds` random
    swaps, the observed values counted as one more, whose difference is at least as large as the observed one.

    Of 1024 ways to swap ten queries that all improved, only two have so large a difference:

    >>> p = paired_randomization(np.ones(10), np.zeros(10), seed=1)
    >>> 0.0005 < p < 0.004
    True
    """
    if a.shape != b.shape:
        raise ValueError(f"paired values are needed, got {a.shape} and {b.shape}")
    differences = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    differences = differences[differences != 0]  # swapping equal values changes nothing
    if not len(differences):
        return 1.0
    total = differences.sum()
    # Sums in another order differ in the last bits; a swap whose difference is equal but for these counts too.
    threshold = abs(total) - 1e-9 * np.abs(differences).sum()
    rng = keyed_rng(seed, "paired randomization")
    chunk, hits = max(1, _MAX_SIGNS // len(differences)), 0
    for start in range(0, rounds, chunk):
        size = (min(chunk, rounds - start), -(-len(differences) // 8))
        bits = np.unpackbits(rng.integers(0, 256, size, np.uint8), axis=1, count=len(differences))
        hits += int((np.abs(total - 2 * (bits @ differences)) >= threshold).sum())
    return (hits + 1) / (rounds + 1)


def holm(ps: Sequence[float]) -> list[float]:
    """Correct each p for the rest of its family (Holm, 1979). The smallest of m is multiplied by m, the next by m - 1,
    and so on, and none gets below the one before. Whatever the dependence, the chance that any true null hypothesis of
    the family gets a corrected p below .05 is at most 5 %.

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    order = np.argsort(ps, kind="stable")
    factors = np.arange(len(ps), 0, -1)
    corrected = np.empty(len(ps))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(np.asarray(ps, np.float64)[order] * factors))
    return [float(p) for p in corrected]


def corrected(comparisons: Sequence[Json]) -> list[Json]:
    """Add `p_holm` to the comparisons. A family is all comparisons of a table (a collection's split) by the same test.

    The least p of `THIS_TRAINING` is 1 / (rounds + 1), so it cannot tell more than rounds / 20 comparisons apart.
    """
    families: dict[tuple[str, str, str], list[int]] = {}
    for index, comparison in enumerate(comparisons):
        families.setdefault((comparison["collection"], comparison["split"], comparison["test"]), []).append(index)
    corrected_p: dict[int, float] = {}
    for places in families.values():
        corrected_p.update(zip(places, holm([comparisons[index]["p"] for index in places]), strict=True))
    return [{**comparison, "p_holm": corrected_p[index]} for index, comparison in enumerate(comparisons)]
