"""Candidates that false-negative control removed, the reasons, and some examples."""

from collections.abc import Iterator

from sparring.components.data.tables import records
from sparring.workflows.report.finished import Finished, Json, shown
from sparring.workflows.steps.screen import CASES
from sparring.workflows.store.store import Store


def screens(steps: Finished, store: Store) -> Iterator[Json]:
    """Yield the counts of each filter of false negatives, and examples of its candidates with their texts."""
    for node, record, cases in shown(steps, store, CASES):
        tables = node.inputs["data"]
        store.fetch([tables], "queries.parquet")
        data = store.path(tables)
        queries = records(data / "queries.parquet", "query_id", [case["query_id"] for case in cases])
        ids = [doc_id for case in cases for doc_id in (case["doc_id"], case["positive"], case.get("copy_of")) if doc_id]
        documents = records(data / "documents.parquet", "doc_id", ids)
        words = [
            {
                **case,
                "query": queries[case["query_id"]]["text"],
                "document": documents[case["doc_id"]],
                "right": documents.get(case["positive"] or ""),
                "copied": documents.get(case.get("copy_of") or ""),
            }
            for case in cases
        ]
        yield {"label": node.label, **record["summary"], "cases": words}
