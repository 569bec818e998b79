"""A run's systems with their models and indexes open. Systems that share a model or an index share one copy. The
command `search` opens one system, the service all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparring.components.config import Damaged, UserError
from sparring.components.data.tables import QUERIES, read
from sparring.components.data.vectors import DocumentVectors
from sparring.components.expansion import feedback
from sparring.components.retrieval import lucene, quantised, topk
from sparring.components.retrieval.kind import IndexOptions
from sparring.components.retrieval.kinds.dense import single_file
from sparring.components.retrieval.kinds.lexical import LexicalStage
from sparring.components.retrieval.stage import Nearest, RetrieverStage, Vectors, open_search
from sparring.components.systems.config import SystemConfig
from sparring.components.systems.documents import Documents, InMemory, InTable
from sparring.components.systems.expanding import Expander, ExpansionWriter, RankPredictor
from sparring.components.systems.loaded import BM25, LoadedEncoder, LoadedRetriever, PairScorer
from sparring.components.systems.reading import AnswerWriter
from sparring.components.systems.stages.expansion import ExpansionStage
from sparring.components.systems.stages.ranker import RankerStage
from sparring.components.systems.stages.reader import ReaderStage
from sparring.components.systems.system import LoadedSystem
from sparring.workflows.steps.search import SearchConfig
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import Store
from sparring.workflows.systems import deployable
from sparring.workflows.systems.dense import Dense
from sparring.workflows.systems.deployable import Deployment
from sparring.workflows.systems.expanded import Expanded
from sparring.workflows.systems.rows import Outcome, Row
from sparring.workflows.systems.system import SEARCHED

Thing = TypeVar("Thing")


class Plan(NamedTuple):
    """A fetched system of a run, and its description."""

    config: SystemConfig
    deployment: Deployment


class Opening(NamedTuple):
    """A fetched system that any process of this machine can open, or the reason why none can."""

    plan: Plan | None
    root: Path
    """Folder of the artifacts."""
    bytes: int
    """Size of the models, the indexes and the documents."""
    reason: str = ""

    @classmethod
    def of(cls, deployment: Deployment, store: Store) -> Opening:
        """Fetch a system. A step may have chosen numbers that only the run can use."""
        deployment.fetch(store)
        root = store.path(deployment.data).parent
        try:
            plan = Plan(deployment.describe(store), deployment)
        except Damaged:
            raise
        except UserError as error:
            return cls(None, root, 0, deployable.reason(error))
        searched = [node for stage in deployment.stages.values() for node in stage.searched]
        sizes = [
            *store.sizes(_distinct(deployment.models), "model/*"),
            *store.sizes(_distinct(searched), *SEARCHED),
            *store.sizes([deployment.data], "documents.parquet"),
        ]
        return cls(plan, root, sum(sizes))

    def open(self, *, threads: int, models: Callable[[], Mapping[str, Any]]) -> LoadedSystem:
        """Open the system as `serve` does."""
        assert self.plan is not None
        return Library(Store(self.root), threads=threads, models=models, resident=True).system(self.plan)


class Library:
    """The models and indexes of a run that are open."""

    def __init__(
        self, store: Store, *, threads: int, models: Callable[[], Mapping[str, Any]], resident: bool = False
    ) -> None:
        """`models` returns further options of `Inference`. With `resident`, the documents' texts are held in memory,
        for many queries."""
        self._store, self._resident, self._threads = store, resident, threads
        self._options = cache(lambda: {"threads": threads, **models()})
        self._open: dict[tuple[Any, ...], Any] = {}

    def system(self, plan: Plan) -> LoadedSystem:
        """Open a system."""
        config, stages = plan.config, plan.deployment.stages
        # Java starts while Python imports torch.
        names = sorted(stages, key=lambda name: not config.stages[name].in_java)
        parts = {name: stages[name].open(name, plan, self) for name in names}
        return LoadedSystem(config, self.documents(plan.deployment.data), parts).wait()

    def documents(self, data: Step) -> Documents:
        """Open a collection's documents."""
        path = self._store.path(data) / "documents.parquet"
        return self._once(lambda: InMemory.of_table(path) if self._resident else InTable(path), data)

    def bm25(self, index: Step, stage: LexicalStage) -> BM25:
        """Open a Lucene index."""
        path, numbers = self._store.path(index) / lucene.INDEX, stage.model_dump_json(exclude={"k"})
        return self._once(lambda: BM25(path, stage, threads=self._threads), index, numbers)

    def ranker(self, model: Step, stage: RankerStage) -> PairScorer:
        """Open a ranker."""
        folder, precision = self._store.path(model) / "model", stage.precision
        return self._once(
            lambda: PairScorer(folder, precision=precision, merge=False, **self._options()), model, precision
        )

    def expander(self, expanded: Expanded, stage: ExpansionStage) -> Expander:
        """Open the models of an expansion stage. A query with the text of one of the run's queries gets that query's
        expansions."""
        data, writer, reranker = self._store.path(expanded.data), expanded.generator.writer, expanded.reranker
        opened: dict[str, Any] = {}
        if writer is not None:
            folder = self._store.path(writer) / "model"
            opened["writer"] = self._once(lambda: ExpansionWriter(folder, **self._options()), writer)
        if stage.relevance is not None:
            opened["frequencies"] = self._once(lambda: feedback.frequencies(data), expanded.data, "frequencies")
        if reranker is not None:
            model, precision = self._store.path(reranker.model) / "model", reranker.precision
            opened["predictor"] = self._once(
                lambda: RankPredictor(model, precision=precision, **self._options()), reranker.model, precision
            )
        return Expander(stage, **opened, ids=partial(_ids_in, data / "queries.parquet"))

    def reader(self, model: Step, stage: ReaderStage) -> AnswerWriter:
        """Open a reader."""
        folder, precision, new_tokens = self._store.path(model) / "model", stage.precision, stage.new_tokens
        return self._once(
            lambda: AnswerWriter(folder, precision=precision, new_tokens=new_tokens, **self._options()),
            model,
            precision,
            new_tokens,
        )

    def retriever(self, dense: Dense, name: str, plan: Plan) -> LoadedRetriever:
        """Open a retriever, and its vectors or its index."""
        stage = plan.config.stages[name]
        assert isinstance(stage, RetrieverStage)
        rounding = {"precision": stage.precision, "vectors": stage.vectors}
        folder = self._store.path(dense.retriever) / "model"
        # Adapters over the same model: it is held once for all.
        merge = not self._resident and not any(plan.config.of_kind(RankerStage))
        encoder = self._once(
            lambda: LoadedEncoder(folder, **rounding, merge=merge, **self._options()),
            dense.retriever,
            *rounding.values(),
        )
        documents = self.documents(plan.deployment.data)
        nearest, vectors = self._index(dense, len(documents.sorted), rows=plan.config.data_is_read(name))
        if (by := dense.rescored_by) is not None:
            nearest = self._rescored(nearest, dense, by)
        return LoadedRetriever(encoder, documents, nearest, vectors)

    def _index(self, dense: Dense, documents: int, *, rows: bool) -> tuple[Nearest, Vectors | None]:
        """Return the search of the step `search`: by the run's index, or exact. With `rows`, also return a function
        that reads vectors."""
        cuda, threads, search = self._options()["cuda"], self._threads, dense.search
        path, folder = self._store.path(dense.searched_vectors), None
        if dense.index is not None:
            folder = self._store.path(dense.index)
        if folder is not None and dense.index is not None and rows:  # the vectors are read from the index too
            from sparring.components.retrieval import index

            opened = self._once(lambda: _faiss(folder, search, threads), dense.index, search.model_dump_json())
            quantiser = quantised.read(path)
            return (
                lambda queries, order, k: index.search(
                    opened, queries if quantiser is None else quantiser.queries(queries), order, k
                ),
                index.reader(opened),
            )
        options = IndexOptions(search.probes, search.ef)
        nearest = self._once(
            lambda: open_search(path, documents, folder, search.index, options, threads=threads, cuda=cuda),
            dense.index or dense.searched_vectors,
            "search",
            str(options),
        )
        return nearest, _reader(path) if rows else None

    def _rescored(self, search: Nearest, dense: Dense, by: Step) -> Nearest:
        """Return the search of the step `rescore`, in which other vectors order the results of a search."""
        place, times = self._store.path(by), dense.search.rescore or 1
        documents, quantiser = DocumentVectors(place), quantised.read(place)

        def nearest(queries: np.ndarray, order: np.ndarray, k: int) -> topk.Keys:
            candidates = search(queries, order, min(len(order), times * max(k, dense.k)))
            return quantised.rescore(queries, candidates, order, documents, quantiser, k)

        return nearest

    def _once(self, make: Callable[[], Thing], step: Step, *more: Any) -> Thing:
        """Make something of a step's files once. Later calls return the same object."""
        key = (step.fingerprint, *more)
        if key not in self._open:
            self._open[key] = make()
        thing: Thing = self._open[key]
        return thing


def _distinct(steps: Iterable[Step]) -> list[Step]:
    return list({node.fingerprint: node for node in steps}.values())


def _ids_in(queries: Path, texts: Sequence[str]) -> list[str]:
    """Return the ids of queries in a table by their texts. A text that the table lacks is its own id."""
    rows = read(queries, QUERIES, columns=["query_id", "text"], filters=[("text", "in", list(texts))])
    ids = dict(zip(rows["text"].to_pylist()[::-1], rows["query_id"].to_pylist()[::-1], strict=True))
    return [ids.get(text, text) for text in texts]


def _faiss(folder: Path, search: SearchConfig, threads: int) -> Any:
    from sparring.components.retrieval import index

    return index.read(single_file(folder), probes=search.probes, ef=search.ef, threads=threads, gpu=False)


def _reader(folder: Path) -> Vectors:
    """Return a function that reads the vectors of some rows, in any order."""
    vectors = DocumentVectors(folder)

    def read(rows: np.ndarray) -> np.ndarray:
        ascending, places = np.unique(rows, return_inverse=True)
        return np.asarray(vectors[ascending], np.float32)[places]

    return read


def fetched(deployment: Deployment, store: Store) -> Plan:
    """Fetch a system, and describe it. UserError if an artifact was not made or was dropped."""
    deployment.fetch(store)
    return Plan(deployment.describe(store), deployment)


def measured(row: Row, store: Store) -> Plan:
    """Fetch a system as the run measured it. UserError if a stage cannot answer new queries."""
    return fetched(Deployment.of_row(row), store)


def last(outcome: Outcome, store: Store) -> Plan:
    """Fetch a run's last retriever, measured or not."""
    return fetched(deployable.last_retrieval(outcome), store)


def of_run(outcome: Outcome, store: Store) -> tuple[dict[str, Plan], dict[str, str]]:
    """Fetch all systems of a run that can answer new queries, by name. Return them with the reasons why others cannot.
    If no system can, return the last retriever alone."""
    plans: dict[str, Plan] = {}
    reasons: dict[str, str] = {}
    for name, row in outcome.ranked.items():
        try:
            plans[name] = measured(row, store)
        except UserError as error:
            reasons[name] = deployable.reason(error)
    if not plans:
        plans[deployable.LAST] = last(outcome, store)
    return plans, reasons
