"""Screening for false negatives: which retrieved documents must not become negatives, and for what reason.

A ranking is flat here: each row is a query with one of its documents, query after query, best first. Scores, vectors,
answers and a ranker's scores are computed elsewhere, so another threshold costs no more than a comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sparring.components.config import Config
from sparring.components.data import row_runs

if TYPE_CHECKING:
    from torch import Tensor

Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]

REASONS = ("qrel", "own document", "duplicate text", "answer", "margin", "ranker's vote", "reciprocal neighbour")
"""Reasons to remove a document; the first that holds is reported."""


class Vote(Config):
    """Removal by a ranker's score."""

    above: float = Field(gt=0, lt=1)
    """Documents are removed whose probability of relevance, the sigmoid of the ranker's score, is higher. RocketQA
    keeps as negatives what is below .1."""
    depth: int = Field(100, ge=1)
    """The ranker scores this many of the first documents of a query."""


class ScreenConfig(Config):
    """Removal of documents from the candidates for negatives.

    Documents judged relevant to the query, the query's own document, copies of both, and all but the first of several
    copies always are.
    """

    answering: bool = False
    """Remove documents that contain an answer, although they are not judged relevant."""
    relative: float | None = Field(None, gt=0, le=1)
    """Remove documents that score more than this share of the positive's score (NV-Retriever, Moreira et al., 2024:
    .95)."""
    absolute: float | None = Field(None, ge=0)
    """Remove documents that score more than the positive's score minus this."""
    vote: Vote | None = None
    """Remove documents that a ranker takes for relevant; null for no ranker."""
    reciprocal: int | None = Field(None, ge=1)
    """Remove documents that are reciprocal neighbours of a relevant one: each is among this many nearest of the other.
    Only the query's retrieved and relevant documents are compared, by the vectors that made the ranking. null: do not
    remove them."""


class RankingRows(NamedTuple):
    """The rows of a ranking, as integers into the collection."""

    queries: Rows
    documents: Rows
    scores: npt.NDArray[np.float32]


def judged(ranking: RankingRows, relevant: Rows) -> Flags:
    """Return (R,) True for rows whose document is relevant to the query. `relevant` (P, 2) are query-document pairs."""
    return _among(ranking.queries, ranking.documents, relevant[:, 0], relevant[:, 1])


def duplicates(ranking: RankingRows, relevant: Rows, same: Rows) -> Flags:
    """Return (R,) True for documents with the text of a relevant one, or of an earlier one in the query's list.

    `same` has for each document of the collection the first document with the same text.
    """
    texts = same[ranking.documents]
    first = np.zeros(len(texts), bool)
    first[np.unique(np.stack([ranking.queries, texts], 1), axis=0, return_index=True)[1]] = True
    return ~first | copies(ranking, relevant, same)


def copies(ranking: RankingRows, pairs: Rows, same: Rows) -> Flags:
    """Return (R,) True for rows whose document has the text of a document paired with the query in `pairs` (P, 2)."""
    return _among(ranking.queries, same[ranking.documents], pairs[:, 0], same[pairs[:, 1]])


def positive_scores(ranking: RankingRows, relevant: Flags) -> tuple[npt.NDArray[np.float32], Rows]:
    """Return, for each of R rows of a ranking, the best score among its query's relevant documents, and the row of that
    document. They are NaN and -1 if none was retrieved. `relevant` (R,) is the result of `judged`."""
    starts = row_runs.starts(ranking.queries)
    lengths = np.diff(np.r_[starts, len(relevant)])
    masked = np.where(relevant, np.arange(len(relevant)), len(relevant))
    place = np.minimum.reduceat(masked, starts) if len(starts) else starts
    scores = np.append(ranking.scores, np.float32(np.nan))
    return np.repeat(scores[place], lengths), np.repeat(np.where(place < len(relevant), place, -1), lengths)


def too_near(ranking: RankingRows, positive: npt.NDArray[np.float32], config: ScreenConfig) -> Flags:
    """Return (R,) True for scores too near the positive's, or above it. False if no positive was retrieved.

    `positive` are the scores of `positive_scores`. For a negative score, a share of it would be higher, so the
    threshold is as far below it as for the same score above 0.
    """
    near = np.zeros(len(positive), bool)
    if config.relative is not None:
        near |= ranking.scores > positive - (1 - config.relative) * np.abs(positive)
    if config.absolute is not None:
        near |= ranking.scores > positive - config.absolute
    return near


def reciprocal(vectors: Tensor, relevant: Tensor, mask: Tensor, k: int) -> Tensor:
    """Return (B, N) True if a document and a relevant one are each among the k nearest of the other, itself not
    counted.

    `vectors` are (B, N, d). `relevant` (B, N) is True at relevant documents, `mask` (B, N) False at padding. Documents
    as near as the k-th are all among the nearest.
    """
    products = vectors @ vectors.mT
    products = products.masked_fill(~mask[:, None], -float("inf"))
    products.diagonal(dim1=-2, dim2=-1).fill_(-float("inf"))
    reach = products.topk(min(k, max(1, products.shape[-1] - 1)), dim=-1).values[..., -1:]
    near = (products >= reach) & mask[:, None] & mask[:, :, None]
    return ((near & near.mT) & relevant[:, None]).any(-1) & mask


def first_reason(flags: dict[str, Flags]) -> npt.NDArray[np.int8]:
    """Return (R,) indices in `REASONS` of the first reason that holds, or -1. `flags` (R,) are by the reason's name."""
    first = np.full(len(next(iter(flags.values()))), -1, np.int8)
    for number in reversed(range(len(REASONS))):
        if REASONS[number] in flags:
            first[flags[REASONS[number]]] = number
    return first


def _among(queries: Rows, documents: Rows, of_queries: Rows, of_documents: Rows) -> Flags:
    """Return (R,) True for the pairs that are among other pairs."""
    width = int(max(documents.max(initial=0), of_documents.max(initial=0))) + 1
    return np.isin(queries * width + documents, of_queries * width + of_documents)
