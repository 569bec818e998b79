"""EAR: expand a query in many ways, rerank the expansions, and retrieve with the best (Chuang et al., 2023, chapter
3)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from sparring.components.config import listing
from sparring.workflows.experiments import loading
from sparring.workflows.recipes.ear import costs
from sparring.workflows.recipes.ear.choices import Choices
from sparring.workflows.recipes.ear.comparisons import comparisons
from sparring.workflows.recipes.ear.config import AllExpansionsConfig, Config, Kind
from sparring.workflows.recipes.ear.costs import ExpansionCosts
from sparring.workflows.recipes.ear.dense import DenseRetriever
from sparring.workflows.recipes.ear.generators import Expansions, Generators
from sparring.workflows.recipes.ear.passages import PassageReranker
from sparring.workflows.recipes.ear.query_rerankers import Prediction, QueryRerankers
from sparring.workflows.recipes.ear.reader import Reader
from sparring.workflows.recipes.ear.setting import EXPANSIONS, PASSAGE_RERANKING, QUERY_RERANKING, setting
from sparring.workflows.stages.results import Results
from sparring.workflows.stages.untrained import add_untrained, from_files, start_retrieval
from sparring.workflows.steps.expansion_examples import study
from sparring.workflows.store.dag import Step, graph, in_phase, relabelled, step
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.expanded import Expanded, Generator, QueryReranker
from sparring.workflows.systems.fused import Fused
from sparring.workflows.systems.phases import EVALUATION, TRAINING
from sparring.workflows.systems.rows import Outcome, SystemCost, note_on
from sparring.workflows.systems.system import Computed, Cost, Rankings, System, TimeSpent

MODELS = (
    "generator_seed",
    "generators",
    "include_question",
    "negatives",
    "order",
    "passages",
    "reader",
    "rerankers",
    "retriever",
    "screen",
    "train",
    "training_candidates",
    "training_queries",
)
"""Keys that an experiment with `models_from` takes from the other experiment."""


class Ear:
    """The parts of EAR on one collection, for the queries of one split."""

    def __init__(self, config: Config, trained: "Ear | None" = None, split: str | None = None) -> None:
        """If `trained` is EAR on another collection, its models are used. If None, train on this collection. `split` is
        the ranked split. If None, it is the measured split."""
        self.config, self._trained = config, trained
        self.setting = setting(config, split or config.evaluate.split, training=trained is None)
        self.generators: Generators = Generators(self.setting, trained.generators if trained else None)
        self.rerankers: QueryRerankers = QueryRerankers(
            self.setting, self.generators, trained.rerankers if trained else None
        )
        self.choices = Choices(self.setting)
        self.dense: DenseRetriever = DenseRetriever(self.setting, trained.dense if trained else None)
        self.passages: PassageReranker | None = None
        if config.passages is not None:
            self.passages = PassageReranker(self.setting, config.passages, trained.passages if trained else None)
        self.reader: Reader | None = None
        if config.reader is not None:
            self.reader = Reader(self.setting, config.reader, self.dense, trained.reader if trained else None)
        self.for_split = cache(self._for_split)
        self.predictions = cache(self._predictions)
        self.query_reranker = cache(self._query_reranker)

    def _for_split(self, split: str) -> "Ear":
        """Return EAR for the queries of another split."""
        return self if split == self.setting.split else Ear(self.config, self._trained, split)

    @cached_property
    def expansions(self) -> dict[str, Expansions]:
        """Expansions of the split's queries by the measured generators."""
        return {name: self.generators.issue(name, [self.setting.split]) for name in self.config.measured()}

    def system(
        self,
        label: str,
        rankings: Callable[["Ear"], list[Step]],
        cost: Callable[["Ear", ExpansionCosts], Cost],
        *,
        generators: Sequence[str] | None = None,
        kind: Kind | None = None,
        seed: int = 0,
        **choice: Any,
    ) -> System:
        """Make the system of the generators' rankings, fused. `rankings` and `cost` are for the queries of one split.

        `kind` and `seed` name the query reranker that chooses. Further options are fields of `Expanded`.
        """
        ranked, parts = cache(lambda split: rankings(self.for_split(split))), []
        for place, name in enumerate(generators or self.config.measured()):
            reranker = None if kind is None else self.query_reranker(name, kind, seed)
            ranking = partial(lambda place, split: ranked(split)[place], place)
            parts.append(self._part(name, ranking, partial(self._cost, cost, name), reranker=reranker, **choice))
        if len(parts) == 1:
            return parts[0]
        fusion = self.setting.fusion(self.config.fusion, lists=len(parts))
        return Fused(f"{label} fused", self.setting.collection.data, parts, fusion, with_split=False)

    def _part(self, name: str, ranking: Rankings, cost: Callable[[str], Cost], **choice: Any) -> System:
        """Make the system of one generator."""
        config, collection = self.config.generators[name], self.setting.collection
        if config.file is not None:
            return Computed(ranking, "is of expansions that a file has", cost, lexical=True)
        writer = config.writer
        generator = Generator(
            seed=[self.config.generator_seed, name],
            relevance=config.relevance,
            writer=None if writer is None else self.generators.writers(name, writer, [])[0],
            generate=None if writer is None else writer.generate,
            question=self.config.include_question,
        )
        return Expanded(ranking, collection.data, collection.lexical, generator, cost, **choice)

    def _cost(self, cost: Callable[["Ear", ExpansionCosts], Cost], name: str, split: str) -> Cost:
        ear = self.for_split(split)
        return cost(ear, ExpansionCosts(ear.setting, ear.generators, name))

    def _query_reranker(self, name: str, kind: Kind, seed: int) -> QueryReranker:
        """Return the query reranker that chooses among a generator's expansions."""
        template = self.config.rerankers.of(name)[kind].template
        model = self.rerankers.model(name, kind, seed)
        return QueryReranker(model, self.config.predict.precision, template, passage=kind == "rd")

    def computed(self, ranking: Callable[["Ear"], Step], reason: str, *, lexical: bool = True) -> Computed:
        """Make a system that cannot be deployed."""
        index = Cost(index=(self.setting.collection.bm25_index,)) if lexical else Cost()
        return Computed(lambda split: ranking(self.for_split(split)), reason, lambda split: index, lexical=lexical)

    def first_expansion(self) -> System:
        """Make the system of each generator's first expansion."""
        return self.system(
            "first expansion",
            lambda ear: ear.firsts,
            lambda ear, costs: costs.cost([TimeSpent(ear.expansions[costs.name].ranking)], first=True),
        )

    def concat(self) -> System:
        """Make the system of all expansions of a query as one query."""
        return self.system(
            "concat",
            lambda ear: ear.concats,
            lambda ear, costs: costs.cost([TimeSpent(ear.concatenated[costs.name].ranking)]),
            choice="concat",
        )

    def all_expansions(self, config: AllExpansionsConfig) -> System:
        """Make the system of all expansions' rankings, fused."""

        def cost(ear: "Ear", costs: ExpansionCosts) -> Cost:
            issued = ear.expansions.get(costs.name) or ear.generators.issue(costs.name, [ear.setting.split])
            return costs.cost([costs.of_all(issued.ranking)])

        return self.system(
            "all expansions",
            lambda ear: ear.all_fused(config),
            cost,
            generators=self.choices.generators_of_all(config),
            choice="all",
            fusion=self.setting.fusion(config),
        )

    def reranked(self, label: str, kind: Kind, seed: int, number: int | None = None) -> System:
        """Make the system of the expansions that a query reranker chooses, perhaps among the first so many."""
        return self.system(
            label,
            lambda ear: ear.chosen(label, kind, seed, number),
            lambda ear, costs: ear.reranking(costs, kind, seed, TimeSpent),
            kind=kind,
            seed=seed,
            choice="lowest",
            number=number,
        )

    def several(self, label: str, most: int, kind: Kind, seed: int) -> System:
        """Make the system of the first so many expansions in a query reranker's order, fused."""
        return self.system(
            label,
            lambda ear: ear.choices.several(label, most, ear.expansions, ear.predictions(kind, seed)),
            lambda ear, costs: ear.reranking(costs, kind, seed, costs.of_all),
            kind=kind,
            seed=seed,
            choice="lowest",
            most=most,
            fusion=self.setting.fusion(self.config.fusion),
        )

    def reranking(self, costs: ExpansionCosts, kind: Kind, seed: int, searched: Callable[[Step], TimeSpent]) -> Cost:
        """Cost of a generator's expansions that a query reranker chooses."""
        expansions, prediction = self.expansions[costs.name], self.predictions(kind, seed)[costs.name]
        return costs.cost([searched(expansions.ranking)], rerank=costs.reranking(expansions, kind, prediction))

    # What is chosen for each generator

    @cached_property
    @in_phase(EXPANSIONS)
    def firsts(self) -> list[Step]:
        """Each generator's ranking of first expansions."""
        return [self.choices.choose(name, output, None, "first") for name, output in self.expansions.items()]

    def fused(self, label: str, choices: list[Step]) -> Step:
        """Fuse the generators' rankings of chosen expansions."""
        return self.setting.fused(label, choices, lexical=range(len(choices)))

    @cached_property
    @in_phase(EXPANSIONS)
    def concatenated(self) -> dict[str, Expansions]:
        """All expansions of a query as one query, by generator."""
        return {name: self.choices.concatenated(name, output) for name, output in self.expansions.items()}

    @property
    @in_phase(EXPANSIONS)
    def concats(self) -> list[Step]:
        """Each generator's ranking of all expansions of a query as one query."""
        return [self.choices.choose(name, output, None, "concat") for name, output in self.concatenated.items()]

    @in_phase(EXPANSIONS)
    def best(self) -> Step:
        """Rank by the best expansion, which an oracle chooses."""
        best = [self.choices.choose(name, output, output.ranks, "best") for name, output in self.expansions.items()]
        return self.fused("best query", best)

    @in_phase(EXPANSIONS)
    def all_fused(self, config: AllExpansionsConfig) -> list[Step]:
        """Fuse all expansions' rankings, for each generator."""
        return self.choices.all_expansions(self.expansions, self.generators, config)

    @in_phase(QUERY_RERANKING)
    def _predictions(self, kind: Kind, seed: int) -> dict[str, Prediction]:
        """Predict ranks with a query reranker, by generator."""
        return {name: self.rerankers.predict(name, output, kind, seed) for name, output in self.expansions.items()}

    @in_phase(QUERY_RERANKING)
    def chosen(self, label: str, kind: Kind, seed: int, number: int | None = None) -> list[Step]:
        """Rank by each generator's expansions with the lowest predicted rank. If `number` is not None, choose among the
        first `number` only."""
        predictions = self.predictions(kind, seed)
        return [
            self.choices.choose(name, output, predictions[name].scores, label, number)
            for name, output in self.expansions.items()
        ]

    def models(self) -> list[Step]:
        """Return the steps that train the models of this collection, except the generators."""
        trained = []
        for seed in self.config.seeds:
            trained.append(self.dense.train(seed).step)
            for name in self.config.measured():
                for kind in self.config.kinds():
                    trained.append(self.rerankers.train(name, kind, seed))
            trained += [part.train(seed).step for part in (self.passages, self.reader) if part is not None]
        return trained


def build(config: Config) -> Outcome:
    """Build the graph for every generator, next to BM25, the oracle and a dense retriever."""
    trained = None
    if config.models_from is not None:
        trained = Ear(_other_config(config.models_from, config.seeds))
        config = config.model_copy(update={name: getattr(trained.config, name) for name in MODELS})
    ear = Ear(config, trained)
    collection = ear.setting.collection
    unseeded = _unseeded(ear)
    to_fuse = _to_fuse(config, unseeded | from_files(collection, config))
    results = Results(collection, config)
    start = start_retrieval(collection, ear.setting.retriever, config)
    for seed in config.seeds:
        add_untrained(results, start, config.retriever, seed=seed, entropy=True)
        with in_phase(EXPANSIONS):
            for name, system in unseeded.items():
                results.add(name, system, seed=seed, oracle=name == "best query")
        last = Seed(ear, results, seed).measure(unseeded["first expansion"], to_fuse)
    gathered = results.gather(comparisons(config, _dense_name(config)))
    if trained is not None:
        gathered = relabelled(gathered, _labels(trained, str(config.models_from)))
    return Outcome(
        results=gathered,
        data=collection.data,
        rows=results.rows,
        retrieval=last.retrieval,
        split=config.evaluate.split,
        note=_note(config),
        costs=tuple(last.costs),
        pictures=(_study(ear, last.choices),),
    )


def _dense_name(config: Config) -> str:
    """Name the dense retriever among the systems."""
    return "start model" if config.train is None else "retriever"


def _unseeded(ear: Ear) -> dict[str, System]:
    """Build the further systems, which are the same for every seed."""
    systems: dict[str, System] = {}
    if ear.config.rm3 is not None:
        systems["RM3"] = ear.setting.collection.with_feedback(ear.config.rm3)
    systems["first expansion"], systems["concat"] = ear.first_expansion(), ear.concat()
    systems["best query"] = ear.computed(Ear.best, "is of expansions that the judgements choose")
    if ear.config.all_expansions is not None:
        systems["all expansions"] = ear.all_expansions(ear.config.all_expansions)
    return systems


def _to_fuse(config: Config, systems: Mapping[str, System]) -> dict[str, System]:
    """Choose the systems that `with_dense` names. Systems from files without the measured split are left out."""
    names = systems.keys() | config.evaluate.other_rankings.keys()
    for name in config.with_dense:
        if name not in names:
            raise ValueError(f"with_dense: {name!r}; accepted: {listing(names)}")
    return {name: systems[name] for name in config.with_dense if name in systems}


@dataclass(frozen=True)
class Measured:
    """Rankings of a seed's systems that the report needs."""

    retrieval: Dense
    """The dense retriever."""
    costs: list[SystemCost]
    choices: dict[str, list[Step]]
    """Each generator's ranking of chosen expansions, by system."""


@dataclass(frozen=True)
class Seed:
    """The systems of one seed."""

    ear: Ear
    results: Results
    seed: int

    @in_phase(QUERY_RERANKING)
    def measure(self, first: System, to_fuse: dict[str, System]) -> Measured:
        """Measure all systems. `first` has the first expansions' rankings. The systems in `to_fuse` are fused with the
        dense retriever."""
        ear, config, name = self.ear, self.ear.config, _dense_name(self.ear.config)
        retrieval = ear.dense.retrieve(self.seed)
        if config.train is not None:
            with in_phase(TRAINING):
                self.results.add(name, retrieval, seed=self.seed, entropy=True)
        approximate = ear.dense.approximate(retrieval, self.seed)
        if approximate is not None:
            self.results.add(f"{name} ({config.hnsw})", approximate, seed=self.seed)
        for system, value in {"BM25": ear.setting.collection.lexical, **to_fuse}.items():
            self._add_with_dense(system, value, retrieval)
        if config.to_dense:
            label = ear.setting.label("first", self.seed)
            self._add_issued("first expansion", label, lambda ear: ear.firsts, retrieval)
        choices, systems, top = {"first expansion": ear.firsts}, {"first expansion": first}, {}
        for kind in config.kinds():
            system = f"EAR-{kind.upper()}"
            systems[system] = self._add_reranked(system, kind, retrieval)
            choices[system] = ear.chosen(ear.setting.label(system, self.seed), kind, self.seed)
            if config.passages is not None and config.passages.top_queries is not None:
                most = config.passages.top_queries
                label = ear.setting.label(f"{system} top {most}", self.seed)
                top[f"{system} top {most}"] = ear.several(label, most, kind, self.seed)
        if ear.passages is not None:
            with in_phase(PASSAGE_RERANKING):
                for system, value in ear.passages.rerank(systems | top, self.seed).items():
                    self.results.add(system, value, seed=self.seed, queries=ear.passages.config.rerank.queries)
        if ear.reader is not None:
            over = {"BM25": ear.setting.collection.lexical, name: retrieval, **systems}
            for system, answering in ear.reader.read(over, self.seed).items():
                measures = ear.reader.measure(system, answering, self.seed)
                self.results.add_measures(system, measures, seed=self.seed, system=answering)
        return Measured(retrieval, costs.table(ear.setting, name, retrieval, approximate, systems), choices)

    def _add_reranked(self, system: str, kind: Kind, retrieval: Dense) -> System:
        """Measure a query reranker: alone, fused with the dense retriever (Table 3.2), with its choices issued to the
        dense retriever (Table 3.7), and choosing among fewer expansions (Table 3.8). Return the first of these
        systems."""
        config, label = self.ear.config, self.ear.setting.label(system, self.seed)
        reranked = self.ear.reranked(label, kind, self.seed)
        self.results.add(system, reranked, seed=self.seed)
        self._add_with_dense(system, reranked, retrieval)
        if config.to_dense:
            self._add_issued(system, label, lambda ear: ear.chosen(label, kind, self.seed), retrieval)
        for number in config.fewer_expansions:
            few = f"{system} N={number}"
            label_of_few = self.ear.setting.label(few, self.seed)
            self.results.add(few, self.ear.reranked(label_of_few, kind, self.seed, number), seed=self.seed)
        return reranked

    def _add_with_dense(self, name: str, system: System, retrieval: Dense) -> None:
        self.results.add(
            f"{name} + dense", self.ear.dense.fused_with(name, system, retrieval, self.seed), seed=self.seed
        )

    def _add_issued(self, system: str, label: str, choices: Callable[[Ear], list[Step]], retrieval: Dense) -> None:
        """Measure the dense retriever on the chosen expansions."""

        def issued(ear: Ear) -> Step:
            return ear.dense.issue(label, ear.expansions, choices(ear), retrieval)

        reason = "is a retriever's, of expansions of the queries"
        self.results.add(f"{system} issued to dense", self.ear.computed(issued, reason, lexical=False), seed=self.seed)


def _other_config(path: str, seeds: list[int]) -> Config:
    """Read the experiment whose models are used, with the seeds of the experiment that uses them."""
    config = loading.read_config(Path(path), [f"seeds={seeds}"])
    if not isinstance(config, Config):
        raise ValueError(f"models_from: {path}: recipe: {config.recipe!r}; accepted: ear")
    if config.models_from is not None:
        raise ValueError(f"models_from: {path}: its models are another's; name {config.models_from}")
    unwritten = [name for name in config.measured() if config.generators[name].file is not None]
    if unwritten:
        raise ValueError(f"models_from: {path}: {listing(unwritten)}: a file has no expansions of other queries")
    return config


def _labels(ear: Ear, path: str) -> dict[str, str]:
    """Label the steps on the other collection, by fingerprint."""
    nodes = graph([ear.setting.collection.data, ear.setting.bm25_for("train"), *ear.models()])
    return {node.fingerprint: f"{loading.name_of(Path(path))}: {node.label}" for node in nodes}


def _note(config: Config) -> str:
    trained = "" if config.models_from is None else f"All models are those of {config.models_from}. "
    return trained + note_on(config.retriever.model)


@in_phase(EVALUATION)
def _study(ear: Ear, chosen: dict[str, list[Step]]) -> Step:
    """Collect lengths and examples of the chosen expansions (Tables 3.9 and 3.10), of the last seed."""
    collection, split = ear.setting.collection, ear.setting.split
    by_answer = ear.config.relevant_by == "answers"
    bm25 = collection.answering(ear.setting.bm25, [split]) if by_answer else ear.setting.bm25
    return step(
        "lengths and examples",
        study,
        data=collection.data,
        split=split,
        lexical=bm25,
        by_answer=by_answer,
        ranks={name: output.ranks for name, output in ear.expansions.items()},
        choices={
            name: {system: rankings[place] for system, rankings in chosen.items()}
            for place, name in enumerate(ear.expansions)
        },
    )
