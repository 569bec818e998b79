"""Similarity by reciprocal nearest neighbours within a ranking context (paper 003, section 3.1 and Appendix A.1).

The context of a query is what was retrieved for it: M = N + 1 elements, first the query, then its N candidates. Two
elements are neighbours where each is among the nearest of the other, and they are similar where their neighbours are
the same. All of it is algebra over `(B, M, M)` inner products of B queries at once. `there` says which of the elements
a context has, where contexts of several lengths are one array.

Nearest are all elements at least as similar as the k-th (Eq. 3): among equals nothing is decided by order, so the
order of the candidates changes nothing. An element is always its own neighbour, however much more similar to it a
longer vector is, and is not counted in k (the paper's Figure 1 counts so, and the public code). Two elements that share
nothing have similarity 0, be they without any connection.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from components.config import Config

if TYPE_CHECKING:  # configs are read without torch
    from torch import Tensor

Normalise = Literal["none", "max-min", "std"]
Weight = Literal["linear", "exp", "expm1"]


class NeighboursConfig(Config):
    """Similarity of elements of a ranking context.

    The defaults are the paper's definitions, with its numbers for TAS-B on MS MARCO (Table 5). The public code is
    `extension: released`, `row_sums: one` and, where it does not take linear weights, `weight: expm1` with
    `sharpness: 2.4`; it lets weights be negative, which here are 0.
    """

    k: int = Field(21, ge=1)
    """Nearest neighbours of an element, not counting itself (Eq. 3)."""
    k_exp: int = Field(3, ge=1)
    """Nearest elements, counting itself, whose connections an element's are the mean of (Eq. 8); 1 leaves them."""
    tau: float = Field(0.0, ge=0, le=1)
    """Share of k to which the neighbours of a neighbour are looked at, to take in all of them where most are neighbours
    already (Eq. 5); 0 takes in none. tau k is rounded."""
    mix: float = Field(0.451, ge=0, le=1)
    """Share of the geometric similarity, the paper's lambda (Eq. 1): 1 is the inner product alone, 0 neighbours
    alone."""
    geometric: Normalise = "none"
    """How the inner products with all candidates are brought into one range before they are mixed. `none` as in the
    paper: where they are about 100, neighbours only decide among those that are nearly equal. `max-min` from 0 to 1,
    as the other share is; `std` from 0 in standard deviations (Eq. 13, 14)."""
    weight: Weight = "linear"
    """Of a neighbour, by its inner product s (Eq. 7): s itself; `e^(p s)`; `e^(p s) - 1`. Negative ones are 0: what
    points away from an element is no neighbour of it."""
    sharpness: float = Field(1.0, gt=0)
    """p in the two exponential weights."""
    row_sums: Literal["free", "one"] = "free"
    """Whether an element's weights are divided by their sum, as the public code does and Eq. 7 does not."""
    extension: Literal["paper", "released"] = "paper"
    """`paper`: of tau k nearest, where at least two thirds are neighbours already (Eq. 5). `released`: of
    tau (k + 1) + 1, where more than two thirds are."""

    def nearer(self) -> int:
        """How many nearest are looked at for an extension."""
        if self.tau == 0:
            return 0
        return round(self.tau * self.k) if self.extension == "paper" else round(self.tau * (self.k + 1)) + 1


def scores(queries: Tensor, documents: Tensor, config: NeighboursConfig, there: Tensor | None = None) -> Tensor:
    """(B, N) similarity of each query to its own candidates (Eq. 1), by which a retrieved list is reranked.

    `queries` are (B, d), `documents` (B, N, d). Where lists are of several lengths, `there` (B, N) says which are
    candidates; what stands in the place of the others changes nothing, and their scores mean nothing.
    """
    products = inner_products(queries, documents)
    there = present(products, there)
    connected = connections(products, there, config)
    return similarity(products, connected, there.new_zeros(len(there)).long(), there, config)


def inner_products(queries: Tensor, documents: Tensor) -> Tensor:
    """(B, M, M) inner products of all elements of each context, from (B, d) and (B, N, d) vectors."""
    import torch

    elements = torch.cat([queries[:, None], documents], 1)
    return elements @ elements.mT


def present(products: Tensor, there: Tensor | None) -> Tensor:
    """(B, M) which elements a context has, from which of its candidates are there; None for all of them."""
    elements = products.new_ones(products.shape[:2]).bool()
    if there is not None:
        elements[:, 1:] = there
    return elements


def connections(products: Tensor, there: Tensor, config: NeighboursConfig) -> Tensor:
    """(B, M, M) of each element how much it is connected to every other: v of Eq. 8."""
    # An element's own column is infinite: it is its own nearest. Those that are not there are the farthest.
    reach = products.masked_fill(~there[:, None], -math.inf)
    reach.diagonal(dim1=-2, dim2=-1).fill_(math.inf)
    farthest = products.shape[-1] - 1
    best = reach.topk(min(max(config.k, config.nearer(), config.k_exp - 1), farthest) + 1).values

    def nearest(count: int) -> Tensor:
        """(B, M, M) whether a column is among the so many nearest of a row, or is the row itself (Eq. 3)."""
        return (reach >= best[..., min(count, farthest), None]) & there[:, None]

    neighbours = _mutual(nearest(config.k))
    if config.nearer():
        neighbours = _extended(neighbours, _mutual(nearest(config.nearer())), config)
    connected = _weights(products, neighbours, config)
    if config.k_exp == 1:
        return connected
    mixed = nearest(config.k_exp - 1).to(products.dtype)
    return mixed @ connected / mixed.sum(-1, keepdim=True)


def _mutual(nearest: Tensor) -> Tensor:
    """R of Eq. 4: near in both directions."""
    return nearest & nearest.mT


def _extended(neighbours: Tensor, nearer: Tensor, config: NeighboursConfig) -> Tensor:
    """R* of Eq. 5: with all near neighbours of those neighbours whose near neighbours are neighbours already."""
    few = nearer.float()
    # In float32 the counts are exact; three times the one against twice the other, so the comparison is too.
    shared, size = 3 * (neighbours.float() @ few), 2 * few.sum(-1)[:, None]
    trusted = neighbours & (shared >= size if config.extension == "paper" else shared > size)
    return neighbours | (trusted.float() @ few > 0)


def _weights(products: Tensor, neighbours: Tensor, config: NeighboursConfig) -> Tensor:
    """v' of Eq. 7, up to a factor of the whole context, which no comparison of sums depends on."""
    if config.weight == "linear":
        weights = products.clamp_min(0)
    else:
        power = config.sharpness * (products.clamp_min(0) if config.weight == "expm1" else products)
        # Divided by the largest: inner products may be in the hundreds. If each row is divided by its sum, by the
        # row's own, or the weights of short vectors would all be 0 beside those of long ones.
        axes = (-1,) if config.row_sums == "one" else (-2, -1)
        weights = (power - power.masked_fill(~neighbours, -math.inf).amax(axes, keepdim=True)).exp()
        if config.weight == "expm1":
            weights = weights * -(-power).expm1()  # e^x - 1 = e^x (1 - e^-x)
    weights = weights.masked_fill(~neighbours, 0)
    return _ratio(weights, weights.sum(-1, keepdim=True)) if config.row_sums == "one" else weights


def jaccard(connected: Tensor, probe: Tensor) -> Tensor:
    """(B, M) how far each element's connections are those of the probe (Eq. 9 to 11), `probe` (B,) its place."""
    own = connected.take_along_dim(probe[:, None, None], 1)
    total = connected.sum(-1)
    shared = own.minimum(connected).sum(-1)
    # A maximum and a minimum of two numbers have the sum of the two.
    return _ratio(shared, own.sum(-1) + total - shared)


def similarity(
    products: Tensor, connected: Tensor, probe: Tensor, there: Tensor, config: NeighboursConfig
) -> Tensor:  # fmt: skip
    """(B, N) similarity of each candidate to the probe, the mixture of Eq. 1; `probe` (B,) is its place."""
    geometric = normalised(products.take_along_dim(probe[:, None, None], 1)[:, 0, 1:], there[:, 1:], config.geometric)
    return config.mix * geometric + (1 - config.mix) * jaccard(connected, probe)[:, 1:]


def normalised(values: Tensor, there: Tensor, how: Normalise) -> Tensor:
    """(B, N) each row's values in one range: Eq. 13 for `max-min`, Eq. 14 for `std`; all 0 where they are all equal.

    Both take the smallest for 0. What is not there counts for nothing and is 0.
    """
    if how == "none":
        return values.masked_fill(~there, 0)
    lowest = values.masked_fill(~there, math.inf).amin(-1, keepdim=True)
    above = (values - lowest).masked_fill(~there, 0)
    if how == "max-min":
        return _ratio(above, above.amax(-1, keepdim=True))
    count = there.sum(-1, keepdim=True).clamp_min(1)
    off = (above - above.sum(-1, keepdim=True) / count).masked_fill(~there, 0)
    return _ratio(above, (off.square().sum(-1, keepdim=True) / count).sqrt())


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Their quotient, 0 where the whole is 0."""
    return (part / whole).masked_fill(whole <= 0, 0)


def at_once(candidates: int, device: str = "cpu") -> int:
    """Contexts of so many candidates that are best worked on together: what fits a cache, or fills a GPU."""
    return max(1, (2**18 if device == "cpu" else 2**26) // (candidates + 1) ** 2)
