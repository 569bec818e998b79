"""What a step costs: units of work, memory and disk, from the sizes of its inputs alone.

A step function's description has a `cost`: a function of the machines and of the step's own inputs, in which each
upstream step is what that step's cost says it `makes`. So sizes pass through the graph as artifacts do, and nothing is
read or run. Units become seconds by rates (`workflows.estimating.rates`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

import numpy as np

Kind = Literal[
    "encoding",
    "scoring",
    "training",
    "generating",
    "reading",
    "tokenising",
    "BM25 indexing",
    "BM25 retrieval",
    "Java",
    "scores",
    "index",
    "rows",
    "bytes",
    "loading",
    "draws",
]
"""`encoding`, `scoring`, `training` and `generating` count texts, pairs, updates and written texts of a `task`.
`reading` counts records of a source, `tokenising` and `BM25 indexing` tokens, `BM25 retrieval` a query's look at a
million documents, `Java` starts of it, `scores` inner products, as their multiplications, `index` multiplications in an
index of vectors that is built, `rows` rows of tables that Python and Arrow go through, `bytes` and `loading` bytes of
vectors and of models that are read, `draws` a permutation's look at a query."""

Pool = Literal["driver", "map", "score", "java", "train", "one"]
"""Who works: the driver, all workers of a pool of the cluster profile, or one worker."""


class UnknownSize(Exception):
    """A cost depends on the size of something that no cost tells."""


class Unknown:
    """What a step makes whose function describes no cost."""

    def __getattr__(self, name: str) -> Any:
        raise UnknownSize(name)

    def __iter__(self) -> Any:
        raise UnknownSize("iteration")


UNKNOWN = Unknown()


class Work(NamedTuple):
    """Units of one kind of work."""

    kind: Kind
    amount: float
    pool: Pool = "driver"
    task: Any = None
    """Of models: a `ModelTask`, whose rate is measured."""


class Need(NamedTuple):
    """Memory that must be there at once."""

    what: str
    """In words, for people."""
    bytes: float
    """Of one process."""
    pool: Pool
    """Whose processes each need it."""
    advice: str
    """What to change where it is not there: keys, and values that fit."""
    gpu: bool = False
    """Whether it is a GPU's memory, where there are GPUs."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one step costs."""

    work: tuple[Work, ...] = ()
    makes: Any = UNKNOWN
    """What costs of later steps need to know of the artifact."""
    needs: tuple[Need, ...] = ()
    kept: float = 0
    """Bytes of the artifact."""
    scratch: float = 0
    """Bytes of files that are there only while the step runs."""
    objects: float = 1
    """Files of the artifact, each an object in a store on S3."""
    scratch_objects: float = 0
    """Files that are there only while the step runs."""
    limits: tuple[str, ...] = ()
    """What makes the step impossible whatever the machines are, and what to change."""
    slow: str | None = None
    """What makes the step slow for a reason that a key takes away."""


ANY = "*"
"""Stands for every split that is not named, where numbers of queries are assumed."""


@dataclass(frozen=True)
class Grouped:
    """A table of groups: so many, with so many candidates each."""

    groups: int
    candidates: int
    scored: bool = False
    queries: int | None = None
    """How many different ones the groups are of, where that is known."""


@dataclass(frozen=True, eq=False)
class Sizes:
    """A collection as far as costs depend on it."""

    documents: int
    queries: Mapping[str, int]
    """By split."""
    document_lengths: Any
    """(n,) tokens of some documents, special tokens left out."""
    query_lengths: Any
    """(n,) tokens of some queries."""
    characters: float
    """Characters of a document in the mean."""
    relevant: float = 1.0
    """Relevant documents of a query in the mean."""
    exact: bool = True
    """Whether documents and queries were counted; False where a part of the source was read or numbers assumed."""
    drawn: tuple[str, ...] = ()
    """Splits that get a share of the queries, of which it is known how many are expected, but not how many they are."""
    read_seconds: float = 0.0
    """Seconds in which a record of the source was read."""
    groups: Grouped | None = None
    """The table of groups that lies beside its own, where there is one."""

    def asked(self, split: str) -> int:
        """Queries of a split."""
        return int(self.queries.get(split, self.queries.get(ANY, 0)))

    @cached_property
    def lengths(self) -> str:
        """A digest of the texts' lengths: folds of one collection have the same."""
        ordered = [
            np.sort(np.asarray(one, np.float64)).tobytes() for one in (self.document_lengths, self.query_lengths)
        ]
        return hashlib.blake2b(b"".join(ordered), digest_size=8).hexdigest()


@dataclass(frozen=True, eq=False)
class Expanded(Sizes):
    """A collection in which each expanded query is a query."""

    number: int = 1
    """Expansions of a query."""

    @property
    def count(self) -> int:
        """All expansions."""
        return sum(self.queries.values())


def expanded_sizes(data: Sizes, splits: Iterable[str], number: int, tokens: float) -> Expanded:
    """What so many expansions of each query of some splits make of a collection, each with so many tokens."""
    same = {one.name: getattr(data, one.name) for one in fields(Sizes)}
    queries = {split: number * data.asked(split) for split in splits}
    return Expanded(**{**same, "queries": queries, "query_lengths": data.query_lengths + tokens}, number=number)


@dataclass(frozen=True)
class Ranking:
    """A ranking: so many queries with so many documents each."""

    queries: int
    k: int

    @property
    def rows(self) -> int:
        """Rows of its table."""
        return self.queries * self.k

    @property
    def bytes(self) -> float:
        """Of its table, compressed."""
        return 10.0 * self.rows


@dataclass(frozen=True)
class Vectors:
    """Vectors of documents."""

    documents: int
    width: int
    item: int
    """Bytes of a number."""
    shard: int
    """Documents in a file."""

    @property
    def bytes(self) -> float:
        """Of all."""
        return float(self.documents) * self.width * self.item


@dataclass(frozen=True, eq=False)
class Made:
    """A model: its config and its shape (`components.models.shape`)."""

    config: Any
    shape: Any


@dataclass(frozen=True, eq=False)
class ModelTask:
    """What a model is to do, as far as its rate depends on it."""

    use: Literal["encoding", "scoring", "training", "generating"]
    model: Made
    sizes: Sizes
    operations: float
    """Floating-point operations of a unit (a text, a pair, an update) in its matrix products."""
    tokens: float
    """Tokens of a unit as the model reads them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """`side` and `precision` of encoding; `objective`, `config`, `candidates` of training."""
    measurable: bool = True
    """Whether it can be tried on a few made-up rows; else its arithmetic and the rate of others like it say."""

    @classmethod
    def of_texts(
        cls, use: Literal["encoding", "scoring"], model: Made, sizes: Sizes, lengths: Any, **options: Any
    ) -> Self:
        """The task of reading texts of these lengths (n,) in tokens."""
        return cls(use, model, sizes, model.shape.operations(lengths) / len(lengths), float(lengths.mean()), options)

    @property
    def key(self) -> str:
        """Equal for tasks of one rate."""
        config = self.options.get("config")
        training = (
            config.model_dump_json(
                exclude={
                    "updates",
                    "warmup",
                    "learning_rate",
                    "schedule_updates",
                    "log_every",
                    "carry",
                    "validate_on_dev",
                    "weight_decay",
                    "clip",
                    "schedule",
                }
            )
            if config is not None
            else ""
        )
        rest = {name: value for name, value in self.options.items() if name != "config"}
        read = self.model.config.model_dump(mode="json", exclude={"seed"})
        return f"{self.use} {read} {self.sizes.lengths} {sorted(rest.items(), key=str)} {training}"


ID_BYTES = 24
"""Bytes that an id takes in memory: its characters and where it begins."""


def id_memory(documents: int, what: str) -> Need:
    """What a step needs that looks documents up by their ids: the ids, and their order."""
    advice = "a machine with more memory for the driver: all ids are looked up at once, and no key makes that less"
    return Need(what, (ID_BYTES + 16.0) * documents, "driver", advice)
