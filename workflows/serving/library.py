"""A run's systems with their models and indexes open, each once however many systems use it. The command `search` opens
one, the service all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparring.components.config import UserError
from sparring.components.data.vectors import DocumentVectors, document_shards
from sparring.components.retrieval import quantised, topk
from sparring.components.retrieval.kinds.dense import INDEX
from sparring.components.systems.config import VERSION, Dense, Lexical, Ranker, SystemConfig
from sparring.components.systems.documents import Documents, InMemory, InTable
from sparring.components.systems.stages import BM25, Encoder, Nearest, PairScorer, Retriever, Vectors
from sparring.components.systems.system import System
from sparring.workflows.steps import lucene
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems import deployable
from sparring.workflows.systems.results import Outcome
from sparring.workflows.systems.results import System as Measured

Thing = TypeVar("Thing")


class Plan(NamedTuple):
    """A system of a run: what it is made of, and the steps that made that."""

    config: SystemConfig
    data: Step
    stages: deployable.Stages


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
        ranker = self._ranker(plan.stages["ranker"], config.ranker) if config.ranker is not None else None
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
        made, near = deployable.retriever_of(stage), config.neighbours
        rounding = {"precision": config.precision, "vectors": config.vectors}
        folder = self._store.path(made) / "model"
        # Adapters over the same model: it is held once for all.
        merge = not self._resident and plan.config.ranker is None
        encoder = self._once(
            lambda: Encoder(folder, **rounding, merge=merge, **self._options()), made, *rounding.values()
        )
        nearest, vectors = self._index(stage, rows=near is not None)
        if "rescored" in plan.stages:
            nearest = self._rescored(nearest, stage, plan.stages["rescored"].inputs["vectors"])
        neighbours = None if near is None or vectors is None else (near, vectors)
        return Retriever(encoder, documents, nearest, neighbours)

    def _ranker(self, stage: Step, config: Ranker) -> PairScorer:
        made = stage.inputs["ranker"]
        folder = self._store.path(made) / "model"
        return self._once(
            lambda: PairScorer(folder, precision=config.precision, merge=False, **self._options()),
            made,
            config.precision,
        )

    def _index(self, stage: Step, *, rows: bool) -> tuple[Nearest, Vectors | None]:
        """The search of the step `search`: by the run's index, or exact; and with `rows` what reads the vectors."""
        cuda, path = self._options()["cuda"], self._store.path(deployable.searched(stage))
        how, threads = quantised.read(self._store.path(stage.inputs["vectors"])), self._threads
        if stage.inputs["index"] is None:
            shards, device = document_shards(path), "cuda" if cuda else "cpu"
            return (
                lambda queries, order, k: quantised.top_k(
                    queries, shards, how, order, k, device=device, threads=threads
                ),
                _reader(path) if rows else None,
            )
        from sparring.components.retrieval import index

        config, gpu = stage.inputs["config"], cuda and not rows
        opened = self._once(
            lambda: index.read(path / INDEX, probes=config.probes, ef=config.ef, threads=threads, gpu=gpu),
            deployable.searched(stage),
            config.model_dump_json(),
            gpu,
        )
        return (
            lambda queries, order, k: index.search(opened, queries if how is None else how.queries(queries), order, k),
            index.reader(opened) if rows else None,
        )

    def _rescored(self, found: Nearest, stage: Step, by: Step) -> Nearest:
        """The search of the step `rescore`, by other vectors, over what a stage finds."""
        place, times, usual = self._store.path(by), stage.inputs["times"], stage.inputs["k"]
        documents, how = DocumentVectors(place), quantised.read(place)

        def nearest(queries: np.ndarray, order: np.ndarray, k: int) -> topk.Keys:
            candidates = found(queries, order, min(len(order), times * max(k, usual)))
            return quantised.rescored(queries, candidates, order, documents, how, k)

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
    steps = deployable.stages(system)
    deployable.fetch(store, system.data, steps)
    return Plan(deployable.described(system, steps, store), system.data, steps)


def last(outcome: Outcome, store: Store) -> Plan:
    """A run's last retriever, fetched. It need not have been measured."""
    retrieval = outcome.retrieval
    stages = {"dense": retrieval.found(outcome.split)}
    stages |= {"rescored": retrieval.ranking(outcome.split)} if retrieval.rescored_by is not None else {}
    deployable.fetch(store, outcome.data, stages)
    config = SystemConfig(
        version=VERSION,
        name=deployable.LAST,
        documents=deployable.count(store.path(outcome.data) / "documents.parquet"),
        dense=deployable.dense(stages["dense"], store.path(retrieval.retriever) / "model"),
    )
    return Plan(config, outcome.data, stages)


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
        plans[deployable.LAST] = last(outcome, store)
    return plans, reasons
