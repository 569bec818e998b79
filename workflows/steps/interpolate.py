"""Mix two rankings of the same queries into one."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from components.groups import queries_of
from components.interpolation import InterpolationConfig, interpolated
from components.tables import RANKING, read, write
from workflows.cluster import Cluster


def interpolate(
    out: Path, cluster: Cluster, *, data: Path, first: Path, second: Path, split: str, k: int,
    config: InterpolationConfig,
) -> dict[str, Any]:  # fmt: skip
    """Write `ranking.parquet`: of the split's queries, the k best documents by the mixture of their scores.

    A query for which one of them found nothing keeps the other's order (`components.interpolation`).
    """
    wanted = queries_of(data, [split], ["query_id"])["query_id"].combine_chunks()
    tables = [read(place / "ranking.parquet", RANKING) for place in (first, second)]
    one, other = (table.filter(pc.is_in(table["query_id"], value_set=wanted)) for table in tables)
    mixed = interpolated(one, other, config, k=k)
    write(out / "ranking.parquet", mixed, RANKING)
    return {"queries": len(mixed["query_id"].unique()), "documents": len(mixed)}
