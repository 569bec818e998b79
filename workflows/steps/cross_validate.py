"""Pool the measures of one system over all folds of a cross-validation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.evaluation.measures import PER_QUERY_FILE, means
from sparring.components.evaluation.selection import FILE, Kind, best_of
from sparring.components.files import read_json, replacing
from sparring.workflows.store.dag import Description


@Description(part="evaluation", in_worker=True)
def pool(out: Path, machine: Any, *, folds: list[Path]) -> dict[str, Any]:
    """Write the values of all folds' queries as those of one split. `folds` are artifacts of `evaluate`."""
    return _pooled(out, folds)


@Description(part="evaluation", in_worker=True)
def pool_selected(out: Path, machine: Any, *, folds: list[dict[str, Any]], kind: Kind) -> dict[str, Any]:
    """Pool the values of all folds, each with the system that the fold selected.

    A fold is {selection, measures}: an artifact of `select`, and one of `evaluate` for each system by name. The summary
    counts how often each system was selected.
    """
    selected = [best_of(read_json(fold["selection"] / FILE), kind) for fold in folds]
    summary = _pooled(out, [fold["measures"][name] for fold, name in zip(folds, selected, strict=True)])
    return {**summary, "selected": {name: selected.count(name) for name in dict.fromkeys(selected)}}


def _pooled(out: Path, folds: Sequence[Path]) -> dict[str, Any]:
    tables = [pq.read_table(fold / PER_QUERY_FILE) for fold in folds]
    values = pa.concat_tables(tables)
    queries = sum(len(pc.unique(table["query_id"])) for table in tables)
    if len(pc.unique(values["query_id"])) != queries:
        raise ValueError("a query is in two folds")
    with replacing(out / PER_QUERY_FILE) as path:
        pq.write_table(values, path)
    return {"measures": means(values), "queries": queries}
