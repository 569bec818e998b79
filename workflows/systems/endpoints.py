"""Systems whose models answer at an address. They are measured like others, and cannot be deployed from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparring.components.config import UserError
from sparring.components.models.endpoints import Endpoint, Price
from sparring.components.retrieval.stage import StageConfig
from sparring.workflows.steps.encode import EncodeConfig
from sparring.workflows.steps.endpoints import (
    embed_documents_at,
    embed_queries_at,
    order_at,
    rerank_at,
    score_groups_at,
)
from sparring.workflows.steps.score import ScoreConfig
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.dense import ranked_by_vectors
from sparring.workflows.systems.reranked import Reranking
from sparring.workflows.systems.system import Charge, Cost, Names, System, TimeSpent, parts_of

if TYPE_CHECKING:
    from sparring.workflows.store.store import Store
    from sparring.workflows.systems.rows import Row

ANSWERED = "seconds"
"""Key of the summary with the seconds until the answers came, each request by itself."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Remote(System):
    """A system with a model at an address."""

    endpoint: Endpoint
    price: Price | None

    def check(self) -> None:
        """Raise UserError: the model is not here."""
        raise UserError(
            f"its ranking comes from {self.endpoint.url}, whose model is not here; accepted: systems whose models are "
            "files"
        )

    def describe(self, name: str, store: Store, names: Names) -> StageConfig:
        """Raise UserError: the model is not here."""
        self.check()
        raise AssertionError

    def charges(self, answered: Step) -> tuple[Charge, ...]:
        """Return what the answers of a step cost, if there is a price."""
        return () if self.price is None else (Charge(answered, self.price),)


@dataclass(frozen=True, eq=False)
class RemoteDense(Remote):
    """An embedder at an address, with the documents' vectors, which are searched exactly."""

    label: str
    """Beginning of its steps' labels."""
    data: Step
    k: int
    """Number of documents retrieved for a query."""
    encode: EncodeConfig
    query_prompt: str = ""
    document_prompt: str = ""

    expense = 2

    @property
    def vectors(self) -> Step:
        """The documents' vectors."""
        return step(
            f"{self.label} vectors",
            embed_documents_at,
            data=self.data,
            endpoint=self.endpoint,
            prompt=self.document_prompt,
            shard=self.encode.shard,
            dtype=self.encode.vectors,
        )

    def queries(self, split: str) -> Step:
        """The vectors of a split's queries."""
        return step(
            f"{self.label} queries ({split})",
            embed_queries_at,
            data=self.data,
            split=split,
            endpoint=self.endpoint,
            prompt=self.query_prompt,
            dtype=self.encode.vectors,
        )

    def ranking(self, split: str) -> Step:
        """Rank the documents for a split's queries."""
        queries = self.queries(split)
        return ranked_by_vectors(self.label, split, data=self.data, vectors=self.vectors, queries=queries, k=self.k)

    def cost(self, split: str) -> Cost:
        """The vectors, the queries' vectors, and the search."""
        queries = self.queries(split)
        return Cost(
            index=(self.vectors,),
            retrieve=(TimeSpent(queries, seconds=ANSWERED), TimeSpent(self.ranking(split))),
            charges=self.charges(queries),
        )


@dataclass(frozen=True, eq=False)
class RemoteReranked(Remote, Reranking):
    """A reranker at an address, which reorders the first documents of a system's rankings."""

    by_prompt: bool = False
    """True if a language model at the address is asked for an order. It cannot teach then."""

    def reranked(self, split: str) -> Step:
        """Rank a split's queries by the scores or the order from the address alone."""
        inputs: dict[str, Any] = {
            "data": self.data,
            "ranking": self.over.ranking(split),
            "split": split,
            "endpoint": self.endpoint,
            "depth": self.depth.depth,
            "queries": self.depth.queries,
        }
        label = f"{self.label} ({split})"
        if self.by_prompt:
            return step(label, order_at, **inputs)
        return step(label, rerank_at, **inputs, before=[reranking.reranked(split) for reranking in self.before])

    def judged(self, label: str, groups: Step, config: ScoreConfig, before: Sequence[Step]) -> Step:
        """Return the step that adds the scores at the address alone to groups. Pairs that a step of `before` has scored
        are not asked again."""
        return step(label, score_groups_at, data=self.data, groups=groups, endpoint=self.endpoint, before=list(before))

    def cost(self, split: str) -> Cost:
        """The parts, and the answers."""
        reranked = self.reranked(split)
        rerank = (TimeSpent(reranked, seconds=ANSWERED),)
        return super().cost(split) + Cost(rerank=rerank, charges=self.charges(reranked))


def is_remote(row: Row) -> bool:
    """Tell whether a row's system asks an address."""
    return row.system is not None and any(isinstance(part, Remote) for part in parts_of(row.system))
