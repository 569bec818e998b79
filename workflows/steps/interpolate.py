"""Mix two rankings of the same queries into one."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from components.interpolation import InterpolationConfig, interpolated
from components.tables import RANKING, read, write
from workflows.cluster import Cluster


def interpolate(
    out: Path, cluster: Cluster, *, first: Path, second: Path, k: int, config: InterpolationConfig
) -> dict[str, Any]:
    """Write `ranking.parquet`: of the queries of both, the k best documents by the mixture of their scores."""
    tables = [read(place / "ranking.parquet", RANKING) for place in (first, second)]
    # One of them may be of more splits: a query that the other was not asked is none of both.
    one, other = (table.filter(_asked(table, also)) for table, also in (tables, tables[::-1]))
    mixed = interpolated(one, other, config, k=k)
    write(out / "ranking.parquet", mixed, RANKING)
    return {"queries": len(mixed["query_id"].unique()), "documents": len(mixed)}


def _asked(table: pa.Table, also: pa.Table) -> pa.ChunkedArray:
    return pc.is_in(table["query_id"], value_set=also["query_id"].combine_chunks().unique())
