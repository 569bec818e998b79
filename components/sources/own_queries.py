"""Search for queries that are documents themselves in a source's files, before these are read into tables."""

from collections.abc import Iterable, Iterator
from itertools import islice

from sparring.components.data.own_documents import Own, find, remark
from sparring.components.sources.base import Source
from sparring.components.sources.records import Document, Judgement, Query

MOST = 20_000
"""Number of first queries and documents that a quick check reads."""


def own_documents(source: Source, documents: Iterable[Document], most: int | None = None) -> list[Own]:
    """Find the own documents of a source's queries. Check the first `most` queries. If `most` is None, check all."""

    def queries() -> Iterator[tuple[str, str]]:
        good = (query for query in source.read_queries() if isinstance(query, Query))
        return ((query.query_id, query.text) for query in islice(good, most))

    def relevant() -> Iterator[tuple[str, str]]:
        good = (record for record in source.read_qrels() if isinstance(record, Judgement))
        return ((record.query_id, record.doc_id) for record in good if record.relevance > 0)

    texts = ((document.doc_id, document.title, document.text) for document in documents)
    return find(queries, texts, relevant, source.own_document)


def undecided(source: Source) -> str:
    """Return a remark if queries are documents and `own_document` is not set, by a quick check of the files.

    Return "" if there is nothing to remark.
    """
    if source.own_document is not None or not source.files() or source.missing():
        return ""
    documents = (document for document in source.read_documents() if isinstance(document, Document))
    copies = own_documents(source, islice(documents, MOST), MOST)
    return remark(copies, sum(1 for _ in islice(source.read_queries(), MOST))) if copies else ""
