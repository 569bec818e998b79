"""From the rankings of a query's expansions to one ranking: how good each is, and which is chosen (paper 002, 3.3)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components import runs
from components.fusion import FusionConfig, fuse_lists
from components.tables import ANSWER_RANKS, ANSWERED, EXPANSIONS, RANKING, check

PREDICTIONS = pa.schema([("doc_id", pa.string()), ("score", pa.float32())])
"""What a query reranker says of an expansion: the rank that it predicts, up to a constant."""

CHOICE = EXPANSIONS.append(pa.field("score", pa.float64()))
"""An expansion that was chosen, and the score for which it was."""


def judged(ranking: pa.Table, qrels: pa.Table) -> pa.Table:
    """A ranking that says which documents are relevant, for collections whose queries have no answers."""
    relevant = qrels.filter(pc.greater(qrels["relevance"], 0)).select(["query_id", "doc_id"])
    relevant = relevant.append_column("relevant", pa.array(np.ones(len(relevant), bool)))
    place = pa.array(np.arange(len(ranking)))
    joined = ranking.append_column("place", place).join(relevant, keys=["query_id", "doc_id"], join_type="left outer")
    hits = pc.fill_null(joined.sort_by("place")["relevant"], False)
    return check(ranking.append_column("hit", hits), ANSWERED, what="judged ranking")


def answer_ranks(expansions: pa.Table, ranking: pa.Table) -> pa.Table:
    """The minimum answer rank of each expansion: the rank of its first document that is a hit, null where none is."""
    hits = ranking.filter(ranking["hit"]).group_by("query_id").aggregate([("rank", "min")])
    at = pc.index_in(expansions["doc_id"], value_set=hits["query_id"].combine_chunks())
    columns = [expansions["doc_id"], expansions["query_id"], hits["rank_min"].take(at)]
    return check(pa.table(columns, names=ANSWER_RANKS.names), ANSWER_RANKS, what="answer ranks")


def chosen(expansions: pa.Table, scores: np.ndarray, number: int | None = None, most: int = 1) -> pa.Table:
    """Of each query, in order of sight, the expansion of the lowest score, or so many; of equal ones the first.

    With a number only the first so many that were generated are there to choose from, which the same as those of one
    text are not: paper 002's N (Table 3.8) without generating again. The query as it is (0) is there with any number.
    """
    among = check(expansions, EXPANSIONS, what="expansions")
    kept = np.ones(len(among), bool) if number is None else among["number"].to_numpy() <= number
    queries = among["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((among["number"].to_numpy(), scores, queries))
    order = order[kept[order]]
    best = order[runs.places(queries[order]) < most]
    return among.take(pa.array(best)).append_column("score", pa.array(scores[best], pa.float64()))


def as_ranking(
    choices: pa.Table, ranking: pa.Table, otherwise: pa.Table, fusion: FusionConfig | None = None
) -> pa.Table:
    """The chosen expansions' rankings as those of their queries; of queries without a choice, what `otherwise` has.

    Where there are several choices a query, their rankings are fused in the order of the choices. Queries are in the
    order of `otherwise`, and those that it lacks behind them.
    """
    at = pc.index_in(ranking["query_id"], value_set=choices["doc_id"].combine_chunks())
    mine = ranking.filter(pc.is_valid(at)).select(RANKING.names)
    mine = mine.set_column(0, "query_id", choices["query_id"].take(at.drop_null()))
    if fusion is not None:
        mine = fuse_lists(mine, at.drop_null().to_numpy(), fusion)
    rest = otherwise.filter(pc.invert(pc.is_in(otherwise["query_id"], value_set=pc.unique(choices["query_id"]))))
    joined = pa.concat_tables([check(table, RANKING, what="ranking") for table in (mine, rest)])
    names = pc.unique(pa.chunked_array([*otherwise["query_id"].chunks, *mine["query_id"].chunks], pa.string()))
    place = pc.index_in(joined["query_id"], value_set=names)
    return joined.append_column("place", place).sort_by([("place", "ascending"), ("rank", "ascending")]).drop(["place"])
