"""The rows that a recipe measures, and what a recipe returns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparring.components.config import listing
from sparring.components.evaluation.averages import Parts
from sparring.components.models import card
from sparring.workflows.steps.answers import AnswerConfig
from sparring.workflows.steps.evaluate import averages, results
from sparring.workflows.store.dag import Step, graph, in_phase, step
from sparring.workflows.store.store import Store
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.phases import EVALUATION
from sparring.workflows.systems.reranked import Reranked
from sparring.workflows.systems.system import EXPENSES, Computed, Cost, System


@dataclass(frozen=True)
class Row:
    """A measured system, on one collection and with one seed."""

    name: str
    """Its name in tables."""
    round: int | None
    """Its round in the charts by rounds. If None, it is not in these charts."""
    collection: str
    """The collection's name in tables."""
    split: str
    seed: int
    metrics: Step
    """The step that measured it."""
    data: Step
    """The collection's tables."""
    ranking: Step | None = None
    """The measured ranking. None if something else was measured."""
    system: System | None = None
    """The system. None if only vectors were measured."""
    encoder: Dense | None = None
    """The retriever whose vectors were measured, if no ranking was."""
    answers: AnswerConfig | None = None
    """Way to look for answers in documents, if a measure asks for them."""
    analysis: Step | None = None
    """The step that analysed its embedding space."""
    queries: int | None = None
    """Size of the sample of judged queries that was measured. If None, all were."""
    oracle: bool = False
    """True if it uses the judgements, so that nobody can deploy it."""
    contender: bool = False
    """True if the config names it among the systems that the user runs today."""

    @property
    def retriever(self) -> Dense | None:
        """The retriever of the ranking, alone or below a ranker, or of the measured vectors. None for quantised
        vectors, and for several retrievers."""
        system = self.system.over if isinstance(self.system, Reranked) else self.system or self.encoder
        return system if isinstance(system, Dense) and not system.is_variant else None

    @property
    def ranker(self) -> Step | None:
        """The ranker that ordered the ranking."""
        return self.system.ranker.step if isinstance(self.system, Reranked) else None

    @property
    def trainings(self) -> list[Step]:
        """The trainings that made any part of it, in order."""
        return [node for node in graph([self.ranking or self.metrics]) if node.description.models == "training"]

    @property
    def trained(self) -> bool:
        """True if a training made any part of it."""
        return bool(self.trainings)

    def learns_from(self, split: str) -> bool:
        """True if a training of any part of it saw a split's queries."""
        return any(node.inputs.get("split") == split for node in graph(self.trainings))

    @property
    def steps(self) -> list[Step]:
        """The steps that measured it."""
        return [self.metrics] if self.analysis is None else [self.metrics, self.analysis]

    def inputs(self) -> dict[str, Any]:
        """Return the entry for the step `results`."""
        entry = {
            "system": self.name,
            "round": self.round,
            "collection": self.collection,
            "split": self.split,
            "seed": self.seed,
            "metrics": self.metrics,
            "answers": self.answers,
        }
        return entry if self.analysis is None else {**entry, "analysis": self.analysis}


@in_phase(EVALUATION)
def gathered(
    systems: Sequence[Row], comparisons: Sequence[tuple[str | None, str]], *, parts: Parts | None = None
) -> Step:
    """Gather measures, and compare systems with their baselines, as `metrics.json` has them. In `comparisons`, None
    stands for the leading system and for the one to deploy.

    With `parts`, add each system's averages over the collections as one more collection (`Outcome.parts`). ValueError
    if two systems share a name, or if a comparison names an unknown system.
    """
    keys = [(system.name, system.collection, system.split, system.seed) for system in systems]
    for name, collection, split, seed in keys:
        if keys.count((name, collection, split, seed)) > 1:
            raise ValueError(
                f"two systems are called {name!r} on {collection} ({split}, seed {seed}); rename one, "
                "such as a key of contenders, evaluate.other_qrels or evaluate.other_rankings"
            )
    names = system_names(systems)
    for compared in (name for pair in comparisons for name in pair):
        if compared is not None and compared not in names:
            raise ValueError(f"a comparison names {compared!r}; the systems are {listing(names)}")
    averaged: dict[str, Any] = {} if parts is None else {"parts": dict(parts)}
    return step(
        "results",
        results if parts is None else averages,
        systems=[system.inputs() for system in systems],
        comparisons=[{"system": system, "baseline": baseline} for system, baseline in comparisons],
        seed=0,
        rounds=10_000,
        **averaged,
    )


def system_names(rows: Iterable[Row]) -> list[str]:
    """Return the names of the systems, each once."""
    return list(dict.fromkeys(row.name for row in rows))


def name_of(source: Any) -> str:
    """Name a collection for tables: the last part of its path or id that names no split, or its format."""
    for key in ("path", "id", "name"):
        if isinstance(getattr(source, key, None), str):
            parts = [part for part in str(getattr(source, key)).split("/") if part and "{" not in part]
            if parts:
                return parts[-1]
    return str(source.format)


@dataclass(frozen=True, kw_only=True)
class SystemCost(Cost):
    """The cost of a named system."""

    system: str
    measured: str | None = None
    """Its name among the measures. If None, the same name."""


def cost_of(row: Row) -> SystemCost:
    """Return the cost of a row's system, for the collection and for a query."""
    assert row.system is not None
    return SystemCost(system=row.name, **vars(row.system.cost(row.split)))


def levels(rows: Iterable[Row]) -> dict[str, float]:
    """Rank systems by expense, by name: first those without training, then by their kind. Systems with imported
    rankings are left out."""
    return {
        row.name: row.trained * EXPENSES + row.system.expense for row in rows if row.system and not is_imported(row)
    }


def is_imported(row: Row) -> bool:
    """Tell whether a row's rankings come from a file."""
    return isinstance(row.system, Computed) and row.system.is_imported


@dataclass(frozen=True)
class Interim:
    """The place of an early outcome in a run."""

    moment: str
    """The moment in words: `before training`, or `after warm ranker`."""
    measured: Mapping[str, float]
    """Rank of the expense of each system that is measured by then, by name."""
    missing: Mapping[str, float]
    """The same for each system that the run measures later."""


@dataclass(frozen=True)
class Outcome:
    """A recipe's graph: the last step, and what the commands show, search and export."""

    results: Step
    data: Step
    rows: Sequence[Row]
    """The systems that were measured."""
    split: str
    """The split that was measured."""
    retrieval: Dense | None = None
    """The last retriever, if the recipe has one."""
    ranker: Step | None = None
    """The last ranker, if the recipe has one."""
    note: str = ""
    """Facts about the start model that a reader of the results must know."""
    pictures: tuple[Step, ...] = ()
    """Further steps that the report shows, such as charts. No measure depends on them."""
    costs: tuple[SystemCost, ...] = ()
    """Costs that the report shows in one table."""
    parts: Parts | None = None
    """For averages over the collections: by collection, the whole that it is a part of, or None for a collection that
    does not count. If None, there are no averages."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """Rank of each system's expense, by name, if one system is chosen to be deployed."""
    needs: Mapping[str, Step | str] = field(default_factory=dict)
    """The step that measures what a system needs to answer queries, or the reason why none can, by the system's name.
    Empty without a budget."""
    guards: Mapping[tuple[str, int], Sequence[Mapping[str, Step]]] = field(default_factory=dict)
    """By a system's name and seed, the measures on the guard's collection (`stages.guard`)."""
    guard_loss: float | None = None
    """Largest loss on the guard's collection. None without a guard."""
    unmeasured: str = ""
    """If nothing can be measured: what was made, and why its quality is unknown."""
    early: Sequence["Outcome"] = ()
    """Early outcomes: the results of the rows so far, in the order in which a run comes to them. The last of them that
    is done stands for a run that was stopped."""
    interim: Interim | None = None
    """The place of an early outcome. None for the whole run's."""
    of_several: str = ""
    """If the experiment has several last retrievers, of which `retrieval` has the first: their number, such as `one a
    fold`."""

    def last_retriever(self, path: str) -> Step:
        """Return the retriever that another experiment takes from this one, whose file is `path`. ValueError if there
        are several, because another one may have been trained on queries that this one is measured on."""
        if self.of_several:
            raise ValueError(
                f"{path}: has several last retrievers, {self.of_several}; accepted: an experiment with one"
            )
        if self.retriever is None:
            raise ValueError(f"{path}: has no retriever; accepted: an experiment with one")
        return self.retriever

    @property
    def retriever(self) -> Step | None:
        """The step that wrote the last retriever, if the recipe has one."""
        return None if self.retrieval is None else self.retrieval.retriever

    def newest(self, store: Store) -> "Outcome":
        """Return the last outcome that has results: this one, or an early one. If there are no results yet, return
        this one."""
        finished = (outcome for outcome in (self, *reversed(self.early)) if store.is_done(outcome.results))
        return next(finished, self)

    @property
    def ranked(self) -> dict[str, Row]:
        """Rows with a system on the recipe's own collection and split, by name. With several seeds they are the last
        seed's."""
        key = self.data.fingerprint, self.split
        return {row.name: row for row in self.rows if row.system and (row.data.fingerprint, row.split) == key}


def labels_apart(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Label the steps of several graphs, by fingerprint. Steps that some outcomes lack get the outcome's name."""
    steps = {name: {node.fingerprint: node.label for node in graph([o.results])} for name, o in outcomes.items()}
    shared = set.intersection(*map(set, steps.values()))
    labels: dict[str, str] = {}
    for name, step_labels in steps.items():
        for fingerprint in step_labels.keys() - shared - labels.keys():
            labels[fingerprint] = f"{name}: {step_labels[fingerprint]}"
    return labels


def note_on(model: str) -> str:
    """Return a note on a start model's training data, for the report."""
    datasets = card.datasets(model)
    if not datasets:
        return f"The start model is {model}. See its model card for what it was trained on."
    return (
        f"The start model is {model}. Its model card lists this training data: {', '.join(datasets)}. On any of these "
        "its results are not zero-shot."
    )
