"""Build training examples from a ranking: its first documents, relevant or not, one by one (Nogueira and Cho, 2019;
Chuang et al., 2023, Appendix B.2)."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.config import UserError
from sparring.components.data.groups import query_ids_of
from sparring.components.data.tables import ANSWERED, GROUPS, QRELS, RANKING, read
from sparring.components.expansion.query_choice import mark_relevant
from sparring.components.files import replacing
from sparring.components.rng import keyed_rng
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

ROWS = 100_000
"""Number of groups that are written together."""


@Description(part="groups and negatives", makes="pairs")
def ranked_pairs(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    ranking: Path,
    split: str,
    by_answer: bool,
    depth: int,
    groups: int,
    seed: list[Any],
) -> dict[str, Any]:
    """Write `groups.parquet` with `groups` groups, each a query of the split with one of the first `depth` documents of
    its ranking.

    The target is 1 for a relevant document, otherwise 0. With `by_answer`, a document is relevant if it contains an
    answer, and `ranking` is one that `answering` wrote. Otherwise it must be judged relevant. No document is left out
    or added, so the share of positives is the ranking's. Each pass over the pairs has its own order. UserError if
    nothing can be learnt because no document is relevant, or all are.
    """
    first = read(ranking / "ranking.parquet", ANSWERED if by_answer else RANKING, filters=[("rank", "<=", depth)])
    first = first.filter(pc.is_in(first["query_id"], value_set=query_ids_of(data, [split])))
    if not by_answer:
        first = mark_relevant(first, read(data / "qrels.parquet", QRELS, filters=[("split", "=", split)]))
    positives = int(pc.sum(first["hit"]).as_py() or 0)
    if positives in (0, len(first)):
        raise UserError(
            f"passages: {positives} of the {len(first)} documents that BM25 ranks first for the queries of "
            f"{split!r} are relevant, so there is nothing to learn; accepted: another `depth`, or another "
            "`relevant_by`"
        )
    first = first.sort_by([("query_id", "ascending"), ("rank", "ascending")]).combine_chunks()
    passes = -(-groups // len(first))
    order = np.concatenate([keyed_rng(*seed, "order", visit).permutation(len(first)) for visit in range(passes)])
    with replacing(out / "groups.parquet") as path, pq.ParquetWriter(path, GROUPS) as writer:
        for start in range(0, groups, ROWS):
            numbers = np.arange(start, min(start + ROWS, groups))
            writer.write_table(_groups(first.take(pa.array(order[numbers])), numbers // len(first)))
    return {"groups": groups, "pairs": len(first), "positives": positives, "queries": len(pc.unique(first["query_id"]))}


def _groups(pairs: pa.Table, visits: np.ndarray) -> pa.Table:
    """Return groups with one candidate each."""
    ends = pa.array(np.arange(len(pairs) + 1))
    columns = {
        "query_id": pairs["query_id"],
        "visit": pa.array(visits, pa.int32()),
        "doc_ids": pa.LargeListArray.from_arrays(ends, pairs["doc_id"].combine_chunks()),
        "targets": pa.LargeListArray.from_arrays(ends, pairs["hit"].combine_chunks().cast(pa.float32())),
        "teacher": pa.nulls(len(pairs), GROUPS.field("teacher").type),
    }
    return pa.table([columns[name] for name in GROUPS.names], schema=GROUPS)
