"""The records that sources yield: checked documents, queries and judgements, and bad records.

Each record has its `place` for error messages: the file, and the line or row that it was read from.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sparring.components.config import UserError
from sparring.components.data.tables import as_relevance


class Bad(NamedTuple):
    """A record that cannot be used. `reason` is one of a few fixed texts, so that bad records can be counted by it."""

    reason: str
    place: str
    detail: str = ""
    id: str = ""

    def __str__(self) -> str:
        named = f" {self.id!r}" if self.id else ""
        return f"{self.place}: {self.reason}{named}" + (f" ({self.detail})" if self.detail else "")

    @property
    def code(self) -> str:
        """Code of the error."""
        return self.reason.lower().replace(" ", "-")

    def example(self) -> str:
        """Describe the record by its place, id and detail, without the reason."""
        named = f" {self.id!r:.60}" if self.id else ""
        return f"{self.place}{named}" + (f" ({self.detail})" if self.detail else "")


def refused(bad: Bad) -> UserError:
    """Return the error for a bad record with `on_bad: fail`."""
    remedy = "Convert the file (iconv -f CP1252 -t UTF-8)" if bad.reason == NOT_UTF8 else "Fix the record"
    return UserError(f"{bad}. {remedy}, or set data.on_bad: drop.", key=bad.place, code=bad.code)


class Document(NamedTuple):
    """A document of the collection."""

    doc_id: str
    title: str
    text: str
    place: str


class Query(NamedTuple):
    """A query of a split."""

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
"""Reason for records in an encoding other than UTF-8."""
HALF = "half of a character"
"""Reason for records with an unpaired surrogate escape."""
UNJUDGED = "unjudged"
"""Split of queries without judgements, in collections whose judgements determine the splits of queries."""


def document(doc_id: Any, title: Any, text: Any, place: str) -> Document | Bad:
    """Check a document. A title or text of None is empty."""
    name = _id(doc_id, "document", place)
    if isinstance(name, Bad):
        return name
    for column, value in (("title", title), ("text", text)):
        if not isinstance(value, str | None):
            return Bad("wrong columns", place, f"{column} must be text, but is {value!r:.60}", name)
    title, text = title or "", text or ""
    if not title.strip() and not text.strip():
        return Bad("document with neither title nor text", place, id=name)
    return _undecoded((title, text), place, name) or Document(name, title, text, place)


def query(query_id: Any, text: Any, answers: Any, split: str, place: str) -> Query | Bad:
    """Check a query and the texts of its answers."""
    name = _id(query_id, "query", place)
    if isinstance(name, Bad):
        return name
    if not isinstance(text, str | None):
        return Bad("wrong columns", place, "the text of a query must be text", name)
    if text is None or not text.strip():
        return Bad("empty query", place, id=name)
    texts = answer_texts(answers)
    if texts is None:
        return Bad("answers that are not a list of texts", place, f"got {answers!r:.60}", name)
    if not is_split(split):
        return Bad("split without a name", place, f"got {split!r:.40}", name)
    return _undecoded((text, *texts), place, name) or Query(name, text, texts, split, place)


def answer_texts(answers: Any) -> list[str] | None:
    """Return the texts of a query's answers. Nulls are skipped.

    The value is a list of texts, or SQuAD's `{"text": [...], "answer_start": [...]}`. For any other value return None.

    >>> answer_texts({"text": ["Ann"], "answer_start": [6]}), answer_texts([None, "Ann"]), answer_texts(None)
    (['Ann'], ['Ann'], [])
    """
    if isinstance(answers, Mapping) and "text" in answers:
        answers = [answers["text"]] if isinstance(answers["text"], str) else answers["text"]
    if not isinstance(answers, list | tuple | None):
        return None
    texts = [item["text"] if isinstance(item, Mapping) and "text" in item else item for item in answers or ()]
    return [text for text in texts if text is not None] if all(isinstance(text, str | None) for text in texts) else None


def judgement(query_id: Any, doc_id: Any, relevance: Any, split: str, place: str) -> Judgement | Bad:
    """Check a judgement."""
    query_name, doc_name = _id(query_id, "query", place), _id(doc_id, "document", place)
    if isinstance(query_name, Bad):
        return query_name
    if isinstance(doc_name, Bad):
        return doc_name
    integer = as_relevance(relevance)
    if integer is None:
        return Bad("relevance that is not an integer", place, f"got {relevance!r:.40}, of query {query_name!r}")
    if not is_split(split):
        return Bad("split without a name", place, f"got {split!r:.40}", query_name)
    return Judgement(query_name, doc_name, integer, split, place)


def first_splits(judgements: Iterable[Judgement | Bad]) -> dict[str, str]:
    """Return the split of each query's first judgement, for collections whose queries do not name their splits."""
    splits: dict[str, str] = {}
    for record in judgements:
        if isinstance(record, Judgement):
            splits.setdefault(record.query_id, record.split)
    return splits


def _id(value: Any, kind: str, place: str) -> str | Bad:
    """Return an id as text, or a bad record. Ids have no white space, because it separates columns in TREC files."""
    if value is None:
        return Bad(f"no {kind} id", place)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        return Bad("wrong columns", place, f"expected a {kind} id as text or a whole number, got {value!r:.60}")
    if not value.strip():
        return Bad(f"empty {kind} id", place)
    if len(value.split()) != 1 or value != value.strip():
        return Bad(f"{kind} id with white space", place, "is this the column of ids? Each id needs a row", value)
    if bad := _undecoded((value,), place):
        return bad
    if not value.isprintable() and any(unicodedata.category(character) == "Cc" for character in value):
        return Bad(f"{kind} id with a control character", place, id=value)
    return value


def is_split(name: Any) -> bool:
    """Return True if a split can have this name. Names are printed, and may become names of columns and files."""
    return (
        isinstance(name, str) and bool(name.strip()) and name.isprintable() and not ("/" in name or name in (".", ".."))
    )


def _undecoded(texts: Iterable[str], place: str, name: str = "") -> Bad | None:
    """Return a bad record if a text cannot be encoded. Return None if all can.

    A byte that is not UTF-8 was decoded to a surrogate from U+DC80 to U+DCFF. Other surrogates were escapes in JSON.
    """
    for text in texts:
        if text.isascii():
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            surrogate = ord(text[error.start])
            if 0xDC80 <= surrogate <= 0xDCFF:
                return Bad(NOT_UTF8, place, id=name)
            return Bad(HALF, place, f"the escape \\u{surrogate:04x} lacks its second half", name)
    return None
