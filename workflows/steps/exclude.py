"""A ranking without the queries themselves, for benchmarks whose queries are among the documents."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data import row_runs
from sparring.components.data.groups import ids_of, rows_of
from sparring.components.data.tables import QRELS, RANKING, read, write
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.store.cost import Cost, Ranking, Work
from sparring.workflows.store.dag import Description


def _cost(site: Any, *, ranking: Ranking, k: int, **rest: Any) -> Cost:
    """Every row is looked at."""
    made = Ranking(ranking.queries, min(k, ranking.k))
    return Cost(work=(Work("rows", 2.0 * ranking.rows),), makes=made, kept=made.bytes)


@Description(part="search", cost=_cost)
def exclude(out: Path, cluster: Cluster, *, ranking: Path, k: int) -> dict[str, Any]:
    """Write the ranking without documents that have their query's id (BEIR: ArguAna and Quora), cut to `k` a query."""
    table = read(ranking / "ranking.parquet", RANKING)
    return _write(out, table, pc.not_equal(table["query_id"], table["doc_id"]), k)


@Description(part="search", cost=_cost)
def exclude_copies(out: Path, cluster: Cluster, *, data: Path, tokens: Path, ranking: Path, k: int) -> dict[str, Any]:
    """Write the ranking without documents that have their query's id, or the same tokens as the document with that id,
    cut to `k` a query. A copy that is judged for the query stays, such as the same sentence in other letter case."""
    table, qrels = read(ranking / "ranking.parquet", RANKING), read(data / "qrels.parquet", QRELS)
    ids, same = ids_of(data / "documents.parquet", "doc_id"), np.load(tokens / "documents.same.npy", mmap_mode="r")

    def pairs(of: pa.Table, what: Path) -> tuple[np.ndarray, np.ndarray]:
        asked, found = (rows_of(of[name], ids, what=str(what)) for name in ("query_id", "doc_id"))
        return asked, found

    asked, found = pairs(table, ranking)
    judged = [query * len(ids) + document for query, document in (pairs(qrels, data), (asked, found))]
    kept = (same[asked] != same[found]) | np.isin(judged[1], judged[0])
    return _write(out, table, pa.array(kept), k)


def _write(out: Path, table: pa.Table, kept: pa.Array | pa.ChunkedArray, k: int) -> dict[str, Any]:
    """Write the rows that are kept, with new ranks up to `k`."""
    rest = table.filter(kept).combine_chunks()
    queries = rest["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    ranks = row_runs.ranks(queries) + 1
    rest = rest.set_column(2, RANKING.field("rank"), pa.array(ranks, pa.int32())).filter(pa.array(ranks <= k))
    write(out / "ranking.parquet", rest, RANKING)
    return {"queries": int((ranks == 1).sum()), "excluded": len(table) - len(queries)}
