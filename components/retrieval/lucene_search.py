"""BM25 over Lucene's indexes.

Anserini reads the stored fields of each document for its id, which takes three quarters of the time of a search for 200
documents. Here Lucene is called directly, and ids are looked up by Lucene's numbers (`lucene_ids`).
"""

import json
import string
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from sparring.components.config import Damaged
from sparring.components.retrieval import lucene, lucene_ids

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 64
"""Queries in a batch, whose hits are Java objects. For k = 1000 they fit well into Java's memory."""
NO_IDS = {"org.apache.lucene.search.FieldDoc": ["fields", "shardIndex"]}
NO_TEXTS = {"io.anserini.search.ScoredDoc": ["lucene_docid", "lucene_document"]}
NO_NAMES = str.maketrans("", "", string.ascii_lowercase + 'D"{}:[')
"""Leaves commas, numbers and the end of each list of `[{"scoreDocs":[{"score":1.5,"doc":7},...]},...]`."""

# A method of pyjnius stores the object that it is called on, for all threads. Take the lock if another thread could run
# before the call.
_lock = Lock()


class Hits(NamedTuple):
    """Documents of a query, best first."""

    doc_ids: pa.LargeStringArray
    """(n,)"""
    scores: np.ndarray
    """(n,) fp32"""


class Searcher:
    """BM25 over an index.

    Documents are in the order of Pyserini's: by score, equal scores by document id. Scores are Lucene's own, so equal
    ones are equal. Pyserini's are rounded to four decimals, and equal ones are set a millionth apart.
    """

    def __init__(self, path: Path, analyzer: lucene.AnalyzerConfig, *, k1: float, b: float, threads: int) -> None:
        """Open the index. Raise Damaged if that fails."""
        self._jnius = lucene.start_jvm(threads)
        self._autoclass = autoclass = self._jnius.autoclass
        self._path, self._bm25 = path, (k1, b)
        self._index = lucene.open_index(path)
        self._ids = lucene_ids.of(path, self._index)
        self._searcher = autoclass("org.apache.lucene.search.IndexSearcher")(self._index)
        self._searcher.setSimilarity(autoclass("org.apache.lucene.search.similarities.BM25Similarity")(k1, b))
        self._analyzer = lucene.analyzer_of(analyzer)
        self._generator = autoclass("io.anserini.search.query.BagOfWordsQueryGenerator")()
        self._order, self._json = lucene.order("FIELD_SCORE"), lucene.json_writer(NO_IDS)
        self._feedback: Any = None
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "bm25") if threads > 1 else None

    def __len__(self) -> int:
        """Return the number of documents in the index."""
        return int(self._index.numDocs())

    def feed_back(self, *, terms: int, documents: int, original: float, filter_terms: bool = True) -> None:
        """Expand all following queries with RM3: terms of their first documents. The index needs term vectors."""
        self._feedback = self._autoclass("io.anserini.search.SimpleSearcher")(str(self._path), self._analyzer)
        self._feedback.set_bm25(*self._bm25)
        self._feedback.set_rm3(None, terms, documents, original, False, filter_terms)
        lucene.keep_ties(self._feedback)
        self._feedback_json = lucene.json_writer(NO_TEXTS)

    def search(self, queries: Sequence[str], k: int) -> Iterator[Hits]:
        """Yield the k best documents of each query. A query without a word in the index has none."""
        size = max(1, min(AT_ONCE, -(-len(queries) // self._threads)))
        batches = [queries[start : start + size] for start in range(0, len(queries), size)]
        lists: Iterator[Iterable[Hits]]
        if self._feedback is not None:
            lists = (self._expanded(batch, k) for batch in batches)
        elif self._pool is None:
            lists = (self._searched(batch, k) for batch in batches)
        else:
            lists = _in_order(self._pool, lambda batch: self._searched_in_thread(batch, k), batches, 2 * self._threads)
        for hits in lists:
            yield from hits

    def _searched(self, queries: Sequence[str], k: int) -> list[Hits]:
        results = []
        for query in queries:
            with _lock:
                words = self._generator.buildQuery(lucene.CONTENTS, self._analyzer, query)
            results.append(self._searcher.search(words, k, self._order, True))
        with _lock:
            together = self._autoclass("java.util.ArrayList")()
            for result in results:
                together.add(result)
        written = self._json.writeValueAsString(together).translate(NO_NAMES)
        return [self._hits(numbers.strip(",")) for numbers in written.split("]")[: len(queries)]]

    def _searched_in_thread(self, queries: Sequence[str], k: int) -> list[Hits]:
        """Search, and detach the thread from Java, which did not start it."""
        try:
            return self._searched(queries, k)
        finally:
            self._jnius.detach()

    def _hits(self, written: str) -> Hits:
        """Parse scores and document numbers, which alternate. Raise Damaged if a truncated file gives other scores."""
        try:
            numbers = np.fromstring(written, sep=",") if written else np.empty(0)
        except ValueError:
            raise Damaged(f"{self._path}: Lucene finds scores that are no numbers", self._path) from None
        doc_ids = self._ids.take(pa.array(numbers[1::2].astype(np.int64)))
        return Hits(doc_ids, numbers[::2].astype(np.float32))

    def _expanded(self, queries: Sequence[str], k: int) -> Iterator[Hits]:
        """Search with relevance feedback, which Anserini implements."""
        texts, keys = self._autoclass("java.util.ArrayList")(), self._autoclass("java.util.ArrayList")()
        for number, query in enumerate(queries):
            texts.add(query)
            keys.add(str(number))
        results = self._feedback.batch_search(texts, keys, k, self._threads)
        hits = json.loads(self._feedback_json.writeValueAsString(results))
        for number in range(len(queries)):
            doc_ids = pa.array([hit["docid"] for hit in hits[str(number)]], pa.large_string())
            yield Hits(doc_ids, np.array([hit["score"] for hit in hits[str(number)]], np.float32))

    def close(self) -> None:
        """Close the index."""
        if self._pool is not None:
            self._pool.shutdown()
        if self._feedback is not None:
            self._feedback.close()
        self._index.close()


def _in_order(pool: ThreadPoolExecutor, call: Callable[[T], R], items: Iterable[T], most: int) -> Iterator[R]:
    """Yield the results of calls in order, with at most `most` calls running ahead."""
    coming = deque[Future[R]]()
    for item in items:
        coming.append(pool.submit(call, item))
        if len(coming) == most:
            yield coming.popleft().result()
    while coming:
        yield coming.popleft().result()
