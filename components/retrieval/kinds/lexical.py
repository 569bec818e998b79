"""Lexical retrieval: documents are words with BM25's weights, in a Lucene index that Pyserini opens too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import pyarrow.parquet as pq

from sparring.components.data.tables import rows_in
from sparring.components.files import read_json, write_json
from sparring.components.retrieval import lucene, lucene_ids
from sparring.components.retrieval.kind import IndexFile, IndexKind, IndexShape
from sparring.components.retrieval.lucene import AnalyzerConfig, BM25Config, RM3Config
from sparring.components.retrieval.lucene_search import Searcher
from sparring.components.retrieval.stage import FirstStage

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
    """Some consecutive documents of a collection, read some at a time."""

    def __init__(self, table: Path, rows: range) -> None:
        self._table, self._rows = table, rows

    @classmethod
    def of(cls, table: Path) -> Self:
        """Open all documents of a table."""
        return cls(table, range(rows_in(table)))

    def __len__(self) -> int:
        """Count the documents."""
        return len(self._rows)

    def __getitem__(self, rows: slice) -> Self:
        """Take some of the documents. The step of `rows` must be 1."""
        return type(self)(self._table, self._rows[rows])

    def batches(self) -> Iterator[tuple[list[str], int]]:
        """Yield documents in the format of `lucene.IndexWriter.add`, and how many of them are blank."""
        with pq.ParquetFile(self._table) as file:
            ends = np.cumsum([file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)])
            group = int(np.searchsorted(ends, self._rows.start, side="right"))
            groups, stop = list(range(group, len(ends))), int(ends[group - 1]) if group else 0
            columns = ["doc_id", "title", "text"]
            for rows in file.iter_batches(DOCUMENTS_AT_ONCE, row_groups=groups, columns=columns):
                start, stop = stop, stop + len(rows)
                if start >= self._rows.stop:
                    return
                first = max(start, self._rows.start)
                batch = rows.slice(first - start, self._rows.stop - first) if first < stop else rows.slice(0, 0)
                doc_ids, titles, texts = (column.to_pylist() for column in batch.columns)
                bodies = [lucene.contents(title, text) for title, text in zip(titles, texts, strict=True)]
                yield lucene.as_json(doc_ids, bodies), sum(not body.strip(BLANK) for body in bodies)


BM25 = """\
(searcher := LuceneSearcher(os.path.abspath(stage["index"]))).set_bm25(stage["k1"], stage["b"])
"""
LANGUAGE = f"""\
from jnius import autoclass
searcher.set_analyzer(autoclass("{lucene.ANALYSIS}.CLASS")())
"""
ANY_LANGUAGE = f"""\
from jnius import autoclass
analyzer = autoclass("{lucene.ANALYSIS}.custom.CustomAnalyzer").builder()
pairs = {lucene.PAIRS[0]!r}
analyzer.addCharFilter("patternReplace", "pattern", pairs, "replacement", {lucene.PAIRS[1]!r}).withTokenizer("standard")
for name in {lucene.FILTERS!r}:
    analyzer.addTokenFilter(name)
searcher.set_analyzer(analyzer.build())
"""
RM3 = """\
rm3 = stage["rm3"]
searcher.set_rm3(rm3["terms"], rm3["documents"], rm3["original"], filter_terms=rm3.get("filter_terms", True))
"""
WORDS = """\
field = autoclass("org.apache.commons.lang3.reflect.FieldUtils").readField
field(field(searcher.object, "cascade", True), "rerankers", True).removeLast()  # which sets equal scores apart
scores["NAME"] = {hit.docid: hit.score for hit in searcher.search(query, stage["k"])}
"""
KEPT_WORDS = """\
kept["NAME"] = lambda text, by=searcher, k=stage["k"]: {hit.docid: hit.score for hit in by.search(text, k)}
"""


class LexicalStage(BM25Config, FirstStage):
    """BM25's ranking."""

    kind: Literal["lexical"] = "lexical"
    index: str = "lucene"
    """Folder of the Lucene index."""
    analysis: AnalyzerConfig
    """Analyzer, which splits documents and queries into terms."""
    rm3: RM3Config | None = None
    """Relevance feedback. If None, there is none."""

    in_java: ClassVar[bool] = True
    has: ClassVar[Literal["vectors", "words"] | None] = "words"

    @property
    def contents(self) -> dict[str, str]:
        return {self.index: "a Lucene index, for Pyserini's `LuceneSearcher`"}

    @property
    def lexical_k(self) -> int:
        return self.k

    def sentence(self, name: str) -> str:
        """Name BM25's numbers."""
        rm3 = "" if self.rm3 is None else " with relevance feedback (RM3)"
        return f"`{name}`: BM25{rm3} lists {self.k} documents (k1 {self.k1:g}, b {self.b:g})."

    def lines(self, system: Any, name: str) -> str:
        """Search by Pyserini, and keep the searcher if another stage searches for expansions."""
        analysis, lines = self.analysis, BM25
        if analysis.language in lucene.ANALYZERS:
            lines += LANGUAGE.replace("CLASS", lucene.ANALYZERS[analysis.language])
        elif analysis.language != "en":
            lines += ANY_LANGUAGE
        elif analysis != type(analysis)():
            stemmer, stopwords = analysis.stemmer, analysis.drop_stopwords
            options = f"stemming={stemmer != 'none'}, stemmer={stemmer!r}, stopwords={stopwords}"
            lines += "from pyserini.analysis import get_lucene_analyzer\n"
            lines += f"searcher.set_analyzer(get_lucene_analyzer({options}))\n"
        kept = KEPT_WORDS if system.data_is_read(name) else ""
        return lines + (RM3 if self.rm3 is not None else "") + WORDS + kept


class Lexical(IndexKind):
    """Words, weighted by BM25."""

    in_java = True
    stage = LexicalStage

    def documents(self, folder: Path) -> Sequence[Texts]:
        """Open a collection's table of documents."""
        return [Texts.of(folder / "documents.parquet")]

    def index_shape(
        self, factory: str, documents: int, width: float, *, ef_construction: int = 0, memory: float = math.inf
    ) -> IndexShape:
        """Estimate half a byte a character and 30 bytes a document. Lucene reads the index from disk."""
        return IndexShape(factory, 30 + 0.5 * width, float(documents))

    def index_files(self, factory: str, documents: int) -> list[IndexFile]:
        """Build one index over all documents, because BM25 weighs a word by its documents in the whole collection."""
        return [IndexFile(lucene.INDEX, 0, documents)]

    def merges(self, factory: str) -> bool:
        """Merge parts. A merged index counts words over the whole collection."""
        return True

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
        self._finish(path, index, total, blank, added)

    def merge_index(self, path: Path, parts: Sequence[Path], index: LuceneIndex) -> None:
        """Merge parts into an index of one segment, as fast to search as any. RuntimeError if a document is lost."""
        lucene.merge_indexes(path, parts)
        lucene_ids.merge(path, parts)
        details = [read_details(part) for part in parts]
        documents, blank = (sum(part[name] for part in details) for name in ("documents", "blank"))
        self._finish(path, index, documents, blank, documents - blank)

    def _finish(self, path: Path, index: LuceneIndex, documents: int, blank: int, added: int) -> None:
        """Count the documents of an index, and describe it."""
        with closing(self.open_index(path, analysis=index.analysis, config=BM25Config(), threads=1)) as searcher:
            indexed = len(searcher)
        if not indexed == added == documents - blank:
            raise RuntimeError(
                f"Lucene indexed {indexed} of {documents - blank} documents; its messages are in the log"
            )
        details = {"documents": documents, "blank": blank, "analysis": index.analysis.model_dump(mode="json")}
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
