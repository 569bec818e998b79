"""The influence of the order of documents with equal scores on measures."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data import row_runs
from sparring.components.data.tables import TEXT
from sparring.components.evaluation.measures import per_query

DECIDED = pa.schema([("query_id", TEXT), ("measure", TEXT), ("low", pa.float64()), ("high", pa.float64())])
"""A query's measure with documents of equal scores in the worst order, and in the best."""
NOTABLE = 0.05
"""Readers are warned if ties decide for this share of the queries or more."""


def decided(ranking: pa.Table, qrels: pa.Table, measures: Sequence[str]) -> pa.Table:
    """Return the queries whose measures depend on the order of documents with equal scores (`DECIDED`).

    >>> ranking = pa.table({"query_id": ["q", "q"], "doc_id": ["a", "b"], "rank": [1, 2], "score": [3.0, 3.0]})
    >>> qrels = pa.table({"query_id": ["q"], "doc_id": ["b"], "relevance": [1]})
    >>> decided(ranking, qrels, ["RR@10", "R@10"]).to_pylist()
    [{'query_id': 'q', 'measure': 'RR@10', 'low': 0.5, 'high': 1.0}]
    """
    groups = ranking.group_by(["query_id", "score"]).aggregate([([], "count_all")])
    tied = pc.unique(groups.filter(pc.greater(groups["count_all"], 1))["query_id"])
    judgements = qrels.filter(pc.is_in(qrels["query_id"], value_set=tied))
    if not len(judgements) or not measures:
        return DECIDED.empty_table()
    results = ranking.filter(pc.is_in(ranking["query_id"], value_set=tied)).select(["query_id", "doc_id", "score"])
    judged = results.join(judgements.select(["query_id", "doc_id", "relevance"]), ["query_id", "doc_id"])
    judged = judged.set_column(3, "relevance", pc.fill_null(judged["relevance"], 0))
    worst, best = (
        per_query(_ranked(judged, order), judgements, measures).rename_columns(["query_id", "measure", name])
        for order, name in (("ascending", "low"), ("descending", "high"))
    )
    both = worst.append_column("high", best["high"])
    return both.filter(pc.greater(both["high"], both["low"])).select(DECIDED.names)


def _ranked(judged: pa.Table, order: str) -> pa.Table:
    """Order the ranking by score, and by relevance where scores are equal."""
    keys = [("query_id", "ascending"), ("score", "descending"), ("relevance", order)]
    table = judged.sort_by(keys)
    query = table["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    return table.append_column("rank", pa.array(row_runs.ranks(query) + 1, pa.int32()))


def remark(tied: pa.Table, values: pa.Table) -> str:
    """Warn about the measure that ties decide for most queries. Empty if they are few.

    `tied` is the result of `decided` for the ranking, `values` its measures, query by query.
    """
    if not len(tied):
        return ""
    counts = tied.group_by("measure").aggregate([("query_id", "count"), ("low", "sum"), ("high", "sum")])
    top = max(counts.to_pylist(), key=lambda row: row["query_id_count"])
    of_measure = values.filter(pc.equal(values["measure"], top["measure"]))
    queries, untied = (
        len(of_measure),
        of_measure.filter(pc.invert(pc.is_in(of_measure["query_id"], value_set=_of(tied, top["measure"])))),
    )
    if top["query_id_count"] < NOTABLE * queries:
        return ""
    rest = pc.sum(untied["value"]).as_py() or 0.0
    low, high = ((rest + top[name]) / queries for name in ("low_sum", "high_sum"))
    return (
        f"For {top['query_id_count']:,} of {queries:,} queries {top['measure']} depends on the order of documents with "
        f"equal scores: its mean is {low:.3f} with the worst order, {high:.3f} with the best."
    )


def _of(tied: pa.Table, measure: str) -> pa.Array:
    return pc.unique(tied.filter(pc.equal(tied["measure"], measure))["query_id"])
