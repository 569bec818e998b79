"""Size against quality: a retriever's vectors, searched in several ways."""

from collections.abc import Iterator

from sparring.components.evaluation.measures import mean_and_deviation
from sparring.workflows.report.finished import Finished, Json, shown
from sparring.workflows.report.sections.costs import busy
from sparring.workflows.steps.sizes import DEPTH, SIZES
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store


def sizes(steps: Finished, store: Store) -> Iterator[Json]:
    """Yield a table of sizes for each comparison: for every system the means over its seeds.

    It has the bytes of a document and of everything that is searched, the bytes that candidates are ordered by, the
    measures, the overlap with the ranking by whole vectors, and the search time of a query.
    """
    for node, _, results in shown(steps, store, SIZES):
        by_system: dict[str, list[Json]] = {}
        for row, inputs in zip(results, node.inputs["rows"], strict=True):
            by_system.setdefault(row["system"], []).append({**row, **_costs(inputs, store), **row["measures"]})
        measures = list(results[0]["measures"])
        numbers = ["bytes", "document", "rescoring_document", "milliseconds", "overlap", *measures]
        yield {
            "title": node.label,
            "measures": measures,
            "depth": DEPTH,
            "queries": results[0]["queries"],
            "seeds": max(map(len, by_system.values())),
            "rows": [
                {"system": name, **{number: mean_and_deviation(row[number] for row in seeds)[0] for number in numbers}}
                for name, seeds in by_system.items()
            ],
        }


def _costs(inputs: Json, store: Store) -> Json:
    """Return what a row's search takes, by the records of its steps."""
    index, rescorer = inputs["searched"], inputs["rescored_by"]
    nothing_added = rescorer is None or rescorer.fingerprint == index.fingerprint  # the bits are counted already
    searched, kept = _summary(index, store), _summary(None if nothing_added else rescorer, store)
    ranking = inputs["ranking"]
    steps = [ranking] if inputs["rescored_by"] is None else [ranking.inputs["ranking"], ranking]
    records = [record for step in steps if (record := store.record(step)) is not None]
    queries = max([1, *(record["summary"]["queries"] for record in records)])
    return {
        "bytes": searched["bytes"],
        "document": searched["bytes"] / max(1, searched["documents"]),
        "rescoring_document": kept["bytes"] / max(1, kept["documents"]),
        "milliseconds": 1000 * sum(map(busy, records)) / queries,
    }


def _summary(step: Step | None, store: Store) -> Json:
    record = None if step is None else store.record(step)
    return {"bytes": 0, "documents": 0} if record is None else record["summary"]
