"""The data with which the page compares two systems query by query. The reader chooses the systems."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparring.components.data.groups import measured_queries
from sparring.components.data.tables import QRELS, RANKING, TEXT, of_queries, read, records
from sparring.components.evaluation.measures import PER_QUERY_FILE, by_measure
from sparring.components.evaluation.rank_changes import first_relevant, relevant_of
from sparring.workflows.report.finished import Json
from sparring.workflows.store.store import Store
from sparring.workflows.systems.rows import Row

if TYPE_CHECKING:
    from markupsafe import Markup

QUERIES = 1000
"""Queries of a collection that are compared."""
FIRST = 3
"""First documents of each system that are shown for a query."""
BYTES = 400_000
"""Most bytes of documents' texts on a page. The queries on which systems differ most come first."""
TITLE, BODY = 100, 160
"""Letters of a document's title and text."""
BATCH = 100
"""Queries whose documents are read together."""
ELSEWHERE = {"title": "", "text": "(This document is not in the collection that these judgements are of.)"}
"""Stands for a retrieved document that is missing from the collection of other judgements."""
RANKED = "ranking.parquet"
TABLES = ("queries.parquet", "qrels.parquet")
"""Tables that are downloaded whole. Of the documents only those are read that are shown."""


class Listed(NamedTuple):
    """A system to choose from: its name on the page, and its artifacts."""

    name: str
    system: Row
    store: Store


@dataclass
class _Compared:
    """Results of one system over its seeds."""

    measured: int
    """Number of measured queries."""
    values: dict[str, dict[str, float]]
    """By measure, then by query: the mean over the seeds."""
    ranks: dict[str, int | None]
    """Rank of the first relevant document in the last seed's ranking, by query."""
    first: dict[str, list[str]]
    """First documents of the last seed, by query."""


def queries(listed: Sequence[Listed]) -> list[Json]:
    """Collect the data with which the page compares systems, for each collection and split with two rankings or more.

    Values are whole thousandths, None for queries without a measurement. A document is its index in `documents`, which
    holds as many as fit in `BYTES` on a page. `first` and `right` are None for queries whose documents do not fit.
    """
    places: dict[tuple[str, str, str], list[Listed]] = {}
    for entry in listed:
        if entry.system.ranking is not None:
            key = entry.system.collection, entry.system.split, entry.system.data.fingerprint
            places.setdefault(key, []).append(entry)
    comparable = [entries for entries in places.values() if len({entry.name for entry in entries}) > 1]
    return [page for entries in comparable if (page := _place(entries, BYTES // len(comparable))) is not None]


def embedded(places: Sequence[Json], pair: tuple[str, str] | None) -> Markup | None:
    """Return the data as JSON in a script element, in which `<` must not begin a tag, or None without data.

    `pair` is what the reader sees first.
    """
    from markupsafe import Markup

    if not places:
        return None
    return Markup(
        json.dumps({"pair": pair, "places": places}, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    )


def _place(listed: Sequence[Listed], most: int) -> Json | None:
    """Collect the data to compare on a collection, or return None without the files of two systems."""
    _, system, store = listed[0]
    data = store.path(system.data)
    try:
        store.fetch([system.data], *TABLES)
        query_ids = measured_queries(data, system.split, QUERIES)
        relevant = relevant_of(read(data / "qrels.parquet", QRELS, filters=[("split", "=", system.split)]))
    except FileNotFoundError:
        return None
    seeds: dict[str, list[Listed]] = {}
    for entry in listed:
        seeds.setdefault(entry.name, []).append(entry)
    by_name = {name: _compared(entries, query_ids, relevant) for name, entries in seeds.items()}
    systems = {name: compared for name, compared in by_name.items() if compared is not None}
    measures = list(dict.fromkeys(name for compared in systems.values() for name in compared.values))
    if len(systems) < 2 or not measures:
        return None
    measured = {query for compared in systems.values() for values in compared.values.values() for query in values}
    query_ids = [query for query in query_ids if query in measured]
    return {
        "collection": system.collection,
        "split": system.split,
        "measures": measures,
        "systems": list(systems),
        "measured": max(compared.measured for compared in systems.values()),
        "values": [
            [_thousandths(compared.values.get(name, {}), query_ids) for name in measures]
            for compared in systems.values()
        ],
        "ranks": [[compared.ranks.get(query) for query in query_ids] for compared in systems.values()],
        **_texts(data, query_ids, list(systems.values()), relevant, measures[0], most),
    }


def _compared(seeds: Sequence[Listed], query_ids: Sequence[str], relevant: dict[str, set[str]]) -> _Compared | None:
    """Read a system's results on some queries, or return None if its files are no longer there."""
    id_array = pa.array(query_ids, TEXT)
    by_seed: dict[str, dict[str, list[float]]] = {}
    measured = 0
    try:
        for _, system, store in seeds:
            store.fetch([system.metrics], PER_QUERY_FILE)
            table = pq.read_table(store.path(system.metrics) / PER_QUERY_FILE)
            measured = len(pc.unique(table["query_id"]))
            for name, (ids, values) in by_measure(table.filter(pc.is_in(table["query_id"], id_array))).items():
                by_query = by_seed.setdefault(name, {})
                for query, value in zip(ids, values.tolist(), strict=True):
                    by_query.setdefault(query, []).append(value)
        _, last, store = seeds[-1]
        assert last.ranking is not None
        store.fetch([last.ranking], RANKED)
        ranking = of_queries(store.path(last.ranking) / RANKED, RANKING, id_array)
    except FileNotFoundError:
        return None
    positives = {query: relevant.get(query, set()) for query in query_ids}
    ranks = {query: rank for query, (rank, _, _) in first_relevant(ranking, positives).items()}
    first: dict[str, list[str]] = {}
    shown = ranking.filter(pc.less_equal(ranking["rank"], FIRST)).sort_by(
        [("query_id", "ascending"), ("rank", "ascending")]
    )
    for query, document in zip(shown["query_id"].to_pylist(), shown["doc_id"].to_pylist(), strict=True):
        first.setdefault(query, []).append(document)
    means = {name: {query: fmean(values) for query, values in by_query.items()} for name, by_query in by_seed.items()}
    return _Compared(measured, means, ranks, first)


def _thousandths(values: dict[str, float], query_ids: Sequence[str]) -> list[int | None]:
    return [round(1000 * values[query]) if query in values else None for query in query_ids]


def _texts(
    data: Path,
    query_ids: Sequence[str],
    systems: Sequence[_Compared],
    relevant: dict[str, set[str]],
    measure: str,
    most: int,
) -> Json:
    """Return the texts of the queries, and of documents for as many queries as `most` bytes hold.

    Queries come first on which the systems differ most by the measure.
    """
    texts = records(data / "queries.parquet", "query_id", list(query_ids))
    chosen: dict[str, int] = {}
    documents: list[tuple[str, str]] = []
    of_query: dict[str, list[str]] = {}
    room = most
    order = sorted(range(len(query_ids)), key=lambda index: (-_spread(systems, measure, query_ids[index]), index))
    for start in range(0, len(order), BATCH):
        batch = [query_ids[index] for index in order[start : start + BATCH]]
        doc_ids = {query: _needed(query, systems, relevant) for query in batch}
        fetched = records(data / "documents.parquet", "doc_id", [d for ids in doc_ids.values() for d in ids])
        for query in batch:
            new = [doc_id for doc_id in doc_ids[query] if doc_id not in chosen]
            read = [fetched.get(doc_id, ELSEWHERE) for doc_id in new]
            added = [(_cut(document["title"], TITLE), _cut(document["text"], BODY)) for document in read]
            room -= sum(len(title.encode()) + len(text.encode()) + 8 for title, text in added)
            if room < 0:
                break
            chosen |= {doc_id: len(documents) + number for number, doc_id in enumerate(new)}
            documents += added
            of_query[query] = doc_ids[query]
        if room < 0:
            break
    return {
        "queries": [_cut(texts[query]["text"], 4 * TITLE) for query in query_ids],
        "documents": documents,
        "first": [
            [[chosen[d] for d in system.first.get(query, [])] if query in of_query else None for query in query_ids]
            for system in systems
        ],
        "right": [
            [chosen[d] for d in of_query[query] if d in relevant.get(query, ())] if query in of_query else None
            for query in query_ids
        ],
        "shown": len(of_query),
    }


def _needed(query: str, systems: Sequence[_Compared], relevant: dict[str, set[str]]) -> list[str]:
    """Return the documents of a query: the first of each system, and some relevant documents."""
    first = (document for system in systems for document in system.first.get(query, []))
    return list(dict.fromkeys([*first, *sorted(relevant.get(query, ()))[:FIRST]]))


def _spread(systems: Sequence[_Compared], measure: str, query: str) -> float:
    """Return how far the systems lie apart on a query."""
    values = [system.values[measure][query] for system in systems if query in system.values.get(measure, {})]
    return max(values) - min(values) if values else 0.0


def _cut(text: str, most: int) -> str:
    """Put a text on one line and cut it to so many letters."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
