"""Requests and responses of the service as its JSON has them, with their limits."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StringConstraints

from sparring.components.systems.system import QUERY_CHARACTERS, Hit, Seconds

QUERIES = 64
"""Most queries of one request."""
DOCUMENTS = 100
"""Most documents of one query's response."""
BODY_BYTES = 2**20
"""Most bytes of one request."""

Query = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=QUERY_CHARACTERS)]
Identifier = Annotated[str, StringConstraints(min_length=1, max_length=1_000)]
K = Annotated[int, Field(strict=True, ge=1, le=DOCUMENTS)]
USUAL = 10
"""Documents for a query that says no number."""


def _number(text: Any) -> Any:
    """A number's digits as the number."""
    return int(text) if isinstance(text, str) and re.fullmatch("[0-9]{1,9}", text) else text


class Strict(BaseModel):
    """An object whose keys are known."""

    model_config = ConfigDict(extra="forbid")


class Question(Strict):
    """One or more queries for one system: texts, or documents by their ids."""

    queries: Annotated[list[Query] | None, Field(min_length=1, max_length=QUERIES)] = None
    ids: Annotated[list[Identifier] | None, Field(min_length=1, max_length=QUERIES)] = None
    """Documents to find others like them: each one's text is the query, and the document itself is left out."""
    k: K | None = None
    """Documents for each; null for 10, or for all that the system ranks where these are fewer."""
    system: Identifier | None = None
    """One of `/systems`; null for the default."""


class Asked(Strict):
    """The same of one query, as an address has it."""

    q: Query | None = None
    id: Identifier | None = None
    k: Annotated[K | None, BeforeValidator(_number)] = None
    system: Identifier | None = None


class Found(BaseModel):
    """A document that a query has found."""

    doc_id: str
    title: str
    text: str
    score: float
    """By which the documents are in order."""
    scores: dict[str, float]
    """The score of each stage that looked at it, by the stage's name: `lexical` (BM25), `expansion` (BM25, for
    expansions of the query), `dense` (retriever), `fusion`, `ranker`."""

    @classmethod
    def of(cls, hit: Hit) -> Found:
        """A hit as JSON has it."""
        return cls(doc_id=hit.doc_id, title=hit.title, text=hit.text, score=hit.score, scores=hit.scores)


class Reading(BaseModel):
    """A reader's answer to a query."""

    text: str
    """Empty if there was no document to read."""
    doc_id: str | None
    """First of the documents that were read whose title or text contains the answer; null if none does."""


class Result(BaseModel):
    """Response to one query."""

    query: str
    """Its text."""
    id: str | None
    """The document that the query is; null for a text."""
    answer: Reading | None
    """The reader's answer; null if the system has no reader."""
    documents: list[Found]


class Answer(BaseModel):
    """Response to all queries of a question."""

    system: str
    results: list[Result]
    seconds: dict[str, float]
    """Seconds of the parts, one after another: `wait` (for earlier questions), `encode` (tokenise too), `search`,
    `bm25` (what was waited for it beside the retriever), `expand`, `fuse`, `rank`, `text`, `read`."""
    together: int
    """Queries that were answered at the same time, those of other requests included."""


class Described(BaseModel):
    """A system that can be asked."""

    name: str
    documents: int
    """In the collection."""
    limit: int
    """The most documents that it ranks for a query."""
    low: float | None
    """A best score below this one is low: 95 % of the dev queries, by which the run chose a system, had a higher one.
    If null, the run did not choose, or by too few queries."""
    stages: list[str]
    """Names of its stages, in order, such as `lexical`, `expansion`, `dense`, `neighbours`, `fusion`, `ranker`,
    `reader`."""


class Systems(BaseModel):
    """The systems that can be asked."""

    name: str
    """Name of the run, or of the exported system."""
    collection: str
    """Name of the collection. Empty for an exported system."""
    examples: list[str]
    """Some queries of the collection, to begin with."""
    systems: list[Described]
    default: str
    """The one that is asked where none is named."""
    left_out: dict[str, str]
    """Systems of the run that cannot be asked, and why."""
    limits: dict[str, int]


class Problem(BaseModel):
    """Why a request is not answered."""

    detail: str


class Mark(Strict):
    """A person's mark of a document for a query."""

    query: Query
    doc_id: Identifier
    relevant: StrictBool | None
    """Right, wrong, or (null) no longer marked."""


LIMITS = {"query_characters": QUERY_CHARACTERS, "queries": QUERIES, "k": DOCUMENTS, "body_bytes": BODY_BYTES}


def parts(seconds: Seconds, wait: float) -> dict[str, Any]:
    """The parts of a search as an answer has them, in seconds."""
    return {"wait": round(wait, 6), **{part: round(value, 6) for part, value in seconds.items()}}
