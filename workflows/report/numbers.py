"""Numbers of a paper's table other than means of measures, written as means without an interval."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from sparring.components.data.tables import QUERIES, read
from sparring.components.evaluation.measures import PER_QUERY, PER_QUERY_FILE
from sparring.workflows.experiments.expected import Expected
from sparring.workflows.report.finished import Finished, Json, shown
from sparring.workflows.report.sections.costs import costs as costs_of
from sparring.workflows.report.sections.entropies import entropies
from sparring.workflows.report.sections.similarities import by_system
from sparring.workflows.steps.expansion_examples import STUDY
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row, SystemCost, cost_of
from sparring.workflows.systems.system import SEARCHED

GB, HOUR = 1e9, 3600.0
INDEX = "GB of index"


def numbers(
    expected: Expected,
    systems: Sequence[Row],
    costs: Iterable[SystemCost],
    steps: Finished,
    store: Store,
    rows: list[Json],
) -> list[Json]:
    """Collect the numbers beyond measures that a paper's table may have.

    These are entropies, alignment and uniformity of rated pairs, words of issued queries by generator, the costs of
    systems, and the measures of single queries.
    """
    entropy = (
        _number(entry["system"], entry["collection"], "entropy", entry["entropy"][0])
        for entry in entropies(systems, store)
    )
    single = {column.query for column in expected.of if column.query is not None}
    of_steps = [*_words(steps, store), *_costs(costs, store, rows)]
    of_systems = [*_spaces(systems, store), *_indexes(systems, store), *_of_queries(single, systems, store)]
    return [*entropy, *of_steps, *of_systems]


def _number(system: str, collection: str | None, measure: str, value: float) -> Json:
    return {"system": system, "collection": collection, "measure": measure, "value": value, "low": None, "high": None}


def _spaces(systems: Sequence[Row], store: Store) -> Iterator[Json]:
    """Yield alignment and uniformity of each system's vectors on rated pairs, the mean over seeds (Chuang et al., 2022,
    Table 2.11).
    """
    for (collection, _), systems_measured in by_system(systems, store).items():
        for name, seeds in systems_measured.items():
            for measure in ("alignment", "uniformity"):
                values = [analysis[measure] for analysis in seeds]
                if None not in values:
                    yield _number(name, collection, measure, fmean(values))


def _words(steps: Finished, store: Store) -> Iterator[Json]:
    """Yield the words of the questions, and of the queries that each system issues (Chuang et al., 2023, Table 3.9)."""
    for _, _, study in shown(steps, store, STUDY):
        yield _number("question", None, "words", study["question"])
        for generated in study["lengths"]:
            yield from (
                _number(system, generated["generator"], "words", value) for system, value in generated["words"].items()
            )


def _indexes(systems: Sequence[Row], store: Store) -> Iterator[Json]:
    """Yield the size of each system's indexes, with more than one seed that of the first."""
    seen = set()
    for system in systems:
        searched = [] if system.system is None else cost_of(system).searched
        if searched and (system.name, system.collection) not in seen and all(map(store.is_done, searched)):
            seen.add((system.name, system.collection))
            yield _number(system.name, system.collection, INDEX, sum(store.sizes(searched, *SEARCHED)) / GB)


def _costs(costs: Iterable[SystemCost], store: Store, rows: list[Json]) -> Iterator[Json]:
    """Yield the costs of systems whose steps are all finished (Chuang et al., 2023, Table 3.11)."""
    for cost in costs_of(costs, store, rows):
        yield _number(cost["system"], None, "hours to index", cost["build"] / HOUR)
        yield _number(cost["system"], None, INDEX, cost["bytes"] / GB)
        for phase in ("expand", "rerank", "retrieve"):
            if cost[phase] is not None:
                yield _number(cost["system"], None, f"seconds to {phase}", cost[phase])


def _of_queries(named: set[str], systems: Sequence[Row], store: Store) -> Iterator[Json]:
    """Yield the measures of each named query, the mean over the seeds (Wang et al., 2023, Table 9)."""
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for measured in systems if named else []:
        if not store.is_done(measured.metrics):
            continue
        store.fetch([measured.data], "queries.parquet")
        store.fetch([measured.metrics], PER_QUERY_FILE)
        filters = [("split", "=", measured.split), ("text", "in", sorted(named))]
        queries = read(store.path(measured.data) / "queries.parquet", QUERIES, filters=filters).to_pylist()
        texts = {query["query_id"]: query["text"] for query in queries}
        of_them = [("query_id", "in", sorted(texts))]
        for row in (
            read(store.path(measured.metrics) / PER_QUERY_FILE, PER_QUERY, filters=of_them).to_pylist() if texts else []
        ):
            place = (measured.name, measured.collection, row["measure"], texts[row["query_id"]])
            values.setdefault(place, []).append(row["value"])
    for (system, collection, measure, query), seed_values in values.items():
        yield {**_number(system, collection, measure, fmean(seed_values)), "query": query}
