"""A run's systems with their models and indexes open, each once however many systems use it. The command `search` opens
one, the service all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from components.config import UserError
from components.data.groups import check_k
from components.data.vectors import DocumentVectors, document_shards
from components.retrieval import smaller, topk
from components.systems.config import VERSION, Dense, Lexical, Ranker, SystemConfig
from components.systems.documents import Documents, InMemory, InTable
from components.systems.stages import BM25, Encoder, Nearest, PairScorer, Retriever, Vectors
from components.systems.system import System
from workflows.stages import systems
from workflows.stages.results import Outcome
from workflows.stages.results import System as Measured
from workflows.stages.retrieval import Retrieval
from workflows.steps import lucene
from workflows.steps.prior import add_prior
from workflows.steps.score import RerankConfig
from workflows.steps.search import INDEX
from workflows.store.dag import Step
from workflows.store.needed import finished, not_dropped
from workflows.store.store import Store

Thing = TypeVar("Thing")


class Plan(NamedTuple):
    """A system of a run: what it is made of, and the steps that made that."""

    config: SystemConfig
    data: Step
    stages: systems.Stages
    """`dense` and `lexical` are what its lists are read from."""
    ranker: Step | None
    rescored: Retrieval | None = None
    """What orders the candidates that `dense` finds by other vectors of theirs."""


class Library:
    """The models and indexes of a run that are open."""

    def __init__(
        self, store: Store, *, threads: int, models: Callable[[], Mapping[str, Any]], resident: bool = False
    ) -> None:
        """`models` are the other options of `Inference`. With `resident` the documents' texts are held in memory, for
        many queries."""
        self._store, self._resident, self._threads = store, resident, threads
        self._options = cache(lambda: {"threads": threads, **models()})
        self._open: dict[tuple[Any, ...], Any] = {}

    def system(self, plan: Plan) -> System:
        """The system, open. All that it needs has been fetched."""
        config = plan.config
        # First, since Java starts while Python imports torch.
        lexical = self._lexical(plan.stages["lexical"], config.lexical) if config.lexical is not None else None
        documents = self.documents(plan.data)
        dense = self._dense(plan, config.dense, documents) if config.dense is not None else None
        made, ranked_by = plan.ranker, config.ranker
        ranker = self._ranker(made, ranked_by) if made is not None and ranked_by is not None else None
        if lexical is not None:
            lexical.wait()
        return System(config, documents, lexical=lexical, dense=dense, ranker=ranker)

    def documents(self, data: Step) -> Documents:
        """A collection's documents."""
        path = self._store.path(data) / "documents.parquet"
        return self._once(lambda: InMemory.of_table(path) if self._resident else InTable(path), data)

    def _lexical(self, stage: Step, config: Lexical) -> BM25:
        index = stage.inputs["index"]
        path, numbers = self._store.path(index) / lucene.INDEX, config.model_dump_json(exclude={"k"})
        return self._once(lambda: BM25(path, config, threads=self._threads), index, numbers)

    def _dense(self, plan: Plan, config: Dense, documents: Documents) -> Retriever:
        stage = plan.stages["dense"]
        made, near = systems.retriever_of(stage), config.neighbours
        rounding = {"precision": config.precision, "vectors": config.vectors}
        folder = self._store.path(made) / "model"
        # Adapters over the same model: it is held once for all.
        merge = not self._resident and plan.ranker is None
        encoder = self._once(
            lambda: Encoder(folder, **rounding, merge=merge, **self._options()), made, *rounding.values()
        )
        nearest, vectors = self._index(stage, rows=near is not None)
        if plan.rescored is not None:
            nearest = self._rescored(nearest, plan.rescored)
        neighbours = None if near is None or vectors is None else (near, vectors)
        return Retriever(encoder, documents, nearest, neighbours)

    def _ranker(self, made: Step, config: Ranker) -> PairScorer:
        folder = self._store.path(made) / "model"
        return self._once(
            lambda: PairScorer(folder, precision=config.precision, merge=False, **self._options()),
            made, config.precision,
        )  # fmt: skip

    def _index(self, stage: Step, *, rows: bool) -> tuple[Nearest, Vectors | None]:
        """The search of the step `search`: by the run's index, or exact; and with `rows` what reads the vectors."""
        cuda, path = self._options()["cuda"], self._store.path(systems.searched(stage))
        how, threads = smaller.read(self._store.path(stage.inputs["vectors"])), self._threads
        if stage.inputs["index"] is None:
            shards, device = document_shards(path), "cuda" if cuda else "cpu"
            return (
                lambda queries, order, k: smaller.top_k(
                    queries, shards, how, order, k, device=device, threads=threads
                ),
                _reader(path) if rows else None,
            )  # fmt: skip
        from components.retrieval import index

        config, gpu = stage.inputs["config"], cuda and not rows
        opened = self._once(
            lambda: index.read(
                path / INDEX, probes=config.probes, ef=config.ef, threads=threads, gpu=gpu
            ), systems.searched(stage), config.model_dump_json(), gpu,
        )  # fmt: skip
        return (
            lambda queries, order, k: index.search(opened, queries if how is None else how.queries(queries), order, k),
            index.reader(opened) if rows else None,
        )

    def _rescored(self, found: Nearest, retrieval: Retrieval) -> Nearest:
        """The search of the step `rescore` over another."""
        assert retrieval.rescored_by is not None
        place, times = self._store.path(retrieval.rescored_by), retrieval.search.rescore or 1
        documents, how = DocumentVectors(place), smaller.read(place)

        def nearest(queries: np.ndarray, order: np.ndarray, k: int) -> topk.Keys:
            candidates = found(queries, order, min(len(order), times * max(k, retrieval.k)))
            return smaller.rescored(queries, candidates, order, documents, how, k)

        return nearest

    def _once(self, make: Callable[[], Thing], step: Step, *more: Any) -> Thing:
        """What is made of a step's files, from the second time on as it is."""
        key = (step.fingerprint, *more)
        if key not in self._open:
            self._open[key] = make()
        thing: Thing = self._open[key]
        return thing


def _reader(folder: Path) -> Vectors:
    """What reads the vectors of some rows, in any order."""
    vectors = DocumentVectors(folder)

    def read(rows: np.ndarray) -> np.ndarray:
        ascending, places = np.unique(rows, return_inverse=True)
        return np.asarray(vectors[ascending], np.float32)[places]

    return read


def measured(system: Measured, store: Store) -> Plan:
    """A system as the run measured it, fetched. UserError where something was not made or was dropped, or it has a
    stage that answers no other queries."""
    steps = systems.stages(system)
    ranker = steps["ranker"].inputs["ranker"] if "ranker" in steps else None
    fetch(store, system.data, steps, ranker)
    return Plan(systems.described(system, steps, store), system.data, steps, ranker)


def last(outcome: Outcome, store: Store, depth: int | None) -> Plan:
    """A run's last retriever, fetched; with `depth`, its last ranker reorders the first `depth`, by the sum of its
    scores and others where the run does. It need not have been measured."""
    own, retrieval = None if depth is None else own_reranking(outcome), outcome.retrieval
    others = systems.stages(own) if own is not None and _has_prior(own) else {}
    stages = {"dense": retrieval.found(outcome.split)}
    stages |= {"lexical": others["lexical"]} if "lexical" in others else {}
    trained = outcome.ranker if depth is not None else None
    fetch(store, outcome.data, {**others, **stages}, trained, retrieval.needed)
    ranker, lexical = None, None
    if depth is not None:
        check_k(depth, store.path(outcome.data), key="--depth")
        ranker = Ranker(depth=depth, precision=_config_of(own).precision)
    if own is not None and ranker is not None and others:
        described = systems.described(own, others, store)
        lexical, weights = described.lexical, described.ranker and described.ranker.weights
        ranker = ranker.model_copy(update={"weights": weights})
    table = store.path(outcome.data) / "documents.parquet"
    dense = systems.dense(stages["dense"], store.path(retrieval.retriever) / "model")
    config = SystemConfig(
        version=VERSION, name="the last", documents=systems.count(table), lexical=lexical,
        dense=dense.model_copy(update={"k": retrieval.k}), ranker=ranker,
    )  # fmt: skip
    return Plan(config, outcome.data, stages, trained, None if retrieval.rescored_by is None else retrieval)


def fetch(
    store: Store, data: Step, steps: systems.Stages, ranker: Step | None, more: Sequence[Step] = ()
) -> None:  # fmt: skip
    """Fetch what a system is read from, and `more`; UserError where something was not made or was dropped."""
    models = [systems.retriever_of(steps["dense"])] if "dense" in steps else []
    models += [ranker] if ranker is not None else []
    indexes: list[Step] = [steps["lexical"].inputs["index"]] if "lexical" in steps else []
    indexes += [systems.searched(steps["dense"])] if "dense" in steps else []
    indexes += more
    weights = systems.weights_of(steps)
    for node in (*models, *indexes, *weights, data):
        finished(store, node)
    for node in indexes:
        not_dropped(store, node)
    store.fetch([data], "documents.parquet")
    store.fetch(models, "model")
    store.fetch([*indexes, *weights])


def of_run(outcome: Outcome, store: Store) -> tuple[dict[str, Plan], dict[str, str]]:
    """All systems of a run that can answer, by name, and why others cannot. UserError where none can."""
    plans: dict[str, Plan] = {}
    reasons: dict[str, str] = {}
    for name, one in outcome.ranked.items():
        try:
            plans[name] = measured(one, store)
        except UserError as error:
            reasons[name] = str(error).rpartition("cannot be deployed: ")[2]
    if not plans:
        plans["the last retriever"] = last(outcome, store, None)
    return plans, reasons


def preferred(outcome: Outcome, store: Store, plans: Mapping[str, Plan]) -> str:
    """The system that is asked where none is named: what the run chose to deploy, or the last retriever's with the
    last ranker."""
    chose = systems.recommended(outcome, store) if store.is_done(outcome.results) else None
    try:
        name = chose or systems.chosen(outcome, None).name
    except UserError:
        name = ""
    return name if name in plans else list(plans)[-1]


def of_search(outcome: Outcome, plans: Mapping[str, Plan]) -> dict[str, str]:
    """The systems that the command `search` asks, where the run measured them: `retriever`, and with --rank
    `ranker`."""
    dense = outcome.retrieval.ranking(outcome.split).fingerprint
    over = {
        name: plan for name, plan in plans.items()
        if "dense" in plan.stages and plan.stages["dense"].fingerprint == dense
        and plan.config.fusion is None and plan.config.dense is not None and plan.config.dense.neighbours is None
    }  # fmt: skip
    alone = [name for name, plan in over.items() if plan.ranker is None]
    found = {"retriever": alone[0]} if alone else {}
    own = own_reranking(outcome)
    if own is not None and own.name in over and over[own.name].ranker is outcome.ranker:
        found["ranker"] = own.name
    return found


def own_reranking(outcome: Outcome) -> Measured | None:
    """What the run itself measured of its last ranker, over its last retriever where it did; None for nothing."""
    last = outcome.retrieval.retriever.fingerprint
    own = [one for one in outcome.systems if one.ranker is not None and one.ranker is outcome.ranker and one.ranking]
    over_last = [one for one in own if one.retrieval is not None and one.retrieval.retriever.fingerprint == last]
    return next(iter([*over_last, *own]), None)


def own_depth(outcome: Outcome, k: int) -> int:
    """How many documents of a query the run itself reranks; where it reranks none, as many as are shown."""
    own = own_reranking(outcome)
    return k if own is None else min(_config_of(own).depth, outcome.retrieval.k)


def _has_prior(system: Measured) -> bool:
    return system.ranking is not None and system.ranking.function is add_prior


def _config_of(system: Measured | None) -> RerankConfig:
    """How the run itself reranked."""
    if system is None or system.ranking is None:
        return RerankConfig()
    step = system.ranking.inputs["reranked"] if _has_prior(system) else system.ranking
    config: RerankConfig = step.inputs["config"]
    return config
