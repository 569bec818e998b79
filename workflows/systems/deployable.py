"""Systems that answer new queries: their stages by name, and the artifacts that these are read from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from sparring.components.config import Damaged, UserError, did_you_mean, listing
from sparring.components.evaluation.selection import FILE as SELECTION
from sparring.components.files import read_json
from sparring.components.systems.config import VERSION, SystemConfig
from sparring.workflows.store.availability import finished, not_dropped
from sparring.workflows.store.dag import Composite, Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems.endpoints import is_remote
from sparring.workflows.systems.neighbours import ByNeighbours
from sparring.workflows.systems.rows import Outcome, Row
from sparring.workflows.systems.system import S, System, parts_of

if TYPE_CHECKING:
    from sparring.workflows.systems.library import Opening

LAST = "the last retriever"
"""Name of a run's last retriever as a system, if the run measured none."""
DEFAULT = (
    "what the run chose to deploy, else its best on the split that it chooses by; where it chooses by none, the last "
    "retriever, with the last ranker over it where that was measured"
)
"""Description of the system that is used if none is named, for people."""


@dataclass(frozen=True)
class Deployment(Composite):
    """A system with its stages by name. Each stage comes after those that it reads. A step that has it as an input gets
    an `Opening`."""

    name: str
    data: Step
    stages: Mapping[str, System]

    @classmethod
    def of(cls, name: str, system: System, data: Step) -> "Deployment":
        """Name the stages of a system. UserError if a stage cannot answer new queries."""
        stages = dict[str, System]()
        with _named(name):
            for part in parts_of(system):
                part.check()
                if part.identity not in {stage.identity for stage in stages.values()}:
                    count = sum(stage.stage == part.stage for stage in stages.values())
                    stages[part.stage if not count else f"{part.stage} {count + 1}"] = part
        return cls(name, data, stages)

    @classmethod
    def of_row(cls, row: Row) -> "Deployment":
        """Name the stages of a row's system."""
        assert row.system is not None
        return cls.of(row.name, row.system, row.data)

    def of_kind(self, kind: type[S]) -> list[S]:
        """The stages of a kind, in order."""
        return [stage for stage in self.stages.values() if isinstance(stage, kind)]

    @property
    def models(self) -> list[Step]:
        """Steps that made the models."""
        return [node for stage in self.stages.values() for node in stage.models]

    @property
    def artifacts(self) -> list[Step]:
        """Steps whose artifacts the system is read from."""
        read = [node for stage in self.stages.values() for node in (*stage.models, *stage.searched, *stage.chosen)]
        return [*read, self.data]

    @property
    def identity(self) -> str:
        """The key of its last stage, which tells all that the stages read."""
        return list(self.stages.values())[-1].identity

    @property
    def steps(self) -> list[Step]:
        """Steps whose artifacts the system is read from, each once."""
        return list({node.fingerprint: node for node in self.artifacts}.values())

    def resolved(self, store: Store) -> "Opening":
        """Fetch the system, so that any process of this machine can open it."""
        from sparring.workflows.systems.library import Opening  # which imports this module

        return Opening.of(self, store)

    def check_folder(self) -> None:
        """Raise UserError if a stage cannot be written to a folder for other programs."""
        with _named(self.name):
            for stage in self.stages.values():
                stage.check_folder()

    def fetch(self, store: Store) -> None:
        """Fetch the system's artifacts. UserError if one was not made or was dropped."""
        for node in self.artifacts:
            finished(store, node)
        for stage in self.stages.values():
            for node in stage.searched:
                not_dropped(store, node)
        store.fetch([self.data], "documents.parquet")
        store.fetch(self.models, "model")
        for stage in self.stages.values():
            store.fetch([*stage.searched, *stage.chosen])
            stage.fetch(store)

    def describe(self, store: Store) -> SystemConfig:
        """Describe the fetched system as `system.json` does. UserError if it cannot be deployed."""
        names = {stage.identity: name for name, stage in self.stages.items()}
        with _named(self.name):
            stages = {
                name: stage.describe(name, store, lambda part: names[part.identity])
                for name, stage in self.stages.items()
            }
        documents = count(store.path(self.data) / "documents.parquet")
        tree = {"version": VERSION, "name": self.name, "documents": documents}
        return SystemConfig.model_validate({**tree, "stages": stages})

    def write(self, config: SystemConfig, folder: Path, store: Store) -> None:
        """Write the models and indexes of the described stages to a folder."""
        for name, stage in self.stages.items():
            stage.write(config.stages[name], folder, store)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Add the system's name to a UserError."""
    try:
        yield
    except Damaged:
        raise
    except UserError as error:
        raise UserError(f"--system: {name!r} cannot be deployed: {error}") from None


def reason(error: UserError) -> str:
    """Return why a system cannot be deployed, without its name."""
    return str(error).rpartition("cannot be deployed: ")[2]


def count(table: Path) -> int:
    """Count the documents in a table."""
    rows: int = pq.read_metadata(table).num_rows
    return rows


def asked(outcome: Outcome, store: Store) -> Row | None:
    """Find the system that answers if none is named: `DEFAULT`. An unfinished run has it from its newest early outcome,
    or else from the measured systems of the last retriever. None if no measured system answers new queries. UserError
    if none is within the budget."""
    outcome = outcome.newest(store)
    if store.is_done(outcome.results):
        _check_budget(_selected(outcome, store))
    with suppress(UserError):
        if store.is_done(outcome.results):
            return _first(_recommended(outcome, store), store, Deployment.of_row)
        rows = [row for row in _of_the_last(outcome) if row.ranking is not None and store.is_done(row.ranking)]
        return _first(rows, store, Deployment.of_row) if rows else None
    return None


def exported(outcome: Outcome, store: Store) -> Row:
    """Find the system that is exported if none is named: the one that answers, or the next best one that a folder can
    hold. UserError if there is none. The run is finished, or has an early outcome."""
    return _first(_recommended(outcome.newest(store), store), store, of_folder)


def of_folder(row: Row) -> Deployment:
    """Return a row's system as one that a folder can hold. UserError if it cannot."""
    deployment = Deployment.of_row(row)
    deployment.check_folder()
    return deployment


def _recommended(outcome: Outcome, store: Store) -> list[Row]:
    """List the system that a finished run chose to deploy. If it chose none, or one whose model is at an address, list
    the candidates, best first. If there are none, list its last system."""
    selected = _selected(outcome, store)
    _check_budget(selected)
    excluded = selected.get("budget", {}).get("excluded", {})
    candidates = [row for row in selected.get("candidates", []) if row["system"] not in excluded]
    names = [row["system"] for row in sorted(candidates, key=lambda row: -row["value"])]
    chosen = outcome.ranked.get(selected.get("deploy", ""))
    if chosen is not None and not is_remote(chosen):
        names = [chosen.name]
    return [outcome.ranked[name] for name in names if name in outcome.ranked] or [last(outcome)]


def _check_budget(selected: Mapping[str, Any]) -> None:
    """Raise UserError if no system of a finished run is within the budget."""
    budget = selected.get("budget", {})
    if budget and not budget["kept"]:
        near = "" if budget["nearest"] is None else f" The nearest is {budget['nearest']!r}."
        raise UserError(
            f"--system: no system of this run is within the budget.{near} Name a system, or raise the limits.",
            key="--system",
            code="beyond-budget",
        )


def _first(rows: Sequence[Row], store: Store, deployed: Callable[[Row], Deployment]) -> Row:
    """Return the first of some rows that can be deployed. UserError of the first one if none can."""
    mistakes = list[UserError]()
    for row in rows:
        try:
            deployment = deployed(row)
            if deployment.of_kind(ByNeighbours):
                deployment.fetch(store)
                deployment.describe(store)  # a step may have chosen numbers that only the run can use
            return row
        except UserError as error:
            mistakes.append(error)
    raise mistakes[0]


def _selected(outcome: Outcome, store: Store) -> dict[str, Any]:
    """Read a finished run's selection. Empty if it selects nothing."""
    selection = outcome.results.inputs.get("selection")
    if not isinstance(selection, Step):
        return {}
    store.fetch([selection], SELECTION)
    return dict(read_json(store.path(selection) / SELECTION))


def chosen(outcome: Outcome, name: str) -> Row:
    """Find the system with a name. UserError lists the names."""
    rows = _ranked(outcome)
    if name not in rows:
        raise UserError(f"--system: no system is called {name!r}; accepted: {listing(rows)}{did_you_mean(name, rows)}")
    return rows[name]


def last_retrieval(outcome: Outcome) -> Deployment:
    """Describe a run's last retriever, measured or not. UserError if it has none."""
    if outcome.retrieval is None:
        raise UserError("this run has no retriever. Name one of its systems: --system NAME.", code="no-retriever")
    return Deployment.of(LAST, outcome.retrieval, outcome.data)


def last(outcome: Outcome) -> Row:
    """Find the last retriever's system. If the last ranker over it was measured, take that. UserError if neither was
    measured."""
    rows = _of_the_last(outcome)
    if not rows:
        raise UserError(
            f"the run measured no ranking of its last retriever; name one of its systems: --system NAME "
            f"({listing(_ranked(outcome))})"
        )
    return rows[0]


def _of_the_last(outcome: Outcome) -> list[Row]:
    """List the last retriever's systems, or all without a retriever: first those reordered by the last ranker, then
    the others; later ones first."""
    rows = list(_ranked(outcome).values())
    if (model := outcome.retriever) is not None:
        rows = [
            row
            for row in rows
            if row.retriever is not None and row.retriever.retriever.fingerprint == model.fingerprint
        ]
    ranker = None if outcome.ranker is None else outcome.ranker.fingerprint
    reranked = [row for row in rows if row.ranker is not None and row.ranker.fingerprint == ranker]
    return [*reversed(reranked), *reversed([row for row in rows if row.ranker is None])]


def _ranked(outcome: Outcome) -> dict[str, Row]:
    if not outcome.ranked:
        raise UserError(
            "no system of this run has a ranking of its own, as each stands for several; accepted: one of "
            "the experiments that it is made of"
        )
    return outcome.ranked
