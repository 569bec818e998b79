"""What a paper's table may have beside means of measures, as means without an interval."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from sparring.components.data.tables import QUERIES, read
from sparring.components.evaluation.measures import PER_QUERY, PER_QUERY_FILE
from sparring.workflows.experiments.expected import Expected
from sparring.workflows.report.finished import Finished, Json, shown
from sparring.workflows.report.sections.costs import SEARCHED
from sparring.workflows.report.sections.costs import costs as costs_of
from sparring.workflows.report.sections.entropies import entropies
from sparring.workflows.report.sections.similarities import by_system
from sparring.workflows.steps.expansion_examples import STUDY
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row, SystemCost, cost_of

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
    """Entropies, alignment and uniformity of rated pairs, the words of issued queries by generator, what systems cost,
    and the measures of the single queries that a paper names."""
    entropy = (
        _number(one["system"], one["collection"], "entropy", one["entropy"][0]) for one in entropies(systems, store)
    )
    single = {column.query for column in expected.of if column.query is not None}
    of_steps = [*_words(steps, store), *_costs(costs, store, rows)]
    of_systems = [*_spaces(systems, store), *_indexes(systems, store), *_of_queries(single, systems, store)]
    return [*entropy, *of_steps, *of_systems]


def _number(system: str, collection: str | None, measure: str, value: float) -> Json:
    return {"system": system, "collection": collection, "measure": measure, "value": value, "low": None, "high": None}


def _spaces(systems: Sequence[Row], store: Store) -> Iterator[Json]:
    """Of each system's vectors on a set of rated pairs, the mean over its seeds (Chuang et al., 2022, Table 2.11)."""
    for (collection, _), of in by_system(systems, store).items():
        for name, seeds in of.items():
            for measure in ("alignment", "uniformity"):
                values = [one[measure] for one in seeds]
                if None not in values:
                    yield _number(name, collection, measure, fmean(values))


def _words(steps: Finished, store: Store) -> Iterator[Json]:
    """Of the questions, and of the queries that each system issues (Chuang et al., 2023, Table 3.9)."""
    for _, _, study in shown(steps, store, STUDY):
        yield _number("question", None, "words", study["question"])
        for one in study["lengths"]:
            yield from (_number(system, one["generator"], "words", value) for system, value in one["words"].items())


def _indexes(systems: Sequence[Row], store: Store) -> Iterator[Json]:
    """The size of what each system searches; with several seeds, that of the first."""
    seen = set()
    for one in systems:
        searched = [] if one.system is None else cost_of(one).searched
        if searched and (one.name, one.collection) not in seen and all(map(store.is_done, searched)):
            seen.add((one.name, one.collection))
            yield _number(one.name, one.collection, INDEX, sum(store.sizes(searched, *SEARCHED)) / GB)


def _costs(costs: Iterable[SystemCost], store: Store, rows: list[Json]) -> Iterator[Json]:
    """Of systems whose steps are all finished (Chuang et al., 2023, Table 3.11)."""
    for cost in costs_of(costs, store, rows):
        yield _number(cost["system"], None, "hours to index", cost["build"] / HOUR)
        yield _number(cost["system"], None, INDEX, cost["bytes"] / GB)
        for phase in ("expand", "rerank", "retrieve"):
            if cost[phase] is not None:
                yield _number(cost["system"], None, f"seconds to {phase}", cost[phase])


def _of_queries(asked: set[str], systems: Sequence[Row], store: Store) -> Iterator[Json]:
    """The measures of each query that is asked for, the mean over the seeds (Wang et al., 2023, Table 9)."""
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for one in systems if asked else []:
        if not store.is_done(one.metrics):
            continue
        store.fetch([one.data], "queries.parquet")
        store.fetch([one.metrics], PER_QUERY_FILE)
        wanted = [("split", "=", one.split), ("text", "in", sorted(asked))]
        queries = read(store.path(one.data) / "queries.parquet", QUERIES, filters=wanted).to_pylist()
        texts = {query["query_id"]: query["text"] for query in queries}
        of_them = [("query_id", "in", sorted(texts))]
        for row in (
            read(store.path(one.metrics) / PER_QUERY_FILE, PER_QUERY, filters=of_them).to_pylist() if texts else []
        ):
            place = (one.name, one.collection, row["measure"], texts[row["query_id"]])
            values.setdefault(place, []).append(row["value"])
    for (system, collection, measure, query), of in values.items():
        yield {**_number(system, collection, measure, fmean(of)), "query": query}
