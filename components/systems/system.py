"""A system that answers queries: lists of documents, their fusion, and a ranker over the first of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, overload

import numpy as np
import pyarrow as pa

from sparring.components.config import Damaged, UserError
from sparring.components.data.tables import RANKING, document_text
from sparring.components.retrieval.fusion import fuse
from sparring.components.systems import config as configs
from sparring.components.systems.config import (
    DenseStage,
    FusedStage,
    LexicalStage,
    NeighboursStage,
    RankerStage,
    SystemConfig,
)
from sparring.components.systems.documents import Documents, InMemory
from sparring.components.systems.loaded import BM25, LoadedEncoder, LoadedRetriever, PairScorer, Ranking, reordered

QUERY_CHARACTERS = 4_000
"""Maximum length of a query. No model reads more."""
BATCH_TOKENS = 8_192
"""Tokens that a model reads at a time."""


class Hit(NamedTuple):
    """A retrieved document."""

    doc_id: str
    score: float
    """Score of the last stage. Documents are sorted by it."""
    scores: dict[str, float]
    """Score of each stage that scored the document, by the stage's name."""
    title: str
    text: str


class Seconds(dict[str, float]):
    """How long the parts of a search took, one after another. BM25 searches while a retriever does: of BM25 it is what
    was waited for it afterwards."""

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Count this block as a part."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self[part] = self.get(part, 0.0) + time.perf_counter() - began


class LoadedSystem:
    """A system with its models and indexes loaded. Any thread may search. One search runs at a time, on all threads
    that the system was given."""

    def __init__(
        self,
        config: SystemConfig,
        documents: Documents,
        *,
        lexical: Mapping[str, BM25],
        dense: Mapping[str, LoadedRetriever],
        rankers: Mapping[str, PairScorer],
    ) -> None:
        """`lexical`, `dense` and `rankers` have what stages of these kinds compute with, by the stage's name."""
        self.config, self.documents = config, documents
        self._lexical, self._dense, self._rankers = lexical, dense, rankers
        self._one_at_a_time = threading.Lock()

    @classmethod
    def load(cls, folder: Path | str, *, threads: int, models: Callable[[], Mapping[str, Any]] = dict) -> Self:
        """Load the system in a folder. `models` returns further options of `Inference`, such as those of a GPU.
        UserError if the folder is no system's or lacks a file."""
        if threads < 1:
            raise UserError(f"load: threads: got {threads}; accepted: 1 or more")
        try:
            return cls._load(Path(folder), threads=threads, models=models)
        except Damaged as error:
            raise UserError(f"{error}; {configs.AGAIN}") from None

    @classmethod
    def _load(cls, folder: Path, *, threads: int, models: Callable[[], Mapping[str, Any]]) -> Self:
        """Load the system. Raise Damaged if a file of models or indexes is truncated or missing."""
        config = configs.read(folder)
        # Java starts while Python imports torch, to look for a GPU too.
        lexical = {
            name: BM25(folder / stage.index, stage, threads=threads)
            for name, stage in config.stages.items()
            if isinstance(stage, LexicalStage)
        }
        documents = InMemory.of_folder(folder / configs.DOCUMENTS, config.documents)
        options: dict[str, Any] = {"threads": threads, "batch_tokens": BATCH_TOKENS, "cuda": False}
        if any(config.of_kind(DenseStage, RankerStage)):
            options |= models()
        dense, rankers = dict[str, LoadedRetriever](), dict[str, PairScorer]()
        for name, stage in config.stages.items():
            if isinstance(stage, DenseStage):
                dense[name] = _retriever(folder, name, config, documents, options)
            elif isinstance(stage, RankerStage):
                rankers[name] = PairScorer(folder / stage.folder, precision=stage.precision, **options)
        return cls(config, documents, lexical=lexical, dense=dense, rankers=rankers).wait()

    def wait(self) -> Self:
        """Wait until all of it is open; Damaged if an index cannot be read."""
        for part in self._lexical.values():
            part.wait()
        return self

    @overload
    def search(
        self, queries: str, k: int = 10, seconds: Seconds | None = None, *, without: Sequence[str | None] | None = None
    ) -> list[Hit]: ...

    @overload
    def search(
        self,
        queries: list[str] | tuple[str, ...],
        k: int = 10,
        seconds: Seconds | None = None,
        *,
        without: Sequence[str | None] | None = None,
    ) -> list[list[Hit]]: ...

    def search(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        seconds: Seconds | None = None,
        *,
        without: Sequence[str | None] | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Find at most k documents for a query, best first. For several queries, return a list for each.

        Equal scores of a ranker keep the order before it, all others are in order of id. `seconds` collects how long
        each part took: `encode` (tokenise too), `search`, `bm25`, `fuse`, `rank`, `text`. `without` has for each
        query the id of a document to leave out, such as the document that the query is; the next document moves up.
        UserError if the system cannot rank so many documents.
        """
        self.config.check_k(k)
        texts = _checked(queries, "search: queries")
        if not texts:
            return []
        without = [None] * len(texts) if without is None else without
        answers = self._search(texts, k, Seconds() if seconds is None else seconds, without)
        return answers[0] if isinstance(queries, str) else answers

    def rerank(self, query: str, documents: Sequence[str]) -> list[tuple[int, float]]:
        """Order documents for a query by the last ranker: the places of the documents in the list with their scores,
        best first. Documents with equal scores stay in their order. UserError if the system has no ranker."""
        if not self._rankers:
            raise UserError(f"rerank: {self.config.name!r} has no ranker. Load a system that has one.")
        texts = _checked(documents, "rerank: documents")
        with self._one_at_a_time:
            (scores,) = list(self._rankers.values())[-1](_checked(query, "rerank: query"), [texts])
        return sorted(enumerate(scores.tolist()), key=lambda place: -place[1])

    def embed(self, texts: str | Sequence[str], side: Literal["query", "document"] = "query") -> np.ndarray:
        """Compute the first retriever's vectors: (d,) for a text, (N, d) for a list of N.

        `side` says what the texts are: models with prompts, or with two towers, read queries and documents differently.
        UserError if the system has no retriever.
        """
        if not self._dense:
            raise UserError(f"embed: {self.config.name!r} has no retriever. Load a system that has one.")
        if side not in ("query", "document"):
            raise UserError(f"embed: side is {side!r}. Use 'query' or 'document'.")
        with self._one_at_a_time:
            vectors = next(iter(self._dense.values())).encode(_checked(texts, "embed: texts"), side)
        return vectors[0] if isinstance(texts, str) else vectors

    def text_of(self, doc_id: str) -> str:
        """Return a document's text as a query. Raise UserError if there is no such document."""
        if self.documents.place(doc_id) is None:
            raise UserError(f"id: no document is called {doc_id!r}; accepted: the id of a document")
        return document_text(*self.documents.texts([doc_id])[doc_id])[:QUERY_CHARACTERS]

    def _search(self, texts: list[str], k: int, spent: Seconds, without: Sequence[str | None]) -> list[list[Hit]]:
        """Answer a list of at least one query."""
        with self._one_at_a_time:
            rankings, scores = self._rankings(texts, k, spent, without)
        with spent.of("text"):
            tables = {name: [dict(ranking) for ranking in lists] for name, lists in scores.items()}
            shown = [ranking[:k] for ranking in rankings[self.config.answer]]
            titles_and_texts = self.documents.texts([doc_id for ranking in shown for doc_id, _ in ranking])
        return [
            [
                Hit(
                    doc_id,
                    score,
                    {name: lists[q][doc_id] for name, lists in tables.items() if doc_id in lists[q]},
                    *titles_and_texts[doc_id],
                )
                for doc_id, score in ranking
            ]
            for q, ranking in enumerate(shown)
        ]

    def _rankings(
        self, texts: Sequence[str], k: int, spent: Seconds, without: Sequence[str | None]
    ) -> tuple[dict[str, list[Ranking]], dict[str, list[Ranking]]]:
        """Return each stage's rankings, and the scores that it computed. A ranker scores the first documents only. Java
        searches while the retrievers do."""
        config = self.config
        waiting = {name: part(texts, config.length(name, k), without) for name, part in self._lexical.items()}
        rankings, vectors = dict[str, list[Ranking]](), dict[str, np.ndarray]()
        for name, retriever in self._dense.items():
            with spent.of("encode"):
                vectors[name] = retriever.encode(texts)
            with spent.of("search"):
                rankings[name] = retriever.search(vectors[name], config.length(name, k), without)
        for name, wait in waiting.items():
            with spent.of("bm25"):
                rankings[name] = wait()
        scores = {name: rankings[name] for name, _ in config.of_kind(LexicalStage, DenseStage)}
        for name, stage in config.stages.items():
            if isinstance(stage, FusedStage):
                with spent.of("fuse"):
                    rankings[name] = scores[name] = _fused(stage, rankings, config, len(texts))
            elif isinstance(stage, NeighboursStage):
                with spent.of("search"):
                    retriever, lists = self._dense[stage.of], zip(vectors[stage.of], rankings[stage.of], strict=True)
                    rankings[name] = [retriever.by_neighbours(vector, hits, stage) for vector, hits in lists]
                    scores[name] = rankings[name]
            elif isinstance(stage, RankerStage):
                scores[name] = self._scored(texts, rankings[stage.of], self._rankers[name], stage.depth, spent)
                with spent.of("rank"):
                    rankings[name] = _reordered(stage, scores[name], rankings, config)
        return rankings, scores

    def _scored(
        self, texts: Sequence[str], rankings: list[Ranking], ranker: PairScorer, depth: int, spent: Seconds
    ) -> list[Ranking]:
        """Score each query's first documents by the ranker, in their order."""
        first = [[doc_id for doc_id, _ in ranking[:depth]] for ranking in rankings]
        with spent.of("text"):
            documents = self.documents.texts([doc_id for ids in first for doc_id in ids])
        with spent.of("rank"):
            scores = ranker(texts, [[document_text(*documents[doc_id]) for doc_id in ids] for ids in first])
        return [list(zip(ids, row.tolist(), strict=True)) for ids, row in zip(first, scores, strict=True)]


def _retriever(
    folder: Path, name: str, config: SystemConfig, documents: Documents, options: Mapping[str, Any]
) -> LoadedRetriever:
    """Open a dense stage's model and index; Damaged if the index has another number of documents."""
    from sparring.components.retrieval import index, quantised

    stage = config.stages[name]
    assert isinstance(stage, DenseStage)
    near = config.reads_vectors(name)
    opened = index.read(folder / stage.index, threads=options["threads"], gpu=options["cuda"] and not near)
    if opened.ntotal != config.documents:
        raise Damaged(
            f"{folder / stage.index}: {opened.ntotal} vectors, and the system has {config.documents} documents"
        )
    cut = partial(quantised.cut, dimensions=stage.dimensions, normalize=stage.normalize)
    encoder = LoadedEncoder(folder / stage.retriever, precision=stage.precision, vectors=stage.vectors, **options)
    return LoadedRetriever(
        encoder,
        documents,
        lambda vectors, order, k: index.search(opened, cut(vectors), order, k),
        index.reader(opened) if near else None,
    )


def _checked(texts: str | Sequence[str], argument: str) -> list[str]:
    """Return one text or many as a list. Raise UserError for anything else."""
    checked = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    if not all(isinstance(text, str) for text in checked):
        raise UserError(f"{argument} must be a string or a list of strings.")
    return checked


def _fused(stage: FusedStage, lists: Mapping[str, list[Ranking]], config: SystemConfig, queries: int) -> list[Ranking]:
    """Fuse the rankings of several stages."""
    lexical = [place for place, name in enumerate(stage.of) if isinstance(config.stages[name], LexicalStage)]
    return _as_lists(fuse([as_ranking(lists[name]) for name in stage.of], stage, lexical=lexical), queries)


def _reordered(
    stage: RankerStage, scored: list[Ranking], rankings: Mapping[str, list[Ranking]], config: SystemConfig
) -> list[Ranking]:
    """Put each query's first documents in the order of the ranker's scores, or of the weighted sums. The remaining
    documents follow, with lower scores."""
    final = []
    for q, (ranking, scores) in enumerate(zip(rankings[stage.of], scored, strict=True)):
        if stage.priors:
            priors = [
                Prior(
                    rankings[name][q],
                    weight,
                    prior.k if isinstance(prior := config.stages[name], LexicalStage) else None,
                )
                for name, weight in stage.priors.items()
            ]
            scores = weighted(scores, stage.weight, priors)
        final.append(reordered(ranking, sorted(scores, key=lambda hit: -hit[1])))
    return final


class Prior(NamedTuple):
    """A query's ranking whose scores are added to a ranker's."""

    ranking: Ranking
    weight: float
    lexical_k: int | None
    """For BM25, the number of documents that were requested."""

    @property
    def lowest(self) -> float:
        """Score of a document that the ranking lacks: the lowest, or 0 if BM25 has fewer documents than requested."""
        complete = self.lexical_k is not None and len(self.ranking) < self.lexical_k
        return 0.0 if complete else min((score for _, score in self.ranking), default=0.0)


def weighted(scored: Ranking, weight: float, priors: Sequence[Prior]) -> Ranking:
    """Add the weighted scores of priors to a ranker's.

    >>> priors = [Prior([("a", 0.5)], 2, None), Prior([("b", 8.0)], 0.5, lexical_k=2)]
    >>> weighted([("a", 1.0), ("b", 2.0)], 1, priors)
    [('a', 2.0), ('b', 7.0)]
    """
    tables = [(dict(prior.ranking), prior.weight, prior.lowest) for prior in priors]
    return [
        (doc_id, sum([weight * score, *(prior * scores.get(doc_id, low) for scores, prior, low in tables)]))
        for doc_id, score in scored
    ]


def as_ranking(lists: Sequence[Ranking]) -> pa.Table:
    """Join lists into one ranking table. Queries are named by their numbers."""
    rows = [
        (str(query), doc_id, rank, score)
        for query, ranking in enumerate(lists)
        for rank, (doc_id, score) in enumerate(ranking, 1)
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in RANKING]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RANKING, strict=True)]
    return pa.table(arrays, schema=RANKING)


def _as_lists(ranking: pa.Table, queries: int) -> list[Ranking]:
    """Split a ranking of `as_ranking` into lists."""
    lists: list[Ranking] = [[] for _ in range(queries)]
    columns = (ranking[name].to_pylist() for name in ("query_id", "doc_id", "score"))
    for query, doc_id, score in zip(*columns, strict=True):
        lists[int(query)].append((doc_id, score))
    return lists
