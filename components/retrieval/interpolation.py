"""Interpolation of rankings' normalised scores (Zerveas et al., 2023, Table 2, `RB + CODER(RB)`)."""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data.tables import RANKING, check

Normalise = Literal["none", "max-min"]
NOISE = 1e-5
"""Scores of a list that differ by no more than this share of the largest are one score with rounding errors."""


def interpolated(
    rankings: Sequence[pa.Table], weights: Sequence[float], normalise: Normalise, *, lexical: Collection[int], k: int
) -> pa.Table:
    """Rank the k best documents of each query by the weighted sum of the rankings' scores, ties in order of doc_id.

    `lexical` are the positions of BM25's rankings. Before the sum, a document that a ranking lacks gets a score, and
    the scores of each query are normalised:

    - A BM25 ranking of fewer than k documents has all that share a word with the query: others get 0. A list of k
      documents or more was cut: others get its lowest score. `max-min` divides by the highest score.
    - In other rankings, others get the lowest score of the query. `max-min` puts the highest score at 1 and the lowest
      at 0. If all are equal they become 1, and others 0.

    Queries are in the first ranking's order. Queries that only the second ranking has follow, and so on.
    """
    whole = pa.concat_tables(rankings)
    queries, documents = pc.unique(whole["query_id"]), pc.unique(whole["doc_id"]).sort()
    keys = [_keys(table, queries, documents) for table in rankings]
    union = np.unique(np.concatenate(keys))
    query, document = np.divmod(union, max(1, len(documents)))
    total = np.zeros(len(union))
    for number, (table, pairs, weight) in enumerate(zip(rankings, keys, weights, strict=True)):
        values = table["score"].to_numpy().astype(np.float64)
        rows_queries = pairs // max(1, len(documents))
        low, high = _ends(values, rows_queries, len(queries))
        if normalise == "max-min":
            values = _scaled(values, low[rows_queries], high[rows_queries], lexical=number in lexical)
            low, _ = _ends(values, rows_queries, len(queries))
        cut = np.bincount(rows_queries, minlength=len(queries)) >= k
        has_lowest = cut if number in lexical else np.full(len(queries), normalise == "none")
        absent = np.where(has_lowest & np.isfinite(low), low, 0.0)
        scores = absent[query]
        scores[np.searchsorted(union, pairs)] = values
        total += weight * scores
    total = total.astype(np.float32)  # the stored precision, so that ties are those of the stored scores
    order = np.lexsort((document, -total, query))
    query, document, total = query[order], document[order], total[order]
    starts = np.searchsorted(query, np.arange(len(queries)))
    rank = np.arange(len(query)) - starts[query] + 1
    columns = [queries.take(pa.array(query)), documents.take(pa.array(document)), rank.astype(np.int32)]
    table = pa.table([*columns, pa.array(total)], names=RANKING.names)
    return check(table.filter(pa.array(rank <= k)), RANKING, source="interpolated ranking")


def _keys(table: pa.Table, queries: pa.Array, documents: pa.Array) -> np.ndarray:
    """Return an int64 for each pair of a query and a document. They sort by query, then by document."""
    query, document = (
        pc.index_in(table[name], value_set=among).to_numpy().astype(np.int64)
        for name, among in (("query_id", queries), ("doc_id", documents))
    )
    return query * len(documents) + document


def _ends(values: np.ndarray, query: np.ndarray, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (queries,) the lowest and the highest score of each query, infinite for a query without scores."""
    low, high = np.full(queries, np.inf), np.full(queries, -np.inf)
    np.minimum.at(low, query, values)
    np.maximum.at(high, query, values)
    return low, high


def _scaled(values: np.ndarray, low: np.ndarray, high: np.ndarray, *, lexical: bool) -> np.ndarray:
    """Scores between 0 and 1; `low` and `high` are those of each score's query."""
    if lexical:
        return values / np.where(high > 0, high, 1.0)
    span = np.maximum(high - low, NOISE * np.maximum(np.abs(low), np.abs(high)))
    scaled: np.ndarray = 1.0 - (high - values) / np.where(span > 0, span, 1.0)
    return scaled
