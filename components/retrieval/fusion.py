"""Fusion of several rankings of the same queries: interleaving, reciprocal rank fusion, or interpolation of scores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field

from sparring.components.config import Config
from sparring.components.data import row_runs
from sparring.components.data.tables import RANKING, check
from sparring.components.files import read_json
from sparring.components.retrieval.interpolation import Normalise, interpolated

FITTED = "fusion.json"
"""The file that says how rankings are fused, where that was chosen by what it does for queries."""


class FusionConfig(Config):
    """Fusion of rankings."""

    how: Literal["interleave", "reciprocal", "interpolate"] = "interleave"
    """`interleave`: the first document of each list in turn, then the second, and so on, each document once
    (EAR: Chuang et al., 2023, Appendix B.3, for its sentence, answer and title expansions). `reciprocal`: by the sum of
    1 / (c + rank) over the lists (reciprocal rank fusion, Cormack et al., 2009); documents to which a list gives equal
    scores share the mean of their ranks. `interpolate`: by the sum of the normalised scores."""
    depth: int = Field(100, ge=1)
    """Number of documents of a query in the fused ranking. Where `zeroshot` or `coder` retrieves more than 100, 100
    stands for all. EAR's public code may return up to two more, as it counts only after a turn of all lists. A list
    that has ended is skipped."""
    c: float = Field(60.0, ge=0)
    """Constant of `reciprocal`: the larger, the less a first rank counts against a lower one."""
    weight: float = Field(0.5, ge=0, le=1)
    """Weight of the second of two lists in `reciprocal` and `interpolate`; the first's is 1 minus this. More lists than
    two all weigh the same."""
    normalise: Normalise = "max-min"
    """Normalisation by `interpolate` of each query's scores in each list. `max-min`: BM25's are divided by the highest,
    others put from 0 to 1. `none`: as they are. A document that BM25's list lacks gets 0, or the list's lowest score if
    the list has `depth` documents or more: the list was cut, so the document may have words of the query. A document
    that another list lacks gets its lowest score."""

    def reaching(self, k: int) -> Self:
        """Return the same fusion for rankings of `k` documents. If `depth` is not set, it cuts none of them."""
        left_open = self.depth == type(self).model_fields["depth"].default
        return self.model_copy(update={"depth": k}) if left_open and k > self.depth else self

    def weights(self, lists: int) -> list[float]:
        """Return the weight of each list. Their mean is 1. ValueError if a weight is set and there are not two
        lists."""
        if lists == 2:
            return [2 * (1 - self.weight), 2 * self.weight]
        if self.weight != 0.5:
            raise ValueError(f"fusion: weight: {self.weight} is that of the second of two lists, and there are {lists}")
        return [1.0] * lists


def read_chosen(folder: Path) -> FusionConfig:
    """Read the fusion that the step `fit_fusion` chose."""
    return FusionConfig(**read_json(folder / FITTED)["chosen"])


def fuse(rankings: Sequence[pa.Table], config: FusionConfig, *, lexical: Collection[int] = ()) -> pa.Table:
    """Fuse rankings into one. Queries are in order of their first row.

    `lexical` are the positions of BM25's rankings, in which the score 0 means no word in common. Scores are 1 / rank
    for `interleave`, and weighted sums otherwise. Ties are in order of doc_id.
    """
    tables = [check(table, RANKING, source="ranking") for table in rankings]
    lists = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    return _fused(pa.concat_tables(tables), lists, config.weights(len(tables)), config, lexical)


def fuse_lists(table: pa.Table, lists: np.ndarray, config: FusionConfig) -> pa.Table:
    """Fuse BM25's rankings in one table like `fuse`. `lists` has the number of each row's ranking, in ascending
    order."""
    numbers, lists = np.unique(lists, return_inverse=True)
    weights = config.weights(len(numbers))
    return _fused(check(table, RANKING, source="rankings"), lists, weights, config, range(len(numbers)))


def _fused(
    table: pa.Table, lists: np.ndarray, weights: list[float], config: FusionConfig, lexical: Collection[int]
) -> pa.Table:
    """Fuse the lists numbered 0, 1, ... with their weights into one ranking."""
    whole = table.combine_chunks()
    if not len(whole):
        return whole
    if config.how == "interpolate":
        apart = [whole.filter(pa.array(lists == number)) for number in range(len(weights))]
        shares = [weight / len(weights) for weight in weights]
        return interpolated(apart, shares, config.normalise, lexical=lexical, k=config.depth)
    query, document = (whole[name].combine_chunks().dictionary_encode() for name in ("query_id", "doc_id"))
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
        shared = _shared_ranks(lists, queries, ranks, whole["score"].to_numpy())
        # Summed in order of rank, so that sums are equal to the last bit in whatever order the rankings come.
        by_rank = np.argsort(shared, kind="stable")
        sums = np.zeros(len(first))
        contributions = np.asarray(weights)[lists] / (config.c + shared)
        np.add.at(sums, inverse.reshape(-1)[by_rank], contributions[by_rank])
        names = whole["doc_id"].take(pa.array(first)).to_pylist()
        id_ranks = np.argsort(np.argsort(np.asarray(names, object), kind="stable"), kind="stable")
        order = np.lexsort((id_ranks, -sums, queries[first]))
        rows, scores = first[order], sums[order]
    new = row_runs.ranks(queries[rows]) + 1
    scores = 1 / new if scores is None else scores
    kept = new <= config.depth
    taken = pa.array(rows[kept])
    columns = [whole["query_id"].take(taken), whole["doc_id"].take(taken), new[kept], scores[kept]]
    names = [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns]
    return check(pa.table(names, names=RANKING.names), RANKING, source="fused ranking")


def _shared_ranks(lists: np.ndarray, queries: np.ndarray, ranks: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return (N,) ranks. Rows with equal scores in a list share their mean rank, because their order is arbitrary."""
    order = np.lexsort((ranks, queries, lists))
    columns = np.stack([lists[order], queries[order], scores[order]])
    group = np.cumsum((np.diff(columns, axis=1, prepend=np.nan) != 0).any(0)) - 1
    shared = np.empty(len(ranks))
    shared[order] = (np.bincount(group, ranks[order]) / np.bincount(group))[group]
    return shared
