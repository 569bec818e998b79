"""Systems whose models answer at an address. They are measured like others, and cannot be deployed from here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparring.components.config import UserError
from sparring.components.models.endpoints import Endpoint, Price
from sparring.components.retrieval.stage import StageConfig
from sparring.workflows.steps.encode import EncodeConfig
from sparring.workflows.steps.endpoints import embed_documents_at, embed_queries_at, rerank_at
from sparring.workflows.steps.search import SearchConfig, search
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.system import Charge, Cost, Names, System, TimeSpent, parts_of

if TYPE_CHECKING:
    from sparring.workflows.store.store import Store
    from sparring.workflows.systems.rows import Row

ANSWERED = "seconds"
"""Key of the summary with the seconds until the answers came, each request by itself."""


@dataclass(frozen=True, eq=False)
class Remote(System):
    """A system with a model at an address."""

    label: str
    """Beginning of its steps' labels."""
    data: Step
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
        return step(
            f"{self.label} ranking ({split})",
            search,
            data=self.data,
            vectors=self.vectors,
            queries=self.queries(split),
            index=None,
            k=self.k,
            config=SearchConfig().of_candidates(),
        )

    def cost(self, split: str) -> Cost:
        """The vectors, the queries' vectors, and the search."""
        queries = self.queries(split)
        return Cost(
            index=(self.vectors,),
            retrieve=(TimeSpent(queries, seconds=ANSWERED), TimeSpent(self.ranking(split))),
            charges=self.charges(queries),
        )


@dataclass(frozen=True, eq=False)
class RemoteReranked(Remote):
    """A reranker at an address, which reorders the first documents of a system's rankings."""

    over: System
    """The system whose rankings are reordered."""
    depth: int
    sample: int | None = None
    """Number of judged queries to rerank. If None, all queries are reranked."""

    expense = 4

    @property
    def parts(self) -> Sequence[System]:
        """The system that is reordered."""
        return [self.over]

    def ranking(self, split: str) -> Step:
        """Rank a split's queries in the reranker's order."""
        return step(
            f"{self.label} ({split})",
            rerank_at,
            data=self.data,
            ranking=self.over.ranking(split),
            split=split,
            endpoint=self.endpoint,
            depth=self.depth,
            queries=self.sample,
        )

    def cost(self, split: str) -> Cost:
        """The parts, and the answers."""
        reranked = self.ranking(split)
        rerank = (TimeSpent(reranked, seconds=ANSWERED),)
        return super().cost(split) + Cost(rerank=rerank, charges=self.charges(reranked))


def is_remote(row: Row) -> bool:
    """Tell whether a row's system asks an address."""
    return row.system is not None and any(isinstance(part, Remote) for part in parts_of(row.system))
