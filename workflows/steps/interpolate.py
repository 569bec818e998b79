"""Mix two rankings of the same queries into one."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from components.files import replacing
from components.interpolation import InterpolationConfig, interpolated
from components.tables import RANKING, check
from workflows.cluster import Cluster


def interpolate(
    out: Path, cluster: Cluster, *, first: Path, second: Path, k: int, config: InterpolationConfig
) -> dict[str, Any]:
    """Write `ranking.parquet`: of the queries of both, the k best documents by the mixture of their scores."""
    tables = [
        check(pq.read_table(place / "ranking.parquet"), RANKING, what=str(place)) for place in (first, second)
    ]  # fmt: skip
    # One of them may be of more splits: a query that the other was not asked is none of both.
    one, other = (table.filter(_asked(table, also)) for table, also in (tables, tables[::-1]))
    mixed = interpolated(one, other, config, k=k)
    with replacing(out / "ranking.parquet") as path:
        pq.write_table(mixed, path)
    return {"queries": len(mixed["query_id"].unique()), "documents": len(mixed)}


def _asked(table: Any, also: Any) -> Any:
    import pyarrow.compute as pc

    return pc.is_in(table["query_id"], value_set=also["query_id"].combine_chunks().unique())
