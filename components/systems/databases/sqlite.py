"""SQLite with the extension sqlite-vec: `sqlite:///FILE`, or `sqlite:////FOLDER/FILE` for an absolute path.

The query is compared with all rows, so the ranking is exact. sqlite-vec has no inner product. It is computed from the
distance of two vectors and their squared lengths. Words are in FTS5, which comes with SQLite.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence

import numpy as np

from sparring.components.config import UserError
from sparring.components.systems.database import KEY, Address, Batch, Layout, VectorDatabase

NEW = """
CREATE TABLE "TABLE_about" (description TEXT NOT NULL);
CREATE TABLE "TABLE" (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, digest TEXT NOT NULL COLUMNS,
    title TEXT NOT NULL, text TEXT NOT NULL);
"""
WORDS = """
CREATE VIRTUAL TABLE "TABLE_words" USING fts5 (title, text, content="TABLE", content_rowid=number,
    tokenize="LANGUAGE");
CREATE TRIGGER "TABLE_inserted" AFTER INSERT ON "TABLE" BEGIN
    INSERT INTO "TABLE_words" (rowid, title, text) VALUES (new.number, new.title, new.text);
END;
CREATE TRIGGER "TABLE_deleted" AFTER DELETE ON "TABLE" BEGIN
    INSERT INTO "TABLE_words" ("TABLE_words", rowid, title, text) VALUES ('delete', old.number, old.title, old.text);
END;
CREATE TRIGGER "TABLE_updated" AFTER UPDATE ON "TABLE" BEGIN
    INSERT INTO "TABLE_words" ("TABLE_words", rowid, title, text) VALUES ('delete', old.number, old.title, old.text);
    INSERT INTO "TABLE_words" (rowid, title, text) VALUES (new.number, new.title, new.text);
END;
"""
PROGRAM = """
import sqlite3
import sqlite_vec
(database := sqlite3.connect(url.removeprefix("sqlite:///"))).enable_load_extension(True)
sqlite_vec.load(database)
def nearest(column, vector, k):
    # The inner product, from the distance and the squared lengths of the vectors
    return database.execute(f'''WITH
        near AS MATERIALIZED (SELECT number, "{column}_square" AS square, vec_distance_L2("{column}", ?) AS apart
            FROM "TABLE"),
        best AS (SELECT number, (square + ? - apart * apart) / 2 AS score FROM near ORDER BY score DESC LIMIT ?)
        SELECT id, title, text, score FROM best JOIN "TABLE" USING (number)''',
        (vector.tobytes(), sum(x * x for x in vector.tolist()), k)).fetchall()
"""
PROGRAM_WORDS = """
import re
def words(query, k):
    # Documents with any word of the query. bm25() is negative.
    asked = " OR ".join(f'"{word}"' for word in re.findall(r"\\w+", query))
    return database.execute('''SELECT id, "TABLE".title, "TABLE".text, -score FROM
        (SELECT rowid AS number, bm25("TABLE_words") AS score FROM "TABLE_words" WHERE "TABLE_words" MATCH ?
            ORDER BY score LIMIT ?) JOIN "TABLE" USING (number)''', (asked, k)).fetchall() if asked else []
"""


class SQLite(VectorDatabase):
    """A table with a BLOB for each vector, and an FTS5 table that triggers keep like it."""

    packages = {"sqlite_vec": "sqlite-vec"}
    full_text = "FTS5's bm25"
    program = PROGRAM
    program_words = PROGRAM_WORDS
    languages = {"english": "porter unicode61"}
    other_language = "unicode61"

    @classmethod
    def place(cls, address: Address) -> str:
        """Return the URL with an absolute path."""
        return address.absolute

    def __init__(self, address: Address, layout: Layout) -> None:
        super().__init__(address, layout)
        if not hasattr(sqlite3.Connection, "enable_load_extension"):
            raise UserError(
                f"{KEY}: this Python's sqlite3 loads no extensions, so the example could not search. Use a Python that "
                "was built with --enable-loadable-sqlite-extensions.",
                code="no-extensions",
            )
        self._connection = sqlite3.connect(address.file)

    @staticmethod
    def failures() -> tuple[type[Exception], ...]:
        """Return SQLite's exceptions."""
        return (sqlite3.Error, OSError)

    def prepare(self) -> None:
        """Create the tables and triggers."""
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN (?, ?)"
        table, notes = self.layout.table, f"{self.layout.table}_about"
        existing = {name for (name,) in self._connection.execute(tables, [table, notes])}
        if existing:
            described = self._connection.execute(f'SELECT description FROM "{notes}"') if notes in existing else []
            self.check_description(next((text for (text,) in described), None))
            return
        columns = "".join(f', "{name}" BLOB, "{name}_square" REAL' for name in self.layout.vectors)
        script = NEW.replace("COLUMNS", columns) + (WORDS if self.layout.lexical is not None else "")
        script += f"INSERT INTO \"TABLE_about\" VALUES ('{self.layout.description}');"
        self._connection.executescript(f"BEGIN; {self.named(script, self.layout)} COMMIT;")

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Look up rows by id."""
        statement = f'SELECT id, digest FROM "{self.layout.table}" WHERE id IN (SELECT value FROM json_each(?))'
        return dict(self._connection.execute(statement, [json.dumps(ids)]))

    def write(self, batch: Batch, digests: Sequence[str]) -> None:
        """Insert or update rows in one transaction."""
        names, columns = ["id", "title", "text", "digest"], [batch.ids, batch.titles, batch.texts, list(digests)]
        values: list[Sequence[object]] = [*columns]
        for name in self.layout.vectors:
            vectors = batch.vectors[name]
            names += [f'"{name}"', f'"{name}_square"']
            values += [
                [vector.tobytes() for vector in vectors],
                np.square(vectors.astype(np.float64)).sum(1).tolist(),
            ]
        updates = ", ".join(f"{name} = excluded.{name}" for name in names[1:])
        statement = (
            f'INSERT INTO "{self.layout.table}" ({", ".join(names)}) VALUES ({", ".join("?" * len(names))}) '
            f"ON CONFLICT (id) DO UPDATE SET {updates}"
        )
        with self._connection:
            self._connection.executemany(statement, zip(*values, strict=True))

    def count(self) -> int:
        """Count the rows."""
        return int(self._connection.execute(f'SELECT count(*) FROM "{self.layout.table}"').fetchone()[0])

    def ids(self) -> Iterator[list[str]]:
        """List ids in order."""
        last, order = "", f'SELECT id FROM "{self.layout.table}" WHERE id > ? ORDER BY id LIMIT {self.rows}'
        while ids := [id for (id,) in self._connection.execute(order, [last]).fetchall()]:
            yield ids
            last = ids[-1]

    def delete(self, ids: Sequence[str]) -> None:
        """Delete rows by id."""
        with self._connection:
            statement = f'DELETE FROM "{self.layout.table}" WHERE id IN (SELECT value FROM json_each(?))'
            self._connection.execute(statement, [json.dumps(ids)])

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


Database = SQLite
