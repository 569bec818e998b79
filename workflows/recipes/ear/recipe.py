"""EAR: expand a query in many ways, rerank the expansions, retrieve with the best (Chuang et al., 2023, chapter 3)."""

from dataclasses import dataclass
from pathlib import Path

from sparring.components.config import listing
from sparring.workflows.experiments import loading
from sparring.workflows.recipes.ear.choices import Choices
from sparring.workflows.recipes.ear.comparisons import comparisons
from sparring.workflows.recipes.ear.config import Config
from sparring.workflows.recipes.ear.costs import Costs
from sparring.workflows.recipes.ear.dense import Dense
from sparring.workflows.recipes.ear.generators import Expansions, Generators
from sparring.workflows.recipes.ear.passages import PassageReranker
from sparring.workflows.recipes.ear.query_rerankers import Prediction, QueryRerankers
from sparring.workflows.recipes.ear.reader import Reader
from sparring.workflows.recipes.ear.setting import EXPANSIONS, PASSAGE_RERANKING, QUERY_RERANKING, setting
from sparring.workflows.stages.phases import EVALUATION, TRAINING
from sparring.workflows.stages.retrieval import Retrieval
from sparring.workflows.stages.untrained import add_untrained, from_files, start_retrieval
from sparring.workflows.steps.expansion_examples import study
from sparring.workflows.store.dag import Step, graph, in_phase, relabelled, step
from sparring.workflows.systems.results import Outcome, Results, SystemCost, note_on

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
"""The keys that an experiment with `models_from` takes from that other experiment."""


class Ear:
    """The parts of EAR on one collection."""

    def __init__(self, config: Config, trained: "Ear | None" = None) -> None:
        """`trained` is EAR on another collection, whose models are taken; None to train on this one."""
        self.config = config
        self.setting = setting(config, training=trained is None)
        self.generators: Generators = Generators(self.setting, trained.generators if trained else None)
        self.rerankers: QueryRerankers = QueryRerankers(
            self.setting, self.generators, trained.rerankers if trained else None
        )
        self.choices = Choices(self.setting)
        self.dense: Dense = Dense(self.setting, trained.dense if trained else None)
        self.passages: PassageReranker | None = None
        if config.passages is not None:
            self.passages = PassageReranker(self.setting, config.passages, trained.passages if trained else None)
        self.reader: Reader | None = None
        if config.reader is not None:
            self.reader = Reader(self.setting, config.reader, self.dense, trained.reader if trained else None)

    def models(self) -> list[Step]:
        """The models trained on this collection, but for the generators."""
        trained = []
        for seed in self.config.seeds:
            trained.append(self.dense.train(seed).step)
            for name in self.config.measured():
                for kind in self.config.kinds():
                    trained.append(self.rerankers.train(name, kind, seed))
            trained += [part.train(seed).step for part in (self.passages, self.reader) if part is not None]
        return trained


def build(config: Config) -> Outcome:
    """The graph for every generator, beside BM25, the oracle and a dense retriever."""
    other = None
    if config.models_from is not None:
        other = Ear(_other_config(config.models_from, config.seeds))
        config = config.model_copy(update={name: getattr(other.config, name) for name in MODELS})
    ear = Ear(config, other)
    collection, split = ear.setting.collection, config.evaluate.split
    expansions = {name: ear.generators.issue(name, [split]) for name in config.measured()}
    with in_phase(EXPANSIONS):
        firsts = [ear.choices.choose(name, one, None, "first") for name, one in expansions.items()]
        rm3 = ear.setting.rm3()
        unseeded = _unseeded(ear, expansions, firsts, rm3)
    to_fuse = _to_fuse(config, unseeded | from_files(collection, config))
    results = Results(collection, config)
    start = start_retrieval(collection, ear.setting.retriever, config)
    for seed in config.seeds:
        add_untrained(results, start, config.retriever, seed=seed, entropy=True)
        with in_phase(EXPANSIONS):
            for system, ranking in unseeded.items():
                results.add(system, ranking, seed=seed, oracle=system == "best query")
        last = Seed(ear, results, expansions, seed).measure(unseeded["first expansion"], firsts, rm3, to_fuse)
    gathered = results.gather(comparisons(config, _dense_name(config)))
    if other is not None:
        gathered = relabelled(gathered, _labels(other, str(config.models_from)))
    return Outcome(
        results=gathered,
        data=collection.data,
        systems=results.systems,
        retrieval=last.retrieval,
        ranker=None,
        split=split,
        note=_note(config),
        costs=tuple(last.costs),
        examples=(list(last.choices)[-1], "BM25"),
        pictures=(_study(ear, expansions, last.choices),),
    )


def _dense_name(config: Config) -> str:
    """What the dense retriever is called among the systems."""
    return "start model" if config.train is None else "retriever"


def _unseeded(ear: Ear, expansions: dict[str, Expansions], firsts: list[Step], rm3: Step | None) -> dict[str, Step]:
    """The rankings of the further systems that are the same for every seed."""
    concat = [ear.choices.concat(name, one) for name, one in expansions.items()]
    best = [ear.choices.choose(name, one, one.ranks, "best") for name, one in expansions.items()]
    rankings = {"RM3": rm3} if rm3 is not None else {}
    for system, choices in {"first expansion": firsts, "concat": concat, "best query": best}.items():
        rankings[system] = ear.setting.fused(system, choices, lexical=range(len(choices)))
    if ear.config.all_expansions is not None:
        rankings["all expansions"] = ear.choices.all_expansions(expansions, ear.generators, ear.config.all_expansions)
    return rankings


def _to_fuse(config: Config, rankings: dict[str, Step]) -> dict[str, Step]:
    """The rankings that `with_dense` names. Those of files that do not have the measured split are left out."""
    known = rankings.keys() | config.evaluate.other_rankings.keys()
    for name in config.with_dense:
        if name not in known:
            raise ValueError(f"with_dense: {name!r}; accepted: {listing(known)}")
    return {name: rankings[name] for name in config.with_dense if name in rankings}


@dataclass(frozen=True)
class Measured:
    """What a seed's systems leave for the report."""

    retrieval: Retrieval
    """What the dense retriever retrieves."""
    costs: list[SystemCost]
    choices: dict[str, list[Step]]
    """By system, each generator's ranking of chosen expansions."""


@dataclass(frozen=True)
class Seed:
    """The systems of one seed."""

    ear: Ear
    results: Results
    expansions: dict[str, Expansions]
    seed: int

    @in_phase(QUERY_RERANKING)
    def measure(self, first: Step, firsts: list[Step], rm3: Step | None, to_fuse: dict[str, Step]) -> Measured:
        """Measure all systems. `first` and `firsts` are the first expansions' ranking, fused and by generator;
        `to_fuse` are rankings that are fused with the dense retriever's."""
        ear, config, dense = self.ear, self.ear.config, _dense_name(self.ear.config)
        retrieval = ear.dense.retrieve(self.seed)
        if config.train is not None:
            with in_phase(TRAINING):
                self.results.add(
                    dense, retrieval.ranking(config.evaluate.split), retrieval=retrieval, seed=self.seed, entropy=True
                )
        approximate = ear.dense.approximate(retrieval, self.seed)
        if approximate is not None:
            self.results.add(f"{dense} ({config.hnsw})", approximate.ranking(config.evaluate.split), seed=self.seed)
        for system, ranking in {"BM25": ear.setting.bm25, **to_fuse}.items():
            self._add_with_dense(system, ranking, retrieval)
        costing = Costs(ear.setting, ear.generators, self.expansions)
        costs = costing.without_reranker(dense, retrieval, approximate, rm3)
        if config.to_dense:
            self._add_issued("first expansion", ear.setting.label("first", self.seed), firsts, retrieval)
        choices, rankings, several = {"first expansion": firsts}, {"first expansion": first}, {}
        for kind in config.kinds():
            system = f"EAR-{kind.upper()}"
            predictions = {
                name: ear.rerankers.predict(name, one, kind, self.seed) for name, one in self.expansions.items()
            }
            choices[system], rankings[system] = self._add_reranked(system, predictions, retrieval)
            if config.passages is not None and config.passages.top_queries is not None:
                name = f"{system} top {config.passages.top_queries}"
                label = ear.setting.label(name, self.seed)
                several[name] = ear.choices.several(label, config.passages.top_queries, self.expansions, predictions)
            costs.append(costing.of_reranker(system, kind, predictions))
        if ear.passages is not None:
            for system, ranking in ear.passages.rerank(rankings | several, self.seed).items():
                with in_phase(PASSAGE_RERANKING):
                    self.results.add(
                        system,
                        ranking,
                        ranker=ear.passages.ranker(self.seed).step,
                        seed=self.seed,
                        queries=ear.passages.config.rerank.queries,
                    )
        if ear.reader is not None:
            read = {"BM25": ear.setting.bm25, dense: retrieval.ranking(config.evaluate.split), **rankings}
            for system, measures in ear.reader.read(read, self.seed).items():
                self.results.add_measures(system, measures, seed=self.seed)
        return Measured(retrieval, costs, choices)

    def _add_reranked(
        self, system: str, predictions: dict[str, Prediction], retrieval: Retrieval
    ) -> tuple[list[Step], Step]:
        """Measure a query reranker: alone, with the dense retriever (Table 3.2), issued to it (Table 3.7), and choosing
        among fewer expansions (Table 3.8). The first of these rankings, by generator and fused."""
        config, label = self.ear.config, self.ear.setting.label(system, self.seed)
        choices = self._choices(label, predictions)
        ranking = self.ear.setting.fused(label, choices, lexical=range(len(choices)))
        self.results.add(system, ranking, seed=self.seed)
        self._add_with_dense(system, ranking, retrieval)
        if config.to_dense:
            self._add_issued(system, label, choices, retrieval)
        for number in config.fewer_expansions:
            few = f"{system} N={number}"
            label = self.ear.setting.label(few, self.seed)
            fewer = self._choices(label, predictions, number)
            fused = self.ear.setting.fused(label, fewer, lexical=range(len(fewer)))
            self.results.add(few, fused, seed=self.seed)
        return choices, ranking

    def _choices(self, label: str, predictions: dict[str, Prediction], number: int | None = None) -> list[Step]:
        """For each generator the ranking of the expansions of lowest predicted rank."""
        return [
            self.ear.choices.choose(name, one, predictions[name].scores, label, number)
            for name, one in self.expansions.items()
        ]

    def _add_with_dense(self, system: str, ranking: Step, retrieval: Retrieval) -> None:
        fused = self.ear.dense.fused_with(system, ranking, retrieval, self.seed)
        self.results.add(f"{system} + dense", fused, seed=self.seed)

    def _add_issued(self, system: str, label: str, choices: list[Step], retrieval: Retrieval) -> None:
        ranking = self.ear.dense.issue(label, self.expansions, choices, retrieval)
        self.results.add(f"{system} issued to dense", ranking, seed=self.seed)


def _other_config(path: str, seeds: list[int]) -> Config:
    """The experiment whose models are taken, with the seeds of the one that takes them."""
    other = loading.read_config(Path(path), [f"seeds={seeds}"])
    if not isinstance(other, Config):
        raise ValueError(f"models_from: {path}: recipe: {other.recipe!r}; accepted: ear")
    if other.models_from is not None:
        raise ValueError(f"models_from: {path}: its models are another's; name {other.models_from}")
    unwritten = [name for name in other.measured() if other.generators[name].file is not None]
    if unwritten:
        raise ValueError(f"models_from: {path}: {listing(unwritten)}: a file has no expansions of other queries")
    return other


def _labels(other: Ear, path: str) -> dict[str, str]:
    """Labels by fingerprint: what is done on the other collection says so."""
    nodes = graph([other.setting.collection.data, other.setting.bm25_for("train"), *other.models()])
    return {node.fingerprint: f"{loading.name_of(Path(path))}: {node.label}" for node in nodes}


def _note(config: Config) -> str:
    trained = "" if config.models_from is None else f"All models are those of {config.models_from}. "
    return trained + note_on(config.retriever.model)


@in_phase(EVALUATION)
def _study(ear: Ear, expansions: dict[str, Expansions], chosen: dict[str, list[Step]]) -> Step:
    """Lengths and examples of the chosen expansions (Tables 3.9 and 3.10), of the last seed."""
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
        ranks={name: one.ranks for name, one in expansions.items()},
        choices={
            name: {system: rankings[at] for system, rankings in chosen.items()} for at, name in enumerate(expansions)
        },
    )
