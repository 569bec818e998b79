"""Interpolate two rankings of the same queries."""

from pathlib import Path
from typing import Any

from components.data.groups import queries_of
from components.data.tables import RANKING, of_queries, write
from components.retrieval.interpolation import InterpolationConfig, interpolated
from workflows.distributed.cluster import Cluster
from workflows.store.dag import Description


@Description(part="interpolation")
def interpolate(
    out: Path, cluster: Cluster, *, data: Path, first: Path, second: Path, split: str, k: int,
    config: InterpolationConfig,
) -> dict[str, Any]:  # fmt: skip
    """Write `ranking.parquet`: for the split's queries, the k best documents by interpolated score.

    A query that only one of the rankings has keeps that one's order (`components.retrieval.interpolation`).
    """
    wanted = queries_of(data, [split], ["query_id"])["query_id"].combine_chunks()
    one, other = (of_queries(place / "ranking.parquet", RANKING, wanted) for place in (first, second))
    mixed = interpolated(one, other, config, k=k)
    write(out / "ranking.parquet", mixed, RANKING)
    return {"queries": len(mixed["query_id"].unique()), "documents": len(mixed)}
