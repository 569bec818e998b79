"""Measure how much of a ranking by whole vectors is kept by rankings with smaller ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from sparring.components.data.tables import RANKING, pieces
from sparring.components.evaluation.measures import PER_QUERY_FILE, means
from sparring.components.files import write_json
from sparring.workflows.store.dag import Description

SIZES = "sizes.json"
DEPTH = 10
"""Number of first documents whose overlap is counted."""


@Description(part="evaluation", shows=(SIZES,))
def sizes(out: Path, machine: Any, *, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Write `sizes.json`: for each of `rows` the mean of each measure, and an overlap with the ranking by whole
    vectors.

    The overlap is the mean share of the first 10 documents by whole vectors that are among the first 10 of the row.

    A row is {system, seed, metrics, whole, ranking, searched, rescored_by}. `metrics` are the measures of `ranking`,
    and `whole` is the ranking by the vectors as they were encoded. `searched` and `rescored_by` are the artifacts that
    are searched and that candidates are ordered by. The report shows their sizes.
    """
    entries, firsts = [], {ranking: _first(ranking) for row in rows for ranking in (row["whole"], row["ranking"])}
    for row in rows:
        whole, of_row = firsts[row["whole"]], firsts[row["ranking"]]
        shares = [len(first & of_row.get(query, set())) / len(first) for query, first in whole.items()]
        measures = means(pq.read_table(row["metrics"] / PER_QUERY_FILE))
        entries.append(
            {
                "system": row["system"],
                "seed": row["seed"],
                "queries": len(whole),
                "overlap": float(np.mean(shares)),
                "measures": measures,
            }
        )
    write_json(out / SIZES, entries)
    return {"rows": len(entries)}


def _first(ranking: Path) -> dict[str, set[str]]:
    """Read the first documents of each query."""
    documents: dict[str, set[str]] = {}
    for piece in pieces(ranking / "ranking.parquet", RANKING, columns=["query_id", "doc_id", "rank"]):
        top = piece.filter(piece["rank"].to_numpy() <= DEPTH)
        for query, document in zip(top["query_id"].to_pylist(), top["doc_id"].to_pylist(), strict=True):
            documents.setdefault(query, set()).add(document)
    return documents
