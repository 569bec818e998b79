"""Choose the numbers of a fusion by measuring it on queries that nothing was trained on."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.data.groups import judged_queries, query_ids_of
from sparring.components.data.tables import QRELS, RANKING, TEXT, of_queries, read, side_by_side
from sparring.components.evaluation.measures import cutoff, per_query
from sparring.components.files import replacing, write_json
from sparring.components.retrieval.fusion import FITTED, FusionConfig, fuse
from sparring.components.rng import keyed_int
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description
from sparring.workflows.store.progress import Progress

WEIGHTS = tuple(number / 10 for number in range(11))
CONSTANTS = (5.0, 20.0, 60.0, 180.0)
QUERIES = 1000


@Description(part="search", version=4, in_worker=True, workers_read={"data": ("documents.parquet",)})
def fit_fusion(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    rankings: list[Path],
    split: str,
    measure: str,
    config: FusionConfig,
    weights: Sequence[float] = WEIGHTS,
    constants: Sequence[float] = CONSTANTS,
    queries: int = QUERIES,
    lexical: Sequence[int] = (),
) -> dict[str, Any]:
    """Write `fusion.json`, with the `chosen` config of `FusionConfig` and each trial with its value, and
    `ranking.parquet`, the split's queries fused.

    The trials are the config with each weight of the second of two rankings and, for reciprocal fusion, with each
    constant. The trial with the best mean of a measure over the split's judged queries, or over a sample of them, is
    chosen. Of equal trials, the nearest to the config is chosen. If the split has no judged query, the config stays.
    `lexical` has the numbers, from 0, of the rankings that BM25 made.

    In `ranking.parquet` each half of the queries is fused with the best trial for the judged queries of the other half.
    So no query's own judgements influence its ranking.
    """
    judged = judged_queries(data, split, queries)
    paths = [path / "ranking.parquet" for path in rankings]
    tables = [of_queries(path, RANKING, judged) for path in paths]
    qrels = read(data / "qrels.parquet", QRELS, filters=[("split", "=", split)])
    qrels = qrels.filter(pc.is_in(qrels["query_id"], value_set=judged))
    depth = min(config.depth, cutoff(measure) or config.depth)  # documents beyond a cutoff do not change a measure
    trials, values, order = _trials(config, weights, constants), list[npt.NDArray[np.float64]](), list[str]()
    with Progress(out, len(trials), "trials") as progress:
        for trial in trials:
            fused = fuse(tables, trial.model_copy(update={"depth": depth}), lexical=lexical)
            measured = per_query(fused, qrels, [measure])
            values.append(measured["value"].to_numpy())
            order = measured["query_id"].to_pylist()
            progress.add(1)
    by_query, half = np.stack(values), np.array([_half(query) for query in order], int)
    by_half = [_best(trials, by_query[:, half != number]) for number in (0, 1)]
    _write_halves(out, paths, query_ids_of(data, [split]), by_half, lexical)
    chosen = _best(trials, by_query)
    means = by_query.mean(1).tolist() if order else []
    numbers = ("weight", "c") if config.how == "reciprocal" else ("weight",)
    write_json(
        out / FITTED,
        {
            "chosen": chosen.model_dump(mode="json"),
            "split": split,
            "measure": measure,
            "queries": len(order),
            "tried": [
                {**{name: getattr(trial, name) for name in numbers}, "value": mean}
                for trial, mean in zip(trials, means, strict=False)
            ],
        },
    )
    best = max(means, default=None)
    return {"trials": len(means), "queries": len(order), "best": best, **{n: getattr(chosen, n) for n in numbers}}


def _half(query: str) -> int:
    """Return the half of the queries that a query belongs to, 0 or 1."""
    return keyed_int("half", query) % 2


def _best(trials: list[FusionConfig], values: npt.NDArray[np.float64]) -> FusionConfig:
    """Return the trial with the highest mean of values (trials, queries). Of equal trials, and without queries, return
    the first."""
    return trials[int(values.mean(1).argmax())] if values.shape[1] else trials[0]


def _write_halves(
    out: Path, paths: list[Path], queries: pa.Array, by_half: list[FusionConfig], lexical: Sequence[int]
) -> None:
    """Write `ranking.parquet`: the queries' rankings fused, with another config for each half of the queries."""
    with replacing(out / "ranking.parquet") as to, pq.ParquetWriter(to, RANKING) as writer:
        for tables in side_by_side(paths, RANKING, queries):
            for number, config in enumerate(by_half):
                parts = [table.filter(_of_half(table, number)) for table in tables]
                writer.write_table(fuse(parts, config, lexical=lexical))


def _of_half(table: pa.Table, half: int) -> pa.Array:
    """Return which rows of a ranking belong to the queries of a half."""
    names = table["query_id"].combine_chunks().dictionary_encode()
    in_half = [name for name in names.dictionary.to_pylist() if _half(name) == half]
    return pc.is_in(table["query_id"], value_set=pa.array(in_half, TEXT))


def _trials(config: FusionConfig, weights: Sequence[float], constants: Sequence[float]) -> list[FusionConfig]:
    """Return the config with other weights and constants, nearest to the config first."""
    cs = sorted({config.c, *constants}) if config.how == "reciprocal" else [config.c]
    trials = [config.model_copy(update={"weight": w, "c": c}) for w in sorted({config.weight, *weights}) for c in cs]

    def distance(trial: FusionConfig) -> tuple[float, float]:
        return round(abs(trial.weight - config.weight), 9), abs(math.log((trial.c + 1) / (config.c + 1)))

    return sorted(trials, key=distance)
