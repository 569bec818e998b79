"""The systems that a recipe measures, and what a recipe hands back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparring.components.config import listing
from sparring.components.evaluation.averages import Parts
from sparring.components.evaluation.measures import needs_answers
from sparring.components.models import card
from sparring.components.retrieval.kind import DEFAULT
from sparring.components.sources.base import Source
from sparring.workflows.stages.collection import Collection, Model
from sparring.workflows.stages.config import CollectionConfig, seeded
from sparring.workflows.stages.phases import COLLECTION, EVALUATION
from sparring.workflows.stages.retrieval import Retrieval, refresh
from sparring.workflows.steps.analyse import analyse
from sparring.workflows.steps.answers import AnswerConfig
from sparring.workflows.steps.evaluate import averages, evaluate, results
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.store.dag import Step, graph, in_phase, step


@dataclass(frozen=True)
class System:
    """A system as it was measured: on one collection, with one seed."""

    name: str
    """As tables have it."""
    round: int | None
    """Where it stands on the charts by rounds; None where it takes no part in the rounds."""
    collection: str
    """As tables have it."""
    split: str
    seed: int
    metrics: Step
    """The step that measured it."""
    data: Step
    """The collection's tables."""
    ranking: Step | None = None
    """The ranking that was measured; None where it was something else, such as a reader's answers."""
    retrieval: Retrieval | None = None
    """The retriever and vectors that made the ranking, or were measured themselves; None where it was made in another
    way, or of several."""
    ranker: Step | None = None
    """The ranker that put the ranking in order."""
    answers: AnswerConfig | None = None
    """How answers were looked for, where a measure asks for them."""
    analysis: Step | None = None
    """The step that looked at the space of its vectors."""
    queries: int | None = None
    """How many of the split's judged queries were measured; None for all."""
    oracle: bool = False
    """Whether it knows the judgements, so that nobody has it."""

    @property
    def trained(self) -> bool:
        """Whether its ranking, or whatever was measured, stands on a training."""
        made = graph([self.ranking or self.metrics])
        return any(node.description.models == "training" for node in made)

    def learns_from(self, split: str) -> bool:
        """Whether a training that it stands on had something of a split's queries."""
        trainings = [one for one in graph([self.ranking or self.metrics]) if one.description.models == "training"]
        return any(one.inputs.get("split") == split for one in graph(trainings))

    @property
    def steps(self) -> list[Step]:
        """What was measured of it."""
        return [self.metrics] if self.analysis is None else [self.metrics, self.analysis]

    def inputs(self) -> dict[str, Any]:
        """What the step `results` takes of it."""
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


@dataclass
class Results:
    """What was measured on one collection: one entry a system and seed."""

    collection: Collection
    config: CollectionConfig
    systems: list[System] = field(default_factory=list)
    name: str | None = None
    """What the collection is called in tables; None for what its source is called."""

    def add(
        self,
        name: str,
        ranking: Step,
        *,
        seed: int,
        round: int | None = None,
        retrieval: Retrieval | None = None,
        ranker: Step | None = None,
        entropy: bool = False,
        queries: int | None = None,
        oracle: bool = False,
    ) -> None:
        """Measure a system's ranking, perhaps on a sample of the queries, and what its vectors are like.

        An oracle is measured and never selected. A system without training has the same numbers for every seed.
        """
        asked, collection = self.config.evaluate, self.collection
        # A ranking that every seed shares is measured once.
        whose = seeded(name, seed, self.config) if f"(seed {seed})" in ranking.label else name
        judged = [measure for measure in asked.measures if not needs_answers(measure)]
        by_answer = len(judged) < len(asked.measures)
        metrics = step(
            f"{whose} measures",
            evaluate,
            data=collection.data,
            ranking=collection.answering(ranking, [asked.split]) if by_answer else ranking,
            split=asked.split,
            measures=asked.measures,
            entropy=asked.entropy if entropy else None,
            queries=queries,
        )
        analysis = None
        vectors = retrieval is not None and retrieval.model.kind == DEFAULT
        if self.config.analyse is not None and retrieval is not None and vectors and ranker is None:
            analysis = step(
                f"{whose} analysis",
                analyse,
                data=collection.data,
                tokens=collection.tokens,
                vectors=retrieval.vectors,
                queries=retrieval.queries(asked.split),
                ranking=ranking,
                split=asked.split,
                config=self.config.analyse,
            )
        measured = System(
            name,
            round,
            self._collection,
            asked.split,
            seed,
            metrics,
            collection.data,
            ranking,
            retrieval,
            ranker,
            answers=self.config.answers if by_answer else None,
            analysis=analysis,
            queries=queries,
            oracle=oracle,
        )
        self.systems.append(measured)
        for other, source in asked.other_qrels.items():
            with in_phase(COLLECTION):
                data = step(f"data ({other})", ingest, source=self._in_form(source))
            metrics = step(
                f"{whose} measures ({other})",
                evaluate,
                data=data,
                ranking=ranking,
                split=asked.split,
                measures=judged,
                queries=queries,
            )
            self.systems.append(
                replace(measured, collection=other, metrics=metrics, data=data, answers=None, analysis=None)
            )

    def _in_form(self, source: Source) -> Source:
        """Other judgements, whose ids are read as the collection's are: rankings have those."""
        ids = self.config.data.ids
        return source if ids is None else source.model_copy(update={"ids": ids})

    def refresh(
        self, name: str, retriever: Model, *, seed: int, round: int | None = None, entropy: bool = False
    ) -> Retrieval:
        """What a retriever now finds in the collection, which is measured under its name."""
        retrieval = refresh(seeded(name, seed, self.config), self.collection, retriever, self.config)
        ranking = retrieval.ranking(self.config.evaluate.split)
        self.add(name, ranking, retrieval=retrieval, seed=seed, round=round, entropy=entropy)
        return retrieval

    def add_measures(self, name: str, measures: Step, *, seed: int, retrieval: Retrieval | None = None) -> None:
        """A system whose measures are not of a ranking: what is made of one, such as a reader's answers, or vectors."""
        split, data = self.config.evaluate.split, self.collection.data
        self.systems.append(System(name, None, self._collection, split, seed, measures, data, retrieval=retrieval))

    def gather(self, comparisons: list[tuple[str, str]]) -> Step:
        """The step that gathers all measures, and makes the comparisons asked for, and those with rankings of files:
        of the leading system, and of the one to deploy."""
        given = self.config.evaluate.other_rankings.keys() & system_names(self.systems)
        beside = [(None, name) for name in sorted(given)] if comparisons else []
        return gathered(self.systems, [*comparisons, *beside])

    @property
    def _collection(self) -> str:
        return self.name or name_of(self.config.data)


@in_phase(EVALUATION)
def gathered(
    systems: Sequence[System], comparisons: Sequence[tuple[str | None, str]], *, parts: Parts | None = None
) -> Step:
    """Measures, and comparisons of a system with its baseline, as `metrics.json` has them. None is the leading system,
    and the one to deploy.

    With `parts` each system's averages over the collections too, as if that were one more collection
    (`Outcome.parts`). ValueError where two systems have one name, or a comparison names none.
    """
    of = [(system.name, system.collection, system.split, system.seed) for system in systems]
    for name, collection, split, seed in of:
        if of.count((name, collection, split, seed)) > 1:
            raise ValueError(
                f"two systems are called {name!r} on {collection} ({split}, seed {seed}); rename one, "
                "such as a key of evaluate.other_qrels or evaluate.other_rankings"
            )
    names = system_names(systems)
    for compared in (one for pair in comparisons for one in pair):
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


def system_names(systems: Iterable[System]) -> list[str]:
    """What the systems are called, each once."""
    return list(dict.fromkeys(system.name for system in systems))


def name_of(source: Any) -> str:
    """A collection's name for tables: the last part of its path or id that names no split, or its format."""
    for key in ("path", "id", "name"):
        if isinstance(getattr(source, key, None), str):
            parts = [part for part in str(getattr(source, key)).split("/") if part and "{" not in part]
            if parts:
                return parts[-1]
    return str(source.format)


@dataclass(frozen=True)
class TimeSpent:
    """Time that a query takes of a step: its time over what it, or another step, counted."""

    step: Step
    per: str = "queries"
    """A count in a step's summary."""
    over: Step | None = None
    """The step that counted; None for the same."""
    share: tuple[str, str] | None = None
    """Of its time only as great a part as these seconds of its summary are of those; None for all."""


@dataclass(frozen=True)
class SystemCost:
    """What a system takes to build, and for a query (Chuang et al., 2023, Table 3.11)."""

    system: str
    index: tuple[Step, ...]
    """What is done once for the collection."""
    expand: tuple[TimeSpent, ...] = ()
    rerank: tuple[TimeSpent, ...] = ()
    retrieve: tuple[TimeSpent, ...] = ()
    measured: str | None = None
    """What it is called among the measures; None for the same."""
    models: tuple[Step, ...] = ()
    """The models that a query needs."""

    @property
    def searched(self) -> list[Step]:
        """What a query looks into: of `index`, what no other is made from."""
        made_from = {before.fingerprint for node in self.index for before in node.upstream}
        return [node for node in self.index if node.fingerprint not in made_from]


@dataclass(frozen=True)
class Outcome:
    """A recipe's graph: the step that everything leads to, and what the commands show, search and export."""

    results: Step
    data: Step
    systems: Sequence[System]
    """What was measured, with the models of each system."""
    retrieval: Retrieval
    """The last retriever, and what it finds."""
    ranker: Step | None
    """The last ranker."""
    split: str
    """The split that was measured."""
    note: str
    """What a reader of the results must know about the start model."""
    examples: tuple[str, str] | None = None
    """The system and the baseline whose won and lost queries the report shows."""
    pictures: tuple[Step, ...] = ()
    """Further steps that the report shows, such as charts: nothing that was measured stands on them."""
    costs: tuple[SystemCost, ...] = ()
    """Systems whose cost the report sets side by side."""
    parts: Parts | None = None
    """Where results have averages over the collections: by collection, the whole that it is a part of, or None for one
    that does not count. None for no averages."""
    levels: Mapping[str, int] = field(default_factory=dict)
    """Where one of the systems is chosen to be deployed: how dear each is, by its name."""
    unmeasured: str = ""
    """Where there is nothing to measure by: what was made, and why nobody knows how good it is."""
    of_several: str = ""
    """Where the experiment has several last retrievers, and `retrieval` is of the first: how many, `one a fold`."""

    def last_retriever(self, path: str) -> Step:
        """The retriever that another experiment takes from this one, which lies in a file. ValueError where it stands
        for a part of the experiment alone: another part may have been trained on what that one is measured on."""
        if self.of_several:
            raise ValueError(
                f"{path}: has several last retrievers, {self.of_several}; accepted: an experiment with one"
            )
        return self.retrieval.retriever

    @property
    def ranked(self) -> dict[str, System]:
        """The systems with a ranking of the recipe's own collection, by name; of several seeds the last's."""
        here = self.data.fingerprint, self.split
        own = (system for system in self.systems if (system.data.fingerprint, system.split) == here)
        return {system.name: system for system in own if system.ranking is not None}

    @property
    def rankings(self) -> dict[str, Step]:
        """These systems' rankings."""
        return {name: system.ranking for name, system in self.ranked.items() if system.ranking is not None}


def labels_apart(outcomes: Mapping[str, Outcome]) -> dict[str, str]:
    """Labels by fingerprint, for several graphs in one: the outcome's name is added to those of steps that not all
    outcomes share."""
    steps = {name: {node.fingerprint: node.label for node in graph([o.results])} for name, o in outcomes.items()}
    shared = set.intersection(*map(set, steps.values()))
    labels: dict[str, str] = {}
    for name, of in steps.items():
        for fingerprint in of.keys() - shared - labels.keys():
            labels[fingerprint] = f"{name}: {of[fingerprint]}"
    return labels


def note_on(model: str) -> str:
    """What is known of a start model's training data, in words for the report."""
    datasets = card.datasets(model)
    if not datasets:
        return f"The start model is {model}. See its model card for what it was trained on."
    return (
        f"The start model is {model}. Its model card lists this training data: {', '.join(datasets)}. On any of these "
        "its results are not zero-shot."
    )
