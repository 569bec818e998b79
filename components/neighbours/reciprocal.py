"""Similarity by reciprocal nearest neighbours within a ranking context (Zerveas et al., 2023, section 3.1 and Appendix
A.1).

The context of a query has M = N + 1 elements: the query, then its N candidates. Two elements are reciprocal neighbours
if each is among the nearest of the other; they are similar if they have the same neighbours. All of this is algebra on
the `(B, M, M)` inner products of a batch of B contexts. Shorter contexts are padded; `mask` is False at the padding.

The nearest elements are all that are at least as similar as the k-th (Eq. 3), so equal ones are taken together and the
order of the candidates changes nothing. An element always is its own neighbour, even if a longer vector has a larger
inner product with it, and does not count towards k (as in the paper's Figure 1 and the public code). Two elements
without common neighbours have similarity 0, also if they have no neighbours at all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from sparring.components.config import Config

if TYPE_CHECKING:  # configs are read without torch
    from torch import Tensor

Normalise = Literal["none", "max-min", "std"]
Weight = Literal["linear", "exp", "expm1"]


class NeighboursConfig(Config):
    """How similar two elements of a ranking context are.

    The defaults are the paper's definitions and its values for TAS-B on MS MARCO (Table 5), except for the mixture.
    The paper mixes inner products of about 100, as they are, with `mix: 0.451`. On vectors of another length those
    numbers do something else. So the defaults mix inner products in the range from 0 to 1, with the weight that was
    best on the dev queries of SQuAD and of the documentation. `geometric: none` with `mix: 0.451` is the paper's
    mixture.

    The public code has `extension: released` and `row_sums: one`, and if its weights are not linear, `weight: expm1`
    with `sharpness: 2.4`. It allows negative weights; here they are 0.
    """

    k: int = Field(21, ge=1)
    """Number of nearest neighbours of an element, itself not counted (Eq. 3)."""
    k_exp: int = Field(3, ge=1)
    """Local query expansion: an element's neighbour weights become the mean over its `k_exp` nearest elements, itself
    counted (Eq. 8). 1 switches it off."""
    tau: float = Field(0.0, ge=0, le=1)
    """Extension of the neighbour set (Eq. 5): where most of a neighbour's own tau k reciprocal neighbours are
    neighbours already, the rest of them become neighbours too. tau k is rounded; 0 switches it off."""
    mix: float = Field(0.7, ge=0, le=1)
    """Weight of the geometric similarity, the paper's lambda (Eq. 1): 1 uses the inner product alone, 0 the neighbours
    alone."""
    geometric: Normalise = "max-min"
    """How a query's inner products are normalised before they are mixed. `max-min`: from 0 to 1, the range of the
    Jaccard similarity (Eq. 13), so that `mix` means the same whatever the length of the vectors. `std`: from 0, in
    standard deviations (Eq. 14). `none`: not at all, as in the paper. Inner products of about 100 then leave only
    nearly equal candidates to the neighbours, and cosines leave them most of the order."""
    weight: Weight = "linear"
    """Weight of a neighbour with inner product s (Eq. 7). `linear`: s. `exp`: `e^(p s)`. `expm1`: `e^(p s) - 1`. With
    `linear` and `expm1` a neighbour with a negative inner product weighs 0."""
    sharpness: float = Field(1.0, gt=0)
    """p in the two exponential weights."""
    row_sums: Literal["free", "one"] = "free"
    """`one` divides an element's weights by their sum, as the public code does. Eq. 7 does not: `free`."""
    extension: Literal["paper", "released"] = "paper"
    """When a neighbour's own neighbours are taken in. `paper`: at least two thirds of its tau k nearest are neighbours
    already (Eq. 5). `released`: more than two thirds of its tau (k + 1) + 1 nearest are."""

    def extension_k(self) -> int:
        """Number of nearest elements that the extension looks at; 0 without an extension."""
        if self.tau == 0:
            return 0
        return round(self.tau * self.k) if self.extension == "paper" else round(self.tau * (self.k + 1)) + 1


def scores(queries: Tensor, documents: Tensor, config: NeighboursConfig, mask: Tensor | None = None) -> Tensor:
    """Return the similarity (B, N) of each query to its own candidates (Eq. 1), by which a retrieved list is reranked.

    `queries` are (B, d), `documents` (B, N, d). `mask` (B, N) is False at padding, which changes no other score and
    whose own scores are meaningless.

    The second and the third candidate are as near to the query, but only the second is a neighbour of the first:

    >>> import torch
    >>> query, documents = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 1.0], [0.5, 1.0], [0.5, -1.0]]])
    >>> scores(query, documents, NeighboursConfig(k=2, k_exp=1, mix=0.5))
    tensor([[0.7500, 0.2353, 0.1333]])
    """
    products = inner_products(queries, documents)
    mask = element_mask(products, mask)
    connected = connections(products, mask, config)
    return similarity(products, connected, mask.new_zeros(len(mask)).long(), mask, config)


def inner_products(queries: Tensor, documents: Tensor) -> Tensor:
    """Return the inner products (B, M, M) of all elements of each context, from query (B, d) and document vectors (B,
    N, d).

    >>> import torch
    >>> inner_products(torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 1.0], [0.0, 2.0]]]))
    tensor([[[1., 1., 0.],
             [1., 2., 2.],
             [0., 2., 4.]]])
    """
    import torch

    elements = torch.cat([queries[:, None], documents], 1)
    return elements @ elements.mT


def element_mask(products: Tensor, candidates: Tensor | None) -> Tensor:
    """Return False at padding (B, M), from the mask (B, N) of the candidates, or None if there is no padding.

    >>> import torch
    >>> element_mask(torch.zeros(1, 3, 3), torch.tensor([[True, False]]))
    tensor([[ True,  True, False]])
    """
    mask = products.new_ones(products.shape[:2]).bool()
    if candidates is not None:
        mask[:, 1:] = candidates
    return mask


ROUNDING = 1e-6
"""Products that differ by less than this share of an element's own are equal but for rounding, as those of copies."""


def connections(products: Tensor, mask: Tensor, config: NeighboursConfig) -> Tensor:
    """Return the weight (B, M, M) of every element in the neighbourhood of each element: the rows are v of Eq. 8.

    The first two elements are the nearest of each other; the third is nearest to no one:

    >>> import torch
    >>> products = inner_products(torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    >>> connections(products, element_mask(products, None), NeighboursConfig(k=1, k_exp=1))
    tensor([[[1., 1., 0.],
             [1., 1., 0.],
             [0., 0., 1.]]])
    """
    # An element's own column is infinite: it is its own nearest. Padding is farthest.
    reach = products.masked_fill(~mask[:, None], -math.inf)
    reach.diagonal(dim1=-2, dim2=-1).fill_(math.inf)
    farthest = products.shape[-1] - 1
    rounding = ROUNDING * products.diagonal(dim1=-2, dim2=-1)[..., None]
    best = reach.topk(min(max(config.k, config.extension_k(), config.k_exp - 1), farthest) + 1).values

    def nearest(count: int) -> Tensor:
        """Return (B, M, M) True where the column is the row itself or among its `count` nearest elements (Eq. 3).
        Elements as near as the last of these count too.
        """
        return (reach >= best[..., min(count, farthest), None] - rounding) & mask[:, None]

    neighbours = _mutual(nearest(config.k))
    if config.extension_k():
        neighbours = _extended(neighbours, _mutual(nearest(config.extension_k())), config)
    weights = _weights(products, neighbours, config)
    if config.k_exp == 1:
        return weights
    expansion = nearest(config.k_exp - 1).to(products.dtype)
    return expansion @ weights / expansion.sum(-1, keepdim=True)


def _mutual(nearest: Tensor) -> Tensor:
    """Reciprocal neighbours, R of Eq. 4."""
    return nearest & nearest.mT


def _extended(neighbours: Tensor, closest: Tensor, config: NeighboursConfig) -> Tensor:
    """R* of Eq. 5: the neighbours, and the closest ones of each neighbour most of whose closest are neighbours too."""
    counted = closest.float()
    # Counts are exact in float32, and so is comparing three times the one with twice the other.
    shared, size = 3 * (neighbours.float() @ counted), 2 * counted.sum(-1)[:, None]
    trusted = neighbours & (shared >= size if config.extension == "paper" else shared > size)
    return neighbours | (trusted.float() @ counted > 0)


def _weights(products: Tensor, neighbours: Tensor, config: NeighboursConfig) -> Tensor:
    """v' of Eq. 7, up to a factor that the whole context shares and that cancels in `jaccard`."""
    if config.weight == "linear":
        weights = products.clamp_min(0)
    else:
        power = config.sharpness * (products.clamp_min(0) if config.weight == "expm1" else products)
        # Divided by the largest weight, as inner products may be in the hundreds. If rows are divided by their sums, by
        # the row's own largest: otherwise all weights of a short vector would be 0 beside those of a long one.
        axes = (-1,) if config.row_sums == "one" else (-2, -1)
        weights = (power - power.masked_fill(~neighbours, -math.inf).amax(axes, keepdim=True)).exp()
        if config.weight == "expm1":
            weights = weights * -(-power).expm1()  # e^x - 1 = e^x (1 - e^-x)
    weights = weights.masked_fill(~neighbours, 0)
    return _ratio(weights, weights.sum(-1, keepdim=True)) if config.row_sums == "one" else weights


def jaccard(weights: Tensor, probe: Tensor) -> Tensor:
    """Return the Jaccard similarity (B, M) of each element's neighbourhood to the probe's (Eq. 9 to 11).

    `weights` (B, M, M) come from `connections`. `probe` (B,) is the index of an element of each context.

    >>> import torch
    >>> jaccard(torch.tensor([[[2.0, 1.0], [1.0, 1.0]]]), torch.tensor([0]))
    tensor([[1.0000, 0.6667]])
    """
    neighbourhood = weights.take_along_dim(probe[:, None, None], 1)
    total = weights.sum(-1)
    shared = neighbourhood.minimum(weights).sum(-1)
    return _ratio(shared, neighbourhood.sum(-1) + total - shared)  # max(a, b) = a + b - min(a, b)


def similarity(products: Tensor, weights: Tensor, probe: Tensor, mask: Tensor, config: NeighboursConfig) -> Tensor:
    """Return the similarity (B, N) of each candidate to the probe: the mixture of inner product and neighbours (Eq. 1).

    `weights` (B, M, M) are those of `connections`, `probe` (B,) the index of an element of each context, which is the
    query if 0.

    >>> import torch
    >>> products, weights = torch.tensor([[[1.0, 0.25], [0.25, 1.0]]]), torch.tensor([[[1.0, 1.0], [0.0, 1.0]]])
    >>> mask, query = torch.tensor([[True, True]]), torch.tensor([0])
    >>> similarity(products, weights, query, mask, NeighboursConfig(mix=1.0, geometric="none")).item()
    0.25
    >>> similarity(products, weights, query, mask, NeighboursConfig(mix=0.0)).item()  # the Jaccard similarity
    0.5
    """
    geometric = normalised(products.take_along_dim(probe[:, None, None], 1)[:, 0, 1:], mask[:, 1:], config.geometric)
    return config.mix * geometric + (1 - config.mix) * jaccard(weights, probe)[:, 1:]


def normalised(values: Tensor, mask: Tensor, method: Normalise) -> Tensor:
    """Bring each row's values (B, N) into one range: Eq. 13 for `max-min`, Eq. 14 for `std`.

    Both map the smallest value to 0. A row of equal values becomes 0, and so does padding, where `mask` is False.

    >>> import torch
    >>> normalised(torch.tensor([[3.0, 1.0, 2.0, 9.0]]), torch.tensor([[True, True, True, False]]), "max-min")
    tensor([[1.0000, 0.0000, 0.5000, 0.0000]])
    """
    if method == "none":
        return values.masked_fill(~mask, 0)
    lowest = values.masked_fill(~mask, math.inf).amin(-1, keepdim=True)
    above = (values - lowest).masked_fill(~mask, 0)
    if method == "max-min":
        return _ratio(above, above.amax(-1, keepdim=True))
    count = mask.sum(-1, keepdim=True).clamp_min(1)
    deviations = (above - above.sum(-1, keepdim=True) / count).masked_fill(~mask, 0)
    return _ratio(above, (deviations.square().sum(-1, keepdim=True) / count).sqrt())


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    """Return the quotient, or 0 where `whole` is 0."""
    return (part / whole).masked_fill(whole <= 0, 0)


def contexts_per_batch(candidates: int, device: str = "cpu") -> int:
    """Size of the fastest batch of contexts with so many candidates: it fits a processor's cache, or fills a GPU.

    >>> contexts_per_batch(100), contexts_per_batch(1000)
    (25, 1)
    """
    return max(1, (2**18 if device == "cpu" else 2**26) // (candidates + 1) ** 2)
