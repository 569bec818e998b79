"""Interpolation of two rankings' normalised scores (Zerveas et al., 2023, Table 2, `RB + CODER(RB)`)."""

from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from components.config import Config
from components.data.tables import RANKING, check


class InterpolationConfig(Config):
    """How two rankings' scores are mixed. The paper gives neither the weight nor the normalisation."""

    weight: float = Field(0.5, ge=0, le=1)
    """Weight of the second ranking's scores; the first's is 1 minus this."""
    normalise: Literal["none", "max-min"] = "max-min"
    """How each query's scores are normalised in each ranking: `max-min`, from 0 to 1; `none`, as they are."""


def interpolated(first: pa.Table, second: pa.Table, config: InterpolationConfig, *, k: int) -> pa.Table:
    """The k best documents of each query by `(1 - weight) first + weight second`, ties in order of doc_id.

    A document that only one ranking has gets the other's lowest score for the query. A query that only one ranking has
    keeps its order. Queries come in the first ranking's order, then those that only the second has.
    """
    queries = pc.unique(pa.concat_tables([first, second])["query_id"])
    documents = pc.unique(pa.concat_tables([first, second])["doc_id"]).sort()
    keys = [_keys(table, queries, documents) for table in (first, second)]
    union = np.unique(np.concatenate(keys))
    query, document = np.divmod(union, max(1, len(documents)))
    total = np.zeros(len(union))
    for table, own, share in zip((first, second), keys, (1 - config.weight, config.weight), strict=True):
        values = _normalise(table, own // max(1, len(documents)), len(queries), config)
        lowest = np.full(len(queries), np.inf)
        np.minimum.at(lowest, own // max(1, len(documents)), values)
        scores = np.where(np.isinf(lowest), 0.0, lowest)[query]
        scores[np.searchsorted(union, own)] = values
        total += share * scores
    order = np.lexsort((document, -total, query))
    query, document, total = query[order], document[order], total[order]
    starts = np.searchsorted(query, np.arange(len(queries)))
    rank = np.arange(len(query)) - starts[query] + 1
    columns = [queries.take(pa.array(query)), documents.take(pa.array(document)), rank.astype(np.int32)]
    table = pa.table([*columns, pa.array(total, pa.float32())], names=RANKING.names)
    return check(table.filter(pa.array(rank <= k)), RANKING, what="interpolated ranking")


def _keys(table: pa.Table, queries: pa.Array, documents: pa.Array) -> np.ndarray:
    """int64, one for each pair of a query and a document; they sort by query, then by document."""
    query, document = (
        pc.index_in(table[name], value_set=among).to_numpy().astype(np.int64)
        for name, among in (("query_id", queries), ("doc_id", documents))
    )
    return query * len(documents) + document


def _normalise(table: pa.Table, query: np.ndarray, queries: int, config: InterpolationConfig) -> np.ndarray:
    """float64 scores of a ranking, normalised; 0 for all documents of a query whose scores are all equal."""
    values = table["score"].to_numpy().astype(np.float64)
    if config.normalise == "none":
        return values
    low, high = np.full(queries, np.inf), np.full(queries, -np.inf)
    np.minimum.at(low, query, values)
    np.maximum.at(high, query, values)
    span = np.where(high > low, high - low, 1.0)
    return (values - low[query]) / span[query]
