"""Each database after a send, an interrupted one, and one of changed documents. PostgreSQL is used if the environment
variable `SPARRING_TEST_POSTGRESQL` has the URL of an empty database with pgvector."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest

from sparring.components.systems import database
from sparring.components.systems.database import Address, Layout, Sent
from sparring.components.systems.databases.postgresql import PostgreSQL
from tests.support import databases
from tests.support.databases import Listed, Place, Stopped, documents, nearest
from tests.support.errors import refused

CLIENTS = {"qdrant": "qdrant_client", "lancedb": "lancedb", "sqlite": "sqlite_vec", "postgresql": "psycopg"}
SERVERS = ("opensearch", "elasticsearch")
QUERY = np.random.default_rng(1).normal(size=databases.WIDTH).astype(np.float32)


@pytest.fixture(params=[*CLIENTS, *SERVERS])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A database without tables."""
    name = request.param
    if name in SERVERS:
        with databases.search_server() as server:
            yield Place(f"{name}+http://{server.host}", tmp_path)
        return
    client = pytest.importorskip(CLIENTS[name])
    if name != "postgresql":
        yield Place(f"{name}:///{tmp_path / 'data'}", tmp_path)
        return
    url = os.environ.get("SPARRING_TEST_POSTGRESQL")
    if url is None:
        pytest.skip("SPARRING_TEST_POSTGRESQL has no URL")
    with client.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS documents")
    yield Place(url, tmp_path)


def check(place: Place, source: Listed) -> None:
    """The database's first 10 documents are the exact ones, and a document is found by its own word."""
    with place.searching() as (near, words):
        rows = near("dense", QUERY, 10)
        expected = nearest(source, QUERY, 10)
        ranked = sorted(rows, key=lambda row: (-row[3], row[0]))
        assert [row[0] for row in ranked] == [id for id, _ in expected]
        assert [row[3] for row in ranked] == pytest.approx([score for _, score in expected], abs=1e-4)
        assert [tuple(row[1:3]) for row in ranked] == [source.rows[id][:2] for id, _ in expected]
        for id, (_, text, _) in list(source.rows.items())[:3]:
            assert [row[0] for row in words(text.split()[-1], 5)] == [id]
        best = max(words("common word3", 5), key=lambda row: row[3])
        assert best[0] == "d'3"
        assert len(words("common", 100)) == len(source.rows)
        assert words("absent", 5) == []


def test_the_nearest_documents_are_the_exact_ones(place: Place) -> None:
    source = Listed(documents())
    assert place.send(source) == Sent(40, 0, 0)
    check(place, source)
    assert place.send(source) == Sent(0, 40, 0)
    check(place, source)


def test_a_stopped_send_is_completed(place: Place) -> None:
    source = Listed(documents())
    with pytest.raises(Stopped):
        place.send(Listed(source.rows, last=2))
    assert place.send(source) == Sent(26, 14, 0)
    check(place, source)


def test_only_changes_are_sent(place: Place) -> None:
    """A text, a title, a vector, new documents and documents that are gone."""
    rows = documents()
    place.send(Listed(rows))
    title, text, vector = rows["d'3"]
    changed = {id: row for id, row in rows.items() if id not in ("d'7", "d'8", "d'39")}
    changed |= {
        "d'3": (title, f"{text} and more word3", vector),
        "d'4": ("Another title", *rows["d'4"][1:]),
        "d'5": (*rows["d'5"][:2], -rows["d'5"][2]),
        "new": ("", "common new word99", QUERY * 3),
    }
    source = Listed(changed)
    assert place.send(source) == Sent(4, 34, 3)
    check(place, source)


def test_a_table_with_other_columns_is_left_as_it_is(place: Place) -> None:
    source = Listed(documents())
    place.send(source)
    place.layout = place.layout._replace(vectors={"dense": 4})
    with refused(key="--name", code="other-layout"):
        place.send(source)
    place.layout = place.layout._replace(vectors={"dense": databases.WIDTH})
    check(place, source)


def test_vectors_alone_have_no_words(place: Place) -> None:
    place.layout = place.layout._replace(lexical=None)
    source = Listed(documents())
    assert place.send(source) == Sent(40, 0, 0)
    with place.searching() as (near, _):
        assert {row[0] for row in near("dense", QUERY, 5)} == {id for id, _ in nearest(source, QUERY, 5)}


def test_a_table_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "data") as connection:
        connection.execute("CREATE TABLE documents (id TEXT)")
    connection.close()
    pytest.importorskip("sqlite_vec")
    place = Place(f"sqlite:///{tmp_path / 'data'}", tmp_path)
    with refused(key="--name", code="not-ours"):
        place.send(Listed(documents()))


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_gets_bm25_and_the_vectors_type(name: str, tmp_path: Path) -> None:
    with databases.search_server() as server:
        place = Place(f"{name}+http://me:secret@{server.host}", tmp_path)
        place.send(Listed(documents()))
        mappings, settings = (server.indexes["documents"][key] for key in ("mappings", "settings"))
        vector = {
            "opensearch": {"type": "knn_vector", "dimension": 8},
            "elasticsearch": {"type": "dense_vector", "dims": 8, "index": False},
        }
        assert mappings["properties"]["dense"] == vector[name]
        assert mappings["properties"]["contents"] == {"type": "text", "analyzer": "english"}
        assert settings["index"]["similarity"]["default"] == {"type": "BM25", "k1": 1.2, "b": 0.75}
        assert {authorization for _, _, authorization in server.requests} == {"Basic bWU6c2VjcmV0"}


def test_refused_documents_are_sent_again(tmp_path: Path) -> None:
    source = Listed(documents())
    with databases.search_server() as server:
        place = Place(f"opensearch+http://{server.host}", tmp_path)
        server.refusing = 3
        with pytest.raises(place.kind.failures(), match="3 of 7 documents were refused: too many requests"):
            place.send(source)
        assert place.send(source) == Sent(36, 4, 0)
        check(place, source)


def test_a_server_that_does_not_answer(tmp_path: Path) -> None:
    with databases.search_server() as server:
        host = server.host
    place = Place(f"opensearch+http://{host}", tmp_path)
    with pytest.raises(URLError):
        place.send(Listed(documents()))
    assert issubclass(URLError, place.kind.failures())


@dataclass
class Connection:
    """psycopg's connection, which notes statements and their values."""

    statements: list[str] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def execute(self, statement: bytes, values: Any = None) -> SimpleNamespace:
        text = statement.decode()
        self.statements.append(text)
        self.values.append(values)
        rows = [(40,)] if text.startswith("SELECT count") else []
        return SimpleNamespace(fetchall=lambda: rows)

    def transaction(self) -> Any:
        return sqlite3.connect(":memory:")  # any context manager

    def close(self) -> None: ...


def test_postgresql_gets_one_statement_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, connected = Connection(), list[Any]()

    def connect(url: str, **options: Any) -> Connection:
        connected.append((url, options))
        return connection

    module = ModuleType("psycopg")
    vars(module).update(connect=connect, Error=OSError)
    monkeypatch.setitem(sys.modules, "psycopg", module)
    layout = Layout("documents", {"dense": databases.WIDTH}, databases.LEXICAL)
    url = "postgresql://me:secret@localhost/x"
    rows = documents()
    rows["d'3"] = ("a\0b", *rows["d'3"][1:])
    with PostgreSQL(Address.of(url), layout) as opened:
        assert database.send(opened, Listed(rows)) == Sent(40, 0, 0)
    assert connected == [(url, {"autocommit": True, "prepare_threshold": None})]
    assert connection.statements == [
        "SELECT 1 FROM pg_extension WHERE extname = 'vector'",
        "CREATE EXTENSION IF NOT EXISTS vector",
        "SELECT 1 WHERE to_regclass(%s) IS NOT NULL",
        'CREATE TABLE "documents" (id text PRIMARY KEY, title text NOT NULL, text text NOT NULL, digest text NOT NULL, '
        '"dense" vector(8) NOT NULL)',
        f"COMMENT ON TABLE \"documents\" IS '{layout.description}'",
        "ALTER TABLE \"documents\" ADD words tsvector GENERATED ALWAYS AS (to_tsvector('english', left(title || ' ' || "
        "text, 250000))) STORED",
        'CREATE INDEX "documents_words" ON "documents" USING gin (words)',
        'SELECT id, digest FROM "documents" WHERE id = ANY(%s)',
        'INSERT INTO "documents" (id, title, text, digest, "dense") SELECT id, title, text, digest, "dense"::vector '
        "FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[]) AS sent (id, title, text, digest, "
        '"dense") ON CONFLICT (id) DO UPDATE SET title = EXCLUDED.title, text = EXCLUDED.text, digest = '
        'EXCLUDED.digest, "dense" = EXCLUDED."dense"',
        'SELECT count(*) FROM "documents"',
        'ANALYZE "documents"',
    ]
    ids, titles, texts, digests, vectors = connection.values[8]
    assert (ids, titles[3], texts[0]) == (list(rows), "a\ufffdb", rows["d'0"][1])
    assert len(set(digests)) == 40
    assert np.array_equal(np.array([read_back(text) for text in vectors]), [row[2] for row in rows.values()])


def read_back(text: str) -> np.ndarray:
    """Numbers of a vector in pgvector's form."""
    return np.array(text.strip("[]").split(","), np.float32)
