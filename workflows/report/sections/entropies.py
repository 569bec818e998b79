"""Entropy of each retriever's scores over its first documents (Zhang et al., 2022, Table 6)."""

import math
from collections.abc import Sequence

from sparring.components.evaluation.measures import mean_and_deviation
from sparring.workflows.report.finished import Json
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row


def entropies(systems: Sequence[Row], store: Store) -> list[Json]:
    """Return the systems whose evaluation measured the entropy, each the mean over its seeds."""
    measured: dict[tuple[str, str, str], list[Json]] = {}
    for system in systems:
        record = store.record(system.metrics)
        if record is not None and "entropy" in record["summary"]:
            measured.setdefault((system.name, system.collection, system.split), []).append(record["summary"])
    rows = []
    for (name, collection, split), seeds in measured.items():
        mean, deviation = mean_and_deviation(summary["entropy"] for summary in seeds)
        documents = seeds[0]["entropy_documents"]
        rows.append(
            {
                "system": name,
                "collection": collection,
                "split": split,
                "documents": documents,
                "entropy": (mean, deviation),
                "choices": math.exp(mean),
                "even": math.log(documents),
            }
        )
    return rows
