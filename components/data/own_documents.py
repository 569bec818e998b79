"""Queries that are documents of their collection, as in ArguAna, Quora and item-to-item search: find the document that
each query is, and leave it out of rankings.

`own.parquet` beside a collection's tables lists a query's own documents. It is there only if some query has one.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data import row_runs
from sparring.components.data.groups import ids_of, known_positives, rows_of
from sparring.components.data.tables import OWN, RANKING, read, write

FILE = "own.parquet"
Decision = Literal["keep", "leave out", "leave out with copies"]
NOTABLE = 1000
"""A remark is made if at least one in so many queries is a document."""
ENUMERATED = re.compile(r"\D{0,8}\d{1,9}")
"""Ids that count records, such as `17` or `row-17`: a query and a document may share such an id by chance."""

Query = tuple[str, str]
"""Id and text."""
Document = tuple[str, str, str]
"""Id, title and text."""


class Own(NamedTuple):
    """A query with its own document."""

    query_id: str
    doc_id: str
    judged: bool
    """Whether the document is judged relevant to the query that it is."""


def find(
    queries: Callable[[], Iterable[Query]],
    documents: Iterable[Document],
    relevant: Callable[[], Iterable[tuple[str, str]]],
    decision: Decision | None,
) -> list[Own]:
    """Find the documents that queries are. `relevant` are the pairs of a query and a document judged relevant to it.

    A query's own document has the query's id. If ids do not name the same things on both sides, because texts stand
    under other ids, it has the query's text instead, in any letter case. A document with another id, or with the
    query's id and another text, is not the query's own if it is judged relevant to the query, nor are then others with
    the same text. With `leave out with copies`, all unjudged documents with the query's text count beside the one with
    its id.
    """
    ids, texts, beginnings = set[str](), set[int](), set[int]()
    for name, text in queries():
        ids.add(name)
        texts.add(_key(text))
        beginnings.add(_beginning(text))
    named, titled, said = dict[str, set[int]](), dict[str, int](), dict[int, list[str]]()
    for name, title, text in documents:
        whole = {_key(one) for one in (f"{title} {text}", text) if _beginning(one) in beginnings}
        if name in ids:
            named[name], titled[name] = whole, _key(title)
        for key in whole & texts:
            said.setdefault(key, []).append(name)
    if not named and not said:
        return []
    alike, by_title, elsewhere = set[str](), set[str](), dict[str, list[str]]()
    for name, text in queries():
        key = _key(text)
        if key in named.get(name, ()):
            alike.add(name)
        elif titled.get(name) == key:
            by_title.add(name)
        if others := [one for one in said.get(key, []) if one != name]:
            elsewhere[name] = others
    pairs = {(name, other) for name, others in elsewhere.items() for other in others}
    judged = {pair for pair in relevant() if pair in pairs or (pair[0] == pair[1] and pair[0] in named)}
    alike |= {name for name in by_title if (name, name) not in judged}  # else the answer to a question, its title
    copies = {name: [one for one in others if (name, one) not in judged] for name, others in elsewhere.items()}
    # Where one of several documents with the query's text is judged relevant, that text is what is looked for.
    wanted = {name for name, others in elsewhere.items() if len(copies[name]) < len(others)}
    apart = len(elsewhere.keys() - alike)
    by_id, chance = len(alike) >= apart, not _leaves_out(decision) and all(map(ENUMERATED.fullmatch, named))
    found = []
    for name in dict.fromkeys(one for one, _ in queries()):
        itself = by_id and name in named and (name in alike or not (chance or (name, name) in judged))
        if itself:
            found.append(Own(name, name, (name, name) in judged))
        if decision == "leave out with copies" if itself else name not in wanted:
            found += [Own(name, other, False) for other in copies.get(name, [])]
    return found


def _leaves_out(decision: Decision | None) -> bool:
    return decision not in (None, "keep")


def _key(text: str) -> int:
    """A hash of a text in lower case, without surplus white space."""
    return hash(" ".join(text.lower().split()))


def _beginning(text: str) -> int:
    """A hash of a text's first two words, which rules most texts out for a tenth of the time."""
    return hash(" ".join(text.lstrip()[:200].split(None, 2)[:2]).lower())


def remark(found: list[Own], queries: int, key: str = "data") -> str:
    """What to tell whoever has not decided about queries that are documents; empty if they are rare."""
    count = len({own.query_id for own in found})
    if not count or count * NOTABLE < queries:
        return ""
    query, document = found[0].query_id, found[0].doc_id
    such = repr(query) if query == document else f"{query!r}, whose text is that of document {document!r}"
    return (
        f"{count:,} of {queries:,} queries are documents of the collection themselves, such as {such}. Such a query "
        f"finds its own document first. Write `{key}: {{own_document: leave out}}` to leave that document out of all "
        f"rankings, as BEIR does for ArguAna and Quora, or `{key}: {{own_document: keep}}` to count it."
    )


def save(found: list[Own], data: Path, decision: Decision | None) -> None:
    """Write the table beside a collection's, if a query has an own document."""
    if found:
        columns = [[one.query_id for one in found], [one.doc_id for one in found], [_leaves_out(decision)] * len(found)]
        write(data / FILE, pa.table(columns, schema=OWN), OWN)


def carry(data: Path, to: Path, names: pa.Table | None = None) -> None:
    """Write the table of a collection beside another with the same documents. `names` says under which ids
    (`doc_id`) the other has the queries (`query_id`); if None, under the same."""
    if not (data / FILE).exists():
        return
    table = read(data / FILE, OWN)
    if names is not None:
        names = names.select(["doc_id", "query_id"]).rename_columns(["asked", "query_id"])
        table = names.join(table, keys="query_id", join_type="inner").drop(["query_id"])
        table = table.rename_columns({"asked": "query_id"}).select(OWN.names)
        table = table.sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
    write(to / FILE, table, OWN)


class LeftOut:
    """The documents that are left out of each query's ranking."""

    def __init__(self, data: Path) -> None:
        table = read(data / FILE, OWN) if (data / FILE).exists() else OWN.empty_table()
        table = table.filter(table["left_out"])
        self._queries, self._documents = (pc.unique(table[name].combine_chunks()) for name in ("query_id", "doc_id"))
        self._pairs = self._keys(table)
        queries = pc.index_in(table["query_id"], value_set=self._queries).to_numpy()
        self.most = int(np.bincount(queries).max(initial=0))
        """The most documents of one query: so many more must be found for none to lose a place."""

    def __call__(self, ranking: pa.Table, k: int) -> pa.Table:
        """A ranking with adjacent rows for each query, best first, without these documents and cut to `k` a query."""
        if not self.most:
            return ranking.filter(pc.less_equal(ranking["rank"], k))
        rest = ranking.filter(pa.array(~np.isin(self._keys(ranking), self._pairs))).combine_chunks()
        ranks = row_runs.ranks(rest["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()) + 1
        at = rest.column_names.index("rank")
        return rest.set_column(at, RANKING.field("rank"), pa.array(ranks, pa.int32())).filter(pa.array(ranks <= k))

    def _keys(self, table: pa.Table) -> np.ndarray:
        """(R,) a number for each pair of a query and a document; -1 for pairs that are none of these."""
        query, document = (
            pc.fill_null(pc.index_in(table[name], value_set=known), -1).to_numpy().astype(np.int64)
            for name, known in (("query_id", self._queries), ("doc_id", self._documents))
        )
        return np.where((query < 0) | (document < 0), -1, query * max(1, len(self._documents)) + document)


def rows(data: Path) -> np.ndarray:
    """(N, 2) rows of queries and of their own documents, left out or not."""
    if not (data / FILE).exists():
        return np.empty((0, 2), np.int64)
    table = read(data / FILE, OWN)
    columns = {"query_id": "queries", "doc_id": "documents"}
    return np.stack(
        [rows_of(table[name], ids_of(data / f"{of}.parquet", name), what=FILE) for name, of in columns.items()], 1
    )


def never_negatives(data: Path, tokens: Path) -> dict[int, np.ndarray]:
    """The rows of documents that must not become negatives of each query row: those relevant to it, or to another query
    with the same text, and its own."""
    found = known_positives(data, tokens)
    for query, document in rows(data).tolist():
        found[query] = np.union1d(found.get(query, np.empty(0, np.int64)), document)
    return found
