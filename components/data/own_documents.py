"""Queries that are documents of their collection, as in ArguAna, Quora and item-to-item search.

Such a query's own document can be left out of its rankings. `own.parquet`, next to a collection's tables, lists each
query's own documents. The file exists only if some query has one.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data import row_runs
from sparring.components.data.groups import document_rows, ids_of, known_positives, rows_of
from sparring.components.data.tables import OWN, RANKING, read, write

FILE = "own.parquet"
Decision = Literal["keep", "leave out", "leave out with copies"]
NOTABLE = 1000
"""A remark is made if at least one query in this number is a document."""
ENUMERATED = re.compile(r"\D{0,8}\d{1,9}")
"""Ids that count records, such as `17` or `row-17`: a query and a document may share such an id by chance."""

Query = tuple[str, str]
"""Id and text."""
Document = tuple[str, str, str]
"""Id, title and text."""


class Own(NamedTuple):
    """A query and its own document."""

    query_id: str
    doc_id: str
    judged: bool
    """True if the document is judged relevant to the query."""


def find(
    queries: Callable[[], Iterable[Query]],
    documents: Iterable[Document],
    relevant: Callable[[], Iterable[tuple[str, str]]],
    decision: Decision | None,
) -> list[Own]:
    """Find the own documents of queries.

    `relevant` yields pairs of a query id and the id of a document that is judged relevant to it.

    A query's own document is the document with the query's id. If the two sides have unrelated ids, it is the document
    with the query's text, ignoring letter case. A document that is judged relevant to the query is its own only if it
    has both the query's id and its text. If a relevant document has the query's text under a different id, the
    remaining documents with this text are not the query's own either. With `leave out with copies`, all unjudged
    documents with the query's text are its own, in addition to the document with its id.
    """
    ids, texts, beginnings = set[str](), set[int](), set[int]()
    for name, text in queries():
        ids.add(name)
        texts.add(_key(text))
        beginnings.add(_beginning(text))
    named, titled, with_text = dict[str, set[int]](), dict[str, int](), dict[int, list[str]]()
    for name, title, text in documents:
        keys = {_key(version) for version in (f"{title} {text}", text) if _beginning(version) in beginnings}
        if name in ids:
            named[name], titled[name] = keys, _key(title)
        for key in keys & texts:
            with_text.setdefault(key, []).append(name)
    if not named and not with_text:
        return []
    alike, by_title, copies = set[str](), set[str](), dict[str, list[str]]()
    for name, text in queries():
        key = _key(text)
        if key in named.get(name, ()):
            alike.add(name)
        elif titled.get(name) == key:
            by_title.add(name)
        if doc_ids := [doc_id for doc_id in with_text.get(key, []) if doc_id != name]:
            copies[name] = doc_ids
    pairs = {(name, doc_id) for name, doc_ids in copies.items() for doc_id in doc_ids}
    judged = {pair for pair in relevant() if pair in pairs or (pair[0] == pair[1] and pair[0] in named)}
    alike |= {name for name in by_title if (name, name) not in judged}  # a judged document answers its title
    unjudged = {
        name: [doc_id for doc_id in doc_ids if (name, doc_id) not in judged] for name, doc_ids in copies.items()
    }
    # If a document with the query's text is judged relevant, a search for the query is a search for that text.
    text_sought = {name for name, doc_ids in copies.items() if len(unjudged[name]) < len(doc_ids)}
    apart = len(copies.keys() - alike)
    by_id, chance = len(alike) >= apart, not _leaves_out(decision) and all(map(ENUMERATED.fullmatch, named))
    pairs_found = []
    for name in dict.fromkeys(query_id for query_id, _ in queries()):
        itself = by_id and name in named and (name in alike or not (chance or (name, name) in judged))
        if itself:
            pairs_found.append(Own(name, name, (name, name) in judged))
        if decision == "leave out with copies" if itself else name not in text_sought:
            pairs_found += [Own(name, doc_id, False) for doc_id in unjudged.get(name, [])]
    return pairs_found


def _leaves_out(decision: Decision | None) -> bool:
    return decision not in (None, "keep")


def _key(text: str) -> int:
    """Hash a text in lower case, with white space collapsed."""
    return hash(" ".join(text.lower().split()))


def _beginning(text: str) -> int:
    """Hash a text's first two words. That excludes most texts in a tenth of the time of `_key`."""
    return hash(" ".join(text.lstrip()[:200].split(None, 2)[:2]).lower())


def remark(pairs: list[Own], queries: int, key: str = "data") -> str:
    """Tell a user who has not decided that queries are documents. Return "" if such queries are rare."""
    count = len({pair.query_id for pair in pairs})
    if not count or count * NOTABLE < queries:
        return ""
    query, document = pairs[0].query_id, pairs[0].doc_id
    example = repr(query) if query == document else f"{query!r}, whose text is that of document {document!r}"
    return (
        f"{count:,} of {queries:,} queries are documents of the collection themselves, such as {example}. Such a query "
        f"finds its own document first. Write `{key}: {{own_document: leave out}}` to leave that document out of all "
        f"rankings, as BEIR does for ArguAna and Quora, or `{key}: {{own_document: keep}}` to count it."
    )


def save(pairs: list[Own], data: Path, decision: Decision | None) -> None:
    """Write the table next to a collection's tables, if a query has an own document."""
    if pairs:
        columns = [
            [pair.query_id for pair in pairs],
            [pair.doc_id for pair in pairs],
            [_leaves_out(decision)] * len(pairs),
        ]
        write(data / FILE, pa.table(columns, schema=OWN), OWN)


def carry(data: Path, to: Path, names: pa.Table | None = None) -> None:
    """Copy a collection's table to a collection with the same documents.

    `names` maps the queries' ids (`query_id`) to their ids in the second collection (`doc_id`). If None, they are the
    same.
    """
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
        """Highest number of own documents of a query. Retrieve this many more, so that rankings stay full."""

    def __call__(self, ranking: pa.Table, k: int) -> pa.Table:
        """Remove own documents from a ranking, and cut it to `k` rows per query.

        The rows of a query must be adjacent, best first.
        """
        if not self.most:
            return ranking.filter(pc.less_equal(ranking["rank"], k))
        rest = ranking.filter(pa.array(~np.isin(self._keys(ranking), self._pairs))).combine_chunks()
        ranks = row_runs.ranks(rest["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()) + 1
        index = rest.column_names.index("rank")
        return rest.set_column(index, RANKING.field("rank"), pa.array(ranks, pa.int32())).filter(pa.array(ranks <= k))

    def _keys(self, table: pa.Table) -> np.ndarray:
        """Return a number for each pair of a query and a document: (R,). It is -1 if either occurs in no own pair."""
        query, document = (
            pc.fill_null(pc.index_in(table[name], value_set=ids), -1).to_numpy().astype(np.int64)
            for name, ids in (("query_id", self._queries), ("doc_id", self._documents))
        )
        return np.where((query < 0) | (document < 0), -1, query * max(1, len(self._documents)) + document)


def rows(data: Path) -> np.ndarray:
    """Return the rows of queries and of their own documents: (N, 2). Documents that are not left out are included."""
    if not (data / FILE).exists():
        return np.empty((0, 2), np.int64)
    table = read(data / FILE, OWN)
    queries = rows_of(table["query_id"], ids_of(data / "queries.parquet", "query_id"), source=FILE)
    return np.stack([queries, document_rows(table["doc_id"], data, source=FILE)], 1)


def never_negatives(data: Path, tokens: Path) -> dict[int, np.ndarray]:
    """Return the rows of documents that must not become negatives, by query row.

    These are the documents that are relevant to the query or to a query with equal text, and the query's own documents.
    """
    excluded = known_positives(data, tokens)
    for query, document in rows(data).tolist():
        excluded[query] = np.union1d(excluded.get(query, np.empty(0, np.int64)), document)
    return excluded
