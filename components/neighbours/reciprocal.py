"""Similarity by reciprocal nearest neighbours within a ranking context.

The method is from Zerveas et al. (2023), section 3.1 and Appendix A.1. The context of a query has M = N + 1 elements:
the query, then its N candidates. Two elements are reciprocal neighbours if each is among the nearest of the other. They
are similar if they have the same neighbours. All of this is algebra on the `(B, M, M)` inner products of a batch of B
contexts. Shorter contexts are padded, and `mask` is False at the padding.

The nearest elements are all that are at least as similar as the k-th (Eq. 3). Equally similar elements are therefore
treated alike, and the order of the candidates does not matter. An element always is its own neighbour, even if a longer
vector has a larger inner product with it, and does not count towards k (as in the paper's Figure 1 and the public
code). Two elements without common neighbours have similarity 0, even if they have no neighbours at all.
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
    """Similarity of two elements of a ranking context.

    The defaults are the paper's definitions and its values for TAS-B on MS MARCO (Table 5), except for the mixture. The
    paper mixes inner products of about 100 without normalising them, with `mix: 0.451`. The effect of that weight
    depends on the length of the vectors. Therefore the defaults normalise inner products to the range from 0 to 1, with
    the best weight on the dev queries of SQuAD and of the documentation. The paper's mixture is `geometric: none` with
    `mix: 0.451`.

    The public code has `extension: released` and `row_sums: one`. If its weights are not linear, it has `weight: expm1`
    with `sharpness: 2.4`. It allows negative weights, which are 0 here.
    """

    k: int = Field(21, ge=1)
    """Number of nearest neighbours of an element, not counting itself (Eq. 3)."""
    k_exp: int = Field(3, ge=1)
    """Number of nearest elements, including itself, whose neighbour weights are averaged for an element: local query
    expansion (Eq. 8). 1 switches it off."""
    tau: float = Field(0.0, ge=0, le=1)
    """Factor of `k` for the extension of the neighbour set (Eq. 5): if most of a neighbour's own tau k reciprocal
    neighbours already are neighbours, the rest of them become neighbours too. tau k is rounded. 0 switches it off."""
    mix: float = Field(0.7, ge=0, le=1)
    """Weight of the geometric similarity, lambda in the paper (Eq. 1). 1 means the inner product alone, 0 the
    neighbours alone."""
    geometric: Normalise = "max-min"
    """Normalisation of a query's inner products before they are mixed. `max-min`: from 0 to 1, the range of the Jaccard
    similarity (Eq. 13), so that `mix` means the same for vectors of any length. `std`: from 0, in standard deviations
    (Eq. 14). `none`: not normalised, as in the paper. With `none`, inner products of about 100 let the neighbours
    decide between nearly equal candidates only, and cosines let them decide most of the order."""
    weight: Weight = "linear"
    """Weight of a neighbour with inner product s (Eq. 7). `linear`: s. `exp`: `e^(p s)`. `expm1`: `e^(p s) - 1`. With
    `linear` and `expm1`, a neighbour with a negative inner product has weight 0."""
    sharpness: float = Field(1.0, gt=0)
    """The factor p in the two exponential weights."""
    row_sums: Literal["free", "one"] = "free"
    """Sum of an element's weights. `one`: they are divided by their sum, as in the public code. `free`: they are not
    divided, as in Eq. 7."""
    extension: Literal["paper", "released"] = "paper"
    """Condition for adding a neighbour's own neighbours. `paper`: at least two thirds of its tau k nearest already are
    neighbours (Eq. 5). `released`: more than two thirds of its tau (k + 1) + 1 nearest are."""

    def extension_k(self) -> int:
        """Return the number of nearest elements for the extension of the neighbour set, or 0 without an extension."""
        if self.tau == 0:
            return 0
        return round(self.tau * self.k) if self.extension == "paper" else round(self.tau * (self.k + 1)) + 1


def scores(queries: Tensor, documents: Tensor, config: NeighboursConfig, mask: Tensor | None = None) -> Tensor:
    """Return the similarity (B, N) of each query to its own candidates (Eq. 1), for reranking.

    `queries` are (B, d), `documents` (B, N, d). `mask` (B, N) is False at padding. Padding has meaningless scores and
    does not change other scores.

    The second and the third candidate are equally similar to the query, but only the second is a neighbour of the
    first:

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
    """Return the inner products (B, M, M) of all elements of each context.

    `queries` are (B, d), `documents` (B, N, d).

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
    """Return the mask (B, M) of all elements, which is False at padding.

    `candidates` is the mask (B, N) of the candidates, or None if there is no padding.

    >>> import torch
    >>> element_mask(torch.zeros(1, 3, 3), torch.tensor([[True, False]]))
    tensor([[ True,  True, False]])
    """
    mask = products.new_ones(products.shape[:2]).bool()
    if candidates is not None:
        mask[:, 1:] = candidates
    return mask


ROUNDING = 1e-6
"""Share of an element's product with itself. Products that differ by less are taken as equal except for rounding."""


def connections(products: Tensor, mask: Tensor, config: NeighboursConfig) -> Tensor:
    """Return the weight (B, M, M) of every element in the neighbourhood of each element. Rows are v of Eq. 8.

    The first two elements are the nearest of each other. The third is nearest to neither:

    >>> import torch
    >>> products = inner_products(torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
    >>> connections(products, element_mask(products, None), NeighboursConfig(k=1, k_exp=1))
    tensor([[[1., 1., 0.],
             [1., 1., 0.],
             [0., 0., 1.]]])
    """
    # An element is its own nearest, and padding is farthest.
    reach = products.masked_fill(~mask[:, None], -math.inf)
    reach.diagonal(dim1=-2, dim2=-1).fill_(math.inf)
    farthest = products.shape[-1] - 1
    rounding = ROUNDING * products.diagonal(dim1=-2, dim2=-1)[..., None]
    best = reach.topk(min(max(config.k, config.extension_k(), config.k_exp - 1), farthest) + 1).values

    def nearest(count: int) -> Tensor:
        """Return True (B, M, M) if a column is the row itself or among its `count` nearest elements (Eq. 3).

        Elements that are as near as the last of these count too.
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
    """Return the reciprocal neighbours, R of Eq. 4."""
    return nearest & nearest.mT


def _extended(neighbours: Tensor, closest: Tensor, config: NeighboursConfig) -> Tensor:
    """Return R* of Eq. 5: the neighbours, and the closest of each neighbour if most of them are neighbours already."""
    counted = closest.float()
    # Counts are exact in float32, and so is a comparison of integers instead of shares.
    shared, size = 3 * (neighbours.float() @ counted), 2 * counted.sum(-1)[:, None]
    trusted = neighbours & (shared >= size if config.extension == "paper" else shared > size)
    return neighbours | (trusted.float() @ counted > 0)


def _weights(products: Tensor, neighbours: Tensor, config: NeighboursConfig) -> Tensor:
    """Return v' of Eq. 7, up to a common factor of the whole context, which `jaccard` cancels."""
    if config.weight == "linear":
        weights = products.clamp_min(0)
    else:
        power = config.sharpness * (products.clamp_min(0) if config.weight == "expm1" else products)
        # Divide by the largest weight, as inner products may be in the hundreds. If each row is divided by its sum, use
        # the row's largest weight. With the context's, all weights of a short vector could become 0.
        axes = (-1,) if config.row_sums == "one" else (-2, -1)
        weights = (power - power.masked_fill(~neighbours, -math.inf).amax(axes, keepdim=True)).exp()
        if config.weight == "expm1":
            weights = weights * -(-power).expm1()  # e^x - 1 = e^x (1 - e^-x)
    weights = weights.masked_fill(~neighbours, 0)
    return _ratio(weights, weights.sum(-1, keepdim=True)) if config.row_sums == "one" else weights


def jaccard(weights: Tensor, probe: Tensor) -> Tensor:
    """Return the Jaccard similarity (B, M) of each element's neighbourhood to the probe's (Eq. 9 to 11).

    `weights` (B, M, M) are those of `connections`. `probe` (B,) is the index of an element in each context.

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

    `weights` (B, M, M) are those of `connections`. `probe` (B,) is the index of an element in each context. 0 is the
    query.

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
    """Normalise each row's values (B, N): Eq. 13 for `max-min`, Eq. 14 for `std`.

    Both make the smallest value 0. A row of equal values becomes 0, and so does padding, where `mask` is False.

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
    """Return part / whole, or 0 if `whole` is 0."""
    return (part / whole).masked_fill(whole <= 0, 0)


def contexts_per_batch(candidates: int, device: str = "cpu") -> int:
    """Return the fastest batch size for contexts with so many candidates: it fits a processor's cache, or fills a GPU.

    >>> contexts_per_batch(100), contexts_per_batch(1000)
    (25, 1)
    """
    return max(1, (2**18 if device == "cpu" else 2**26) // (candidates + 1) ** 2)
