"""Query by query, any two systems beside each other: what the page needs to compare those that the reader chooses."""

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
"""What the texts of documents may take of the page. The queries on which systems differ most come first."""
TITLE, BODY = 100, 160
"""Letters of a document's title and text."""
BATCH = 100
"""Queries whose documents are read together."""
ELSEWHERE = {"title": "", "text": "(This document is not in the collection that these judgements are of.)"}
"""What is shown of a document that was retrieved and that other judgements' collection lacks."""
RANKED = "ranking.parquet"
TABLES = ("documents.parquet", "queries.parquet", "qrels.parquet")


class Listed(NamedTuple):
    """A system to choose from: what the page calls it, and where its artifacts are."""

    name: str
    system: Row
    store: Store


@dataclass
class _Compared:
    """What is known of one system, of its seeds together."""

    measured: int
    """How many queries it was measured on."""
    values: dict[str, dict[str, float]]
    """By measure, then by query: the mean over the seeds."""
    ranks: dict[str, int | None]
    """Of each query the rank of the first relevant document in the last seed's ranking."""
    first: dict[str, list[str]]
    """Of each query the first documents of the last seed."""


def queries(listed: Sequence[Listed]) -> list[Json]:
    """For each collection and split with two systems whose rankings are there: what the page is given to compare them.

    Values are whole thousandths, None where a query was not measured. A document is its place in `documents`, of which
    there are as many as fit in `BYTES` on a page; `first` and `right` are None for the queries whose do not.
    """
    places: dict[tuple[str, str, str], list[Listed]] = {}
    for one in listed:
        if one.system.ranking is not None:
            key = one.system.collection, one.system.split, one.system.data.fingerprint
            places.setdefault(key, []).append(one)
    several = [of for of in places.values() if len({one.name for one in of}) > 1]
    return [made for of in several if (made := _place(of, BYTES // len(several))) is not None]


def embedded(made: Sequence[Json], pair: tuple[str, str] | None) -> Markup | None:
    """The data as JSON in a script element, in which `<` must not begin a tag; `pair` is what the reader sees first.
    None where there is nothing to compare."""
    from markupsafe import Markup

    if not made:
        return None
    return Markup(
        json.dumps({"pair": pair, "places": made}, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    )


def _place(listed: Sequence[Listed], most: int) -> Json | None:
    """What there is to compare on one collection; None where the files of fewer than two systems are there."""
    _, system, store = listed[0]
    data = store.path(system.data)
    try:
        store.fetch([system.data], *TABLES)
        asked = measured_queries(data, system.split, QUERIES)
        relevant = relevant_of(read(data / "qrels.parquet", QRELS, filters=[("split", "=", system.split)]))
    except FileNotFoundError:
        return None
    seeds: dict[str, list[Listed]] = {}
    for one in listed:
        seeds.setdefault(one.name, []).append(one)
    systems = {name: made for name, of in seeds.items() if (made := _compared(of, asked, relevant)) is not None}
    measures = list(dict.fromkeys(name for of in systems.values() for name in of.values))
    if len(systems) < 2 or not measures:
        return None
    known = {query for of in systems.values() for values in of.values.values() for query in values}
    asked = [query for query in asked if query in known]
    return {
        "collection": system.collection,
        "split": system.split,
        "measures": measures,
        "systems": list(systems),
        "measured": max(of.measured for of in systems.values()),
        "values": [[_thousandths(of.values.get(name, {}), asked) for name in measures] for of in systems.values()],
        "ranks": [[of.ranks.get(query) for query in asked] for of in systems.values()],
        **_texts(data, asked, list(systems.values()), relevant, measures[0], most),
    }


def _compared(seeds: Sequence[Listed], asked: Sequence[str], relevant: dict[str, set[str]]) -> _Compared | None:
    """One system on the queries asked for; None where its files are not there (any more)."""
    wanted = pa.array(asked, TEXT)
    by_seed: dict[str, dict[str, list[float]]] = {}
    measured = 0
    try:
        for _, system, store in seeds:
            store.fetch([system.metrics], PER_QUERY_FILE)
            table = pq.read_table(store.path(system.metrics) / PER_QUERY_FILE)
            measured = len(pc.unique(table["query_id"]))
            for name, (ids, values) in by_measure(table.filter(pc.is_in(table["query_id"], wanted))).items():
                of = by_seed.setdefault(name, {})
                for query, value in zip(ids, values.tolist(), strict=True):
                    of.setdefault(query, []).append(value)
        _, last, store = seeds[-1]
        assert last.ranking is not None
        store.fetch([last.ranking], RANKED)
        ranking = of_queries(store.path(last.ranking) / RANKED, RANKING, wanted)
    except FileNotFoundError:
        return None
    own = {query: relevant.get(query, set()) for query in asked}
    ranks = {query: rank for query, (rank, _, _) in first_relevant(ranking, own).items()}
    first: dict[str, list[str]] = {}
    shown = ranking.filter(pc.less_equal(ranking["rank"], FIRST)).sort_by(
        [("query_id", "ascending"), ("rank", "ascending")]
    )
    for query, document in zip(shown["query_id"].to_pylist(), shown["doc_id"].to_pylist(), strict=True):
        first.setdefault(query, []).append(document)
    means = {name: {query: fmean(values) for query, values in of.items()} for name, of in by_seed.items()}
    return _Compared(measured, means, ranks, first)


def _thousandths(values: dict[str, float], asked: Sequence[str]) -> list[int | None]:
    return [round(1000 * values[query]) if query in values else None for query in asked]


def _texts(
    data: Path,
    asked: Sequence[str],
    systems: Sequence[_Compared],
    relevant: dict[str, set[str]],
    measure: str,
    most: int,
) -> Json:
    """The texts of the queries, and those of documents for as many queries as `most` bytes hold: the queries first on
    which the systems differ most by the measure."""
    texts = records(data / "queries.parquet", "query_id", list(asked))
    chosen: dict[str, int] = {}
    documents: list[tuple[str, str]] = []
    of_query: dict[str, list[str]] = {}
    left = most
    order = sorted(range(len(asked)), key=lambda at: (-_spread(systems, measure, asked[at]), at))
    for start in range(0, len(order), BATCH):
        batch = [asked[at] for at in order[start : start + BATCH]]
        needed = {query: _needed(query, systems, relevant) for query in batch}
        found = records(data / "documents.parquet", "doc_id", [d for ids in needed.values() for d in ids])
        for query in batch:
            new = [one for one in needed[query] if one not in chosen]
            read = [found.get(one, ELSEWHERE) for one in new]
            added = [(_cut(one["title"], TITLE), _cut(one["text"], BODY)) for one in read]
            left -= sum(len(title.encode()) + len(text.encode()) + 8 for title, text in added)
            if left < 0:
                break
            chosen |= {one: len(documents) + number for number, one in enumerate(new)}
            documents += added
            of_query[query] = needed[query]
        if left < 0:
            break
    return {
        "queries": [_cut(texts[query]["text"], 4 * TITLE) for query in asked],
        "documents": documents,
        "first": [
            [[chosen[d] for d in of.first.get(query, [])] if query in of_query else None for query in asked]
            for of in systems
        ],
        "right": [
            [chosen[d] for d in of_query[query] if d in relevant.get(query, ())] if query in of_query else None
            for query in asked
        ],
        "shown": len(of_query),
    }


def _needed(query: str, systems: Sequence[_Compared], relevant: dict[str, set[str]]) -> list[str]:
    """The documents of a query: the first of each system, and some relevant ones."""
    first = (document for of in systems for document in of.first.get(query, []))
    return list(dict.fromkeys([*first, *sorted(relevant.get(query, ()))[:FIRST]]))


def _spread(systems: Sequence[_Compared], measure: str, query: str) -> float:
    """How far the systems lie apart on a query."""
    values = [of.values[measure][query] for of in systems if query in of.values.get(measure, {})]
    return max(values) - min(values) if values else 0.0


def _cut(text: str, most: int) -> str:
    """The text on one line, cut to so many letters."""
    text = " ".join(text.split())
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"
