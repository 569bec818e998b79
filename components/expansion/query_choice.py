"""Choosing among a query's expansions: how good each one's ranking is, which is chosen, and the ranking that results
(Chuang et al., 2023, section 3.3)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data import row_runs
from sparring.components.data.tables import ANSWER_RANKS, ANSWERED, EXPANSIONS, RANKING, TEXT, check
from sparring.components.retrieval.fusion import FusionConfig, fuse_lists

PREDICTIONS = pa.schema([("doc_id", TEXT), ("score", pa.float32())])
"""A query reranker's score of an expansion: the answer rank that it predicts, up to a constant."""

CHOICE = EXPANSIONS.append(pa.field("score", pa.float64()))
"""A chosen expansion with its score."""


def mark_relevant(ranking: pa.Table, qrels: pa.Table) -> pa.Table:
    """Add a column `hit` to a ranking that says which documents are relevant, for collections without answers.

    The ranking may be a piece of a larger ranking. Only judgements of its queries are looked up.
    """
    ranked = pc.is_in(qrels["query_id"], value_set=pc.unique(ranking["query_id"]))
    relevant = qrels.filter(pc.and_(ranked, pc.greater(qrels["relevance"], 0))).select(["query_id", "doc_id"])
    relevant = relevant.append_column("relevant", pa.array(np.ones(len(relevant), bool)))
    rows = pa.array(np.arange(len(ranking)))
    joined = ranking.append_column("row", rows).join(relevant, keys=["query_id", "doc_id"], join_type="left outer")
    hits = pc.fill_null(joined.sort_by("row")["relevant"], False)
    return check(ranking.append_column("hit", hits), ANSWERED, source="judged ranking")


def answer_ranks(expansions: pa.Table, ranking: pa.Table) -> pa.Table:
    """Return the answer rank of each expansion: the rank of the first hit in its ranking, null without a hit."""
    hits = ranking.filter(ranking["hit"]).group_by("query_id").aggregate([("rank", "min")])
    places = pc.index_in(expansions["doc_id"], value_set=hits["query_id"].combine_chunks())
    columns = [expansions["doc_id"], expansions["query_id"], hits["rank_min"].take(places)]
    return check(pa.table(columns, names=ANSWER_RANKS.names), ANSWER_RANKS, source="answer ranks")


def generation_order(expansions: pa.Table) -> np.ndarray:
    """Return a score for each expansion by which the first that was generated is chosen. The question as it is (number
    0) comes last, as it is not the generator's."""
    numbers = expansions["number"].to_numpy().astype(np.float64)
    return np.where(numbers > 0, numbers, np.inf)


def choose(expansions: pa.Table, scores: np.ndarray, number: int | None = None, most: int = 1) -> pa.Table:
    """Choose for each query the `most` expansions of lowest score, of equal scores those generated first.

    With `number` only the first expansions that were generated are candidates, by their numbers before duplicates were
    removed: the N of Chuang et al. (2023), Table 3.8, without generating again. The query without expansion (number 0)
    always is one. Queries are in the order of the table.
    """
    table = check(expansions, EXPANSIONS, source="expansions")
    candidates = np.ones(len(table), bool) if number is None else table["number"].to_numpy() <= number
    queries = table["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((table["number"].to_numpy(), scores, queries))
    order = order[candidates[order]]
    best = order[row_runs.ranks(queries[order]) < most]
    return table.take(pa.array(best)).append_column("score", pa.array(scores[best], pa.float64()))


def as_ranking(
    choices: pa.Table, ranking: pa.Table, otherwise: pa.Table, fusion: FusionConfig | None = None
) -> pa.Table:
    """Turn the rankings of the chosen expansions into rankings of their queries. A query without a choice keeps its
    ranking in `otherwise`.

    The rankings of several choices of a query are fused, in the order of the choices. Queries are in the order of
    `otherwise`, followed by those that it lacks.
    """
    choice = pc.index_in(ranking["query_id"], value_set=choices["doc_id"].combine_chunks())
    chosen = ranking.filter(pc.is_valid(choice)).select(RANKING.names)
    chosen = chosen.set_column(0, "query_id", choices["query_id"].take(choice.drop_null()))
    if fusion is not None:
        chosen = fuse_lists(chosen, choice.drop_null().to_numpy(), fusion)
    rest = otherwise.filter(pc.invert(pc.is_in(otherwise["query_id"], value_set=pc.unique(choices["query_id"]))))
    joined = pa.concat_tables([check(table, RANKING, source="ranking") for table in (chosen, rest)])
    names = pc.unique(pa.chunked_array([*otherwise["query_id"].chunks, *chosen["query_id"].chunks], TEXT))
    order = pc.index_in(joined["query_id"], value_set=names)
    return joined.append_column("order", order).sort_by([("order", "ascending"), ("rank", "ascending")]).drop(["order"])
