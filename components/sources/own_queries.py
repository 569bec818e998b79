"""Look for queries that are documents themselves in a source's files, before they are read into tables."""

from collections.abc import Iterable, Iterator
from itertools import islice

from sparring.components.data.own_documents import Own, find, remark
from sparring.components.sources.base import Source
from sparring.components.sources.records import Document, Judgement, Query

MOST = 20_000
"""Queries and documents that a quick look reads, the first of each."""


def own_documents(source: Source, documents: Iterable[Document], most: int | None = None) -> list[Own]:
    """Find the documents, of those given, that the source's queries are: all queries, or the first `most`."""

    def queries() -> Iterator[tuple[str, str]]:
        good = (one for one in source.read_queries() if isinstance(one, Query))
        return ((one.query_id, one.text) for one in islice(good, most))

    def relevant() -> Iterator[tuple[str, str]]:
        good = (one for one in source.read_qrels() if isinstance(one, Judgement))
        return ((one.query_id, one.doc_id) for one in good if one.relevance > 0)

    return find(queries, ((one.doc_id, one.title, one.text) for one in documents), relevant, source.own_document)


def undecided(source: Source) -> str:
    """What to tell whoever has not decided about queries that are documents, by a quick look at files that are here;
    empty if there is nothing to tell."""
    if source.own_document is not None or not source.files() or source.missing():
        return ""
    documents = (one for one in source.read_documents() if isinstance(one, Document))
    found = own_documents(source, islice(documents, MOST), MOST)
    return remark(found, sum(1 for _ in islice(source.read_queries(), MOST))) if found else ""
