"""The gate of a round: a ranker may teach if its order of a ranking is better than the ranking."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from sparring.components.config import Config
from sparring.components.evaluation.measures import means, per_query
from sparring.components.evaluation.significance import compare
from sparring.components.files import read_json, write_json

FILE = "gate.json"


class GateConfig(Config):
    """Condition for playing a round."""

    level: float = Field(0.05, gt=0, le=1)
    """Highest p (paired randomization over the queries) with which the ranker's order must be better than the ranking
    that it reads. 1 requires only a better mean."""


def decide(ranking: pa.Table, reranked: pa.Table, qrels: pa.Table, measure: str, config: GateConfig) -> dict[str, Any]:
    """Decide whether the ranker may teach. On the queries that were reranked, its order must beat the ranking that it
    read. Return the decision with its numbers."""
    queries = pc.unique(reranked["query_id"])
    judged = qrels.filter(pc.is_in(qrels["query_id"], value_set=queries))
    before = per_query(ranking.filter(pc.is_in(ranking["query_id"], value_set=queries)), judged, [measure])
    after = per_query(reranked, judged, [measure])
    (compared,) = compare([after], [before], seed=0)
    opened = compared["difference"] > 0 and compared["p"] <= config.level
    return {
        "open": opened,
        "measure": measure,
        "ranking": means(before)[measure],
        "ranker": means(after)[measure],
        "p": compared["p"],
        "queries": compared["queries"],
    }


def write_decision(folder: Path, decision: dict[str, Any]) -> None:
    """Write a decision to `gate.json`."""
    write_json(folder / FILE, decision)


def is_open(folder: Path) -> bool:
    """Check whether the gate whose decision lies in the folder is open."""
    return bool(read_json(folder / FILE)["open"])
