"""Requests and responses of the JSON API, with their limits."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StringConstraints

from sparring.components.systems.searching import Seconds
from sparring.components.systems.system import QUERY_CHARACTERS, Hit

QUERIES = 64
"""Maximum number of queries in one request."""
DOCUMENTS = 100
"""Maximum number of documents per query."""
BODY_BYTES = 2**20
"""Maximum size of a request, in bytes."""

Query = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=QUERY_CHARACTERS)]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]
K = Annotated[int, Field(strict=True, ge=1, le=DOCUMENTS)]
USUAL = 10
"""Number of documents per query, if the request does not say."""


def _number(text: Any) -> Any:
    """Convert a text of digits to a number."""
    return int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,9}", text) else text


class Strict(BaseModel):
    """A JSON object that refuses unknown keys."""

    model_config = ConfigDict(extra="forbid")


class Question(Strict):
    """One or more queries for one system. A query is a text, or a document named by its id."""

    queries: Annotated[list[Query] | None, Field(min_length=1, max_length=QUERIES)] = None
    ids: Annotated[list[Identifier] | None, Field(min_length=1, max_length=QUERIES)] = None
    """Ids of documents, to find similar ones. The text of each document is the query, and the document itself is left
    out."""
    k: K | None = None
    """Number of documents per query. Null is 10, or all that the system ranks if there are fewer."""
    system: Identifier | None = None
    """Name of a system (`/systems`). Null is the default system."""


class Asked(Strict):
    """One query in the address of a request."""

    q: Query | None = None
    id: Identifier | None = None
    k: Annotated[K | None, BeforeValidator(_number)] = None
    system: Identifier | None = None


class Found(BaseModel):
    """A retrieved document."""

    doc_id: str
    title: str
    text: str
    score: float
    """Score that orders the documents."""
    scores: dict[str, float]
    """The score of each stage that looked at it, by the stage's name: `lexical` (BM25), `expansion` (BM25, for
    expansions of the query), `dense` (retriever), `fusion`, `ranker`."""

    @classmethod
    def of(cls, hit: Hit) -> Found:
        """Convert a hit for JSON."""
        return cls(doc_id=hit.doc_id, title=hit.title, text=hit.text, score=hit.score, scores=hit.scores)


class Reading(BaseModel):
    """A reader's answer to a query."""

    text: str
    """Text of the answer. Empty if there was no document to read."""
    doc_id: str | None
    """Id of the first document whose title or text contains the answer. Null if none does."""


class Result(BaseModel):
    """Response to one query."""

    query: str
    """Text of the query."""
    id: str | None
    """Id of the document that was the query. Null for a text."""
    answer: Reading | None
    """The reader's answer. Null if the system has no reader."""
    documents: list[Found]


class Answer(BaseModel):
    """Response to all queries of a question."""

    system: str
    results: list[Result]
    seconds: dict[str, float]
    """Seconds per part of the search: `wait` (for earlier requests), `encode` (with tokenisation), `search`, `bm25`
    (only the time after the retriever was done), `expand`, `fuse`, `rank`, `text`, `read`."""
    together: int
    """Number of queries that were answered together, those of other requests included."""


class Described(BaseModel):
    """Description of a system."""

    name: str
    documents: int
    """Number of documents in the collection."""
    limit: int
    """Maximum number of documents that the system ranks for a query."""
    low: float | None
    """A best score below this value is low: for 95 % of the dev queries the best score was higher. Null if the run had
    too few dev queries, or chose no system."""
    stages: list[str]
    """Names of its stages, in order, such as `lexical`, `expansion`, `dense`, `neighbours`, `fusion`, `ranker`,
    `reader`."""


class Systems(BaseModel):
    """Description of the service's systems."""

    name: str
    """Name of the run, or of the exported system."""
    collection: str
    """Name of the collection. Empty for an exported system."""
    examples: list[str]
    """Example queries of the collection."""
    systems: list[Described]
    default: str
    """Name of the system that answers if a request names none."""
    left_out: dict[str, str]
    """Systems of the run that the service cannot answer with, and why."""
    limits: dict[str, int]


class Problem(BaseModel):
    """Reason why a request was not answered."""

    detail: str


class Mark(Strict):
    """A person's mark of a document for a query."""

    query: Query
    doc_id: Identifier
    relevant: StrictBool | None
    """True if the document is right, false if it is wrong. Null removes the mark."""


LIMITS = {"query_characters": QUERY_CHARACTERS, "queries": QUERIES, "k": DOCUMENTS, "body_bytes": BODY_BYTES}


def parts(seconds: Seconds, wait: float) -> dict[str, Any]:
    """Return the seconds of each part of a search, for an answer."""
    return {"wait": round(wait, 6), **{part: round(value, 6) for part, value in seconds.items()}}
