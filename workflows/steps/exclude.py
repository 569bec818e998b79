"""A ranking without the queries themselves, for benchmarks whose queries are among the documents."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from components.data import row_runs
from components.data.tables import RANKING, read, write
from workflows.distributed.cluster import Cluster
from workflows.store.dag import Description


@Description(part="search")
def exclude(out: Path, cluster: Cluster, *, ranking: Path, k: int) -> dict[str, Any]:
    """Write the ranking without documents that have their query's id (BEIR: ArguAna and Quora), cut to `k` a query."""
    table = read(ranking / "ranking.parquet", RANKING)
    kept = table.filter(pc.not_equal(table["query_id"], table["doc_id"])).combine_chunks()
    queries = kept["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    ranks = row_runs.ranks(queries) + 1
    kept = kept.set_column(2, RANKING.field("rank"), pa.array(ranks, pa.int32())).filter(pa.array(ranks <= k))
    write(out / "ranking.parquet", kept, RANKING)
    return {"queries": int((ranks == 1).sum()), "excluded": len(table) - len(queries)}
