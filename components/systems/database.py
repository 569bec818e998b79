"""The interface of a database that `export --to URL` sends a system's documents to, and how a database is found.

`NAME://...` names a file of `components/systems/databases`. For example, `sqlite:///documents.db` is the class `SQLite`
of `databases/sqlite.py`. A name with a dot is the path of any other module. The module assigns its class to `Database`.

A table or collection has a row for each document: `id`, `title`, `text`, a vector for each retriever of the system, and
a `digest` of all these. A row whose digest is in the database is not sent again. Vectors are compared by inner product,
as the system compares them. If the system has BM25, the database's full-text search takes its place.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt

from sparring.components import modules
from sparring.components.config import UserError, did_you_mean, listing
from sparring.components.progress import report
from sparring.components.retrieval.kinds.lexical import LexicalStage
from sparring.components.retrieval.lucene import ANALYZERS

KEY = "--to"
"""The option that mistakes are about."""
NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
"""Names of tables and collections that every database accepts."""
WORDS = "words"
"""Column of the full-text search."""
NUMBER = "%.9g"
"""Format of a number of a vector, which is read back as the same fp32 number."""


class Address(NamedTuple):
    """A database's URL in parts. Only `url`, `user` and `password` may hold secrets."""

    url: str
    """As the user wrote it."""
    scheme: str
    """For example `qdrant+http`."""
    host: str
    """With the port. Empty if the database is a file or a folder."""
    path: str
    user: str | None
    password: str | None

    @classmethod
    def of(cls, url: str) -> Address:
        """Divide a URL. UserError if it has no scheme, or a port that is no number.

        >>> address = Address.of("qdrant+http://me:secret@localhost:6333/a?b=c")
        >>> address.name, address.transport, address.host, address.path, address.shown
        ('qdrant', 'http', 'localhost:6333', 'a', 'qdrant+http://localhost:6333/a')
        """
        scheme, separator, rest = url.partition("://")
        if not separator or not re.fullmatch(r"[\w.]+(\+https?)?", scheme):
            raise UserError(
                f"{KEY}: this is no URL of a database. Use NAME://PLACE, where NAME is one of {listing(names())}.",
                code="wrong-form",
            )
        try:
            parts = urlsplit(f"//{rest}")
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
            port = f":{parts.port}" if parts.port is not None else ""
        except ValueError:
            message = f"{KEY}: {scheme}: the host or the port is not valid. Use HOST:PORT."
            raise UserError(message, code="wrong-form") from None
        secrets = (None if part is None else unquote(part) for part in (parts.username, parts.password))
        return cls(url, scheme, host + port, unquote(parts.path).removeprefix("/"), *secrets)

    @property
    def name(self) -> str:
        """Name of the database's module."""
        return self.scheme.partition("+")[0]

    @property
    def transport(self) -> str:
        """`http` or `https`. Empty if the scheme does not say."""
        return self.scheme.partition("+")[2]

    @property
    def shown(self) -> str:
        """The URL without user, password and options."""
        return f"{self.scheme}://{self.host}/{self.path}"

    @property
    def server(self) -> str:
        """URL of an HTTP server, without user and password. UserError if the scheme does not say http or https."""
        if not self.transport or not self.host:
            raise UserError(
                f"{KEY}: {self.shown}: a server is needed. Use {self.name}+http://HOST:PORT or "
                f"{self.name}+https://HOST:PORT.",
                code="wrong-form",
            )
        return f"{self.transport}://{self.host}{f'/{self.path}' if self.path else ''}"

    @property
    def file(self) -> Path:
        """Path of a file or folder. Three slashes begin a path from the current folder, four an absolute path.
        UserError if there is no path, or a host."""
        if self.host or self.transport or not self.path:
            raise UserError(
                f"{KEY}: {self.shown}: a path is needed. Use {self.name}:///PATH, or {self.name}:////PATH for an "
                "absolute path.",
                code="wrong-form",
            )
        return Path(self.path)

    @property
    def absolute(self) -> str:
        """The URL of a file or folder, with an absolute path."""
        return f"{self.scheme}:///{self.file.resolve()}"


class Layout(NamedTuple):
    """The columns of a table or collection."""

    table: str
    vectors: Mapping[str, int]
    """Number of dimensions of each vector column."""
    lexical: LexicalStage | None
    """BM25, which the database's full-text search stands in for. If None, there is no full-text search."""

    @property
    def language(self) -> str:
        """The language of the full-text search, as Lucene's analyzers are named: `english`. Empty if it is unknown."""
        if self.lexical is None:
            return ""
        analysis = self.lexical.analysis
        analyzer = "English" if analysis.language == "en" else ANALYZERS.get(analysis.language, "")
        return analyzer.rpartition(".")[2].removesuffix("Analyzer").lower()

    @property
    def description(self) -> str:
        """JSON that is stored with the table. A table with another description is left as it is."""
        words = None if self.lexical is None else self.language
        return json.dumps({"sparring": 1, "vectors": dict(self.vectors), WORDS: words}, sort_keys=True)


class Batch(NamedTuple):
    """Some documents with their vectors."""

    ids: list[str]
    titles: list[str]
    texts: list[str]
    vectors: dict[str, npt.NDArray[np.float32]]
    """(n, d) for each vector column."""

    def digests(self) -> list[str]:
        """Compute a digest of each document: its title, its text and its vectors."""
        result = []
        for row, pair in enumerate(zip(self.titles, self.texts, strict=True)):
            hashed = hashlib.sha256(json.dumps(pair).encode())
            for column in sorted(self.vectors):
                hashed.update(self.vectors[column][row].tobytes())
            result.append(hashed.hexdigest()[:32])
        return result

    def take(self, rows: list[int]) -> Batch:
        """Take some of the documents."""
        ids, titles, texts = ([column[row] for row in rows] for column in self[:3])
        return Batch(ids, titles, texts, {name: vectors[rows] for name, vectors in self.vectors.items()})

    def numbers(self, column: str) -> list[str]:
        """Write each vector as a list of numbers, such as `[0.5,1]`."""
        vectors = self.vectors[column]
        form = f"[{','.join([NUMBER] * vectors.shape[1])}]"
        return [form % tuple(vector) for vector in vectors.tolist()]


class Source(ABC):
    """Documents to send, in order. They are read in batches, so that they need not fit in memory."""

    widths: dict[str, int]
    """Number of dimensions of each vector column."""
    documents: int
    """Number of documents."""

    @abstractmethod
    def batches(self, rows: int) -> Iterator[Batch]:
        """Read all documents, at most `rows` at a time. Damaged if there are not as many as `documents`."""

    @abstractmethod
    def ids(self) -> Iterator[list[str]]:
        """Read the ids of all documents in batches."""


class VectorDatabase(ABC):
    """A connection to a table or collection of a database. A context manager that closes the connection."""

    packages: ClassVar[Mapping[str, str]] = {}
    """Modules of the client, with the distribution that has each."""
    rows: ClassVar[int] = 1_000
    """Number of documents that are written together."""
    full_text: ClassVar[str]
    """The full-text ranking that stands in for BM25, for people."""
    program: ClassVar[str]
    """Lines of the example, with `"TABLE"` for the table's name. They import the client, connect to `url`, and define
    `nearest(column, vector, k)`. It returns the k rows (id, title, text, score) with the largest inner products."""
    program_words: ClassVar[str]
    """Lines of the example that define `words(query, k)`, which returns rows (id, title, text, score) too. `LANGUAGE`
    is the language."""
    languages: ClassVar[Mapping[str, str]] = {}
    """Names that the full-text search has for languages (`Layout.language`)."""
    other_language: ClassVar[str] = ""
    """Name of the analysis for all other languages."""

    def __init__(self, address: Address, layout: Layout) -> None:
        """Connect."""
        self.address, self.layout = address, layout

    def __enter__(self) -> VectorDatabase:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @classmethod
    def place(cls, address: Address) -> str:
        """Return the URL for the example, without user and password."""
        return address.shown

    @staticmethod
    def failures() -> tuple[type[Exception], ...]:
        """Return the client's exceptions. They are reported in one line."""
        return (OSError,)

    @classmethod
    def language(cls, layout: Layout) -> str:
        """Return the language of the full-text search, as this database calls it."""
        return cls.languages.get(layout.language, cls.other_language)

    @classmethod
    def named(cls, lines: str, layout: Layout) -> str:
        """Replace `"TABLE` and `LANGUAGE` in lines."""
        return lines.replace('"TABLE', f'"{layout.table}').replace("LANGUAGE", cls.language(layout))

    @abstractmethod
    def prepare(self) -> None:
        """Create the table if it does not exist. Call `check_description` if it does."""

    @abstractmethod
    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the digests of the rows with some ids that exist, by id."""

    @abstractmethod
    def write(self, batch: Batch, digests: Sequence[str]) -> None:
        """Insert rows, and replace those that exist. All of them are written, or none."""

    @abstractmethod
    def count(self) -> int:
        """Count the rows."""

    @abstractmethod
    def ids(self) -> Iterator[list[str]]:
        """List the ids of all rows in batches. A batch's rows may be deleted before the next batch is read."""

    @abstractmethod
    def delete(self, ids: Sequence[str]) -> None:
        """Delete the rows with some ids."""

    def finish(self) -> None:  # noqa: B027
        """Update what is made of all rows, such as an index."""

    def close(self) -> None:  # noqa: B027
        """Close the connection."""

    def check_description(self, stored: str | None) -> None:
        """Raise UserError if the table has other columns. `stored` is its description, or None if it has none."""
        if stored is None:
            raise UserError(
                f"--name: {self.layout.table!r} exists there, and `export` did not make it. Use another name.",
                code="not-ours",
            )
        if json.loads(stored) != json.loads(self.layout.description):
            raise UserError(
                f"--name: {self.layout.table!r} exists there with other vectors or another language. Use another name, "
                "or delete it first.",
                code="other-layout",
            )


class Sent(NamedTuple):
    """Number of documents that were sent, that were in the database already, and that were deleted from it."""

    written: int
    unchanged: int
    deleted: int


def names() -> list[str]:
    """List the databases of this project."""
    return sorted(path.stem for path in (Path(__file__).parent / "databases").glob("[!_]*.py"))


def find(name: str) -> type[VectorDatabase]:
    """Find a database by the name in a URL. UserError if there is none, or if its client is not installed."""
    module = name if "." in name else f"components.systems.databases.{name}"
    if modules.file_of(module) is None or name.startswith("_"):
        message = f"{KEY}: there is no database {name!r}. Use {listing(names())}{did_you_mean(name, names())}"
        raise UserError(message, code="unknown-database")
    database = getattr(modules.load(module), "Database", None)
    if not (isinstance(database, type) and issubclass(database, VectorDatabase)):
        message = f"{KEY}: {name}: the module defines no `Database`. Assign a subclass of VectorDatabase to it."
        raise UserError(message, code="unknown-database")
    for package, distribution in database.packages.items():
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(
                f"{KEY}: {name} needs the package {package}, which cannot be imported ({error}). Install it: pip "
                f"install '{distribution}'",
                code="missing-package",
            ) from None
    return database


def send(database: VectorDatabase, source: Source) -> Sent:
    """Make a table's rows the documents of a source. Rows that are there already are not sent again.

    It can be stopped at any time and repeated. Documents that the source lacks are deleted at the end.
    """
    database.prepare()
    written = unchanged = deleted = 0
    for batch in source.batches(database.rows):
        digests, stored = batch.digests(), database.digests(batch.ids)
        changed = [row for row, id in enumerate(batch.ids) if stored.get(id) != digests[row]]
        if changed:
            database.write(batch.take(changed), [digests[row] for row in changed])
        written += len(changed)
        unchanged += len(batch.ids) - len(changed)
        report(len(batch.ids))
    if database.count() != source.documents:
        deleted = _delete_others(database, source)
    database.finish()
    return Sent(written, unchanged, deleted)


def _delete_others(database: VectorDatabase, source: Source) -> int:
    """Delete the rows that a source lacks. Its ids are put in a temporary file, which SQLite removes."""
    deleted, sent = 0, sqlite3.connect("")
    sent.execute("CREATE TABLE ids (id TEXT PRIMARY KEY) WITHOUT ROWID")
    for ids in source.ids():
        sent.executemany("INSERT INTO ids VALUES (?)", [(id,) for id in ids])
    for ids in database.ids():
        matches = sent.execute("SELECT id FROM ids WHERE id IN (SELECT value FROM json_each(?))", [json.dumps(ids)])
        kept = {id for (id,) in matches}
        if extra := [id for id in ids if id not in kept]:
            database.delete(extra)
            deleted += len(extra)
    sent.close()
    return deleted


def column(stage: str) -> str:
    """Name the vector column of a stage.

    >>> column("dense 2")
    'dense_2'
    """
    return stage.replace(" ", "_")


def table_name(text: str) -> str:
    """Make a name that every database accepts.

    >>> table_name("BM25 + start model, interpolated"), table_name("2026-news")
    ('bm25_start_model_interpolated', 'documents_2026_news')
    """
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return (name if name[:1].isalpha() else f"documents_{name}")[:48].rstrip("_")


def check_name(name: str) -> str:
    """Return a table's name. UserError if a database might refuse it."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"--name: got {name!r}. Use at most 48 small letters, digits and underscores, the first a letter.",
            code="wrong-form",
        )
    return name
