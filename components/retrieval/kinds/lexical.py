"""Lexical retrieval: documents are words with BM25's weights, in a Lucene index that Pyserini opens too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.parquet as pq

from sparring.components.data.tables import row_count
from sparring.components.files import read_json, write_json
from sparring.components.retrieval import lucene, lucene_ids
from sparring.components.retrieval.kind import IndexFile, IndexKind, IndexShape
from sparring.components.retrieval.lucene import AnalyzerConfig, BM25Config, RM3Config
from sparring.components.retrieval.lucene_search import Searcher

T = TypeVar("T")

ABOUT = "sparring.json"
"""The file in an index's folder that says how documents were analyzed and how many there are."""
DOCUMENTS_AT_ONCE = 2_000
BLANK = "".join(map(chr, range(33)))
"""Characters that Java strips before it calls a document empty."""


@dataclass(frozen=True)
class LuceneIndex:
    """Options for building a Lucene index."""

    analysis: AnalyzerConfig
    vectors: bool = False
    """Store the terms of each document, which relevance feedback needs."""


class Texts:
    """A collection's documents, read some at a time."""

    def __init__(self, table: Path) -> None:
        self._table, self._rows = table, row_count(table)

    def __len__(self) -> int:
        """Count the documents."""
        return self._rows

    def batches(self) -> Iterator[tuple[list[str], int]]:
        """Yield documents in the format of `lucene.IndexWriter.add`, and how many of them are blank."""
        with pq.ParquetFile(self._table) as file:
            for batch in file.iter_batches(DOCUMENTS_AT_ONCE, columns=["doc_id", "title", "text"]):
                doc_ids, titles, texts = (column.to_pylist() for column in batch.columns)
                bodies = [lucene.contents(title, text) for title, text in zip(titles, texts, strict=True)]
                yield lucene.as_json(doc_ids, bodies), sum(not body.strip(BLANK) for body in bodies)


class Lexical(IndexKind):
    """Words, weighted by BM25."""

    in_java = True

    def documents(self, folder: Path) -> Sequence[Texts]:
        """Open a collection's table of documents."""
        return [Texts(folder / "documents.parquet")]

    def index_shape(
        self, factory: str, documents: int, width: float, *, ef_construction: int = 0, memory: float = math.inf
    ) -> IndexShape:
        """Estimate half a byte a character and 30 bytes a document. Lucene reads the index from disk."""
        return IndexShape(factory, 30 + 0.5 * width, float(documents))

    def index_files(self, factory: str, files: int) -> list[IndexFile]:
        """Build one index over all documents, because BM25 weighs a word by its documents in the whole collection."""
        return [IndexFile(lucene.INDEX, 0, files)]

    def build_index(
        self,
        path: Path,
        documents: Sequence[Texts],
        index: LuceneIndex,
        *,
        threads: int,
        on_added: Callable[[int], None],
    ) -> None:
        """Write a Lucene index of title and text. Java starts in this process.

        RuntimeError if the index lacks a document that is not blank: Anserini logs what goes wrong and carries on.
        """
        total, added, blank = sum(map(len, documents)), 0, 0
        with lucene.IndexWriter(path, index.analysis, threads=threads, vectors=index.vectors) as writer:
            for texts in documents:
                for batch, blanks in _ahead(texts.batches()):
                    added += writer.add(batch)
                    blank += blanks
                    on_added(len(batch))
        lucene_ids.write(path)
        with closing(self.open_index(path, analysis=index.analysis, config=BM25Config(), threads=1)) as searcher:
            indexed = len(searcher)
        if not indexed == added == total - blank:
            raise RuntimeError(f"Lucene indexed {indexed} of {total - blank} documents; its messages are in the log")
        details = {"documents": total, "blank": blank, "analysis": index.analysis.model_dump(mode="json")}
        write_json(path / ABOUT, details)

    def open_index(
        self,
        path: Path,
        *,
        config: BM25Config,
        threads: int,
        rm3: RM3Config | None = None,
        analysis: AnalyzerConfig | None = None,
    ) -> Searcher:
        """Open an index. Java starts in this process. If `analysis` is None, the index says how it was analyzed."""
        if analysis is None:
            analysis = AnalyzerConfig.model_validate(read_details(path)["analysis"])
        searcher = Searcher(path, analysis, k1=config.k1, b=config.b, threads=threads)
        if rm3 is not None:
            searcher.feed_back(**rm3.model_dump())
        return searcher


def read_details(path: Path) -> dict[str, Any]:
    """Read what `build_index` wrote about an index: `documents`, `blank` and `analysis`."""
    return read_json(path / ABOUT)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield the same items, each made while the one before is indexed. Java does not hold Python's lock."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


Kind = Lexical
