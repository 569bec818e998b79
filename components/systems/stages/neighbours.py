"""Reranking by reciprocal nearest neighbours, as a stage."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from sparring.components.neighbours.reciprocal import ROUNDING
from sparring.components.neighbours.reranking import NeighboursRerankConfig
from sparring.components.systems.searching import LaterStage, Search

NEIGHBOURS = """\
import numpy as np
vector, index, rows = kept["OF"]
# Two elements, the query or one of its first documents, are neighbours if each is among the other's k nearest.
ranked = list(scores["OF"])
first = index.reconstruct_batch(np.array([rows[id] for id in ranked[: stage["context"]]], "int64"))
elements = np.stack([vector[0], *first])
reach = np.where(np.eye(len(elements)), np.inf, products := elements @ elements.T)
rounding = ROUNDING * products.diagonal()[:, None]
nearest = lambda count: reach >= np.sort(reach)[:, [-min(count + 1, len(reach))]] - rounding
weights = np.where(nearest(stage["k"]) & nearest(stage["k"]).T, products.clip(0), 0)

# Each gets the mean weights of its nearest. A document is similar to the query if they have the same neighbours.
weights = nearest(stage["k_exp"] - 1) @ weights / nearest(stage["k_exp"] - 1).sum(1, keepdims=True)
shared, total = np.minimum(weights[0], weights).sum(1), weights.sum(1)
alike, own = shared / np.maximum(total[0] + total - shared, 1e-30), products[0, 1:]
IN_RANGE\
similar = stage["mix"] * own + (1 - stage["mix"]) * alike[1:]

# Sums differ in their last bits, so documents with the same vector get the similarity of the first.
copies = {}
similar = [-copies.setdefault(vector.tobytes(), one) for vector, one in zip(elements[1:], similar)]
first = {id: -one for one, id in sorted(zip(similar, ranked))}
scores["NAME"] = first | {id: min(first.values()) - n for n, id in enumerate(ranked[len(first):], 1)}
"""
IN_RANGE = """\
own = (own - min(own, default=0)) / (max(own, default=0) - min(own, default=0) or 1)  # from 0 to 1
"""


class NeighboursStage(NeighboursRerankConfig, LaterStage):
    """Reranking of a dense stage's first documents by reciprocal nearest neighbours, as far as `example.py` does it.
    The remaining documents follow in their old order."""

    kind: Literal["neighbours"] = "neighbours"
    of: str
    """Name of the dense stage."""
    tau: float = Field(0.0, ge=0, le=0)
    """No extension of the neighbour set."""
    geometric: Literal["max-min", "none"] = "max-min"
    """Scale inner products to the range from 0 to 1, or mix them as they are."""
    weight: Literal["linear"] = "linear"
    """A neighbour's weight is its inner product."""
    row_sums: Literal["free"] = "free"
    """Weights are not divided by their sum."""

    @property
    def depth_read(self) -> int:
        return self.context

    needs: ClassVar[Literal["vectors", "words"] | None] = "vectors"

    def rank(self, name: str, search: Search) -> None:
        """Rerank by the vectors of the queries and of their first documents."""
        with search.seconds.of("search"):
            retriever, queries = search.parts[self.of], search.vectors[self.of]
            lists = zip(queries, search.rankings[self.of], strict=True)
            search.add(name, [retriever.by_neighbours(vector, ranking, self) for vector, ranking in lists])

    def sentence(self, name: str) -> str:
        """Name the numbers."""
        return (
            f"`{name}`: the first {self.context} documents of `{self.of}` are reranked by reciprocal nearest "
            f"neighbours among them (k {self.k}; the inner product weighs {self.mix:g})."
        )

    def lines(self, system: Any, name: str) -> str:
        """Rerank by the vectors that the first stage keeps."""
        in_range = IN_RANGE if self.geometric == "max-min" else ""
        return NEIGHBOURS.replace("ROUNDING", str(ROUNDING)).replace("IN_RANGE", in_range).replace("OF", self.of)


Stage = NeighboursStage
