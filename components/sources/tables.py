"""Tables in files of other programs (`components.sources.table_files`): one of documents, one of queries, one of qrels.

`columns` says which columns are what. `paired: true` is for a list of questions with their texts: the document of each
row is relevant to the query of that row, and one file may hold both. `qrels` may be the queries' own file, where each
row names the document that answers it. The rows of a table without a column of ids are numbered through all its files.
Rows of pairs, or of queries that judge themselves, with the same text are one document, or one query.

If only one of queries and qrels has a column `split`, it holds for the other too. If neither has, the key `split` names
the split of all.
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
"""A table of a source: the key that names its files, and the key of its columns' names."""
NO_SPLIT = "no split; give the table a column `split`, or the source the key `split`"

Files = str | list[str] | dict[str, str] | None
"""The files of a table: a name or pattern, several of them, or the split of each."""


def patterns(files: Files) -> list[tuple[str, str | None]]:
    """Return the names and patterns of a table's files, each with its split.

    >>> patterns(["a.csv", "b.csv"]), patterns({"train": "a.csv"}), patterns(None)
    ([('a.csv', None), ('b.csv', None)], [('a.csv', 'train')], [])
    """
    if isinstance(files, dict):
        return [(pattern, split) for split, pattern in files.items()]
    return [(pattern, None) for pattern in ([files] if isinstance(files, str) else files or [])]


class Columns(Config):
    """The tables' names of columns that they call differently, such as `documents: {doc_id: _id}`. Null leaves a column
    out that a table may do without, such as `queries: {answers: null}`."""

    documents: dict[str, str | None] = {}
    """Names of doc_id, title and text."""
    queries: dict[str, str | None] = {}
    """Names of query_id, text, answers and split; of pairs also of relevance."""
    qrels: dict[str, str | None] = {}
    """Names of query_id, doc_id, relevance and split."""


class Source(base.Source):
    """The keys of `format: tables`."""

    path: str
    """The folder. A leading `data/` is replaced by `$SPARRING_DATA`, if that is set."""
    documents: str | list[str] = "documents.csv"
    """The file inside the folder, or a pattern such as `documents/*.parquet`; or several of them."""
    queries: Files = None
    """The file, pattern, or several; or the file of each split: `{train: faq.csv, test: test.csv}`. Null for none:
    documents alone."""
    qrels: Files = None
    """The file, pattern, or several; or the file of each split. Null for none: nobody has said what is relevant, or
    `paired` does. The queries' own, where each row names the document that answers it, or none."""
    paired: bool = False
    """The document of each row is relevant to the query of the same row, or as relevant as a column `relevance` of the
    queries says. A text that stands in several rows is one document, or one query; a row without a query is a document
    alone. Where files of `documents` are those of `queries` too, its other files have documents alone."""
    graded: bool = Field(True, exclude_if=lambda graded: graded)
    """Whether qrels have a column of relevances. False where they have none: each row says that a document is
    relevant."""
    grades: dict[str, int] = Field({}, exclude_if=lambda grades: not grades)
    """The relevance of each word in the column of relevances: `{a bit: 1, 'yes': 3}`. Numbers stay as they are."""
    columns: Columns = Columns()
    """The tables' names of columns that they call differently."""
    split: str | None = None
    """The split of all queries and judgements, for tables without a column `split`."""
    splits: base.Splits = None
    """Which splits are read: all (null), a list of names, or a mapping from new names to the tables'."""

    @model_validator(mode="after")
    def _one_kind_of_judgements(self) -> Self:
        if self.paired and (self.queries is None or self.qrels is not None):
            raise ValueError("paired: needs `queries` and no `qrels`: a row says what is relevant to what")
        if self.qrels is not None and self.queries is None:
            raise ValueError("qrels: needs `queries`, as it says what is relevant to which of them")
        return self

    def files(self) -> dict[str, Path]:
        """Return every file of the three tables."""
        roles: tuple[Role, ...] = ("documents", "queries", "qrels")
        return named(base.locate(self.path), [path for role in roles for path, _ in self._files(role)])

    def key_of(self, column: str) -> str:
        """Return the key that names a column of the qrels."""
        return f"columns.qrels.{column}"

    def read_documents(self) -> Iterator[Document | Bad]:
        """Yield the rows of the documents; of pairs each text once."""
        for record in self._documents():
            if not record.again:
                row = record.row
                yield document(record.name, row["title"], row["text"], record.place)

    def read_queries(self) -> Iterator[Query | Bad]:
        """Yield the queries of the chosen splits; of pairs each text once."""
        for record in self._queries():
            if not record.again and record.split is not None:
                row = record.row
                yield query(record.name, row["text"], row["answers"], record.split, record.place)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """Yield the judgements of the chosen splits; of pairs one a row."""
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
        """Whether each query's row names the document that answers it."""
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
                raise UserError(f"{place}: {NO_SPLIT}")
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
                    f"{(question or answer).place}: `{fewer}` have fewer rows; accepted: as many as the other"
                )
            if question.split is not None and None not in (question.name, answer.name):  # else one of them is bad
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
                    raise UserError(f"{place}: {NO_SPLIT}")
                split = splits.get(self.id_in_form(str(row["query_id"])), UNJUDGED)
            record = _Row(row["query_id"], False, row, self._named_split(split), place)
            if record.split is not None:
                yield self._judgement(record, row["doc_id"], self.graded)

    def _splits_of_queries(self) -> dict[str, str]:
        """Return the split of each query whose row names one."""
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
        """Return our name of a split, None for a split that is not read."""
        splits = {name: key for key, name in base.chosen(self.splits, []).items()}
        return split if self.splits is None else splits.get(str(split))

    def _has(self, role: Role, column: str) -> bool:
        """Say whether a table has one of our columns, by its declared name or ours."""
        names: dict[str, str | None] = getattr(self.columns, role)
        if column in names:
            return names[column] is not None
        return any(column in columns_of(path) for path, _ in self._files(role))

    def _files(self, role: Role) -> list[tuple[Path, str | None]]:
        """Return the files of a table with their splits. Pairs have the order of the documents."""
        folder = base.locate(self.path)
        files = [(path, split) for name, split in patterns(getattr(self, role)) for path in matching(folder, name)]
        if self.paired and role == "queries":
            order = [path for path, _ in self._files("documents")]
            files.sort(key=lambda file: order.index(file[0]) if file[0] in order else len(order))
        return files

    def _rows(
        self, role: Role, required: list[str], optional: list[str], names: dict[str, str | None] | None = None
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield a table's rows with our names of columns. Raise UserError if a declared table or split has none."""
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
                accepted = f"a file with {role}, or `{role}: null` for none"
                raise UserError(f"{path}: no {role} are there{where}; accepted: {accepted}")


class _Row(NamedTuple):
    """A row of documents, queries or qrels."""

    name: Any
    """Its id, or its number, or that of the first row with the same text."""
    again: bool
    """Whether an earlier row has the same."""
    row: dict[str, Any]
    split: Any
    """None if the row has no query, or a query of a split that is not read."""
    place: str


class _First:
    """The id of the first row of each content. Memory holds a digest a row."""

    def __init__(self) -> None:
        self._names: dict[bytes, Any] = {}

    def __call__(self, name: Any, *content: Any) -> tuple[Any, bool]:
        """Return the id of the first row with this content, and whether that is an earlier row."""
        text = "\0".join(map(str, content)).encode("utf-8", "surrogatepass")
        digest = blake2b(text, digest_size=16).digest()
        again = digest in self._names
        return self._names.setdefault(digest, name), again


def _empty(value: Any) -> bool:
    return value is None or not str(value).strip()


def _answers(cell: str) -> list[str] | None:
    """Return the answers in a cell: a list of texts or SQuAD's answers, as JSON, Python or numpy write them, or one
    answer; None for an empty cell."""
    if cell.lstrip().startswith(("[", "{")):
        for read in (json.loads, _literals):
            with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError, TokenError):
                if (answers := answer_texts(read(cell))) is not None:
                    return answers
    return [cell] if cell.strip() else None


ARRAY = re.compile(r"array\((\[.*?\])(?:,\s*dtype=\w+)?\)", re.S)
"""A list of numpy's inside another value."""


def _literals(cell: str) -> Any:
    """Return a list or dictionary of Python's literals. Texts next to each other, as numpy writes them, stay apart."""
    value = literal(ARRAY.sub(r"\1", cell))
    if not isinstance(value, list):
        return value
    texts = [part.string for part in generate_tokens(StringIO(cell.strip()).readline) if part.type == token.STRING]
    return value if len(texts) <= len(value) else [literal(text) for text in texts]
