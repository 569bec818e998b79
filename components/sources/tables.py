"""Tables of documents, queries and qrels in files of other programs (`components.sources.table_files`).

`columns` names the columns. `paired: true` is for a list of questions with their texts: the document of a row is
relevant to the query of the same row, and a single file may have both. `qrels` may be the file of the queries, if each
row names the document that answers it. In both of these forms, rows with equal text are a single document or a single
query. The rows of a table without a column of ids are numbered through all its files.

If only one of queries and qrels has a column `split`, its splits apply to both. If neither has this column, the key
`split` names the split of all.
"""

import json
import re
import token
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from tokenize import TokenError, generate_tokens
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from sparring.components.config import Config, UserError
from sparring.components.sources import base
from sparring.components.sources.reading import literal, matching, named
from sparring.components.sources.records import (
    UNJUDGED,
    Bad,
    Document,
    Judgement,
    Query,
    answer_texts,
    document,
    first_splits,
    judgement,
    query,
)
from sparring.components.sources.table_files import columns_of, read_columns

Role = Literal["documents", "queries", "qrels"]
"""A table of a source. It is the key of its files, and the key of its names of columns."""
NO_SPLIT = "there is no split. Add a column `split` to the table, or set the key `split`."

Files = str | list[str] | dict[str, str] | None
"""The files of a table: a name or pattern, several of them, or a name or pattern per split."""


def patterns(files: Files) -> list[tuple[str, str | None]]:
    """Return the names and patterns of a table's files, each with its split or None.

    >>> patterns(["a.csv", "b.csv"]), patterns({"train": "a.csv"}), patterns(None)
    ([('a.csv', None), ('b.csv', None)], [('a.csv', 'train')], [])
    """
    if isinstance(files, dict):
        return [(pattern, split) for split, pattern in files.items()]
    return [(pattern, None) for pattern in ([files] if isinstance(files, str) else files or [])]


class Columns(Config):
    """Names of columns in the tables, by our names, where they differ. For example `documents: {doc_id: _id}`.

    A value of null omits an optional column, for example `queries: {answers: null}`.
    """

    documents: dict[str, str | None] = {}
    """Names of doc_id, title and text."""
    queries: dict[str, str | None] = {}
    """Names of query_id, text, answers and split. For pairs, also of relevance."""
    qrels: dict[str, str | None] = {}
    """Names of query_id, doc_id, relevance and split."""


class Source(base.Source):
    """The keys of `format: tables`."""

    path: str
    """Folder or URL. `$SPARRING_DATA`, if set, replaces a leading `data/`."""
    documents: str | list[str] = "documents.csv"
    """Files of documents inside the folder: a name, a pattern such as `documents/*.parquet`, or a list of them."""
    queries: Files = None
    """Files of queries: a name, a pattern, a list of them, or the file of each split, such as `{train: faq.csv, test:
    test.csv}`. `null`: there are only documents."""
    qrels: Files = None
    """Files of judgements: a name, a pattern, a list of them, or the file of each split. If each row of the queries
    names the document that answers it, or no document, use the same files as in `queries`. `null`: there are no
    judgements, except those of `paired`."""
    paired: bool = False
    """Pairing by row: the document of a row is relevant to the query of the same row. A column `relevance` of the
    queries can give the grade. A text in several rows is a single document or query. A row without a query is only a
    document. If `documents` and `queries` share files, the remaining files of `documents` have only documents."""
    graded: bool = Field(True, exclude_if=lambda graded: graded)
    """True if the qrels have a column of relevances. If false, each row marks a relevant document."""
    grades: dict[str, int] = Field({}, exclude_if=lambda grades: not grades)
    """Relevance of each word in the column of relevances, such as `{a bit: 1, 'yes': 3}`. Numbers do not change."""
    columns: Columns = Columns()
    """Names of columns in the tables, where they differ from ours."""
    split: str | None = None
    """Split of all queries and judgements, for tables without a column `split`."""
    splits: base.Splits = None
    """Splits to read: all (`null`), a list of names, or a mapping from new names to the tables' names."""

    @model_validator(mode="after")
    def _one_kind_of_judgements(self) -> Self:
        if self.paired and (self.queries is None or self.qrels is not None):
            raise ValueError("paired: this key needs `queries`, and no `qrels`. Each row is a judgement already.")
        if self.qrels is not None and self.queries is None:
            raise ValueError("qrels: judgements need queries. Set `queries` too.")
        return self

    def files(self) -> dict[str, Path]:
        """Return every file of the three tables."""
        roles: tuple[Role, ...] = ("documents", "queries", "qrels")
        return named(base.locate(self.path), [path for role in roles for path, _ in self._files(role)])

    def key_of(self, column: str) -> str:
        """Return the key that names a column of the qrels."""
        return f"columns.qrels.{column}"

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the rows of the documents. Of pairs, yield each text once."""
        for record in self._documents():
            if not record.again:
                row = record.row
                yield document(record.name, row["title"], row["text"], record.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the queries of the chosen splits. Of pairs, yield each text once."""
        for record in self._queries():
            if not record.again and record.split is not None:
                row = record.row
                yield query(record.name, row["text"], row["answers"], record.split, record.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the judgements of the chosen splits. Of pairs, yield one per row."""
        if self.paired:
            yield from self._pairs()
        elif self._judging_itself:
            for record in self._queries():
                answer = record.row["doc_id"]
                if record.split is not None and not _empty(record.name) and not _empty(answer):
                    yield self._judgement(record, answer, self.graded)
        else:
            yield from self._qrels()

    @property
    def _judging_itself(self) -> bool:
        """True if each query's row names the document that answers it."""
        name = self.columns.queries.get("query_id")
        return (
            self.qrels is not None and self.qrels == self.queries and self.columns.qrels.get("query_id", name) == name
        )

    def _documents(self) -> Iterator["_Row"]:
        """Yield the rows of documents."""
        ids = self._has("documents", "doc_id")
        first = _First()
        required, optional = (["doc_id", "text"], ["title"]) if ids else (["text"], ["doc_id", "title"])
        for number, (row, place) in enumerate(self._rows("documents", required, optional), start=1):
            name, again = (row["doc_id"] if ids else str(number)), False
            if self.paired:
                name, again = first(name, row["doc_id"], row["title"], row["text"])
            yield _Row(name, again, row, None, place)

    def _queries(self) -> Iterator["_Row"]:
        """Yield the rows of queries."""
        ids, judging = self._has("queries", "query_id"), self.paired or self._judging_itself
        required, optional = (["query_id", "text"], []) if ids else (["text"], ["query_id"])
        optional += ["answers", "split", *(["relevance"] if self.paired else [])]
        names = self.columns.queries
        if self._judging_itself:
            required += ["doc_id", *(["relevance"] if self.graded else [])]
            names = {**self.columns.qrels, **names}
        first, judged = _First(), None
        for number, (row, place) in enumerate(self._rows("queries", required, optional, names), start=1):
            name, again = (row["query_id"] if ids else str(number)), False
            split = row["split"] or self.split
            if split is None and judging:
                raise UserError(f"{place}: {NO_SPLIT}", code="no-split")
            if split is None:
                judged = first_splits(self.read_qrels()) if judged is None else judged
                split = judged.get(self.id_in_form(str(name)), UNJUDGED)
            if judging:
                name, again = first(name, row["query_id"], row["text"], split)
            nothing = self.paired and isinstance(row["text"], str) and not row["text"].strip()
            yield _Row(name, again, row, None if nothing else self._named_split(split), place)

    def _pairs(self) -> Iterator[Judgement | Bad]:
        """Yield a judgement for each row of pairs."""
        graded = self._has("queries", "relevance")
        both = {path for path, _ in self._files("documents")} & {path for path, _ in self._files("queries")}
        documents = (record for record in self._documents() if not both or record.row["file"] in both)
        for question, answer in zip_longest(self._queries(), documents):
            if question is None or answer is None:
                fewer = "queries" if question is None else "documents"
                raise UserError(
                    f"{(question or answer).place}: `{fewer}` have fewer rows than their counterpart. Pairs need equal "
                    "numbers of rows.",
                    code="fewer-rows",
                )
            if question.split is not None and None not in (question.name, answer.name):  # else one of the rows is bad
                yield self._judgement(question, answer.name, graded)

    def _qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the rows of a table of qrels."""
        splits: dict[str, str] | None = None
        required = ["query_id", "doc_id", *(["relevance"] if self.graded else [])]
        for row, place in self._rows("qrels", required, ["split"]):
            split = row["split"] or self.split
            if split is None:
                splits = self._splits_of_queries() if splits is None else splits
                if not splits:
                    raise UserError(f"{place}: {NO_SPLIT}", code="no-split")
                split = splits.get(self.id_in_form(str(row["query_id"])), UNJUDGED)
            record = _Row(row["query_id"], False, row, self._named_split(split), place)
            if record.split is not None:
                yield self._judgement(record, row["doc_id"], self.graded)

    def _splits_of_queries(self) -> dict[str, str]:
        """Return the split of each query whose row names a split."""
        ids = self._has("queries", "query_id")
        rows = enumerate(self._rows("queries", [], ["query_id", "text", "answers", "split"]), start=1)
        names = ((row["query_id"] if ids else number, row["split"]) for number, (row, _) in rows)
        return {self.id_in_form(str(name)): split for name, split in names if split}

    def _judgement(self, record: "_Row", doc_id: Any, graded: bool) -> Judgement | Bad:
        """Return the judgement of a row."""
        relevance = record.row["relevance"] if graded else 1
        if isinstance(relevance, str):
            relevance = self.grades.get(relevance.strip(), relevance)
        return judgement(record.name, doc_id, relevance, record.split or "", record.place)

    def _named_split(self, split: Any) -> Any:
        """Return our name of a split. Return None for a split that is not read."""
        splits = {name: key for key, name in base.chosen(self.splits, []).items()}
        return split if self.splits is None else splits.get(str(split))

    def _has(self, role: Role, column: str) -> bool:
        """Return True if a table has one of our columns, by its declared name or by ours."""
        names: dict[str, str | None] = getattr(self.columns, role)
        if column in names:
            return names[column] is not None
        return any(column in columns_of(path) for path, _ in self._files(role))

    def _files(self, role: Role) -> list[tuple[Path, str | None]]:
        """Return the files of a table with their splits. For pairs, files of queries are sorted like the documents'."""
        folder = base.locate(self.path)
        files = [(path, split) for name, split in patterns(getattr(self, role)) for path in matching(folder, name)]
        if self.paired and role == "queries":
            order = [path for path, _ in self._files("documents")]
            files.sort(key=lambda file: order.index(file[0]) if file[0] in order else len(order))
        return files

    def _rows(
        self, role: Role, required: list[str], optional: list[str], names: dict[str, str | None] | None = None
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield a table's rows by our names of columns. Raise UserError if a declared table or split has no rows."""
        names = getattr(self.columns, role) if names is None else names
        files, count = self._files(role), Counter[str | None]()
        for path, split in files:
            for row, place in read_columns(path, required, optional, names, blank=self.paired):
                count[split] += 1
                row["file"] = path
                if role != "documents":
                    row["split"] = row["split"] or split
                if isinstance(answers := row.get("answers"), str):
                    row["answers"] = _answers(answers)
                yield row, place
        for path, split in files:
            if role != "documents" and not count[split]:  # a collection without documents is refused for every format
                where = f" for the split {split}" if split else ""
                accepted = f"Use a file with {role}, or `{role}: null`"
                raise UserError(f"{path}: there are no {role}{where}. {accepted}.", code="no-rows")


class _Row(NamedTuple):
    """A row of documents, queries or qrels."""

    name: Any
    """Id of the row, or its number. For repeated content, that of the first row with it."""
    again: bool
    """True if an earlier row has the same content."""
    row: dict[str, Any]
    split: Any
    """Our name of the split. If None, the row has no query, or its split is not read."""
    place: str


class _First:
    """The ids of the first rows with each content. It keeps a digest per row in memory."""

    def __init__(self) -> None:
        self._names: dict[bytes, Any] = {}

    def __call__(self, name: Any, *content: Any) -> tuple[Any, bool]:
        """Return the id of the first row with this content, and True if it is an earlier row."""
        text = "\0".join(map(str, content)).encode("utf-8", "surrogatepass")
        digest = blake2b(text, digest_size=16).digest()
        again = digest in self._names
        return self._names.setdefault(digest, name), again


def _empty(value: Any) -> bool:
    return value is None or not str(value).strip()


def _answers(cell: str) -> list[str] | None:
    """Return the answers in a cell. Return None for an empty cell.

    A cell has a single answer, or a list of texts or SQuAD's answers as written by JSON, Python or numpy.
    """
    if cell.lstrip().startswith(("[", "{")):
        for read in (json.loads, _literals):
            with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError, TokenError):
                if (answers := answer_texts(read(cell))) is not None:
                    return answers
    return [cell] if cell.strip() else None


ARRAY = re.compile(r"array\((\[.*?\])(?:,\s*dtype=\w+)?\)", re.S)
"""A numpy array inside another value."""


def _literals(cell: str) -> Any:
    """Parse a list or dictionary of Python literals. Adjacent texts, as numpy writes them, are not joined."""
    value = literal(ARRAY.sub(r"\1", cell))
    if not isinstance(value, list):
        return value
    texts = [part.string for part in generate_tokens(StringIO(cell.strip()).readline) if part.type == token.STRING]
    return value if len(texts) <= len(value) else [literal(text) for text in texts]
