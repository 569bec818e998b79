"""The records that sources yield: documents, queries and judgements, checked, or a description of what is wrong.

Each has its `place`, the file and line or row that it was read from, for error messages.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparring.components.config import UserError
from sparring.components.data.tables import as_relevance


class Bad(NamedTuple):
    """A record that cannot be used. `reason` is one of a few fixed texts, so that records can be counted by it."""

    reason: str
    place: str
    detail: str = ""
    id: str = ""

    def __str__(self) -> str:
        named = f" {self.id!r}" if self.id else ""
        return f"{self.place}: {self.reason}{named}" + (f" ({self.detail})" if self.detail else "")

    def example(self) -> str:
        """Where it is and what is wrong with it, beside its reason."""
        named = f" {self.id!r:.60}" if self.id else ""
        return f"{self.place}{named}" + (f" ({self.detail})" if self.detail else "")


def refused(bad: Bad) -> UserError:
    """The error that stops at a record."""
    how = "convert the file (iconv -f CP1252 -t UTF-8)" if bad.reason == NOT_UTF8 else "mend it"
    code = bad.reason.lower().replace(" ", "-")
    return UserError(f"{bad}; {how}, or set data.on_bad: drop", key=bad.place, code=code)


class Document(NamedTuple):
    """A document of the collection."""

    doc_id: str
    title: str
    text: str
    place: str


class Query(NamedTuple):
    """A query of one split."""

    query_id: str
    text: str
    answers: list[str]
    split: str
    place: str


class Judgement(NamedTuple):
    """A judgement of the qrels."""

    query_id: str
    doc_id: str
    relevance: int
    split: str
    place: str


class Example(NamedTuple):
    """A sentence or a pair of sentences, by document ids, with its label or score (`components.data.tables`)."""

    example_id: str
    first: str
    second: str | None
    label: str | None
    score: float | None
    subset: str
    split: str
    place: str


NOT_UTF8 = "text that is not UTF-8"
"""The reason of records in another encoding."""
HALF = "half of a character"
"""The reason of records with an escape that cannot stand alone."""
UNJUDGED = "unjudged"
"""The split of queries without judgements, in collections where the judgements determine a query's split."""


def document(
    doc_id: Any, title: Any, text: Any, place: str, *, columns: Mapping[str, str | None] | None = None
) -> Document | Bad:
    """A checked document; a title or text of None is empty. The table's names of columns are for messages."""
    name = _id(doc_id, "document", place, _column("doc_id", columns))
    if isinstance(name, Bad):
        return name
    lacks = _lacks(_column("text", columns)) if text is None else ""
    title, text = ("" if value is None else value for value in (title, text))
    if not isinstance(title, str) or not isinstance(text, str):
        return Bad("wrong columns", place, _untextual(title, text, columns), name)
    if not title.strip() and not text.strip():
        return Bad("document with neither title nor text", place, lacks, name)
    if bad := _undecoded((title, text), place, name):
        return bad
    return Document(name, title, text, place)


def _untextual(title: Any, text: Any, columns: Mapping[str, str | None] | None) -> str:
    """Which of a document's title and text is no text."""
    ours, value = ("text", text) if isinstance(title, str) else ("title", title)
    how = _left_out("documents", "title", columns) if ours == "title" else ""
    return f"{_column(ours, columns) or ours} must be text, and is {value!r:.60}{how}"


def query(
    query_id: Any, text: Any, answers: Any, split: str, place: str, *, columns: Mapping[str, str | None] | None = None
) -> Query | Bad:
    """A checked query, with the texts of its answers. The table's names of columns are for messages."""
    name = _id(query_id, "query", place, _column("query_id", columns))
    if isinstance(name, Bad):
        return name
    if not isinstance(text, str | None):
        return Bad("wrong columns", place, "the text of a query must be text", name)
    if text is None or not text.strip():
        return Bad("empty query", place, _lacks(_column("text", columns)) if text is None else "", name)
    texts = answer_texts(answers)
    if texts is None:
        detail = f"got {answers!r:.60}{_left_out('queries', 'answers', columns)}"
        return Bad("answers that are not a list of texts", place, detail, name)
    if not is_split(split):
        return Bad("split without a name", place, _of_split(split) + _left_out("queries", "split", columns), name)
    if bad := _undecoded((text, *texts), place, name):
        return bad
    return Query(name, text, texts, split, place)


def answer_texts(answers: Any) -> list[str] | None:
    """Return the texts of a query's answers: a list of texts, or SQuAD's `{"text": [...], "answer_start": [...]}`. If
    the value is anything else, return None. A null is no answer.

    >>> answer_texts({"text": ["Ann"], "answer_start": [6]}), answer_texts([None, "Ann"]), answer_texts(None)
    (['Ann'], ['Ann'], [])
    """
    if isinstance(answers, Mapping) and "text" in answers:
        answers = [answers["text"]] if isinstance(answers["text"], str) else answers["text"]
    if answers is None:
        return []
    if not isinstance(answers, (list, tuple)):
        return None
    texts = [one["text"] if isinstance(one, Mapping) and "text" in one else one for one in answers]
    if not all(isinstance(one, str | None) for one in texts):
        return None
    return [one for one in texts if one is not None]


def judgement(
    query_id: Any,
    doc_id: Any,
    relevance: Any,
    split: str,
    place: str,
    *,
    columns: Mapping[str, str | None] | None = None,
) -> Judgement | Bad:
    """A checked judgement. The table's names of columns are for messages."""
    query_name = _id(query_id, "query", place, _column("query_id", columns))
    doc_name = _id(doc_id, "document", place, _column("doc_id", columns))
    if isinstance(query_name, Bad):
        return query_name
    if isinstance(doc_name, Bad):
        return doc_name
    integer = as_relevance(relevance)
    if integer is None:
        words = columns is not None and isinstance(relevance, str) and relevance.strip().isalpha()
        how = "; `data.grades` says what a word counts" if words else ""
        return Bad("relevance that is not an integer", place, f"got {relevance!r:.40}, of query {query_name!r}{how}")
    if not is_split(split):
        return Bad("split without a name", place, _of_split(split), query_name)
    return Judgement(query_name, doc_name, integer, split, place)


def first_splits(judgements: Iterable[Judgement | Bad]) -> dict[str, str]:
    """For each query, the split of its first judgement: its own split, in collections that do not name it."""
    splits: dict[str, str] = {}
    for record in judgements:
        if isinstance(record, Judgement):
            splits.setdefault(record.query_id, record.split)
    return splits


def _column(ours: str, columns: Mapping[str, str | None] | None) -> str | None:
    """The table's name of a column; None where the record is of no table with columns."""
    return None if columns is None else columns.get(ours) or ours


def _left_out(table: str, ours: str, columns: Mapping[str, str | None] | None) -> str:
    """How to leave a column out that a table may do without; empty where the record is of no table with columns."""
    return "" if columns is None else f"; `columns: {{{table}: {{{ours}: null}}}}` leaves the column out"


def _lacks(column: str | None) -> str:
    """Why a value is missing."""
    return f"it has no {column!r}" if column else ""


def _id(value: Any, kind: str, place: str, column: str | None) -> str | Bad:
    """An id as text. It must not contain white space, which separates columns in TREC files."""
    if value is None and column:
        return Bad(f"no {kind} id", place, _lacks(column))
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        how = "; write the column as whole numbers or as text" if isinstance(value, float) else ""
        return Bad("wrong columns", place, f"expected a {kind} id, got {value!r}{how}")
    if not value.strip():
        return Bad(f"empty {kind} id", place)
    if len(value.split()) != 1 or value != value.strip():
        how = LISTED if is_list(value) else "an id has none; is this the column of ids?"
        return Bad(f"{kind} id with white space", place, how, value)
    if bad := _undecoded((value,), place):
        return bad
    if not value.isprintable() and any(unicodedata.category(one) == "Cc" for one in value):
        return Bad(f"{kind} id with a control character", place, id=value)
    return value


LISTED = "a list? each id needs a row of its own, with the rest of its row again"
"""What to do about what looks like several ids."""


def is_list(name: str) -> bool:
    """Whether what stands in an id's place looks like several ids.

    >>> is_list("A-1, A-2"), is_list("A-1|A-2"), is_list("A-1"), is_list("A,")
    (True, True, False, False)
    """
    return bool(re.fullmatch(r"\s*[^\s,;|]+(\s*[,;|]\s*[^\s,;|]+)+\s*", name))


def is_split(name: Any) -> bool:
    """Whether a split can be called so. It may be the name of a column or of a file, and is printed."""
    return isinstance(name, str) and bool(name.strip()) and name.isprintable() and not _is_path(name)


def _of_split(name: Any) -> str:
    path = "; a split may be the name of a file, which has no /" if isinstance(name, str) and _is_path(name) else ""
    return f"got {name!r:.40}{path}"


def _is_path(name: str) -> bool:
    return "/" in name or name in (".", "..")


def _undecoded(texts: Iterable[str], place: str, name: str = "") -> Bad | None:
    """What is wrong where one of the texts cannot be encoded. A byte that is not UTF-8 was decoded to a surrogate of
    its own; any other surrogate stood in JSON as an escape."""
    for text in texts:
        if text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            surrogate = ord(text[error.start])
            if 0xDC80 <= surrogate <= 0xDCFF:
                return Bad(NOT_UTF8, place, id=name)
            return Bad(HALF, place, f"the escape \\u{surrogate:04x} without its other half", name)
    return None
