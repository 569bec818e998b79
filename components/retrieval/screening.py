"""Which retrieved documents must not be taken for negatives, and why: false-negative control over whole rankings.

A ranking is flat here: row i says that a query found a document, queries one after another, best first. What a reason
needs is computed by others beforehand (scores, vectors, answers, a ranker's opinion), so a threshold costs a
comparison when it changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from components import runs
from components.config import Config

if TYPE_CHECKING:
    from torch import Tensor

Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

REASONS = ("qrel", "same id", "duplicate text", "answer", "margin", "ranker's vote", "reciprocal neighbour")
"""A document is removed for the first of them that holds."""


class Vote(Config):
    """A ranker's opinion."""

    above: float = Field(gt=0, lt=1)
    """A document is removed whose probability of being relevant, the logistic function of the ranker's score, is
    higher (RocketQA takes as negatives what is below .1)."""
    depth: int = Field(100, ge=1)
    """How many of the first documents of a query it is asked about."""


class ScreenConfig(Config):
    """What is no negative beside judged documents and copies of them or of each other, which never are."""

    same_id: bool = False
    """A document with the query's own id, where queries and documents are the same texts (Quora, ArguAna)."""
    answering: bool = False
    """A document that bears an answer without being judged."""
    relative: float | None = Field(None, gt=0, le=1)
    """A document that scores more than this share of the positive's score (Moreira et al. 2024, NV-Retriever: .95)."""
    absolute: float | None = Field(None, ge=0)
    """A document that scores more than the positive's score less this."""
    vote: Vote | None = None
    """A document that a ranker takes for relevant; null to ask none."""
    reciprocal: int | None = Field(None, ge=1)
    """A document that has a relevant one among its so many nearest, and is among that one's, by the vectors that made
    the ranking and within what the query found and its relevant documents."""


class Found(NamedTuple):
    """A ranking's rows."""

    queries: Rows
    documents: Rows
    scores: npt.NDArray[np.float32]


def judged(found: Found, relevant: Rows) -> Flags:
    """Rows whose document is relevant to their query; `relevant` is (P, 2) queries and documents."""
    return _among(found.queries, found.documents, relevant[:, 0], relevant[:, 1])


def copies(found: Found, relevant: Rows, same: Rows) -> Flags:
    """Rows whose document says what a relevant one says, or what one before it in the list says.

    `same` has for each document of the collection the first that says the same.
    """
    texts = same[found.documents]
    first = np.zeros(len(texts), bool)
    first[np.unique(np.stack([found.queries, texts], 1), axis=0, return_index=True)[1]] = True
    return ~first | _among(found.queries, texts, relevant[:, 0], same[relevant[:, 1]])


def positive_scores(found: Found, relevant: Flags) -> tuple[npt.NDArray[np.float32], Rows]:
    """For each row the best score of a relevant document in its query's list, and where that stands; NaN and -1 where
    none was found."""
    starts = runs.starts(found.queries)
    lengths = np.diff(np.r_[starts, len(relevant)])
    masked = np.where(relevant, np.arange(len(relevant)), len(relevant))
    place = np.minimum.reduceat(masked, starts) if len(starts) else starts
    scores = np.append(found.scores, np.float32(np.nan))
    return np.repeat(scores[place], lengths), np.repeat(np.where(place < len(relevant), place, -1), lengths)


def too_near(found: Found, positive: npt.NDArray[np.float32], config: ScreenConfig) -> Flags:
    """Rows that score too near the positive, or above it. Where the positive was not found nothing is known.

    Of a score below 0 a share would be nearer to 0: there it is as far below as it would be of one above.
    """
    near = np.zeros(len(positive), bool)
    if config.relative is not None:
        near |= found.scores > positive - (1 - config.relative) * np.abs(positive)
    if config.absolute is not None:
        near |= found.scores > positive - config.absolute
    return near


def reciprocal(vectors: Tensor, relevant: Tensor, there: Tensor, k: int) -> Tensor:
    """(B, N) which of N documents and a relevant one are each among the k nearest of the other, itself not counted.

    `vectors` (B, N, d) and which are there and relevant (B, N). Nearest are all at least as near as the k-th.
    """
    products = vectors @ vectors.mT
    products = products.masked_fill(~there[:, None], -float("inf"))
    products.diagonal(dim1=-2, dim2=-1).fill_(-float("inf"))
    reach = products.topk(min(k, max(1, products.shape[-1] - 1)), dim=-1).values[..., -1:]
    near = (products >= reach) & there[:, None] & there[:, :, None]
    return ((near & near.mT) & relevant[:, None]).any(-1) & there


def first_reason(flags: dict[str, Flags]) -> npt.NDArray[np.int8]:
    """For each row the number of the first reason that holds, -1 for none."""
    found = np.full(len(next(iter(flags.values()))), -1, np.int8)
    for number in reversed(range(len(REASONS))):
        if REASONS[number] in flags:
            found[flags[REASONS[number]]] = number
    return found


def _among(queries: Rows, documents: Rows, of_queries: Rows, of_documents: Rows) -> Flags:
    """Which pairs stand in a list of pairs."""
    width = int(max(documents.max(initial=0), of_documents.max(initial=0))) + 1
    return np.isin(queries * width + documents, of_queries * width + of_documents)
