"""Sizes of artifacts, as far as the work of later steps depends on them. They flow along the graph like artifacts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ANY = "*"
"""Every split without a number of queries of its own."""


class UnknownSize(Exception):
    """The size of an input is not known."""


class Unknown:
    """Stand-in for the sizes of an artifact whose step function has no size declared."""

    def __getattr__(self, name: str) -> Any:
        raise UnknownSize(name)

    def __iter__(self) -> Any:
        raise UnknownSize("iteration")


UNKNOWN = Unknown()


@dataclass(frozen=True)
class Groups:
    """A table of training groups."""

    groups: int
    candidates: int
    """Candidates per group."""
    queries: int | None = None
    """Number of distinct queries. If None, it is not known."""

    @property
    def rows(self) -> int:
        """Number of candidates in all groups."""
        return self.groups * self.candidates

    @property
    def bytes(self) -> float:
        """Size of the compressed table, in bytes."""
        return 16.0 * self.rows + 30.0 * self.groups


@dataclass(frozen=True, eq=False)
class Collection:
    """Documents and queries, or expanded queries."""

    documents: int
    queries: Mapping[str, int]
    """Queries by split."""
    document_lengths: Any
    """(n,) tokens of sampled documents, without special tokens."""
    query_lengths: Any
    """(n,) tokens of sampled queries, without special tokens."""
    characters: float
    """Mean characters per document."""
    exact: bool = True
    """True if documents and queries were counted, False if they were extrapolated or assumed."""
    sampled: tuple[str, ...] = ()
    """Splits that get a random share of the queries, so that their numbers are expectations."""
    read_seconds: float = 0.0
    """Seconds to read one record of the source. If 0, they were not measured."""
    groups: Groups | None = None
    """The table of groups that is stored with the collection."""
    expansions: int = 1
    """Expansions of a query, each of which counts as a query."""

    def count(self, split: str) -> int:
        """Count the queries of a split."""
        return int(self.queries.get(split, self.queries.get(ANY, 0)))

    @property
    def rows(self) -> int:
        """Number of queries in all splits."""
        return sum(self.queries.values())

    @property
    def bytes(self) -> float:
        """Size of the queries' tables, in bytes. The documents of expanded queries are links."""
        return 150.0 * self.rows


@dataclass(frozen=True)
class Ranking:
    """A ranking, or with `k=0` the measures of one."""

    queries: int
    k: int
    """Documents per query."""

    @property
    def rows(self) -> int:
        """Number of rows of the table."""
        return self.queries * self.k

    @property
    def bytes(self) -> float:
        """Size of the compressed table, in bytes."""
        return 10.0 * self.rows


@dataclass(frozen=True)
class Vectors:
    """Vectors of documents or queries."""

    count: int
    width: int
    item: int
    """Bytes of a number."""

    @property
    def bytes(self) -> float:
        """Total size of the vectors, in bytes."""
        return float(self.count) * self.width * self.item


@dataclass(frozen=True)
class Index:
    """A FAISS index."""

    factory: str
    bytes: float
    looks: float
    """Documents that a query is compared with."""
    advice: str = ""
    """Alternative if the index does not fit in memory."""


@dataclass(frozen=True, eq=False)
class Model:
    """A model: its config and its shape (`components.models.shape`)."""

    config: Any
    shape: Any

    @property
    def bytes(self) -> float:
        """Size of the saved fp32 weights, in bytes."""
        return 4.0 * self.shape.parameters

    @property
    def trained(self) -> float:
        """Number of weights that training changes: all, or an adapter's two thin matrices for each of a layer's six."""
        adapter, shape = getattr(self.config, "adapter", None), self.shape
        if adapter is None:
            return float(shape.parameters)
        return float(adapter.rank * shape.layers * (10 * shape.width + 2 * shape.middle))
