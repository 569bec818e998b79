"""Soft labels for the candidates of a query: evidence-based label smoothing and what the paper compares it with.

A candidate that is similar to the documents known to be relevant, the ground truth, is likely to be relevant although
nobody said so (paper 003, section 3.2, Algorithm 1). Its similarity becomes its share of the target distribution.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from components import neighbours
from components.config import Config
from components.neighbours import NeighboursConfig, Normalise

if TYPE_CHECKING:  # configs are read without torch
    from torch import Tensor


class SmoothingConfig(Config):
    """How similarities to the ground truth become a target distribution: the numbers are the paper's for TAS-B.

    The public code is `order: truncate first` with `least: 0.1`. It also leaves out candidates whose similarity is
    below 0.1 to begin with, and at each limit it may lose ground truth.
    """

    labels: Literal["evidence", "query", "uniform"] = "evidence"
    """`evidence`: by similarity to the ground truth (Algorithm 1). For comparison, `query`: by similarity to the query
    and otherwise alike, which is distillation from oneself and makes a retriever worse (Figure 2); `uniform`: the
    ground truth keeps its share but for epsilon, which all other candidates have alike (Eq. 2)."""
    similarity: NeighboursConfig = NeighboursConfig()
    """Similarity of two elements of the context, which are the query and its candidates."""
    normalise: Normalise = "max-min"
    """f_n, which brings a query's similarities into one range: Eq. 13, Eq. 14, or as they are."""
    boost: float = Field(1.222, gt=0)
    """b, by which the ground truth's are then multiplied."""
    n_max: int | None = Field(4, ge=1)
    """How many candidates, the most similar ones, have a share; null for all. The ground truth always has, be it among
    them or not."""
    order: Literal["normalise first", "truncate first"] = "normalise first"
    """Whether the range is that of all candidates, as Algorithm 1 says, or of those that have a share, as in the public
    code; there the last of them always has the similarity 0."""
    least: float | None = None
    """Candidates with less than this after all of it have no share either; null for no such limit. The public code has
    0.1, so that of `n_max` candidates at most one less has a share."""
    epsilon: float | None = Field(None, ge=0, lt=1)
    """The share that `uniform` spreads; null for what `evidence` with these numbers gives to others than the ground
    truth, query by query."""


def targets(
    queries: Tensor, documents: Tensor, truth: Tensor, there: Tensor, config: SmoothingConfig
) -> Tensor:  # fmt: skip
    """(B, N) the target distribution over each query's candidates, by similarity to the query or the ground truth.

    `queries` are (B, d), `documents` (B, N, d); `truth` (B, N) says which candidates are ground truth, `there` (B, N)
    which are candidates at all. A query without ground truth has targets 0: there is no evidence. With `uniform` labels
    these are those of evidence, whose share `uniform` may be given.
    """
    if config.labels == "query":
        relevance = neighbours.scores(queries, documents, config.similarity, there)
    else:
        relevance = evidence(queries, documents, truth, there, config.similarity)
    return distribution(relevance, truth, there, config)


def evidence(
    queries: Tensor, documents: Tensor, truth: Tensor, there: Tensor, config: NeighboursConfig
) -> Tensor:  # fmt: skip
    """(B, N) mean similarity of each candidate to the ground truth: r'' of Algorithm 1, line 5."""
    products = neighbours.inner_products(queries, documents)
    elements = neighbours.present(products, there)
    connected = neighbours.connections(products, elements, config)
    count = truth.sum(-1, keepdim=True)
    first = (~truth).long().argsort(dim=-1, stable=True)  # where the ground truth stands, then the others
    relevance = products.new_zeros(truth.shape)
    for i in range(int(count.max())):
        found = neighbours.similarity(products, connected, 1 + first[:, i], elements, config)
        relevance = relevance + found.masked_fill(count <= i, 0)
    return relevance / count.clamp_min(1)


def distribution(relevance: Tensor, truth: Tensor, there: Tensor, config: SmoothingConfig) -> Tensor:
    """(B, N) the softmax over r' of Algorithm 1, line 6: similarities normalised, boosted and cut off.

    Of candidates that are equally similar those that stand first are kept.
    """
    kept = there
    if config.n_max is not None:
        order = relevance.masked_fill(~there, -math.inf).argsort(dim=-1, descending=True, stable=True)
        rank = order.argsort(-1)
        kept = there & (truth | (rank < config.n_max))
    over = there if config.order == "normalise first" else kept
    relevance = neighbours.normalised(relevance, over, config.normalise)
    relevance = relevance * (1 + (config.boost - 1) * truth)
    if config.least is not None:
        kept = kept & (truth | (relevance >= config.least))
    shares = relevance.masked_fill(~kept, -math.inf).softmax(-1)
    return shares.masked_fill(~(kept & truth.any(-1, keepdim=True)), 0)


def uniform(truth: Tensor, there: Tensor, epsilon: Tensor) -> Tensor:
    """(B, N) epsilon spread over the candidates that are no ground truth, the rest over those that are (Eq. 2).

    `epsilon` is (B,). A query without other candidates keeps it for the ground truth; one without ground truth has
    targets 0.
    """
    true, others = truth.sum(-1, keepdim=True), (there & ~truth).sum(-1, keepdim=True)
    epsilon = epsilon[:, None].masked_fill(others == 0, 0)
    shares = ((1 - epsilon) / true.clamp_min(1)).where(truth, epsilon / others.clamp_min(1))
    return shares.masked_fill(~there | (true == 0), 0)
