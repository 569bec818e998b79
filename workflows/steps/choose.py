"""Measure how good each expansion of a query is, and choose expansions (Chuang et al., 2023, section 3.3)."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.config import UserError
from sparring.components.data.groups import query_ids_of
from sparring.components.data.tables import (
    ANSWER_RANKS,
    ANSWERED,
    EXPANSIONS,
    GROUPS,
    QRELS,
    RANKING,
    TEXT,
    Placed,
    pieces,
    read,
    write,
)
from sparring.components.expansion import query_choice
from sparring.components.expansion.expansions import FILE
from sparring.components.expansion.query_choice import CHOICE, PREDICTIONS
from sparring.components.files import replacing
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.rng import keyed_sample
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

RANKS, PREDICTED, CHOICES = "ranks.parquet", "predicted.parquet", "choices.parquet"
QUERIES = 2048
"""Number of queries whose rankings are in memory at a time."""


@Description(part="query reranking")
def answer_ranks(out: Path, machine: Machine, *, expanded: Path, ranking: Path, by_answer: bool) -> dict[str, Any]:
    """Write `ranks.parquet`, the minimum answer rank of each expansion. The rank is null if the ranking holds no
    answer.

    With `by_answer`, `ranking` is a ranking that the step `answering` wrote. Otherwise the rank is that of the first
    relevant document.
    """
    expansions = read(expanded / FILE, EXPANSIONS)
    qrels = None if by_answer else read(expanded / "qrels.parquet", QRELS)
    hits = []
    for piece in pieces(ranking / "ranking.parquet", ANSWERED if by_answer else RANKING):
        judged = piece if qrels is None else query_choice.mark_relevant(piece, qrels)
        hits.append(judged.filter(judged["hit"]))
    ranks = query_choice.answer_ranks(expansions, pa.concat_tables([ANSWERED.empty_table(), *hits]))
    write(out / RANKS, ranks, ANSWER_RANKS)
    return {"expansions": len(ranks), "without_an_answer": ranks["rank"].null_count}


@Description(part="query reranking")
def rank_groups(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    ranks: Path,
    split: str,
    max_rank: int,
    queries: int | None,
    candidates: int | None,
    seed: list[Any],
) -> dict[str, Any]:
    """Write `groups.parquet`: each query of the split with its expansions, whose ranks are the targets.

    An expansion without an answer has the rank `max_rank` (Chuang et al., 2023: MAX_RANK, 101 or 250). `candidates`
    expansions of each query are sampled. Queries whose expansions all have the same rank are left out, since no pair of
    them can be learnt from. `queries` is the number of remaining queries to sample.
    """
    table = read(ranks / RANKS, ANSWER_RANKS)
    of_split = query_ids_of(data, [split])
    table = table.filter(pc.is_in(table["query_id"], value_set=of_split))
    grouped: dict[str, list[tuple[str, float]]] = {}
    values = pc.fill_null(table["rank"], max_rank).to_pylist()
    for doc_id, query, rank in zip(table["doc_id"].to_pylist(), table["query_id"].to_pylist(), values, strict=True):
        grouped.setdefault(query, []).append((doc_id, float(rank)))
    if candidates is not None:
        for query, ranked in grouped.items():
            drawn = keyed_sample((doc_id for doc_id, _ in ranked), candidates, *seed, "candidates", query)
            grouped[query] = [pair for pair in ranked if pair[0] in drawn]
    kept = [(query, ranked) for query, ranked in grouped.items() if len({rank for _, rank in ranked}) > 1]
    if queries is not None:
        few = keyed_sample((query for query, _ in kept), queries, *seed, "queries")
        kept = [group for group in kept if group[0] in few]
    if not kept and table["rank"].null_count == len(table):
        raise UserError(
            f"split {split!r}: no expansion retrieves a relevant document, so there is nothing to learn. If queries "
            "have no answers, set `relevant_by: qrels`."
        )
    if not kept:
        raise UserError(
            f"split {split!r}: all expansions of each query retrieve equally well, so there is nothing to learn."
        )
    rows = [
        {
            "query_id": query,
            "visit": 0,
            "doc_ids": [doc_id for doc_id, _ in ranked],
            "targets": [rank for _, rank in ranked],
            "teacher": None,
        }
        for query, ranked in kept
    ]
    write(out / "groups.parquet", pa.Table.from_pylist(rows, schema=GROUPS), GROUPS)
    return {"groups": len(kept), "of": len(grouped), "candidates": sum(len(ranked) for _, ranked in kept)}


@Description(part="query reranking")
def choose(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    expanded: Path,
    ranking: Path,
    scores: Path | None,
    otherwise: Path,
    split: str,
    number: int | None,
) -> dict[str, Any]:
    """Write `ranking.parquet`, the ranking of each query's chosen expansion, and `choices.parquet`, which expansion
    that is.

    `scores` is what `predict` wrote or, for the oracle (`best query`), what `answer_ranks` wrote. Without scores the
    first expansion is chosen. Queries without an expansion keep the ranking of `otherwise`.
    """
    expansions = _asked(expanded, split)
    choices = query_choice.choose(expansions, _scores(scores, expansions), number)
    _write(out, choices, data=data, ranking=ranking, otherwise=otherwise, split=split)
    words = [len(str(text).split()) for text in choices["text"].to_pylist()]
    return {
        "chosen": len(choices),
        "first": choices["number"].to_pylist().count(1),
        "words": round(float(np.mean(words)), 2) if words else 0.0,
    }


@Description(part="query reranking", version=2)
def choose_several(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    expanded: Path,
    ranking: Path,
    scores: Path,
    otherwise: Path,
    split: str,
    most: int,
    config: FusionConfig,
) -> dict[str, Any]:
    """Write the same files for the `most` best expansions of each query, and fuse their rankings."""
    expansions = _asked(expanded, split)
    choices = query_choice.choose(expansions, _scores(scores, expansions), most=most)
    _write(out, choices, data=data, ranking=ranking, otherwise=otherwise, split=split, fusion=config)
    return {"chosen": len(choices), "queries": len(pc.unique(choices["query_id"]))}


def _asked(expanded: Path, split: str) -> pa.Table:
    """Read the expansions of a split's queries."""
    queries = query_ids_of(expanded, [split])
    expansions = read(expanded / FILE, EXPANSIONS)
    return expansions.filter(pc.is_in(expansions["doc_id"], value_set=queries))


def _write(
    out: Path,
    choices: pa.Table,
    *,
    data: Path,
    ranking: Path,
    otherwise: Path,
    split: str,
    fusion: FusionConfig | None = None,
) -> None:
    """Write choices and the ranking of the chosen expansions, a block of queries at a time.

    Queries come in the order of `otherwise`, then those that it lacks, in the order of their choices' rows.
    """
    of_split = query_ids_of(data, [split])
    write(out / CHOICES, choices, CHOICE)
    paths = {name: place / "ranking.parquet" for name, place in {"own": ranking, "plain": otherwise}.items()}
    expansions, query = choices["doc_id"].combine_chunks(), choices["query_id"].combine_chunks()
    placed, plain = Placed(paths["own"], RANKING, expansions), Placed(paths["plain"], RANKING, of_split)
    ranked = _in_order(paths["plain"], of_split)
    rows = _in_order(paths["own"], expansions)
    lacking = pc.unique(query.take(pc.index_in(rows, value_set=expansions)))
    lacking = lacking.filter(pc.invert(pc.is_in(lacking, value_set=ranked)))
    with replacing(out / "ranking.parquet") as path, pq.ParquetWriter(path, RANKING) as writer:
        for queries in (ranked, lacking):
            for start in range(0, len(queries), QUERIES):
                block = queries.slice(start, QUERIES)
                chosen = np.flatnonzero(pc.is_in(query, value_set=block).to_numpy(zero_copy_only=False))
                place = pc.index_in(block, value_set=of_split).drop_null().to_numpy()
                expanded = placed.rows(chosen) if len(chosen) else RANKING.empty_table()
                unexpanded = plain.rows(np.sort(place)) if len(place) else RANKING.empty_table()
                writer.write_table(
                    query_choice.as_ranking(choices.take(pa.array(chosen)), expanded, unexpanded, fusion)
                )


def _in_order(path: Path, queries: pa.Array) -> pa.Array:
    """Return those of some queries that a ranking has, in order of their first rows."""
    parts = (pc.unique(piece["query_id"]) for piece in pieces(path, RANKING, columns=["query_id"]))
    names = pc.unique(pa.chunked_array([pa.array([], TEXT), *parts], TEXT))
    return names.filter(pc.is_in(names, value_set=queries))


def _scores(scores: Path | None, expansions: pa.Table) -> np.ndarray:
    """Return a score for each expansion. The lowest is the best, an expansion without an answer the worst."""
    if scores is None:
        return query_choice.generation_order(expansions)
    oracle = (scores / RANKS).exists()
    table = read(scores / RANKS, ANSWER_RANKS) if oracle else read(scores / PREDICTED, PREDICTIONS)
    rows = pc.index_in(expansions["doc_id"], value_set=table["doc_id"].combine_chunks())
    if rows.null_count:
        raise ValueError(f"{scores}: says nothing of {rows.null_count} expansions")
    values = table["rank" if oracle else "score"].take(rows).cast(pa.float64())
    return pc.fill_null(values, np.inf).to_numpy()
