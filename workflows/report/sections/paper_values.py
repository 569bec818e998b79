"""What a paper's table may have beside means of measures: the size of an index, and the values of single queries."""

from collections.abc import Sequence

from sparring.components.data.tables import QUERIES, read
from sparring.components.evaluation.measures import PER_QUERY, PER_QUERY_FILE, mean_and_deviation
from sparring.workflows.report.finished import Json
from sparring.workflows.report.sections.costs import SEARCHED
from sparring.workflows.stages.costs import cost_of, of_ours
from sparring.workflows.stages.expected import INDEX, Expected
from sparring.workflows.stages.results import System
from sparring.workflows.store.store import Store


def beside_means(expected: Expected, systems: Sequence[System], store: Store) -> list[Json]:
    """What the table asks for, of the systems that are finished, as means of measures are written down."""
    found: list[Json] = []
    if any(column.measure == INDEX for column in expected.of):
        found += _index_sizes(systems, store)
    if asked := {column.query for column in expected.of if column.query is not None}:
        found += _of_queries(asked, systems, store)
    return found


def _index_sizes(systems: Sequence[System], store: Store) -> list[Json]:
    """The size of what each system searches, in billions of bytes; with several seeds, the first one's."""
    sizes: dict[tuple[str, str], float] = {}
    for one in of_ours(systems):
        searched = cost_of(one).searched
        if (one.name, one.collection) not in sizes and all(store.is_done(node) for node in searched):
            sizes[one.name, one.collection] = sum(store.sizes(searched, *SEARCHED)) / 1e9
    return [_row(*place, INDEX, value) for place, value in sizes.items()]


def _of_queries(asked: set[str], systems: Sequence[System], store: Store) -> list[Json]:
    """The measures of each query that is asked for, the mean over the seeds."""
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for one in systems:
        if not store.is_done(one.metrics):
            continue
        store.fetch([one.data], "queries.parquet")
        store.fetch([one.metrics], PER_QUERY_FILE)
        wanted = [("split", "=", one.split), ("text", "in", sorted(asked))]
        queries = read(store.path(one.data) / "queries.parquet", QUERIES, filters=wanted).to_pylist()
        texts = {query["query_id"]: query["text"] for query in queries}
        if not texts:
            continue
        of_them = [("query_id", "in", sorted(texts))]
        for row in read(store.path(one.metrics) / PER_QUERY_FILE, PER_QUERY, filters=of_them).to_pylist():
            place = (one.name, one.collection, row["measure"], texts[row["query_id"]])
            values.setdefault(place, []).append(row["value"])
    return [
        {**_row(system, collection, measure, mean_and_deviation(of)[0]), "query": query}
        for (system, collection, measure, query), of in values.items()
    ]


def _row(system: str, collection: str, measure: str, value: float) -> Json:
    return {"system": system, "collection": collection, "measure": measure, "value": value, "low": None, "high": None}
