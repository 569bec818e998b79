"""How tables hang together where nobody knows their columns' names: whose values are the ids of whose rows.

Judgements are looked up in the other tables, the first hundred of them: a column that has more than half of their
values is the one that they name.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import islice, permutations
from pathlib import Path
from typing import Any, NamedTuple

from sparring.components.config import UserError
from sparring.components.data.tables import as_relevance
from sparring.components.sources.forms import in_form
from sparring.components.sources.parquet import patterns
from sparring.components.sources.reading import matching
from sparring.components.sources.recognition.files import headless
from sparring.components.sources.tables import kind_of, read_table

NAMES: dict[str, list[str]] = {
    "doc_id": ["doc_id", "docid", "document_id", "passage_id", "corpus_id", "pid", "docno", "did"],
    "query_id": ["query_id", "qid", "queryid", "question_id"],
    "id": ["id", "_id"],
    "question": ["question", "query", "anchor", "search", "prompt", "ask", "asked", "claim"],
    "text": [
        "text",
        "body",
        "content",
        "contents",
        "passage",
        "document",
        "answer",
        "context",
        "positive",
        "abstract",
        "response",
        "description",
    ],
    "title": ["title", "headline", "heading", "name", "subject"],
    "relevance": [
        "relevance",
        "relevant",
        "is_relevant",
        "rel",
        "label",
        "grade",
        "judgment",
        "judgement",
        "gain",
        "correct",
        "is_correct",
        "score",
        "useful",
        "usefulness",
        "helpful",
        "rating",
    ],
    "split": ["split"],
}
"""What columns are called, the likeliest first. Case, `-` and spaces make no difference."""
LOOKED_AT = 100
"""How many values of a column are looked up."""
UNLIKE = 0.95
"""Which share of a table's ids must differ from all before."""
GRADES = 5
"""How many words a column of grades may have."""
ROWS = 10_000
"""How many of a table's first rows are looked at where all of them count."""

Roles = dict[str, dict[str, str]]
"""For documents, queries and qrels our names of columns, and the files'."""


class Table(NamedTuple):
    """A file with its columns, or several that have the same."""

    name: str
    columns: list[str]
    lists: frozenset[str] = frozenset()
    """The columns that hold lists."""
    several: dict[str, str] | list[str] | None = None
    """The files, where they are several: that of each split, if their names tell splits."""

    @property
    def is_text(self) -> bool:
        """Whether each line is a text, and there are no columns."""
        return kind_of(self.name) == ".txt" and self.columns == ["text"]

    @property
    def files(self) -> str | list[str] | dict[str, str]:
        """The files, as a source declares them."""
        return self.several or self.name

    def named(self, *kinds: str) -> str | None:
        """The column of a kind, as the file calls it."""
        return next(self.all_named(*kinds), None)

    def all_named(self, *kinds: str) -> Iterator[str]:
        """The columns that may be of a kind, the likeliest first."""
        plain = {re.sub(r"[- ]", "_", column.strip().lower()): column for column in self.columns}
        yield from (plain[name] for kind in kinds for name in NAMES[kind] if name in plain)

    def columns_for(self, **wanted: tuple[str, ...]) -> dict[str, str]:
        """Our names of columns that the file calls differently."""
        found = {ours: self.named(*kinds) for ours, kinds in wanted.items()}
        return {ours: theirs for ours, theirs in found.items() if theirs is not None and theirs != ours}


TIME = re.compile(r"\d{4}[-/.]\d\d?[-/.]\d\d?([T ].*)?|\d\d?[-/.]\d\d?[-/.]\d{4}([T ,].*)?|\d\d?:\d\d(:\d\d.*)?")
"""How dates and times are written. Seconds since 1970 are known by the column's name."""
TIMES = re.compile(r"(^|_)(ts|date|time|timestamp|datetime|when|day|created|updated|(created|updated|clicked)_at)$")


def is_time(folder: Path, table: Table, column: str) -> bool:
    """Whether a column has dates or times, which never are ids."""
    values = _values(folder, table, column) - {"", "None"}
    return bool(TIMES.search(column.strip().lower())) or (
        bool(values) and all(TIME.fullmatch(value) for value in values)
    )


def _may_be_ids(folder: Path, table: Table, column: str) -> bool:
    """Whether a column may have the ids that judgements name: not texts that happen to match, nor titles, nor times."""
    if column in (*table.all_named("text", "title", "question"),) or is_time(folder, table, column):
        return False
    values = _values(folder, table, column) - {"", "None"}
    return 2 * sum(len(value.split()) == 1 for value in values) > len(values)


def judged_by(folder: Path, table: Table, name: str, qrels: Table, other: str) -> dict[str, str]:
    """Of a table without a known column of ids, the column that has the ids of the first judgements; none where fewer
    than half of them stand in any."""
    column = qrels.named(name, other)
    if column is None or table.named(name, "id"):
        return {}
    holder = _holder(folder, table, _values(folder, qrels, column))
    return {} if holder is None or not _may_be_ids(folder, table, holder) else {name: holder}


def judging(folder: Path, tables: list[Table], documents: Table, queries: Table) -> tuple[Table | None, Roles]:
    """Of some tables the one whose columns hold ids of queries and of documents, as judgements do, with the names of
    all three tables' columns of ids."""
    for table in (one for one in tables if one is not queries):
        ids = [one for one in table.columns if one not in (table.named("relevance"), table.named("split"))]
        values = {one: _values(folder, table, one) for one in ids}
        asked = {
            one: holder
            for one in ids
            if (holder := _holder(folder, queries, values[one])) is not None and _may_be_ids(folder, queries, holder)
        }
        found = {
            one: holder
            for one in ids
            if one not in asked
            and (holder := _holder(folder, documents, values[one])) is not None
            and _may_be_ids(folder, documents, holder)
        }
        if asked and found:
            (query, query_id), (document, doc_id) = next(iter(asked.items())), next(iter(found.items()))
            for one, column in ((table, query), (queries, query_id), (documents, doc_id)):
                _check_header(folder, one, column)
            return table, {
                "documents": {"doc_id": doc_id},
                "queries": {"query_id": query_id},
                "qrels": {"query_id": query, "doc_id": document},
            }
    return None, {}


def _check_header(folder: Path, table: Table, column: str) -> None:
    """UserError where a column of ids is called as its values are, but for numbers, as `q0` above q1 and q2: that is an
    id too, unless all columns of the table are called by their numbers."""
    forms = {re.sub(r"\d+", "0", value) for value in (column, *_values(folder, table, column))}
    numbered = table.columns == [str(at) for at in range(len(table.columns))]
    if kind_of(table.name) in (".tsv", ".csv") and len(forms) == 1 and re.search(r"\d", column) and not numbered:
        raise headless(folder / next(iter(patterns(table.files))), " ".join(table.columns))


def judging_itself(folder: Path, table: Table, documents: Table) -> Roles | None:
    """Where each query's row names the document that answers it: the names of the columns. None where no column, or
    more than one, holds ids of documents.

    Numbers of rows are in many tables, and name nothing. Where the queries have no ids, `query_id` is not among the
    names: their rows are numbered, as queries and as judgements. `relevance` is there if a column has relevances.
    """
    own, grades = table.named("query_id", "id"), relevances(folder, table)
    linked: dict[str, str] = {}
    for one in (one for one in table.columns if one not in (own, grades, table.named("split"))):
        values = _values(folder, table, one)
        if (holder := _holder(folder, documents, values - {"", "None"})) is None or _counted(folder, table, one):
            continue
        if not _may_be_ids(folder, documents, holder):
            continue
        if _identifies(folder, documents, holder):
            linked[one] = holder
    if len(linked) != 1 or len(table.columns) < 2:  # a list of ids asks nothing
        return None
    [(document, doc_id)] = linked.items()
    text = table.named("question", "text") or longest(folder, table, without={document})[0]
    others = (one for one in table.columns if one not in (text, document, grades))
    ids = [one for one in others if not is_time(folder, table, one) and _stands_for(folder, table, one, text)]
    query_id = {} if own is None and not ids else {"query_id": own or ids[0]}
    return {
        "documents": {"doc_id": doc_id},
        "queries": {**query_id, "text": text},
        "qrels": {**query_id, "doc_id": document, **({} if grades is None else {"relevance": grades})},
    }


def relevances(folder: Path, table: Table) -> str | None:
    """The likeliest column that is called as relevances are; None where most of the first values are none, such as the
    labels of questions about bills."""
    for column in table.all_named("relevance"):
        good = [as_relevance(row[column]) is not None for row in islice(_rows(folder, table, [column]), LOOKED_AT)]
        if 2 * sum(good) > len(good):
            return column
    return None


def grading(folder: Path, table: Table, column: str) -> list[str]:
    """The words of a column that has two to five of them, and nothing else; none of any other, as of true and false,
    which are relevances."""
    words = set[str]()
    for row in islice(_rows(folder, table, [column]), ROWS):
        words.add(str(row[column]).strip())
        if len(words) > GRADES:
            return []
    plain = all(re.fullmatch(r"\D+", word) and word != "None" and as_relevance(word) is None for word in words)
    return sorted(words) if len(words) > 1 and plain else []


def graded_in_numbers(folder: Path, table: Table, column: str) -> bool:
    """Whether a column has a few relevances and nothing else, of which some say that nothing is relevant."""
    found = set[int | None]()
    for row in islice(_rows(folder, table, [column]), ROWS):
        found.add(as_relevance(row[column]))
        if len(found) > GRADES or None in found:
            return False
    return len(found) > 1 and 0 in found


def _counted(folder: Path, table: Table, column: str) -> bool:
    """Whether a column has the numbers of the rows, from any first one on."""
    values = [str(row[column]).strip() for row in islice(_rows(folder, table, [column]), LOOKED_AT)]
    return all(value.isdecimal() for value in values) and all(
        int(value) == int(values[0]) + i for i, value in enumerate(values)
    )


def _identifies(folder: Path, table: Table, column: str) -> bool:
    """Whether nearly each of the first rows has a value of its own: what lacks one, or stands twice, is a mistake to be
    told."""
    values = [str(row[column]).strip() for row in islice(_rows(folder, table, [column]), ROWS)]
    return len(set(values) - {"", "None"}) > UNLIKE * len(values)


def _stands_for(folder: Path, table: Table, column: str, text: str) -> bool:
    """Whether nearly each of the first rows has a value that stands for its text: it may have several rows, and the
    same text in all of them. What lacks a value, or has one that stands for another text, is a mistake to be told."""
    texts: dict[str, str] = {}
    rows = mistakes = 0
    for row in islice(_rows(folder, table, [column, text]), ROWS):
        value, said = str(row[column]).strip(), str(row[text]).strip()
        rows += 1
        mistakes += value in ("", "None") or texts.setdefault(value, said) != said
    return mistakes <= (1 - UNLIKE) * rows


def unreadable(folder: Path, table: Table) -> str | None:
    """What in a table stops the reader; None where nothing does."""
    try:
        for _ in _rows(folder, table, table.columns):
            pass
    except UserError as error:
        return str(error)
    return None if table.columns else f"{folder / table.name}: no columns"


def longest(folder: Path, table: Table, without: frozenset[str] | set[str] = frozenset()) -> tuple[str, float]:
    """The column whose first values are the longest, that of the texts, and how long they are in the mean."""
    rows = list(islice(_rows(folder, table, table.columns), LOOKED_AT))
    lengths = {
        column: sum(len(str(row[column])) for row in rows) / max(1, len(rows))
        for column in table.columns
        if column not in without
    }
    return max(lengths.items(), key=lambda one: one[1])


def _values(folder: Path, table: Table, column: str) -> set[str]:
    """The first values of a column."""
    return {_value(row[column]) for row in islice(_rows(folder, table, [column]), LOOKED_AT)}


def _value(cell: Any) -> str:
    """What a cell is compared as: ids in two Unicode forms name the same, and `data.ids` reads them so."""
    return in_form("NFC", str(cell).strip())


FORMS: dict[str, Callable[[str], str]] = {
    "ids are compared with case; write both in one": str.lower,
    "the same in Unicode's form NFKC: ids are compared character by character; write both files in one form, as "
    "`uconv -x any-nfkc FILE` does": lambda value: unicodedata.normalize("NFKC", value),
    "an address is no id; write a column with the id alone": lambda value: re.split(r"[/#?=&:]", value.rstrip("/"))[-1],
}
"""How ids may differ that mean the same, and what to do: the form in which they are equal."""


def differing_in_form(folder: Path, tables: list[Table]) -> str | None:
    """Two ids that would be the same in another form, where most of a column's are so, and what to write; None where
    there are none."""
    for one, other in permutations(tables, 2):
        for column in one.columns:
            values = _values(folder, one, column) - {"", "None"}
            if not values or not _may_be_ids(folder, one, column) or _holder(folder, other, values):
                continue
            for why, form in FORMS.items():
                forms = {form(value): value for value in values}
                holder = _holder(folder, other, set(forms), form)
                if holder is None or not _identifies(folder, other, holder) or not _may_be_ids(folder, other, holder):
                    continue
                theirs = (_value(row[holder]) for row in _rows(folder, other, [holder]))
                found = next((value for value in theirs if form(value) in forms and value not in values), None)
                if found is not None:
                    shown = [ascii(value)[1:-1] if "Unicode" in why else value for value in (forms[form(found)], found)]
                    return f"{one.name} has {shown[0]} ({column}), and {other.name} {shown[1]} ({holder}): {why}"
    return None


def _holder(folder: Path, table: Table, values: set[str], form: Callable[[str], str] = str) -> str | None:
    """The column of a table that has the most of some values, in some form; None where no column has more than half of
    them."""
    found = {one: set[str]() for one in table.columns}
    for row in _rows(folder, table, table.columns):
        for one, ids in found.items():
            if (value := form(_value(row[one]))) in values:
                ids.add(value)
        if any(len(ids) == len(values) for ids in found.values()):
            break
    best = max(found, key=lambda one: len(found[one]))
    return best if 2 * len(found[best]) > len(values) else None


def _rows(folder: Path, table: Table, columns: list[str]) -> Iterator[dict[str, Any]]:
    """The values of a table's columns, row by row."""
    for path in (path for pattern in patterns(table.files) for path in matching(folder, pattern)):
        yield from (row for row, _ in read_table(path, [], columns, {}, blank=False))
