"""Correlations of cosines and ratings: scipy's, sentence-transformers', and what each pair adds to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from sparring.components.config import UserError
from sparring.components.evaluation.significance import estimate
from sparring.components.evaluation.similarity import (
    CORRELATIONS,
    SimilarityConfig,
    by_rating,
    cosines,
    pearson,
    per_pair,
    space,
    spearman,
)


def tied(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(n,) similarities, some of them equal, and ratings of six grades that go with them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    return np.round(x, 1), np.clip(np.round(x + rng.normal(size=n) + 2.5), 0, 5)


# One correlation


@pytest.mark.parametrize("n", [3, 20, 500])
def test_both_are_scipys_also_with_ties(n: int) -> None:
    x, y = tied(n)
    assert len(set(x)) < n or n == 3
    assert spearman(x, y).value == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)
    assert pearson(x, y).value == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)


def test_closed_forms() -> None:
    """Without ties Spearman is 1 - 6 sum d^2 / (n (n^2 - 1)): here d = (1, 1, 0), so .5."""
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([20.0, 10.0, 30.0])).value == pytest.approx(0.5)
    ordered = np.array([0.1, 0.2, 7.0])
    assert spearman(ordered, ordered**3).value == pytest.approx(1)
    assert spearman(ordered, -ordered).value == pytest.approx(-1)
    assert pearson(ordered, 2 - 3 * ordered).value == pytest.approx(-1)


@pytest.mark.parametrize("correlate", CORRELATIONS.values(), ids=CORRELATIONS)
def test_what_is_constant_goes_with_nothing(correlate: Any) -> None:
    """Where all sentences have one vector, all cosines are the same. scipy has NaN, which no table can hold."""
    first, second = np.full(4, 0.3), np.arange(4.0)
    for pair in ((first, second), (second, first), (first, first)):
        result = correlate(*pair)
        assert result.value == 0
        assert result.influence.tolist() == [0] * 4
    vectors = np.ones((5, 8), np.float16)
    assert correlate(cosines(vectors, vectors), np.arange(5.0)).value == 0


def test_pairs_of_equal_sentences_are_tied() -> None:
    """Their vectors differ in the last bits where they were encoded in different batches."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 64)).astype(np.float32)
    assert set(cosines(vectors, vectors * np.float32(1 + 1e-7))) == {1.0}
    noise = np.float32(1) + np.float32(3e-7) * rng.normal(size=vectors.shape).astype(np.float32)
    for kept in (np.float32, np.float16):
        assert set(cosines(vectors.astype(kept), (vectors * noise).astype(kept))) == {1.0}
    assert cosines(np.zeros((1, 2)), np.ones((1, 2))).tolist() == [0]


def test_an_encoder_whose_vectors_lie_close_together_keeps_its_order() -> None:
    """Its cosines are all above .99999."""
    rng = np.random.default_rng(0)
    first, second = (np.ones((40, 8)) + 1e-4 * rng.normal(size=(40, 8)) for _ in range(2))
    near = cosines(first, second)
    assert near.min() > 0.99999
    assert len(set(near)) == 40
    apart = -np.square(first - second).sum(1)
    assert spearman(near, apart).value > 0.9


@pytest.mark.parametrize("name", CORRELATIONS)
def test_the_order_of_pairs_makes_no_difference(name: str) -> None:
    """To the last bit: else equal systems would differ by a little in every pair, which is never chance."""
    x, y = tied(60)
    x = x + 1e-3 * np.random.default_rng(1).normal(size=60)
    shuffled = np.random.default_rng(2).permutation(60)
    single = per_pair(name, x, y, [""] * 60, "all")  # type: ignore[arg-type]
    second = per_pair(name, x[shuffled], y[shuffled], [""] * 60, "all")  # type: ignore[arg-type]
    assert np.array_equal(single[shuffled], second)


@pytest.mark.parametrize("name", CORRELATIONS)
def test_influence_is_the_limit_of_leaving_out_a_pair(name: str) -> None:
    correlate, (x, y) = CORRELATIONS[name], tied(200)
    result = correlate(x, y)
    assert result.influence.mean() == pytest.approx(0, abs=1e-12)
    without = np.array([correlate(np.delete(x, number), np.delete(y, number)).value for number in range(len(x))])
    jackknife = (len(x) - 1) * (result.value - without)
    assert np.corrcoef(result.influence, jackknife)[0, 1] > 0.999
    assert result.influence.std() == pytest.approx(jackknife.std(), rel=0.02)


def test_the_interval_holds_the_true_correlation_as_often_as_it_says() -> None:
    """Normal pairs with Pearson's r: Spearman's is 6 / pi asin(r / 2). Their products alone, without the influence of
    mean and spread, would give intervals twice as wide."""
    rng, r, n, hits, widths = np.random.default_rng(3), 0.8, 200, 0, []
    truth = 6 / np.pi * np.arcsin(r / 2)
    for _ in range(300):
        x = rng.normal(size=n)
        y = r * x + np.sqrt(1 - r**2) * rng.normal(size=n)
        low, high = estimate([per_pair("Spearman", x, y, [""] * n, "all")[None]]).interval() or (0, 0)
        hits += low <= truth <= high
        widths.append(high - low)
    assert 0.91 <= hits / 300 <= 0.98
    assert np.mean(widths) < 0.13


# Over subsets


def test_the_three_aggregations_of_senteval() -> None:
    sizes = {"a": 50, "b": 20, "c": 5}
    parts = {name: tied(n, seed) for seed, (name, n) in enumerate(sizes.items())}
    x, y = (np.concatenate(subject) for subject in zip(*parts.values(), strict=True))
    subsets = [name for name, n in sizes.items() for _ in range(n)]
    item = [stats.spearmanr(*value).statistic for value in parts.values()]
    expected = {
        "all": stats.spearmanr(x, y).statistic,
        "mean": np.mean(item),
        "wmean": np.average(item, weights=[*sizes.values()]),
    }
    result = {mode: per_pair("Spearman", x, y, subsets, mode) for mode in ("all", "mean", "wmean")}  # type: ignore[arg-type]
    assert {mode: values.mean() for mode, values in result.items()} == pytest.approx(expected)
    assert len({round(value, 3) for value in expected.values()}) == 3
    errors = [spearman(*value).influence.std() / np.sqrt(len(value[0])) for value in parts.values()]
    assert result["mean"].std() / np.sqrt(len(x)) == pytest.approx(np.linalg.norm(errors) / 3)
    shuffled = np.random.default_rng(0).permutation(len(x))
    again = per_pair("Spearman", x[shuffled], y[shuffled], [subsets[position] for position in shuffled], "wmean")
    assert again == pytest.approx(result["wmean"][shuffled])


def test_one_pair_is_too_few() -> None:
    with pytest.raises(UserError, match="Pearson needs two or more pairs, got 1"):
        per_pair("Pearson", np.ones(1), np.ones(1), [""], "all")


# As sentence-transformers


class Known:
    """A model whose vectors are known."""

    similarity_fn_name = "cosine"

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self.vectors = vectors

    def encode(self, sentences: list[str], **options: Any) -> np.ndarray:
        return np.stack([self.vectors[sentence] for sentence in sentences])


def test_equal_to_sentence_transformers_evaluator() -> None:
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

    rng, n = np.random.default_rng(1), 60
    first = rng.normal(size=(n, 16)).astype(np.float32)
    ratings = np.round(rng.random(n) * 5)
    second = (ratings[:, None] * first + 4 * rng.normal(size=(n, 16))).astype(np.float32)
    names = [[f"{side}{number}" for number in range(n)] for side in "ab"]
    model: Any = Known(dict(zip([*names[0], *names[1]], [*first, *second], strict=True)))
    evaluate = EmbeddingSimilarityEvaluator(*names, ratings.tolist(), main_similarity="cosine", write_csv=False)
    evaluate.store_metrics_in_model_card_data = lambda *_: None  # type: ignore[method-assign]
    expected = evaluate(model)
    near = cosines(first, second)
    for name in ("Spearman", "Pearson"):
        actual = per_pair(name, near, ratings, [""] * n, "all").mean()  # type: ignore[arg-type]
        assert actual > 0.5
        assert actual == pytest.approx(expected[f"{name.lower()}_cosine"], abs=1e-6)


# The space


def test_alignment_is_of_what_is_rated_highest_and_uniformity_of_all() -> None:
    first, second = np.eye(3), np.eye(3)[[0, 2, 1]] * 7  # the first pair coincides, the others are at a right angle
    summary = space(first, second, np.array([5.0, 4.5, 4.0]), SimilarityConfig())
    assert (summary["pairs"], summary["aligned"], summary["alignment"]) == (3, 2, pytest.approx((0 + 2) / 2))
    # Of 15 pairs of sentences 3 coincide, and 12 have the squared distance 2.
    assert summary["uniformity"] == pytest.approx(np.log((3 + 12 * np.exp(-4)) / 15))
    assert space(first, second, np.ones(3), SimilarityConfig())["alignment"] is None


def test_cosines_by_rating() -> None:
    ratings = np.array([0.0, 0.99, 1.0, 3.5, 4.0, 5.0])
    groups = by_rating(np.array([-1.0, 0.0, 0.2, 0.3, 0.9, 1.0]), ratings)
    assert [(group["ratings"], group["pairs"]) for group in groups] == [
        ("4 to 5", 2),
        ("3 to 4", 1),
        ("1 to 2", 1),
        ("0 to 1", 2),
    ]
    assert groups[0]["mean"] == pytest.approx(0.95)
    assert all(sum(group["histogram"]) == pytest.approx(1) for group in groups)
