"""Soft labels for a query's candidates: evidence-based label smoothing, and the alternatives in its paper.

The ground truth are the documents that are judged relevant. A candidate that is similar to them is likely to be
relevant too, even if it was not judged. It therefore gets a share of the target distribution that grows with its
similarity (Zerveas et al., 2023, section 3.2, Algorithm 1).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config
from sparring.components.neighbours import reciprocal
from sparring.components.neighbours.reciprocal import NeighboursConfig, Normalise

if TYPE_CHECKING:  # configs are read without torch
    from torch import Tensor


class SmoothingConfig(Config):
    """Settings for turning similarities to the ground truth into a target distribution.

    The defaults are the paper's for TAS-B, in the order of Algorithm 1.

    The public code has `order: truncate first` and `least: 0.1`, and the paper's `boost` and `n_max` were tuned with
    these. They give the ground truth about twice the share. The public code also drops candidates with a similarity
    below 0.1 at the start. Its limits may drop ground truth, which here always has a share.
    """

    labels: Literal["evidence", "query", "uniform"] = "evidence"
    """Rule for the shares. `evidence`: by similarity to the ground truth (Algorithm 1). The other two are for
    comparison. `query`: by similarity to the query, a self-distillation that makes a retriever worse (Figure 2).
    `uniform`: the same share for each candidate that is not ground truth (Eq. 2)."""
    similarity: NeighboursConfig = NeighboursConfig()
    """Similarity of two elements of the context, which contains the query and its candidates."""
    normalise: Normalise = "max-min"
    """f_n, the normalisation of a query's similarities: `max-min` (Eq. 13), `std` (Eq. 14) or `none`."""
    boost: float = Field(1.222, gt=0)
    """b, the factor of the ground truth's normalised similarities."""
    n_max: int | None = Field(4, ge=1)
    """Number of most similar candidates that have a share. null means all. The ground truth always has a share."""
    order: Literal["normalise first", "truncate first"] = "normalise first"
    """Order of the two operations. `normalise first`: similarities are normalised over all candidates (Algorithm 1).
    `truncate first`: over the `n_max` candidates alone, as in the public code. The last of these then has similarity
    0."""
    least: float | None = None
    """Smallest final similarity of a candidate with a share. null means no limit. With the 0.1 and the `truncate first`
    of the public code, the last of the `n_max` candidates never has a share."""
    epsilon: float | None = Field(None, ge=0, lt=1)
    """Share that `uniform` divides among the candidates that are not ground truth. null means their share under
    `evidence` with the same settings, which differs between queries."""

    @model_validator(mode="after")
    def _spreads(self) -> Self:
        if self.epsilon is not None and self.labels != "uniform":
            raise ValueError(
                f"epsilon: got {self.epsilon}, but `labels: {self.labels}` does not use it. "
                "Use null, or `labels: uniform`."
            )
        return self


def targets(queries: Tensor, documents: Tensor, truth: Tensor, mask: Tensor, config: SmoothingConfig) -> Tensor:
    """Return the target distribution (B, N) over each query's candidates.

    `queries` are (B, d), `documents` (B, N, d). `truth` (B, N) is True at ground truth, and `mask` (B, N) is False at
    padding. A query without ground truth has targets 0. For `labels: uniform` these are the targets of `evidence`,
    because `uniform` may take its epsilon from them.

    The first candidate is judged relevant. The second is similar to it and gets a larger share than the third:

    >>> import torch
    >>> query, documents = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]])
    >>> truth, mask = torch.tensor([[True, False, False]]), torch.tensor([[True, True, True]])
    >>> targets(query, documents, truth, mask, SmoothingConfig())
    tensor([[0.5096, 0.3403, 0.1501]])
    """
    if config.labels == "query":
        relevance = reciprocal.scores(queries, documents, config.similarity, mask)
    else:
        relevance = evidence(queries, documents, truth, mask, config.similarity)
    return distribution(relevance, truth, mask, config)


def evidence(queries: Tensor, documents: Tensor, truth: Tensor, mask: Tensor, config: NeighboursConfig) -> Tensor:
    """Return the mean similarity (B, N) of each candidate to the ground truth, r'' in line 5 of Algorithm 1.

    >>> import torch
    >>> query, documents = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]])
    >>> truth, mask = torch.tensor([[True, False, False]]), torch.tensor([[True, True, True]])
    >>> evidence(query, documents, truth, mask, NeighboursConfig(mix=1.0, geometric="none"))
    tensor([[1.0000, 0.8000, 0.0000]])
    """
    products = reciprocal.inner_products(queries, documents)
    elements = reciprocal.element_mask(products, mask)
    weights = reciprocal.connections(products, elements, config)
    count = truth.sum(-1, keepdim=True)
    truth_first = (~truth).long().argsort(dim=-1, stable=True)  # candidates, the ground truth before all others
    relevance = products.new_zeros(truth.shape)
    for i in range(int(count.max()) if len(count) else 0):
        similarity = reciprocal.similarity(products, weights, 1 + truth_first[:, i], elements, config)
        relevance = relevance + similarity.masked_fill(count <= i, 0)
    return relevance / count.clamp_min(1)


def distribution(relevance: Tensor, truth: Tensor, mask: Tensor, config: SmoothingConfig) -> Tensor:
    """Return the softmax (B, N) over r' in line 6 of Algorithm 1: normalised, boosted and truncated similarities.

    If candidates are equally similar, `n_max` keeps the first ones.

    >>> import torch
    >>> truth, mask = torch.tensor([[True, False, False]]), torch.tensor([[True, True, True]])
    >>> distribution(torch.tensor([[1.0, 0.5, 0.0]]), truth, mask, SmoothingConfig(n_max=2))
    tensor([[0.6730, 0.3270, 0.0000]])
    """
    kept = mask
    if config.n_max is not None:
        order = relevance.masked_fill(~mask, -math.inf).argsort(dim=-1, descending=True, stable=True)
        rank = order.argsort(-1)
        kept = mask & (truth | (rank < config.n_max))
    over = mask if config.order == "normalise first" else kept
    relevance = reciprocal.normalised(relevance, over, config.normalise)
    relevance = relevance * (1 + (config.boost - 1) * truth)
    if config.least is not None:
        kept = kept & (truth | (relevance >= config.least))
    shares = relevance.masked_fill(~kept, -math.inf).softmax(-1)
    return shares.masked_fill(~(kept & truth.any(-1, keepdim=True)), 0)


def uniform(truth: Tensor, mask: Tensor, epsilon: Tensor) -> Tensor:
    """Return targets (B, N) of Eq. 2.

    `epsilon` (B,) is divided among the candidates that are not ground truth, and the rest among the ground truth. If
    all candidates are ground truth, the targets do not depend on epsilon. Without ground truth, all targets are 0.

    >>> import torch
    >>> truth, mask = torch.tensor([[True, False, False]]), torch.tensor([[True, True, True]])
    >>> uniform(truth, mask, torch.tensor([0.5]))
    tensor([[0.5000, 0.2500, 0.2500]])
    """
    true, remaining = truth.sum(-1, keepdim=True), (mask & ~truth).sum(-1, keepdim=True)
    epsilon = epsilon[:, None].masked_fill(remaining == 0, 0)
    shares = ((1 - epsilon) / true.clamp_min(1)).where(truth, epsilon / remaining.clamp_min(1))
    return shares.masked_fill(~mask | (true == 0), 0)
