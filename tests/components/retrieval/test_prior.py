"""A ranker's score with those of the rankings it reads: the fit against the mathematics, the lookup against a loop."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import logsumexp

from sparring.components.data.tables import RANKING
from sparring.components.retrieval.prior import fit, scores_in


def some(seed: int, *, queries: int = 400, weights: tuple[float, ...] = (1.5, 0.7, 0.0)) -> tuple[np.ndarray, ...]:
    """Candidates' scores, which of them is relevant by a softmax of their weighted sum, and their queries."""
    rng = np.random.default_rng(seed)
    query = np.repeat(np.arange(queries), 8)
    features = rng.normal(size=(len(query), len(weights))) * [1.0, 3.0, 0.1]
    gumbel = (features @ weights + rng.gumbel(size=len(query))).reshape(queries, 8)
    relevant = np.zeros((queries, 8), bool)
    relevant[np.arange(queries), gumbel.argmax(1)] = True
    return features, relevant.ravel(), query


def loss(weights: np.ndarray, features: np.ndarray, relevant: np.ndarray, query: np.ndarray) -> float:
    """The mean over the queries that say something, one query at a time."""
    losses = []
    for number in np.unique(query[relevant]):
        logits = features[query == number] @ weights
        losses.append(logsumexp(logits) - logits[relevant[query == number]].mean())
    return float(np.mean(losses))


def test_the_weights_that_made_the_labels_are_recovered() -> None:
    features, relevant, query = some(0, queries=6_000)
    assert fit(features, relevant, query)[:2] == pytest.approx([1.5, 0.7], rel=0.1)


def test_no_weights_near_by_are_likelier() -> None:
    features, relevant, query = some(1)
    relevant[query == 3] = False  # a query that says nothing
    relevant[np.flatnonzero(query == 5)[:3]] = True  # one that says more than one thing
    weights = fit(features, relevant, query)
    lowest = loss(weights, features, relevant, query)
    rng = np.random.default_rng(2)
    for step in 0.1 * rng.normal(size=(50, 3)):
        assert loss(np.maximum(weights + step, 0.0), features, relevant, query) > lowest - 1e-6


def test_a_score_that_misleads_gets_no_weight() -> None:
    features, relevant, query = some(3, weights=(1.0, -2.0, 0.0))
    weights = fit(features, relevant, query)
    assert weights[1] == 0.0
    assert weights[0] > 0


def test_units_do_not_matter() -> None:
    features, relevant, query = some(4)
    units = np.array([10.0, 1e-3, 1.0])
    assert fit(features * units, relevant, query) * units == pytest.approx(fit(features, relevant, query), rel=1e-3)


def test_nothing_is_learnt_from_queries_without_a_relevant_candidate() -> None:
    features, relevant, query = some(5)
    assert fit(features, np.zeros_like(relevant), query).tolist() == [0.0, 0.0, 0.0]


def test_scores_are_looked_up_as_by_a_loop() -> None:
    rng = np.random.default_rng(6)
    ranking = {q: {f"d{d}": float(rng.normal()) for d in rng.permutation(9)[:4]} for q in ("q0", "q1", "q2")}
    rows = [(q, d, rank, score) for q, scores in ranking.items() for rank, (d, score) in enumerate(scores.items(), 1)]
    table = pa.table(list(zip(*rows, strict=True)), schema=RANKING)
    pairs = [(f"q{rng.integers(4)}", f"d{rng.integers(9)}") for _ in range(200)]  # repeated; q3 has no ranking
    lowest = {q: min(scores.values()) for q, scores in ranking.items()}
    expected = [ranking.get(q, {}).get(d, lowest.get(q, 0.0)) for q, d in pairs]
    not_cut = [ranking.get(q, {}).get(d, 0.0) for q, d in pairs]
    queries, documents = (pa.array(column, pa.large_string()) for column in zip(*pairs, strict=True))
    for rows_a_piece in (3, 100):
        pieces = [table.slice(start, rows_a_piece) for start in range(0, len(table), rows_a_piece)]
        assert scores_in(pieces, queries, documents, lexical_k=None) == pytest.approx(expected)
        assert scores_in(pieces, queries, documents, lexical_k=4) == pytest.approx(expected)
        assert scores_in(pieces, queries, documents, lexical_k=5) == pytest.approx(not_cut)


@pytest.mark.parametrize("constant", [0.0, 7.3])
def test_a_score_that_is_the_same_for_all_of_a_query_has_no_weight(constant: float) -> None:
    """As where BM25 finds nothing: any weight would do there, and 5e11 of it would drown all others elsewhere."""
    draw = np.random.default_rng(0)
    telling, query = draw.standard_normal(200), np.repeat(np.arange(20), 10)
    relevant = np.arange(200) % 10 == 0
    alone = fit(telling[:, None] + 2 * relevant[:, None], relevant, query)
    for same in (np.full(200, constant), constant + query):
        both = np.stack([telling + 2 * relevant, same], 1)
        np.testing.assert_array_equal(fit(both, relevant, query), [alone[0], 0.0])
    np.testing.assert_array_equal(fit(np.full((200, 2), constant), relevant, query), [0.0, 0.0])
