"""Fuse several rankings of the same queries."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.data.groups import query_ids_of
from sparring.components.data.tables import EXPANSIONS, RANKING, TEXT, pieces, read, side_by_side
from sparring.components.expansion.expansions import FILE
from sparring.components.files import replacing
from sparring.components.retrieval import fusion
from sparring.components.retrieval.fusion import FusionConfig
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

DOCUMENTS = {"data": ("documents.parquet",)}
"""Files that neither fusion reads."""


@Description(part="search", version=3, in_worker=True, workers_read=DOCUMENTS)
def fuse(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    rankings: list[Path],
    split: str,
    config: FusionConfig | Path,
    lexical: Sequence[int] = (),
) -> dict[str, Any]:
    """Write `ranking.parquet`, the fused rankings of the split's queries (`components.retrieval.fusion`).

    `config` may be the artifact of `fit_fusion`, which chose the numbers. `lexical` has the numbers, from 0, of the
    rankings that BM25 made.
    """
    of_split = query_ids_of(data, [split])
    paths = [path / "ranking.parquet" for path in rankings]
    fusion_config, counts = config if isinstance(config, FusionConfig) else fusion.read_chosen(config), Counter[str]()
    with replacing(out / "ranking.parquet") as to, pq.ParquetWriter(to, RANKING) as writer:
        for tables in side_by_side(paths, RANKING, of_split):
            fused = fusion.fuse(tables, fusion_config, lexical=lexical)
            writer.write_table(fused)
            counts.update(queries=len(pc.unique(fused["query_id"])), rows=len(fused))
    return {"queries": counts["queries"], "rows": counts["rows"]}


@Description(part="search", version=3, in_worker=True, workers_read=DOCUMENTS)
def fuse_expansions(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    expanded: Path,
    ranking: Path,
    otherwise: Path,
    split: str,
    config: FusionConfig,
) -> dict[str, Any]:
    """Write `ranking.parquet`: for each query, the fusion of its expansions' rankings, in the order of generation.
    Queries without an expansion keep the ranking of `otherwise`.

    The rankings are read piece by piece. The ranking of expansions is cut where a query ends.
    """
    of_split = query_ids_of(data, [split])
    expansions = read(expanded / FILE, EXPANSIONS, columns=["doc_id", "query_id", "number"])
    expansions = expansions.filter(pc.is_in(expansions["query_id"], value_set=of_split))
    names = expansions["doc_id"].combine_chunks()
    rest, rows = RANKING.append(pa.field("number", pa.int32())).empty_table(), 0
    fused = pa.chunked_array([], TEXT)
    with replacing(out / "ranking.parquet") as to, pq.ParquetWriter(to, RANKING) as writer:
        for piece in chain(pieces(ranking / "ranking.parquet", RANKING), [None]):
            last = pa.array(np.zeros(len(rest), bool))
            if piece is not None:
                places = pc.index_in(piece["query_id"], value_set=names)
                part, places = piece.filter(pc.is_valid(places)), places.drop_null()
                part = part.set_column(0, "query_id", expansions["query_id"].take(places))
                rest = pa.concat_tables([rest, part.append_column("number", expansions["number"].take(places))])
                if not len(rest):
                    continue
                last = pc.equal(rest["query_id"], rest["query_id"][-1])  # it may continue in the next piece
            done, rest = rest.filter(pc.invert(last)), rest.filter(last)
            table = fusion.fuse_lists(done.select(RANKING.names), done["number"].to_numpy(), config)
            writer.write_table(table)
            fused, rows = pa.chunked_array([*fused.chunks, pc.unique(table["query_id"])], TEXT), rows + len(table)
        lacking = of_split.filter(pc.invert(pc.is_in(of_split, value_set=fused)))
        for piece in pieces(otherwise / "ranking.parquet", RANKING):
            writer.write_table(piece.filter(pc.is_in(piece["query_id"], value_set=lacking)))
    return {"queries": len(fused), "rows": rows}
