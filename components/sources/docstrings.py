"""The documentation of installed Python packages. The first sentence of a docstring is a query for the rest.

As in CodeSearchNet, the query is the first sentence of a function's or class's docstring. The document has the
qualified name as title, and the signature and the rest of the docstring as text. Files are parsed, never imported. The
collection depends only on the versions of the packages. The artifact's record contains these, and a digest of all
pairs.
"""

import hashlib
import importlib.metadata
import platform
import threading
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from itertools import count, islice
from typing import Any, Self

from pydantic import Field, model_validator

from sparring.components.config import UserError, listing
from sparring.components.sources import base
from sparring.components.sources.near_duplicates import Shingles
from sparring.components.sources.python_files import Docstring, read_docstrings, root
from sparring.components.sources.records import Bad, Document, Judgement, Query, document, judgement, query


class Source(base.Source):
    """The keys of `format: docstrings`."""

    packages: list[str] = Field(min_length=1)
    """Packages, by their import names, such as `sklearn`. `stdlib` is the standard library."""
    min_query_words: int = 4
    """Minimum number of words in a first sentence."""
    min_text_words: int = 20
    """Minimum number of words in the rest of a docstring."""
    near_duplicate: float = Field(default=0.8, ge=0.5, le=1)
    """Overlap (Jaccard similarity of runs of four words) from which two docstrings are near duplicates. Only the first
    of them is kept."""

    dev: float = Field(default=0.1, ge=0, le=0.5)
    """Share of files whose docstrings become the dev split."""
    test: float = Field(default=0.1, ge=0, le=0.5)
    """Share of files whose docstrings become the test split."""
    versions: dict[str, str] = Field(default={}, exclude_if=lambda versions: not versions)
    """Versions that packages must have, by their names in `packages`."""

    @model_validator(mode="after")
    def _versions_of_packages(self) -> Self:
        if unknown := [name for name in self.versions if name not in self.packages]:
            raise ValueError(
                f"versions: {unknown[0]!r} is not one of the packages. Use these names: {listing(self.packages)}."
            )
        return self

    def installed(self) -> dict[str, str]:
        """Return the versions of the installed packages."""
        return {name: version_of(name) for name in self.packages if root(name) is not None}

    def missing(self) -> list[str]:
        """Return the packages that are not installed."""
        return [f"the package {name}" for name in self.packages if root(name) is None]

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the docstrings without their first sentences."""
        for doc in harvest(self):
            yield document(doc.name, doc.name, f"{doc.signature}\n{doc.rest}", doc.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the first sentences. Ids differ from documents' ids, because some evaluation tools drop equal ids."""
        for doc in harvest(self):
            split = split_of(doc.module, self.dev, self.test)
            yield query(f"q:{doc.name}", doc.sentence, None, split, doc.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the judgement that pairs each first sentence with its docstring."""
        for doc in harvest(self):
            split = split_of(doc.module, self.dev, self.test)
            yield judgement(f"q:{doc.name}", doc.name, 1, split, doc.place)

    def about(self) -> dict[str, Any]:
        """Return the versions of the packages, and a digest of all pairs."""
        return {"versions": self.installed(), "manifest": manifest(self)}


class _Harvest:
    """Docstrings that are read when they are first needed, and kept. `plan` needs only the first ones."""

    def __init__(self, docstrings: Iterator[Docstring]) -> None:
        self._docstrings, self._kept, self._lock = docstrings, list[Docstring](), threading.Lock()

    def __iter__(self) -> Iterator[Docstring]:
        for place in count():
            with self._lock:  # parallel steps may read one source
                if place == len(self._kept):
                    self._kept += islice(self._docstrings, 1)
            if place == len(self._kept):
                return
            yield self._kept[place]


@lru_cache(maxsize=1)  # documents, queries and qrels are read in turn
def _harvest(names: tuple[str, ...], query_words: int, text_words: int, near_duplicate: float) -> _Harvest:
    return _Harvest(_pairs(names, query_words, text_words, near_duplicate))


def _pairs(names: tuple[str, ...], query_words: int, text_words: int, near_duplicate: float) -> Iterator[Docstring]:
    """Yield the docstrings that make a pair, without duplicates, in the order of packages and files."""
    shingles, sentences, names_taken = Shingles(near_duplicate), set[str](), set[str]()
    for name in names:
        for doc in read_docstrings(name, query_words=query_words, text_words=text_words):
            sentence = " ".join(doc.sentence.lower().split())
            # A repeated sentence would be a query with two possible documents.
            if doc.name in names_taken or sentence in sentences or shingles.near(f"{sentence} {doc.rest}"):
                continue
            names_taken.add(doc.name)
            sentences.add(sentence)
            yield doc


def harvest(source: Source) -> Iterable[Docstring]:
    """Return the docstrings of a source. Raise UserError if a package or its declared version is not installed."""
    missing = source.missing()
    if missing:
        raise UserError(f"format docstrings: {', '.join(missing)} is not installed.")
    for name, declared in source.versions.items():
        if (version := version_of(name)) != declared:
            raise UserError(
                f"format docstrings: versions: {name} is {version}, but the source declares {declared}. Install the "
                "declared version, or declare the installed one."
            )
    names = tuple(dict.fromkeys(source.packages))
    return _harvest(names, source.min_query_words, source.min_text_words, source.near_duplicate)


def split_of(module: str, dev: float = 0.1, test: float = 0.1) -> str:
    """Return the split of a file, by a hash of its module path and the shares of dev and test.

    All docstrings of a file are in the same split, because they resemble each other (families of functions, repeated
    descriptions of parameters). Measured on numpy, scipy, pandas, scikit-learn and torch: 1.2 % of the test documents
    share half of their runs of words with a training document, against 11.8 % with a split by functions. Three tenths
    are shared by 5.1 % against 25.4 %.
    """
    point = int.from_bytes(hashlib.sha256(module.encode()).digest()[:4], "big") / 2**32
    return "test" if point < test else "dev" if point < test + dev else "train"


def manifest(source: Source) -> str:
    """Compute a SHA-256 digest of all pairs, sorted."""
    digest = hashlib.sha256()
    for line in sorted(repr((doc.name, doc.sentence, doc.signature, doc.rest)) for doc in harvest(source)):
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()


@cache  # reads the file lists of all installed packages
def _distributions() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


@cache
def version_of(name: str) -> str:
    """Return the version of an installed package. For the standard library it is Python's version."""
    if name == "stdlib":
        return platform.python_version()
    distributions = _distributions().get(name)
    return importlib.metadata.version(distributions[0]) if distributions else "unknown"
