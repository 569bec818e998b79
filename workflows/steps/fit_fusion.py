"""Choose how rankings are fused by what it does for queries of a split that nothing was trained on."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from sparring.components.data.groups import judged_queries
from sparring.components.data.tables import QRELS, RANKING, of_queries, read
from sparring.components.evaluation.measures import cutoff, means, per_query
from sparring.components.files import write_json
from sparring.components.retrieval.fusion import FITTED, FusionConfig, fuse
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.site import Site
from sparring.workflows.store.cost import Cost, Ranking, Sizes, Work
from sparring.workflows.store.dag import Description
from sparring.workflows.store.progress import Progress

WEIGHTS = tuple(number / 10 for number in range(11))
CONSTANTS = (5.0, 20.0, 60.0, 180.0)
QUERIES = 1000


def _cost(
    site: Site, *, data: Sizes, rankings: list[Ranking], split: str, measure: str, config: FusionConfig, **tried: Any
) -> Cost:
    """Each trial fuses and measures."""
    rows = min(data.asked(split), tried.get("queries", QUERIES)) * sum(one.k for one in rankings)
    return Cost(work=(Work("rows", 1.0 * len(_trials(config, tried["weights"], tried["constants"])) * rows),),
                makes=None)  # fmt: skip


@Description(part="search", version=3, cost=_cost)
def fit_fusion(
    out: Path, cluster: Cluster, *, data: Path, rankings: list[Path], split: str, measure: str, config: FusionConfig,
    weights: Sequence[float] = WEIGHTS, constants: Sequence[float] = CONSTANTS, queries: int = QUERIES,
    lexical: Sequence[int] = (),
) -> dict[str, Any]:  # fmt: skip
    """Write `fusion.json`: what was `chosen` as `FusionConfig` has it, and each trial with its value.

    The trials are the config with each weight of the second of two rankings and, where fusion is reciprocal, each
    constant. The best by a measure's mean over the split's judged queries, or over a sample of so many, is chosen; of
    equals that nearest the config, which stands where the split has no such query. `lexical` are the numbers, from 0,
    of the rankings that BM25 made.
    """
    wanted = judged_queries(data, split, queries)
    tables = [of_queries(path / "ranking.parquet", RANKING, wanted) for path in rankings]
    qrels = read(data / "qrels.parquet", QRELS, filters=[("split", "=", split)])
    qrels = qrels.filter(pc.is_in(qrels["query_id"], value_set=wanted))
    depth = min(config.depth, cutoff(measure) or config.depth)  # what stands beyond a cutoff does not change a measure
    tried: list[tuple[FusionConfig, float]] = []
    trials = _trials(config, weights, constants) if len(wanted) else []
    with Progress(out, len(trials), "trials") as progress:
        for trial in trials:
            fused = fuse(tables, trial.model_copy(update={"depth": depth}), lexical=lexical)
            tried.append((trial, means(per_query(fused, qrels, [measure]))[measure]))
            progress.add(1)
    chosen, value = max(tried, key=lambda one: one[1], default=(config, None))  # of equals the first
    numbers = ("weight", "c") if config.how == "reciprocal" else ("weight",)
    write_json(out / FITTED, {
        "chosen": chosen.model_dump(mode="json"), "split": split, "measure": measure, "queries": len(wanted),
        "tried": [{**{name: getattr(one, name) for name in numbers}, "value": value} for one, value in tried],
    })  # fmt: skip
    return {"trials": len(tried), "queries": len(wanted), "best": value, **{n: getattr(chosen, n) for n in numbers}}


def _trials(config: FusionConfig, weights: Sequence[float], constants: Sequence[float]) -> list[FusionConfig]:
    """The config with other numbers, the nearest to it first."""
    cs = sorted({config.c, *constants}) if config.how == "reciprocal" else [config.c]
    trials = [config.model_copy(update={"weight": w, "c": c}) for w in sorted({config.weight, *weights}) for c in cs]

    def distance(trial: FusionConfig) -> tuple[float, float]:
        return round(abs(trial.weight - config.weight), 9), abs(math.log((trial.c + 1) / (config.c + 1)))

    return sorted(trials, key=distance)
