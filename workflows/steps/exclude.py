"""A ranking without the queries themselves, where a benchmark's queries stand among its documents."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from components.tables import RANKING, read, write
from workflows.cluster import Cluster


def exclude(out: Path, cluster: Cluster, *, ranking: Path, k: int) -> dict[str, Any]:
    """The ranking without documents that have their query's id (BEIR: ArguAna and Quora), cut to `k` a query."""
    table = read(ranking / "ranking.parquet", RANKING)
    kept = table.filter(pc.not_equal(table["query_id"], table["doc_id"])).combine_chunks()
    queries = kept["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    starts = np.flatnonzero(np.r_[True, queries[1:] != queries[:-1]]) if len(queries) else np.empty(0, int)
    ranks = np.arange(len(queries)) - np.repeat(starts, np.diff(np.r_[starts, len(queries)])) + 1
    kept = kept.set_column(2, RANKING.field("rank"), pa.array(ranks, pa.int32())).filter(pa.array(ranks <= k))
    write(out / "ranking.parquet", kept, RANKING)
    return {"queries": len(starts), "excluded": len(table) - len(queries)}
