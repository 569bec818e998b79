"""Several rankings of the same queries made one: interleaved, or by the sum of reciprocal ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from components import runs
from components.config import Config
from components.tables import RANKING, check


class FusionConfig(Config):
    """How rankings are fused."""

    how: Literal["interleave", "reciprocal"] = "interleave"
    """`interleave`: the first of each list in turn, then the second, without what is there already (paper 002, Appendix
    B.3: sentence, answer, title). `reciprocal`: by the sum of 1 / (c + rank) over the lists (Cormack et al. 2009)."""
    depth: int = Field(100, ge=1)
    """Documents of a query in the fused list. The public code looks only after each turn of all lists, and so gives up
    to two more; here it is exact, and a list that ends earlier is passed over."""
    c: float = Field(60.0, ge=0)
    """How little the first places of `reciprocal` are ahead of the others."""


def fuse(rankings: Sequence[pa.Table], config: FusionConfig) -> pa.Table:
    """The fused ranking. Queries are in order of sight, first list first; scores fall with the rank.

    Scores are 1 / rank where lists are interleaved. Equal sums of reciprocal ranks are in order of doc_id.
    """
    tables = [check(table, RANKING, what="ranking") for table in rankings]
    lists = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return fuse_lists(pa.concat_tables(tables), lists, config)


def fuse_lists(table: pa.Table, lists: np.ndarray, config: FusionConfig) -> pa.Table:
    """The same for rankings in one table: `lists` says of each row which one it is of, the first the least."""
    whole = check(table, RANKING, what="rankings").combine_chunks()
    if not len(whole):
        return whole
    query, document = (
        whole[name].combine_chunks().dictionary_encode() for name in ("query_id", "doc_id")
    )  # fmt: skip
    queries, documents = query.indices.to_numpy(), document.indices.to_numpy()
    ranks = whole["rank"].to_numpy().astype(np.int64)
    if config.how == "interleave":
        order = np.lexsort((lists, ranks, queries))
        keys = np.stack([queries[order], documents[order]], 1)
        rows = order[np.sort(np.unique(keys, axis=0, return_index=True)[1])]
        scores = None
    else:
        keys = np.stack([queries, documents], 1)
        _, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        # Sums in the order of ranks, so that the order of the lists makes no difference to the last bit.
        by_rank = np.argsort(ranks, kind="stable")
        sums = np.zeros(len(first))
        np.add.at(sums, inverse.reshape(-1)[by_rank], 1 / (config.c + ranks[by_rank]))
        names = whole["doc_id"].take(pa.array(first)).to_pylist()
        places = np.argsort(np.argsort(np.asarray(names, object), kind="stable"), kind="stable")
        order = np.lexsort((places, -sums, queries[first]))
        rows, scores = first[order], sums[order]
    new = runs.places(queries[rows]) + 1
    scores = 1 / new if scores is None else scores
    kept = new <= config.depth
    taken = pa.array(rows[kept])
    columns = [whole["query_id"].take(taken), whole["doc_id"].take(taken), new[kept], scores[kept]]
    names = [pa.array(one) if isinstance(one, np.ndarray) else one for one in columns]
    return check(pa.table(names, names=RANKING.names), RANKING, what="fused ranking")
