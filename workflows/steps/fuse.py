"""Fuse several rankings of the same queries."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from components import fusion
from components.files import replacing
from components.fusion import FusionConfig
from components.groups import ids_of
from workflows.cluster import Cluster


def fuse(
    out: Path, cluster: Cluster, *, data: Path, rankings: list[Path], split: str, config: FusionConfig
) -> dict[str, Any]:
    """Write `ranking.parquet`, the split's queries' rankings fused (`components.fusion`)."""
    splits = pq.read_table(data / "queries.parquet", columns=["split"])["split"]
    wanted = ids_of(data / "queries.parquet", "query_id").filter(pc.equal(splits, split).combine_chunks())
    tables = [pq.read_table(path / "ranking.parquet") for path in rankings]
    tables = [table.filter(pc.is_in(table["query_id"], value_set=wanted)) for table in tables]
    fused = fusion.fuse(tables, config)
    with replacing(out / "ranking.parquet") as path:
        pq.write_table(fused, path)
    return {"queries": len(pc.unique(fused["query_id"])), "rows": len(fused)}
