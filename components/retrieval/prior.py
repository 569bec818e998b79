"""Priors of relevance: scores of rankings that are added to a ranker's scores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from sparring.components.config import Config

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

WEIGHTS = "weights.json"
"""File of the fitted weights, in the folder of the ranking that they were fitted on."""


class PriorConfig(Config):
    """Scores that are added to a ranker's, each with a weight that is fitted on dev queries."""

    scores: list[Literal["retriever", "bm25"]] = Field(["retriever", "bm25"], min_length=1)
    """`retriever`: of the retriever whose ranking is reranked. `bm25`: BM25's."""


def fit(features: Floats, relevant: npt.NDArray[np.bool_], query: Rows) -> Floats:
    """Fit (F,) weights, none negative, that make relevant candidates likeliest: conditional logistic regression.

    `features` is (N, F), the scores of all candidates; `query` (N,) is each candidate's query. The weights minimise the
    mean over the queries of `-mean_i log softmax(features @ w)_i`, i over the relevant candidates. Queries without a
    relevant candidate are ignored. A score that is the same for all candidates of each query has the weight 0, and
    without any query all weights are 0.

    The weighted sum is the logarithm of a probability, up to a constant: a teacher that needs no temperature.

    >>> scores = np.array([[1.0, 0.0], [0.0, 5.0], [0.0, 2.0], [1.0, 1.0]])
    >>> weights = fit(scores, np.array([True, False, False, True]), np.array([0, 0, 1, 1]))
    >>> bool(weights[0] > 1), float(weights[1])
    (True, 0.0)
    """
    from scipy.optimize import minimize  # takes a moment to import

    telling = np.bincount(query, relevant) > 0
    kept = telling[query]
    scores, hits = np.asarray(features, np.float64)[kept], relevant[kept].astype(np.float64)
    if not len(scores):
        return np.zeros(features.shape[1])
    number = np.unique(query[kept], return_inverse=True)[1]
    count, target = number.max() + 1, hits / np.bincount(number, hits)[number]
    first = scores[np.unique(number, return_index=True)[1]][number]
    differs = np.abs(scores - first).max(0) > 1e-9 * np.maximum(1.0, np.abs(scores).max(0))
    if not differs.all():  # any weight would fit a score that all candidates of a query share
        weights = np.zeros(features.shape[1])
        if differs.any():
            weights[differs] = fit(features[:, differs], relevant, query)
        return weights
    scale = np.maximum(scores.std(0), 1e-12)  # so that the search is equally fast along all scores
    scaled = scores / scale

    def loss(weights: Floats) -> tuple[float, Floats]:
        logits = scaled @ weights
        highest = np.full(count, -np.inf)
        np.maximum.at(highest, number, logits)
        logits -= highest[number]
        normaliser = np.bincount(number, np.exp(logits))
        error = np.exp(logits) / normaliser[number] - target
        value = (np.log(normaliser).sum() - target @ logits) / count + _RIDGE * (weights @ weights)
        return value, scaled.T @ error / count + 2 * _RIDGE * weights

    bounds = [(0.0, None)] * scores.shape[1]
    optimum = minimize(loss, np.full(scores.shape[1], 0.5), jac=True, method="L-BFGS-B", bounds=bounds)
    return np.asarray(optimum.x / scale)


_RIDGE = 1e-5
"""Keeps the weights finite if they separate the relevant candidates perfectly."""


def scores_in(pieces: Iterable[pa.Table], queries: pa.Array, documents: pa.Array, *, lexical_k: int | None) -> Floats:
    """Read the scores of N pairs of a query and a document from a ranking: (N,).

    A document that the ranking lacks gets the query's lowest score there, or 0 if the ranking lacks the query. BM25's
    ranking has `lexical_k`, the requested number of documents. If a query has fewer, a lacking document has no word of
    the query, and gets 0. The ranking is read in pieces, and never held in memory.
    """
    names, titles = pc.unique(queries), pc.unique(documents)
    wanted = _keys(queries, documents, names, titles)
    order = np.argsort(wanted, kind="stable")
    scores = np.full(len(wanted), np.nan)
    lowest, counts = np.full(len(names), np.inf), np.zeros(len(names), np.int64)
    for piece in pieces:
        ranking = piece.filter(pc.is_in(piece["query_id"], value_set=names))
        values = ranking["score"].to_numpy().astype(np.float64)
        rows = pc.index_in(ranking["query_id"], value_set=names).to_numpy()
        np.minimum.at(lowest, rows, values)
        counts += np.bincount(rows, minlength=len(names))
        wanted_rows = pc.is_in(ranking["doc_id"], value_set=titles)
        ranking, values = ranking.filter(wanted_rows), values[wanted_rows.to_numpy()]
        keys = _keys(ranking["query_id"], ranking["doc_id"], names, titles)
        low, high = (np.searchsorted(wanted[order], keys, side=side) for side in ("left", "right"))
        for offset in range(int((high - low).max(initial=0))):  # a pair may be wanted more than once
            within = low + offset < high
            scores[order[low[within] + offset]] = values[within]
    lowest[np.isinf(lowest) | (counts < (lexical_k or 0))] = 0.0
    query = pc.index_in(queries, value_set=names).to_numpy()
    return np.where(np.isnan(scores), lowest[query], scores)


def _keys(queries: pa.Array, documents: pa.Array, names: pa.Array, titles: pa.Array) -> Rows:
    """Return a number for each pair."""
    query = pc.index_in(queries, value_set=names).to_numpy().astype(np.int64)
    return query * len(titles) + pc.index_in(documents, value_set=titles).to_numpy().astype(np.int64)
