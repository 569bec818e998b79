"""Size against quality: a retriever's vectors, searched in several ways."""

from collections.abc import Iterator

from sparring.components.evaluation.measures import mean_and_deviation
from sparring.workflows.report.finished import Finished, Json, shown
from sparring.workflows.report.sections.costs import busy
from sparring.workflows.steps.sizes import DEPTH, SIZES
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store


def sizes(steps: Finished, store: Store) -> Iterator[Json]:
    """For each table: of every system, in means over its seeds, the bytes of a document and of all that are searched,
    those that candidates are ordered by, the measures, the overlap with the ranking by whole vectors, and the time that
    the search took of a query."""
    for node, _, told in shown(steps, store, SIZES):
        of: dict[str, list[Json]] = {}
        for row, inputs in zip(told, node.inputs["rows"], strict=True):
            of.setdefault(row["system"], []).append({**row, **_costs(inputs, store), **row["measures"]})
        measures = list(told[0]["measures"])
        numbers = ["bytes", "document", "rescoring_document", "milliseconds", "overlap", *measures]
        yield {
            "title": node.label,
            "measures": measures,
            "depth": DEPTH,
            "queries": told[0]["queries"],
            "seeds": max(map(len, of.values())),
            "rows": [
                {"system": name, **{one: mean_and_deviation(row[one] for row in seeds)[0] for one in numbers}}
                for name, seeds in of.items()
            ],
        }


def _costs(inputs: Json, store: Store) -> Json:
    """What a row's search takes, by the records of its steps."""
    of, by = inputs["searched"], inputs["rescored_by"]
    again = by is None or by.fingerprint == of.fingerprint  # bits are there already
    searched, kept = _summary(of, store), _summary(None if again else by, store)
    ranking = inputs["ranking"]
    steps = [ranking] if inputs["rescored_by"] is None else [ranking.inputs["ranking"], ranking]
    records = [record for one in steps if (record := store.record(one)) is not None]
    queries = max([1, *(record["summary"]["queries"] for record in records)])
    return {
        "bytes": searched["bytes"],
        "document": searched["bytes"] / max(1, searched["documents"]),
        "rescoring_document": kept["bytes"] / max(1, kept["documents"]),
        "milliseconds": 1000 * sum(map(busy, records)) / queries,
    }


def _summary(made: Step | None, store: Store) -> Json:
    record = None if made is None else store.record(made)
    return {"bytes": 0, "documents": 0} if record is None else record["summary"]
