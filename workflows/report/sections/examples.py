"""Queries that a system wins or loses against its baseline."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data.groups import judged_queries
from sparring.components.data.tables import QRELS, RANKING, pieces, read, records
from sparring.components.evaluation.rank_changes import Change, changes, telling
from sparring.workflows.report.finished import Json
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row

FILE = "ranking.parquet"
TABLES = ("queries.parquet", "qrels.parquet")
"""Tables that are downloaded whole. Of the documents only those are read that are shown."""
EXAMPLES = 4
"""Won queries shown, and lost ones."""


def examples(systems: Sequence[Row], store: Store, pair: tuple[str, str]) -> Json | None:
    """Show queries that a system wins and loses against its baseline, from those that both were measured on.

    They come from the first collection that both were measured on, with the first seed. Return None if the rankings are
    no longer there.
    """
    runs, baseline_runs = ([system for system in systems if system.name == name] for name in pair)
    pairs = ((a, b) for a in runs for b in baseline_runs if _where(a) == _where(b))
    system, baseline = next(pairs, (None, None))
    if system is None or baseline is None or system.ranking is None or baseline.ranking is None:
        return None
    try:
        store.fetch([system.ranking, baseline.ranking], FILE)
        store.fetch([system.data], *TABLES)
        data = store.path(system.data)
        qrels = read(data / "qrels.parquet", QRELS, filters=[("split", "=", system.split), ("relevance", ">", 0)])
        few = [run.queries for run in (system, baseline) if run.queries is not None]
        both = judged_queries(data, system.split, min(few, default=None))
        qrels = qrels.filter(pc.is_in(qrels["query_id"], value_set=both))
        documents = pc.unique(qrels["doc_id"])
        before, after = (
            pa.concat_tables([RANKING.empty_table(), *(telling(piece, documents) for piece in pieces(path, RANKING))])
            for path in (store.path(step) / FILE for step in (baseline.ranking, system.ranking))
        )
        changed = changes(before, after, qrels)
        won = [change for change in changed if change.gain > 0]
        lost = [change for change in reversed(changed) if change.gain < 0]
        cases = {"won": _texts(won[:EXAMPLES], data), "lost": _texts(lost[:EXAMPLES], data)}
    except FileNotFoundError:
        return None
    counts = {"won": len(won), "lost": len(lost), "same": len(changed) - len(won) - len(lost)}
    seeds = {run.seed for run in runs}
    return {
        "system": pair[0],
        "baseline": pair[1],
        "collection": system.collection,
        "split": system.split,
        "seed": system.seed if len(seeds) > 1 else None,
        "counts": counts,
        **cases,
    }


def _where(system: Row) -> tuple[str, str, int]:
    return system.collection, system.split, system.seed


def _texts(chosen: Sequence[Change], data: Path) -> list[Json]:
    """The texts of the queries and documents of some changes."""
    queries = records(data / "queries.parquet", "query_id", [c.query_id for c in chosen])
    documents = records(data / "documents.parquet", "doc_id", [d for c in chosen for d in (c.doc_id, c.first) if d])
    return [
        {
            "query": queries[c.query_id]["text"],
            "right": documents.get(c.doc_id),
            "first": documents.get(c.first or ""),
            "before": c.before,
            "after": c.after,
        }
        for c in chosen
    ]
