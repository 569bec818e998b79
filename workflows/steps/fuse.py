"""Fuse several rankings of the same queries."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from components import fusion
from components.fusion import FusionConfig
from components.groups import queries_of
from components.tables import RANKING, read, write
from workflows.cluster import Cluster


def fuse(
    out: Path, cluster: Cluster, *, data: Path, rankings: list[Path], split: str, config: FusionConfig
) -> dict[str, Any]:
    """Write `ranking.parquet`, the split's queries' rankings fused (`components.fusion`)."""
    wanted = queries_of(data, [split], ["query_id"])["query_id"].combine_chunks()
    tables = [read(path / "ranking.parquet", RANKING) for path in rankings]
    fused = fusion.fuse([table.filter(pc.is_in(table["query_id"], value_set=wanted)) for table in tables], config)
    write(out / "ranking.parquet", fused, RANKING)
    return {"queries": len(pc.unique(fused["query_id"])), "rows": len(fused)}
