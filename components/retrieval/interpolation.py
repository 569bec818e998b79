"""Interpolation of rankings' normalised scores (Zerveas et al., 2023, Table 2, `RB + CODER(RB)`)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data.tables import RANKING, check

Normalise = Literal["none", "max-min"]


def interpolated(rankings: Sequence[pa.Table], weights: Sequence[float], normalise: Normalise, *, k: int) -> pa.Table:
    """The k best documents of each query by the weighted sum of the rankings' scores, ties in order of doc_id.

    A document that a ranking does not have gets its lowest score for the query; with `max-min` that is 0, also where
    all that the ranking has score alike, which then get 1: for a rare word BM25 may find one document alone.
    Queries come in the first ranking's order, then those that only the second has, and so on.
    """
    whole = pa.concat_tables(rankings)
    queries, documents = pc.unique(whole["query_id"]), pc.unique(whole["doc_id"]).sort()
    keys = [_keys(table, queries, documents) for table in rankings]
    union = np.unique(np.concatenate(keys))
    query, document = np.divmod(union, max(1, len(documents)))
    total = np.zeros(len(union))
    for table, own, weight in zip(rankings, keys, weights, strict=True):
        values = _normalised(table, own // max(1, len(documents)), len(queries), normalise)
        lowest = np.full(len(queries), np.inf if normalise == "none" else 0.0)
        np.minimum.at(lowest, own // max(1, len(documents)), values)
        scores = np.where(np.isinf(lowest), 0.0, lowest)[query]
        scores[np.searchsorted(union, own)] = values
        total += weight * scores
    total = total.astype(np.float32)  # as it is written: of what is equal there the first bits alone would decide
    order = np.lexsort((document, -total, query))
    query, document, total = query[order], document[order], total[order]
    starts = np.searchsorted(query, np.arange(len(queries)))
    rank = np.arange(len(query)) - starts[query] + 1
    columns = [queries.take(pa.array(query)), documents.take(pa.array(document)), rank.astype(np.int32)]
    table = pa.table([*columns, pa.array(total)], names=RANKING.names)
    return check(table.filter(pa.array(rank <= k)), RANKING, what="interpolated ranking")


def _keys(table: pa.Table, queries: pa.Array, documents: pa.Array) -> np.ndarray:
    """int64, one for each pair of a query and a document; they sort by query, then by document."""
    query, document = (
        pc.index_in(table[name], value_set=among).to_numpy().astype(np.int64)
        for name, among in (("query_id", queries), ("doc_id", documents))
    )
    return query * len(documents) + document


def _normalised(table: pa.Table, query: np.ndarray, queries: int, normalise: Normalise) -> np.ndarray:
    """float64 scores of a ranking, normalised; with `max-min` 1 for all documents of a query whose scores are equal."""
    values = table["score"].to_numpy().astype(np.float64)
    if normalise == "none":
        return values
    low, high = np.full(queries, np.inf), np.full(queries, -np.inf)
    np.minimum.at(low, query, values)
    np.maximum.at(high, query, values)
    low, span = low[query], (high - low)[query]
    return np.where(span > 0, (values - low) / np.where(span > 0, span, 1.0), 1.0)
