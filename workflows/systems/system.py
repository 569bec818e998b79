"""The value that says how queries are answered. All else derives from it: steps, measures, cost, deployment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sparring.components.config import UserError
from sparring.components.models.endpoints import Price
from sparring.components.retrieval.stage import StageConfig
from sparring.workflows.store.dag import Step

if TYPE_CHECKING:
    from pathlib import Path

    from sparring.workflows.store.store import Store
    from sparring.workflows.systems.library import Library, Plan

Rankings = Callable[[str], Step]
"""The step that ranks the documents for a split's queries."""
Names = Callable[["System"], str]
"""The name of a system's stage in a deployment."""
EXPENSES = 5
"""Number of ranks of `System.expense`."""
SEARCHED = ("index/**/*", "*.faiss", "documents-*.npy")
"""The files of an artifact that are searched: Lucene's index, FAISS's, or vectors."""
S = TypeVar("S", bound="System")


@dataclass(frozen=True)
class TimeSpent:
    """Time that a query takes of a step: the step's time over a count."""

    step: Step
    per: str = "queries"
    """Key of the count in a step's summary."""
    over: Step | None = None
    """The step that counted. If None, the same step."""
    share: tuple[str, str] | None = None
    """Count only a part of the time: seconds under the first key of the summary over those under the second. If None,
    count all of it."""
    seconds: str | None = None
    """Key of the seconds in the step's summary, if the step measured them itself. If None, its record counts."""


@dataclass(frozen=True)
class Charge:
    """Money for a query: the price of a step's answers over its queries."""

    step: Step
    price: Price


@dataclass(frozen=True)
class Cost:
    """Steps that a system needs once for the collection and for each query (Chuang et al., 2023, Table 3.11)."""

    index: tuple[Step, ...] = ()
    """Steps that build the index, once for the collection."""
    expand: tuple[TimeSpent, ...] = ()
    retrieve: tuple[TimeSpent, ...] = ()
    rerank: tuple[TimeSpent, ...] = ()
    models: tuple[Step, ...] = ()
    """Models that a query needs."""
    charges: tuple[Charge, ...] = ()

    @property
    def searched(self) -> list[Step]:
        """Index that a query searches: the steps of `index` from which no other step is made."""
        made_from = {before.fingerprint for node in self.index for before in node.upstream}
        return [node for node in self.index if node.fingerprint not in made_from]

    def __add__(self, more: Cost) -> Cost:
        """Add two costs. A step that both have counts once."""
        return Cost(
            index=_steps([*self.index, *more.index]),
            expand=_times([*self.expand, *more.expand]),
            retrieve=_times([*self.retrieve, *more.retrieve]),
            rerank=_times([*self.rerank, *more.rerank]),
            models=_steps([*self.models, *more.models]),
            charges=tuple({charge.step.fingerprint: charge for charge in (*self.charges, *more.charges)}.values()),
        )


def _steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple({node.fingerprint: node for node in steps}.values())


def _times(times: Iterable[TimeSpent]) -> tuple[TimeSpent, ...]:
    return tuple({spent.step.fingerprint: spent for spent in times}.values())


class System(ABC):
    """A way to answer queries, made of other systems or of a search.

    A subclass says how a split's queries are ranked, what that costs, and how it is deployed as a stage.
    """

    stage: ClassVar[str] = ""
    """Name of its stage in a deployment, and of its scores. Empty if it cannot be deployed."""
    expense: ClassVar[float] = 0
    """Cost of a query, as a rank among kinds of systems: BM25 0, with feedback 1, a retriever of fewer layers between 1
    and 2, a retriever or a fusion 2, neighbours 3, a ranker 4."""

    @abstractmethod
    def ranking(self, split: str) -> Step:
        """Return the step that ranks the documents for a split's queries."""

    @property
    def parts(self) -> Sequence[System]:
        """Systems whose rankings this one reads. The first is the one that it extends."""
        return ()

    def covers(self, split: str) -> bool:
        """Tell whether the system can rank a split's queries."""
        return all(part.covers(split) for part in self.parts)

    def cost(self, split: str) -> Cost:
        """Return the cost of a split's queries, parts included."""
        return sum((part.cost(split) for part in self.parts), Cost())

    @property
    def is_lexical(self) -> bool:
        """True if its scores are BM25's, in which 0 means that no word is shared."""
        return False

    @property
    def lexical_k(self) -> int | None:
        """Number of requested documents. If a ranking has fewer, the score of all others is 0. None if it does not tell
        their score."""
        return None

    @property
    def identity(self) -> str:
        """A key that equal systems share."""
        return self.ranking("queries").fingerprint

    # Deployment

    @property
    def models(self) -> list[Step]:
        """Steps that made the models of this stage."""
        return []

    @property
    def searched(self) -> list[Step]:
        """Steps whose indexes and vectors this stage reads."""
        return []

    @property
    def chosen(self) -> list[Step]:
        """Steps that chose numbers of this stage, such as weights."""
        return []

    def check(self) -> None:
        """Raise UserError if this stage cannot answer new queries."""
        if not self.stage:
            raise UserError(f"{self.ranking('queries').label!r} is no stage of a system")

    def check_folder(self) -> None:  # noqa: B027
        """Raise UserError if this stage cannot be written to a folder for other programs."""

    def fetch(self, store: Store) -> None:  # noqa: B027
        """Fetch what the stage needs besides its models, searched steps and chosen numbers."""

    @abstractmethod
    def describe(self, name: str, store: Store, names: Names) -> StageConfig:
        """Describe the stage as `system.json` does. All that it needs was fetched. UserError if it cannot be
        deployed."""

    def open(self, name: str, plan: Plan, library: Library) -> Any:
        """Open the index or model that a stage computes with. None if it needs none."""
        return None

    def write(self, stage: Any, folder: Path, store: Store) -> None:  # noqa: B027
        """Write the index or model of the described stage to a system's folder."""


def parts_of(system: System) -> Iterator[System]:
    """List the parts of a system and of its parts, inputs first, and the system itself."""
    for part in system.parts:
        yield from parts_of(part)
    yield system


def path_for(kind: str, name: str, ending: str = "") -> str:
    """Name the file or folder of a stage: `retriever` for `dense`, `retriever-2` for `dense 2`.

    >>> path_for("index", "dense 2", ".faiss")
    'index-2.faiss'
    """
    number = name.rpartition(" ")[2]
    return f"{kind}-{number}{ending}" if number.isdigit() else f"{kind}{ending}"


@dataclass(frozen=True, eq=False)
class Computed(System):
    """A system whose rankings a recipe computes from steps of its own, such as those of an oracle, or from a file."""

    rankings: Rankings
    reason: str
    """Why it cannot be deployed, as the end of "its ranking ..."."""
    price: Callable[[str], Cost] = lambda split: Cost()
    """Cost of a split's queries, which the recipe states."""
    only: str | None = None
    """The only split that can be ranked. If None, all can."""
    lexical: bool = False
    """True if its scores are BM25's."""
    is_imported: bool = False
    """True if its ranking comes from a file, so that its cost is unknown."""

    def ranking(self, split: str) -> Step:
        """Return the recipe's step."""
        return self.rankings(split)

    def cost(self, split: str) -> Cost:
        """Return the cost that the recipe states."""
        return self.price(split)

    @property
    def is_lexical(self) -> bool:
        """True if its scores are BM25's."""
        return self.lexical

    def covers(self, split: str) -> bool:
        """Tell whether the recipe or the file has a ranking of the split."""
        return self.only in (None, split) and super().covers(split)

    def check(self) -> None:
        """Raise UserError: it cannot answer new queries."""
        raise UserError(
            f"its ranking {self.reason}; accepted: BM25, retrievers, expansions, their fusion, "
            "neighbours, rankers, readers"
        )

    def describe(self, name: str, store: Store, names: Names) -> StageConfig:
        """Raise UserError: it cannot answer new queries."""
        self.check()
        raise AssertionError
