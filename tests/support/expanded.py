"""Queries that were expanded from toy data: what the steps after it begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sparring.components.expansion import expansions
from sparring.components.expansion.relevance_model import RelevanceConfig
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.steps.choose import answer_ranks
from sparring.workflows.steps.expand import expand_by_relevance
from tests.support import toy


def place(path: Path) -> Path:
    """A directory, made where it is not there."""
    path.mkdir(parents=True, exist_ok=True)
    return path


def by_relevance(out: Path, machine: Machine, data: Path, found: Path, splits: list[str], **config: Any) -> Any:
    """The step that expands by relevance, with a few short expansions a query unless options say otherwise."""
    options = RelevanceConfig(**{"number": 6, "terms": 2, "common": 1.0, **config})
    return expand_by_relevance(place(out), machine, data=data, ranking=found, splits=splits, seed=[1], config=options)


def chain(folder: Path, data: Path) -> dict[str, Path]:
    """Expansions of all queries, what each finds, and their ranks. The first expansion finds the relevant document
    first, the k-th at k; q4's find nothing."""
    rows = {f"q{i}": [f"d{(i + 3 * k) % 40}" for k in range(5)] for i in range(24)}
    source = toy.write_ranking(folder / "found", rows)
    by_relevance(folder / "expanded", toy.INLINE, data, source, ["train", "dev", "test"])
    issued = {}
    for row in pq.read_table(folder / "expanded" / expansions.FILE).to_pylist():
        relevant, number = int(row["query_id"][1:]), row["number"]
        distractors = [f"d{(relevant + 1 + 2 * k) % 40}" for k in range(7)]
        if relevant != 4:
            issued[row["doc_id"]] = [*distractors[: number - 1], f"d{relevant}", *distractors[number - 1 :]][:4]
    ranking = toy.write_ranking(folder / "ranking", issued)
    ranks = place(folder / "ranks")
    answer_ranks(ranks, toy.INLINE, expanded=folder / "expanded", ranking=ranking, by_answer=False)
    return {"found": source, "expanded": folder / "expanded", "ranking": ranking, "ranks": ranks}
