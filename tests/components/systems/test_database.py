"""URLs of databases, their modules, and sending to a database in memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from sparring.components import modules
from sparring.components.systems import database
from sparring.components.systems.database import Address, Batch, Layout, Sent, VectorDatabase
from tests.support import databases
from tests.support.databases import Listed, documents
from tests.support.errors import refused


@pytest.mark.parametrize("url", ["", "demo.db", "sqlite", "a b://c", "qdrant+ftp://host", "qdrant+http://host:port"])
def test_a_text_that_is_no_url_of_a_database(url: str) -> None:
    with refused(key="--to", code="wrong-form"):
        Address.of(url)


def test_an_address_shows_no_secret() -> None:
    address = Address.of("postgresql://me:p%40ss@localhost:5433/shop?password=other")
    assert (address.user, address.password, address.shown) == ("me", "p@ss", "postgresql://localhost:5433/shop")
    assert Address.of("qdrant+http://key@[::1]:6333").server == "http://[::1]:6333"


@pytest.mark.parametrize("url", ["opensearch://host:9200", "opensearch+http:///index", "elasticsearch:///x"])
def test_a_server_says_how_it_is_spoken_to(url: str) -> None:
    with refused(key="--to", code="wrong-form"):
        assert Address.of(url).server


def test_a_path_is_relative_or_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Address.of("sqlite:///a/b.db").file == Path("a/b.db")
    assert Address.of("sqlite:///a/b.db").absolute == f"sqlite:///{tmp_path}/a/b.db"
    assert Address.of(f"sqlite:///{tmp_path}/b.db").file == tmp_path / "b.db"
    for url in ("sqlite://", "sqlite://host/b.db", "lancedb+http:///x"):
        with refused(key="--to", code="wrong-form"):
            assert Address.of(url).file


def test_a_database_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_databases").mkdir()
    (tmp_path / "own_databases" / "milvus.py").write_text(
        "from sparring.components.systems.databases.sqlite import SQLite\nclass Database(SQLite):\n    packages = {}\n"
    )
    (tmp_path / "own_databases" / "empty.py").write_text("")
    assert database.find("own_databases.milvus").__name__ == "Database"
    for name in ("postgres", "own_databases.empty", "own_databases.absent", "__init__"):
        with refused(key="--to", code="unknown-database"):
            database.find(name)


@pytest.mark.parametrize(("name", "package"), [("postgresql", "psycopg"), ("lancedb", "lancedb")])
def test_a_client_that_is_not_installed(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with refused(key="--to", code="missing-package") as caught:
        database.find(name)
    wanted = modules.load(f"components.systems.databases.{name}").Database.packages[package]
    assert f"pip install '{wanted}'" in str(caught.value)


@pytest.mark.parametrize("name", ["", "A", "9", "a-b", 'a"b', "x" * 49])
def test_a_name_that_a_database_might_refuse(name: str) -> None:
    with refused(key="--name", code="wrong-form"):
        database.check_name(name)
    assert database.check_name(database.table_name(name or "demo"))


class Memory(VectorDatabase):
    """Rows in memory, by id."""

    rows = 7

    def __init__(self) -> None:
        super().__init__(Address.of("memory://"), Layout("documents", {"dense": databases.WIDTH}, None))
        self.stored = dict[str, str]()
        self.largest = 0

    def prepare(self) -> None: ...

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        return {id: self.stored[id] for id in ids if id in self.stored}

    def write(self, batch: Batch, digests: Sequence[str]) -> None:
        self.largest = max(self.largest, len(batch.ids))
        self.stored |= dict(zip(batch.ids, digests, strict=True))

    def count(self) -> int:
        return len(self.stored)

    def ids(self) -> Iterator[list[str]]:
        ids = list(self.stored)
        yield from (ids[start : start + self.rows] for start in range(0, len(ids), self.rows))

    def delete(self, ids: Sequence[str]) -> None:
        for id in ids:
            del self.stored[id]


def test_rows_become_the_documents_in_batches() -> None:
    memory, rows = Memory(), documents(30)
    assert database.send(memory, Listed(rows)) == Sent(30, 0, 0)
    assert memory.largest == 7
    title, text, vector = rows["d'1"]
    for changed in [(f"{title}.", text, vector), (title, f"{text}.", vector), (title, text, np.nextafter(vector, 9))]:
        assert database.send(memory, Listed({**rows, "d'1": changed})) == Sent(1, 29, 0)
    assert database.send(memory, Listed(rows)) == Sent(1, 29, 0)
    memory.stored["gone"] = ""
    del rows["d'2"]
    assert database.send(memory, Listed(rows)) == Sent(0, 29, 2)
    assert memory.stored.keys() == rows.keys()


def test_a_title_and_a_text_are_not_mixed_up() -> None:
    vectors = {"dense": np.zeros((2, 3), np.float32)}
    first, second = Batch(["a", "b"], ["x y", "x"], ["", "y"], vectors).digests()
    assert first != second


def test_numbers_are_read_back_as_the_same() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 9)).astype(np.float32)
    texts = Batch([], [], [], {"dense": vectors}).numbers("dense")
    assert np.array_equal(np.array([text.strip("[]").split(",") for text in texts], np.float32), vectors)
