"""Tables in files of other programs: .csv, .tsv, .jsonl and .parquet with named columns, and .txt with a text a line;
plain or, but for Parquet, .gz. Qrels may be TREC's, without a header and under any name: they are known by their lines.

As with `format: parquet` there is a table of documents, one of queries and one of qrels, and `columns` says which
columns are what. `paired: true` is for a list of questions with their texts: the document of each row is relevant to
the query of that row, and one file may hold both. The rows of a table without a column of ids are numbered; where
rows of queries judge themselves, those with the same text are one query. Where a table has the column, a row without
an id is a bad record.

In .tsv files quotes are part of the text, and a row is a line. A row that cannot be read at all, such as one with too
many cells, stops the run with `on_bad: drop` too: nobody could say any more which rows belong together.
"""

import hashlib
import json
import re
import token
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import StringIO
from itertools import islice
from pathlib import Path
from tokenize import TokenError, generate_tokens
from typing import Any, NamedTuple, Self

from pydantic import model_validator

from sparring.components.config import UserError, listing
from sparring.components.sources import base, parquet
from sparring.components.sources.parquet import Files, Role, check_ours, patterns, theirs_of
from sparring.components.sources.reading import (
    Item,
    Row,
    first_keys,
    literal,
    of_trec,
    read_csv,
    read_lines,
    read_objects,
)
from sparring.components.sources.records import (
    Bad,
    Document,
    Judgement,
    Query,
    answer_texts,
    document,
    judgement,
    query,
)

KINDS = (".csv", ".tsv", ".jsonl", ".parquet", ".txt")
TREC = ["query_id", "iteration", "doc_id", "relevance"]
"""The columns of TREC's qrels, which have no header and any name."""
IDS = {"documents": "doc_id", "queries": "query_id", "qrels": "query_id"}
"""The column of ids that the rows of a table may do without: they are numbered."""


class Source(parquet.Source):
    """The keys of `format: tables`, beside those of `format: parquet`."""

    documents: str | list[str] = "documents.csv"
    """The file inside the folder, or a pattern such as `documents/*.csv`; or several of them."""
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

    @model_validator(mode="after")
    def _one_kind_of_judgements(self) -> Self:
        if self.paired and (self.queries is None or self.qrels is not None):
            raise ValueError("paired: needs `queries` and no `qrels`: a row says what is relevant to what")
        if self.qrels is not None and self.queries is None:
            raise ValueError("qrels: needs `queries`, as it says what is relevant to which of them")
        for pattern in (*patterns(self.documents), *patterns(self.queries)):  # TREC's qrels may have any name
            if kind_of(pattern) not in KINDS:
                raise ValueError(f"{pattern}: is no table; accepted: {listing(KINDS)}")
        return self

    def read_documents(self) -> Iterator[Document | Bad]:
        """The rows of the documents; of pairs each text once."""
        names = _Names("doc_id", "title", "text")
        for row, place in self._rows("documents", ["doc_id", "text"], ["title"]):
            if not (self.paired and names(row)[1]):
                yield document(row["doc_id"], row["title"], row["text"], place, columns=self.columns.documents)

    def read_queries(self) -> Iterator[Query | Bad]:
        """The rows of the queries, of the chosen splits; of pairs each text once."""
        if not self.paired:
            yield from super().read_queries()
            return
        for asked in self._asked():
            if asked.split is not None and not asked.known:
                row, columns = asked.row, self.columns.queries
                yield query(asked.name, row["text"], row["answers"], asked.split, asked.place, columns=columns)

    def read_qrels(self) -> Iterator[Judgement | Bad]:
        """The rows of the qrels, of the chosen splits; of pairs one a row."""
        if not self.paired:
            yield from super().read_qrels()
            return
        names = _Names("doc_id", "title", "text")
        both = self._splits("documents").keys() & self._splits("queries").keys()
        rows = ((names(row)[0], row, place) for row, place in self._rows("documents", ["doc_id", "text"], ["title"]))
        documents = ((name, place) for name, row, place in rows if not both or row["path"] in both)
        columns = self.columns.queries
        graded = (
            columns["relevance"] is not None
            if "relevance" in columns
            else any(_has(path, "relevance") for path in self._splits("queries"))
        )
        for asked in self._asked():
            paired = next(documents, None)
            if paired is None:
                fewer = f"{listing(patterns(self.documents))} has fewer rows"
                raise UserError(f"{asked.place}: {fewer}; accepted: a document for each query")
            name, _ = paired
            if asked.split is not None and None not in (asked.name, name):  # else the query or the document is bad
                relevance = self._grade(asked.row["relevance"]) if graded else 1
                yield judgement(asked.name, name, relevance, asked.split, asked.place, columns=columns)
        if (left := next(documents, None)) is not None:
            fewer = f"{listing(patterns(self.queries))} has fewer rows"
            raise UserError(f"{left[1]}: {fewer}; accepted: a query, or nothing, for each document")

    def _asked(self) -> Iterator["_Asked"]:
        """The queries of pairs, row by row."""
        names = _Names("query_id", "text", "split")
        ours = {theirs: ours for ours, theirs in base.chosen(self.splits, []).items()}
        for row, place in self._rows("queries", ["query_id", "text"], ["answers", "split", "relevance"]):
            name, known = names(row)
            split = row["split"] or self.split
            if split is None:
                raise UserError(f"{place}: no split; give the table a column `split`, or the source the key `split`")
            if isinstance(row["text"], str) and not row["text"].strip():
                split = None
            elif self.splits is not None:
                split = ours.get(str(split))
            yield _Asked(name, known, row, split, place)

    def _splits(self, role: Role) -> dict[Path, str | None]:
        files = super()._splits(role)
        if not self.paired or role != "queries":
            return files
        return {path: files[path] for path in super()._splits("documents") if path in files} | files  # as rows are

    def _rows(self, role: Role, needed: list[str], optional: list[str]) -> Iterator[tuple[dict[str, Any], str]]:
        # Rows are numbered through all files of a table. Qrels have no ids of their own, but where they are queries.
        linking = role == "qrels" and self.qrels == self.queries
        own = IDS[role] if linking or role != "qrels" else None
        named: dict[str, str | None] = getattr(self.columns, role)
        numbered = own is not None and named.get(own) is None
        numbered = numbered and (own in named or not any(_has(path, str(own)) for path in self._splits(role)))
        if own is not None:
            needed, optional = [name for name in needed if name != own], [own, *optional]
        judging = own == "query_id" and self.qrels == self.queries  # else judgements may name a row by its number
        asking = self._asking() if judging and numbered else None
        for number, (row, place) in enumerate(super()._rows(role, needed, optional), start=1):
            row["numbered"] = numbered
            if own is not None and numbered:
                row[own] = str(number)
            if asking is not None:
                row["query_id"], known = next(asking)
                if known and role == "queries":
                    continue  # an earlier row has asked it
            if linking and (_empty(row["doc_id"]) or _empty(row["query_id"])):
                continue  # a query that nothing answers, or one that is bad
            if isinstance(answers := row.get("answers"), str):
                row["answers"] = _answers(answers)
            yield row, place

    def _asking(self) -> Iterator[tuple[str, bool]]:
        """For each row of queries without ids, the number of the first with its text and split, and whether that is an
        earlier one."""
        names = _Names("query_id", "text", "split")
        for number, (row, _) in enumerate(super()._rows("queries", ["text"], ["split"]), start=1):
            yield names({**row, "query_id": str(number), "numbered": True})

    def _read(
        self, path: Path, needed: list[str], optional: list[str], columns: dict[str, str | None]
    ) -> Iterator[tuple[dict[str, Any], str]]:
        for row, place in read_table(path, needed, optional, columns, blank=self.paired):
            row["path"] = path
            yield row, place


def _answers(cell: str) -> list[str] | None:
    """The answers in a cell: a list of texts or SQuAD's answers, as JSON, Python or numpy write them, or one answer;
    None for none."""
    if cell.lstrip().startswith(("[", "{")):
        for read in (json.loads, _literals):
            with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError, TokenError):
                if (found := answer_texts(read(cell))) is not None:
                    return found
    return [cell] if cell.strip() else None


ARRAY = re.compile(r"array\((\[.*?\])(?:,\s*dtype=\w+)?\)", re.S)
"""A list of numpy's inside another value."""


def _literals(cell: str) -> Any:
    """A list or dictionary of Python's literals. Where texts stand side by side, as numpy writes them, each is one, and
    not all together one as in Python. What is neither is a TypeError."""
    found = literal(ARRAY.sub(r"\1", cell))
    if isinstance(found, dict):
        return found
    if not isinstance(found, list):
        raise TypeError("no list")
    texts = [one.string for one in generate_tokens(StringIO(cell.strip()).readline) if one.type == token.STRING]
    return found if len(texts) <= len(found) else [literal(text) for text in texts]


class _Asked(NamedTuple):
    """The query of a row."""

    name: Any
    known: bool
    """Whether an earlier row has the same."""
    row: dict[str, Any]
    split: str | None
    """None where the row has no query, or one of a split that is not read."""
    place: str


class _Names:
    """The ids of rows: their own, or of equal rows the number of the first."""

    def __init__(self, name: str, *texts: str) -> None:
        self._name, self._texts = name, texts
        self._first: dict[bytes, Any] = {}

    def __call__(self, row: dict[str, Any]) -> tuple[Any, bool]:
        """A row's id, and whether an earlier row was the same."""
        own = None if row["numbered"] else row[self._name]
        text = "\0".join(str(value) for value in (own, *(row[name] for name in self._texts)))
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = digest in self._first
        return self._first.setdefault(digest, row[self._name]), known


def _empty(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return value is None or not str(value).strip()


def _has(path: Path, column: str) -> bool:
    """Whether a file has a value in a column. Where there is a header it tells; else any row may be the first."""
    rows = read_table(path, [], [column], {}, blank=False)
    looked_at = None if kind_of(path.name) in (".jsonl", ".parquet") else 1
    return any(row[column] is not None for row, _ in islice(rows, looked_at))


def kind_of(name: str) -> str:
    """The kind of a file by its name: `.csv` of `faq.csv.gz`."""
    return Path(name.lower().removesuffix(".gz")).suffix


def read_table(
    path: Path, needed: list[str], optional: list[str], columns: dict[str, str | None], *, blank: bool
) -> Iterator[tuple[dict[str, Any], str]]:
    """Rows with our names of the columns, and the place of each; a missing optional column is None."""
    kind = kind_of(path.name)
    if kind == ".parquet":
        yield from parquet.read_rows(path, needed, optional, columns)
        return
    if kind == ".jsonl":
        yield from _objects(path, needed, optional, columns)
        return
    judged = kind != ".csv" and of_trec(path) == "judgements"
    if kind not in KINDS and not judged:
        raise UserError(f"{path}: is no table; accepted: {listing(KINDS)}, or TREC's qrels")
    rows = read_csv(path) if kind == ".csv" else _lines(path, blank=blank, divide=str.split if judged else None)
    if judged:
        header, place = TREC, str(path)
    elif kind == ".txt":
        header, place = ["text"], str(path)
    elif (first := next(rows, None)) is None:
        return
    else:
        header, place = [cell.strip() for cell in first.cells], first.place
    theirs = theirs_of(place, header, needed, optional, columns)
    at = {ours: None if name is None else header.index(name) for ours, name in theirs.items()}
    for row in rows:
        if len(row.cells) != len(header):
            raise UserError(
                f"{row.place}: {len(row.cells)} cells; accepted: {len(header)}, as in the header: {listing(header)}"
            )
        yield {ours: None if i is None else row.cells[i] for ours, i in at.items()}, row.place


def _lines(path: Path, *, blank: bool, divide: Callable[[str], list[str]] | None = None) -> Iterator[Row]:
    """The lines of a .tsv or .txt file, or of one that is divided otherwise; what is not UTF-8 is refused."""
    tabs = kind_of(path.name) == ".tsv" or divide is not None
    divide = divide or (lambda text: text.split("\t"))
    for line in read_lines(path, blank=blank and not tabs):
        if isinstance(line, Bad):
            raise UserError(str(line))
        yield Row(divide(line.text) if tabs else [line.text], line.place)


def _objects(
    path: Path, needed: list[str], optional: list[str], columns: dict[str, str | None]
) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects of a .jsonl file, of which one of the first must have what is needed, and one what has a declared
    name."""
    theirs: dict[str, str | None] | None = None
    unseen = {ours: name for ours in optional if (name := columns.get(ours)) is not None}
    first: list[str] = []
    for item in read_objects(path):
        if not isinstance(item, Item):
            raise UserError(str(item))
        if theirs is None:
            check_ours(item.place, [*needed, *optional], columns)
            first = first_keys(path)
            theirs_of(item.place, first, needed, [], {k: v for k, v in columns.items() if k in needed})
            theirs = {name: columns.get(name, name) for name in (*needed, *optional)}
        for ours in [ours for ours, name in unseen.items() if name in item.value]:
            del unseen[ours]
        yield {ours: item.value.get(name) for ours, name in theirs.items()}, item.place
    if first and unseen:
        ours, name = next(iter(unseen.items()))
        raise UserError(f"{path}: wrong columns: no object has {name!r} for {ours}; the first have {listing(first)}")
