"""PostgreSQL with the extension pgvector: `postgresql://HOST:PORT/DATABASE`, or any other URL of libpq.

Without an index, PostgreSQL compares the query with all rows, so the ranking is exact. The client is psycopg. Libpq
reads what the URL leaves out from `$PGPASSWORD` and its other variables.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sparring.components.systems.database import Address, Batch, Layout, VectorDatabase

MOST_CHARACTERS = 250_000
"""Characters of a document that its words are taken from. A tsvector holds 1 MiB at most."""
NEW = [
    'CREATE TABLE "TABLE" (id text PRIMARY KEY, title text NOT NULL, text text NOT NULL, digest text NOT NULLCOLUMNS)',
    "COMMENT ON TABLE \"TABLE\" IS 'DESCRIPTION'",
]
WORDS = [
    "ALTER TABLE \"TABLE\" ADD words tsvector GENERATED ALWAYS AS (to_tsvector('LANGUAGE', left(title || ' ' || text, "
    f"{MOST_CHARACTERS}))) STORED",
    'CREATE INDEX "TABLE_words" ON "TABLE" USING gin (words)',
]
LANGUAGES = (
    "arabic armenian basque catalan danish dutch english finnish french german greek hindi hungarian indonesian irish "
    "italian lithuanian nepali norwegian portuguese romanian russian serbian spanish swedish tamil turkish"
)
PROGRAM = """
import psycopg
database = psycopg.connect(url, autocommit=True, prepare_threshold=None)
def nearest(column, vector, k):
    # <#> is the negative inner product.
    return database.execute(f'''SELECT id, title, text, -("{column}" <#> %(q)s::vector) FROM "TABLE"
        ORDER BY "{column}" <#> %(q)s::vector LIMIT %(k)s''', {"q": str(vector.tolist()), "k": k}).fetchall()
"""
PROGRAM_WORDS = """
def words(query, k):
    # Documents with any word of the query. ts_rank divides by the logarithm of their length (1).
    return database.execute('''SELECT id, title, text, ts_rank(words, asked, 1) AS score FROM "TABLE",
        (SELECT replace(plainto_tsquery('LANGUAGE', %s)::text, '&', '|')::tsquery AS asked) AS query
        WHERE words @@ asked ORDER BY score DESC, id LIMIT %s''', (query, k)).fetchall()
"""


class PostgreSQL(VectorDatabase):
    """A table with a `vector` column for each retriever, and a `tsvector` column for words."""

    packages = {"psycopg": "psycopg[binary]"}
    full_text = "ts_rank"
    program = PROGRAM
    program_words = PROGRAM_WORDS
    languages = {language: language for language in LANGUAGES.split()}
    other_language = "simple"

    def __init__(self, address: Address, layout: Layout) -> None:
        import psycopg

        super().__init__(address, layout)
        # Each statement is a transaction. Statements are not prepared, because poolers lose them.
        self._connection = psycopg.connect(address.url, autocommit=True, prepare_threshold=None)

    @staticmethod
    def failures() -> tuple[type[Exception], ...]:
        """Return psycopg's exceptions."""
        import psycopg

        return (psycopg.Error, OSError)

    def prepare(self) -> None:
        """Create the extension, if it is missing, and the table."""
        if not self._rows("SELECT 1 FROM pg_extension WHERE extname = 'vector'"):
            self._connection.execute(b"CREATE EXTENSION IF NOT EXISTS vector")
        if self._rows("SELECT 1 WHERE to_regclass(%s) IS NOT NULL", f'"{self.layout.table}"'):
            ((stored,),) = self._rows("SELECT obj_description(to_regclass(%s))", f'"{self.layout.table}"')
            self.check_description(stored if str(stored).startswith("{") else None)
            return
        columns = "".join(f', "{name}" vector({width}) NOT NULL' for name, width in self.layout.vectors.items())
        statements = [*NEW, *(WORDS if self.layout.lexical is not None else [])]
        with self._connection.transaction():
            for statement in statements:
                text = self.named(statement, self.layout)
                text = text.replace("COLUMNS", columns).replace("DESCRIPTION", self.layout.description)
                self._connection.execute(text.encode())

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """Look up rows by the primary key."""
        return dict(self._rows(f'SELECT id, digest FROM "{self.layout.table}" WHERE id = ANY(%s)', list(ids)))

    def write(self, batch: Batch, digests: Sequence[str]) -> None:
        """Insert or update rows in one statement. NUL characters, which PostgreSQL cannot store, become U+FFFD."""
        vectors = list(self.layout.vectors)
        names = ["id", "title", "text", "digest", *(f'"{name}"' for name in vectors)]
        texts = [[text.replace("\0", "\ufffd") for text in column] for column in (batch.titles, batch.texts)]
        values = [batch.ids, *texts, list(digests), *(batch.numbers(name) for name in vectors)]
        read = ", ".join([*names[:4], *(f"{name}::vector" for name in names[4:])])
        arrays, columns = ", ".join(["%s::text[]"] * len(names)), ", ".join(names)
        updates = ", ".join(f"{name} = EXCLUDED.{name}" for name in names[1:])
        self._connection.execute(
            f'INSERT INTO "{self.layout.table}" ({columns}) SELECT {read} FROM unnest({arrays}) AS sent ({columns}) '
            f"ON CONFLICT (id) DO UPDATE SET {updates}".encode(),
            values,
        )

    def count(self) -> int:
        """Count the rows."""
        ((count,),) = self._rows(f'SELECT count(*) FROM "{self.layout.table}"')
        return int(count)

    def ids(self) -> Iterator[list[str]]:
        """List ids in the order of the primary key."""
        last = ""
        order = f'SELECT id FROM "{self.layout.table}" WHERE id > %s ORDER BY id LIMIT {self.rows}'
        while ids := [id for (id,) in self._rows(order, last)]:
            yield ids
            last = ids[-1]

    def delete(self, ids: Sequence[str]) -> None:
        """Delete rows by the primary key."""
        self._connection.execute(f'DELETE FROM "{self.layout.table}" WHERE id = ANY(%s)'.encode(), [list(ids)])

    def finish(self) -> None:
        """Update the planner's statistics."""
        self._connection.execute(f'ANALYZE "{self.layout.table}"'.encode())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _rows(self, statement: str, *values: object) -> list[tuple]:
        return self._connection.execute(statement.encode(), values or None).fetchall()


Database = PostgreSQL
