"""The randomization test against exact enumeration; the crossed test against scipy, loops and a simulation."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from sparring.components.evaluation.significance import (
    THE_METHOD,
    THIS_TRAINING,
    compare,
    compare_averages,
    corrected,
    estimate,
    holm,
    paired_randomization,
)


def exact(differences: np.ndarray) -> float:
    """The share of all sign flips whose sum is at least as large."""
    signs = np.array(list(itertools.product([1, -1], repeat=len(differences))))
    sums = np.abs(signs @ differences)
    return float((sums >= abs(differences.sum()) - 1e-9).mean())


@pytest.mark.parametrize("seed", range(6))
def test_randomization_is_near_exact_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    differences = rng.normal(0.3 * (seed % 3), 1, 12).round(1)
    result = paired_randomization(differences, np.zeros(12), seed=seed, rounds=40_000)
    assert result == pytest.approx(exact(differences), abs=0.012)


def test_sums_that_are_equal_count_whatever_the_order_of_adding() -> None:
    differences = np.array([0.1, 0.2, 0.3, 0.7, -0.1, 1 / 3] * 2)
    result = paired_randomization(differences, np.zeros(12), seed=1, rounds=40_000)
    assert result == pytest.approx(exact(differences), abs=0.01)


def test_randomization_is_symmetric_and_repeatable() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random(200), rng.random(200)
    assert paired_randomization(a, b, seed=3) == paired_randomization(b, a, seed=3)
    assert paired_randomization(a, b, seed=3) == paired_randomization(a, b, seed=3)
    assert paired_randomization(a, b, seed=3) != paired_randomization(a, b, seed=4)


def test_identical_values_give_one_and_a_clear_shift_the_least_there_is() -> None:
    values = np.random.default_rng(2).random(300)
    assert paired_randomization(values, values, seed=0) == 1.0
    assert paired_randomization(values + 0.2, values, seed=0) == pytest.approx(1 / 10_001)


def test_p_is_uniform_where_there_is_no_difference() -> None:
    rng = np.random.default_rng(6)
    ps = [paired_randomization(rng.random(40), rng.random(40), seed=n, rounds=400) for n in range(300)]
    shares = [np.mean(np.array(ps) <= level) for level in (0.05, 0.25, 0.5, 0.75)]
    assert shares == pytest.approx([0.05, 0.25, 0.5, 0.75], abs=0.08)


def test_unpaired_values_are_refused() -> None:
    with pytest.raises(ValueError, match="paired"):
        paired_randomization(np.zeros(3), np.zeros(4), seed=0)


def seeds_of(values: dict[str, float]) -> pa.Table:
    rows = {"query_id": list(values), "measure": ["RR@10"] * len(values), "value": list(values.values())}
    return pa.table(rows)


def test_seeds_are_averaged_for_each_query_before_they_are_compared() -> None:
    actual = [seeds_of({"a": 1.0, "b": 0.5}), seeds_of({"b": 0.0, "a": 0.5})]
    expected = [seeds_of({"a": 0.0, "b": 0.5}), seeds_of({"a": 0.25, "b": 0.25})]
    result, crossed = compare(actual, expected, seed=0, rounds=500)
    assert result["difference"] == crossed["difference"] == pytest.approx(((0.75 - 0.125) + (0.25 - 0.375)) / 2)
    assert result["queries"] == crossed["queries"] == 2
    assert result["p"] == paired_randomization(np.array([0.75, 0.25]), np.array([0.125, 0.375]), seed=0, rounds=500)


def test_different_queries_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="different queries"):
        compare([seeds_of({"a": 1.0})], [seeds_of({"b": 1.0})], seed=0)
    with pytest.raises(ValueError, match="seeds of one system"):
        compare([seeds_of({"a": 1.0}), seeds_of({"b": 1.0})], [seeds_of({"a": 1.0})], seed=0)


def test_several_seeds_have_a_second_test_and_one_has_not() -> None:
    rng = np.random.default_rng(8)
    tables = [seeds_of(dict(zip("abcdefgh", rng.random(8), strict=True))) for _ in range(6)]
    assert [item["test"] for item in compare(tables[:1], tables[3:4], seed=0, rounds=9)] == [THIS_TRAINING]
    this, method = compare(tables[:3], tables[3:], seed=0, rounds=9)
    assert (this["test"], method["test"]) == (THIS_TRAINING, THE_METHOD)
    values = np.array([table["value"].to_numpy() for table in tables])
    differences = values[:3] - values[3:]
    assert method["p"] == estimate([differences]).p()
    assert (this["low"], this["high"]) == pytest.approx(interval(differences.mean(0)))


def test_a_sample_of_the_queries_is_compared_with_the_same_queries_of_every_seed() -> None:
    rng = np.random.default_rng(9)
    whole = [seeds_of(dict(zip("abcdef", rng.random(6), strict=True))) for _ in range(2)]
    sample = [seeds_of(dict(zip("bdf", rng.random(3), strict=True))) for _ in range(2)]
    actual = [seeds_of(dict(zip("bdf", table["value"].to_numpy()[1::2], strict=True))) for table in whole]
    assert compare(sample, whole, seed=0, rounds=9) == compare(sample, actual, seed=0, rounds=9)


# Intervals and the crossed test


def interval(values: np.ndarray) -> tuple[float, float]:
    """scipy's 95 % interval of a mean."""
    ends = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    return float(ends.low), float(ends.high)


def test_one_seed_has_students_t_over_the_queries() -> None:
    values = np.random.default_rng(0).random((1, 30)) - 0.4
    result, expected = estimate([values]), stats.ttest_1samp(values[0], 0)
    assert result.p() == pytest.approx(expected.pvalue)
    assert result.freedom == expected.df
    assert result.interval() == pytest.approx(interval(values[0]))


def test_what_is_the_same_for_all_seeds_has_the_paired_t_test() -> None:
    """BM25 against an untrained model: the trainings add nothing."""
    a, b = np.random.default_rng(1).random((2, 50))
    result, expected = estimate([np.tile(a, (3, 1)) - np.tile(b, (3, 1))]), stats.ttest_rel(a, b)
    assert result.p() == pytest.approx(expected.pvalue)
    assert result.freedom == pytest.approx(49)


def test_where_queries_are_alike_the_trainings_alone_count() -> None:
    by_seed = np.array([0.02, 0.05, 0.01, 0.03])
    result, expected = estimate([np.tile(by_seed[:, None], (1, 25))]), stats.ttest_1samp(by_seed, 0)
    assert result.p() == pytest.approx(expected.pvalue)
    assert result.freedom == pytest.approx(3)


def naive(values: np.ndarray) -> tuple[float, float]:
    """Variance of the mean and degrees of freedom, by the sums of the two-way analysis of variance."""
    seeds, queries = values.shape
    mean = values.mean()
    of_seeds = sum(queries * (values[s].mean() - mean) ** 2 for s in range(seeds)) / (seeds - 1)
    of_queries = sum(seeds * (values[:, q].mean() - mean) ** 2 for q in range(queries)) / (queries - 1)
    rest = sum(
        (values[s, q] - values[s].mean() - values[:, q].mean() + mean) ** 2
        for s in range(seeds)
        for q in range(queries)
    ) / ((seeds - 1) * (queries - 1))
    terms = [(rest, (seeds - 1) * (queries - 1))]
    if of_seeds > rest and of_queries > rest:
        total, terms = of_seeds + of_queries - rest, [*terms, (of_seeds, seeds - 1), (of_queries, queries - 1)]
    elif of_seeds > rest:
        total, terms = of_seeds, [(of_seeds, seeds - 1)]
    elif of_queries > rest:
        total, terms = of_queries, [(of_queries, queries - 1)]
    else:
        total = rest
    return total / (seeds * queries), total**2 / sum(square**2 / freedom for square, freedom in terms)


@pytest.mark.parametrize(("seeds", "queries"), [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0)])
def test_the_variance_is_that_of_the_analysis_of_variance(seeds: float, queries: float) -> None:
    """Each of the four cases: a source whose mean square is not above the interaction's leaves the sums."""
    rng, cases = np.random.default_rng(3), set()
    for _ in range(20):
        values = rng.normal(0, 1, (3, 8)) + seeds * rng.normal(0, 2, (3, 1)) + queries * rng.normal(0, 2, 8)
        result, (variance, freedom) = estimate([values]), naive(values)
        assert (result.variance, result.freedom) == pytest.approx((variance, freedom))
        cases.add(round(result.freedom, 6) in (2.0, 7.0, 14.0))
    assert (seeds and queries) or True in cases


def test_mean_squares_that_are_equal_are_not_told_by_their_last_bits() -> None:
    """One query that differs in one seed makes all three equal, wherever it stands."""
    result = set()
    for number in range(14):
        values = np.zeros((2, 14))
        values[number % 2, number] = 1
        result.add(round(estimate([values]).freedom, 6))
    assert result == {13.0}


def test_an_average_over_collections_has_welchs_variance() -> None:
    rng = np.random.default_rng(4)
    first, second = rng.normal(0.1, 1, 40), rng.normal(0.2, 3, 15)
    result = estimate([first[None], second[None]], [0.5, 0.5])
    expected = stats.ttest_ind(first, -second, equal_var=False)
    assert result.mean == pytest.approx((first.mean() + second.mean()) / 2)
    assert (result.p(), result.freedom) == pytest.approx((expected.pvalue, expected.df))


def test_a_seed_is_one_training_for_all_collections() -> None:
    """Halves of a collection, whose trainings differ alike on both, have the variance of the whole: not half of the
    trainings', as two collections with trainings of their own would have."""
    rng = np.random.default_rng(5)
    values = rng.normal(0, 0.3, (4, 2000)) + rng.normal(0, 0.05, (4, 1))
    whole, halves = estimate([values]), estimate([values[:, :1000], values[:, 1000:]], [0.5, 0.5])
    assert halves.variance == pytest.approx(whole.variance, rel=0.02)
    assert halves.freedom == pytest.approx(whole.freedom, rel=0.05)


def test_one_query_says_nothing_and_equal_values_all() -> None:
    single = estimate([np.array([[0.5], [0.7]])])
    assert (single.mean, single.interval(), single.p()) == (pytest.approx(0.6), None, 1.0)
    nothing = estimate([np.zeros((3, 5))])
    assert (nothing.interval(), nothing.p()) == ((0.0, 0.0), 1.0)
    always = estimate([np.full((3, 4), 0.25)])
    assert (always.interval(), always.p()) == ((0.25, 0.25), 0.0)


# Holm


def test_holm_is_a_loop() -> None:
    rng = np.random.default_rng(6)
    for count in (1, 2, 7, 30):
        ps = [float(p) for p in rng.random(count).round(2) ** 3]
        expected, before = [0.0] * count, 0.0
        for rank, position in enumerate(sorted(range(count), key=lambda position: ps[position])):
            before = expected[position] = max(before, min(1.0, (count - rank) * ps[position]))
        assert holm(ps) == pytest.approx(expected)
    assert holm([]) == []


def test_a_family_is_a_tables_comparisons_by_one_test() -> None:
    entries = [
        {"collection": collection, "split": "test", "test": test, "p": p}
        for collection, test, p in (
            ("a", THIS_TRAINING, 0.01),
            ("a", THE_METHOD, 0.02),
            ("a", THIS_TRAINING, 0.03),
            ("b", THIS_TRAINING, 0.04),
        )
    ]
    assert [item["p_holm"] for item in corrected(entries)] == pytest.approx([0.02, 0.02, 0.03, 0.04])


# What the tests reject, in a simulation

STEPS = np.array([-1.0, -0.5, -0.25, -0.1, *[0.0] * 8, 0.1, 0.25, 0.5, 1.0])
"""Differences of reciprocal ranks, as two retrievers have them: most queries none, some a large one."""
TRAININGS = 0.0085 * math.sqrt(2)
"""The deviation over seeds of the difference of two systems whose means each deviate by .0085."""
QUERY_COUNT = 1000


def layouts_of(
    rng: np.random.Generator, runs: int, seeds: int, trainings: float, queries: float, rest: float
) -> Iterator[np.ndarray]:
    """(S, Q) differences without an effect: deviations of the trainings, the queries and the interaction."""
    steps = (queries / STEPS.std() * STEPS).astype(np.float32)
    for _ in range(0, runs, 100):
        values = rest * rng.standard_normal((100, seeds, QUERY_COUNT), np.float32)
        values += trainings * rng.standard_normal((100, seeds, 1), np.float32)
        values += steps[rng.integers(0, len(steps), (100, 1, QUERY_COUNT), np.uint8)]
        yield from values


def rejected(seeds: int, *deviations: float, effect: float = 0.0, runs: int = 6000) -> float:
    """The share of simulated comparisons that the crossed test calls clear."""
    simulated = layouts_of(np.random.default_rng([7, seeds]), runs, seeds, *deviations)
    return float(np.mean([estimate([values + effect]).p() < 0.05 for values in simulated]))


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("trainings", [0.0, TRAININGS])
@pytest.mark.parametrize(("queries", "rest"), [(0.3, 0.0), (0.25, 0.17), (0.17, 0.25)])
def test_the_crossed_test_rejects_5_percent_without_an_effect(
    seeds: int, trainings: float, queries: float, rest: float
) -> None:
    """Of each seed alone the differences deviate by .3 over the queries, whatever part of that is interaction."""
    assert 0.03 <= rejected(seeds, trainings, queries, rest) <= 0.07


def test_the_crossed_test_at_its_corners() -> None:
    """As `estimate` says: too many where few trainings outweigh the queries, few where all is interaction."""
    runs = 3000
    assert rejected(2, 0.05, 0.3, 0.0, runs=runs) == pytest.approx(0.13, abs=0.02)
    assert rejected(3, 0.05, 0.3, 0.0, runs=runs) == pytest.approx(0.08, abs=0.015)
    assert rejected(5, 0.05, 0.3, 0.0, runs=runs) == pytest.approx(0.06, abs=0.015)
    assert rejected(3, 0.0, 0.05, 0.3, runs=runs) == pytest.approx(0.03, abs=0.01)


def test_the_power_of_the_crossed_test() -> None:
    """A difference of .03 is found in about two of three comparisons with three seeds, in five of six with five."""
    deviations = (TRAININGS, 0.25, 0.17)
    assert rejected(3, *deviations, effect=0.03, runs=1000) == pytest.approx(0.67, abs=0.05)
    assert rejected(5, *deviations, effect=0.03, runs=1000) == pytest.approx(0.83, abs=0.05)
    assert rejected(3, *deviations, effect=0.05, runs=1000) > 0.9


@pytest.mark.parametrize(("seeds", "share"), [(1, 0.22), (3, 0.12)])
def test_randomization_over_queries_takes_another_training_for_an_effect(seeds: int, share: float) -> None:
    """It holds its 5 % where trainings do not differ."""
    rng, result = np.random.default_rng(8), {}
    for trainings in (0.0, TRAININGS):
        means = [values.mean(0) for values in layouts_of(rng, 600, seeds, trainings, 0.25, 0.17)]
        ps = [paired_randomization(mean, np.zeros(QUERY_COUNT), seed=n, rounds=200) for n, mean in enumerate(means)]
        result[trainings] = np.mean(np.array(ps) < 0.05)
    assert result[0.0] == pytest.approx(0.05, abs=0.02)
    assert result[TRAININGS] == pytest.approx(share, abs=0.04)


def of_two_collections(rng: np.random.Generator, seeds: int) -> list[tuple[list[pa.Table], list[pa.Table]]]:
    """Tables of two systems on collections of three and of five queries."""

    def tables(queries: str) -> list[pa.Table]:
        return [seeds_of(dict(zip(queries, rng.random(len(queries)), strict=True))) for _ in range(seeds)]

    return [(tables(queries), tables(queries)) for queries in ("abc", "defgh")]


def differences_of(pair: tuple[list[pa.Table], list[pa.Table]]) -> np.ndarray:
    """(S, Q)."""
    actual, expected = (np.array([table["value"].to_numpy() for table in side]) for side in pair)
    return actual - expected


def test_averages_are_compared_by_their_weighted_means() -> None:
    """p is the share of all 2^8 ways to swap a query's values, each counting by its collection's weight over its
    queries; intervals and p of the method are those of the weighted estimate."""
    pairs, weights = of_two_collections(np.random.default_rng(10), 3), [0.75, 0.25]
    this, method = compare_averages(pairs, weights, seed=0, rounds=200_000)
    layouts = [differences_of(pair) for pair in pairs]
    mean = sum(weight * subject.mean() for weight, subject in zip(weights, layouts, strict=True))
    assert this["difference"] == pytest.approx(mean)
    assert (this["queries"], this["test"], method["test"]) == (8, THIS_TRAINING, THE_METHOD)
    parts = [weight * subject.mean(0) / subject.shape[1] for weight, subject in zip(weights, layouts, strict=True)]
    assert this["p"] == pytest.approx(exact(np.concatenate(parts)), abs=0.005)
    crossed = estimate(layouts, weights)
    assert (method["difference"], method["low"], method["high"]) == (crossed.mean, *crossed.interval())
    assert method["p"] == crossed.p()


def test_an_average_of_one_collection_is_that_collection() -> None:
    [pair, _] = of_two_collections(np.random.default_rng(11), 2)
    assert compare_averages([pair], [1.0], seed=0, rounds=99) == compare(*pair, seed=0, rounds=99)


def test_no_effect_on_an_average_is_rejected_as_often_as_stated() -> None:
    """Of 400 comparisons without an effect, 1.5 to 9 % have p below .05: four standard errors about 5 %."""
    rng = np.random.default_rng(12)

    def tables(queries: int) -> list[pa.Table]:
        return [seeds_of(dict(zip(map(str, range(queries)), rng.normal(size=queries), strict=True)))]

    ps = [
        compare_averages([(tables(n), tables(n)) for n in (8, 40)], [0.5, 0.5], seed=trial, rounds=200)[0]["p"]
        for trial in range(400)
    ]
    assert 0.015 < np.mean(np.array(ps) <= 0.05) < 0.09
