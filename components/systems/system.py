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
from sparring.components.systems.config import List, SystemConfig, Weights
from sparring.components.systems.documents import Documents, InMemory
from sparring.components.systems.stages import BM25, Encoder, Found, PairScorer, Retriever, reordered

QUERY_CHARACTERS = 4_000
"""Of one query: no model reads so much of it."""
BATCH_TOKENS = 8_192
"""Tokens that a model reads at a time."""


class Hit(NamedTuple):
    """A document that a query has found."""

    doc_id: str
    score: float
    """By which the documents are in order."""
    scores: dict[str, float]
    """What each stage that looked at the document gave it: `lexical`, `dense`, `fusion`, `ranker`."""
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


class System:
    """A system with its models and indexes loaded. Any thread may search; one search runs at a time, on all threads
    that it was given."""

    def __init__(
        self,
        config: SystemConfig,
        documents: Documents,
        *,
        lexical: BM25 | None = None,
        dense: Retriever | None = None,
        ranker: PairScorer | None = None,
    ) -> None:
        """Its stages are those that the config has."""
        self.config = config
        self.documents, self._lexical, self._dense, self._ranker = documents, lexical, dense, ranker
        self._one_at_a_time = threading.Lock()

    @classmethod
    def load(cls, folder: Path | str, *, threads: int, models: Callable[[], Mapping[str, Any]] = dict) -> Self:
        """The system in a folder; UserError for a folder that is none or lacks something. `models` are the other
        options of `Inference`, where these are not a processor's."""
        if threads < 1:
            raise UserError(f"load: threads: got {threads}; accepted: 1 or more")
        try:
            return cls._load(Path(folder), threads=threads, models=models)
        except Damaged as error:
            raise UserError(f"{error}; {configs.AGAIN}") from None

    @classmethod
    def _load(cls, folder: Path, *, threads: int, models: Callable[[], Mapping[str, Any]]) -> Self:
        """The same; Damaged for a file of models or indexes that is cut or lost."""
        config = configs.read(folder)
        lexical = dense = ranker = None
        if config.lexical is not None:  # Java starts while Python imports torch, to look for a GPU too
            lexical = BM25(folder / config.lexical.index, config.lexical, threads=threads)
        documents = InMemory.of_folder(folder / configs.DOCUMENTS, config.documents)
        options: dict[str, Any] = {"threads": threads, "batch_tokens": BATCH_TOKENS, "cuda": False}
        if config.dense is not None or config.ranker is not None:
            options |= models()
        if config.dense is not None:
            from sparring.components.retrieval import index, quantised

            near = config.dense.neighbours
            opened = index.read(folder / config.dense.index, threads=threads, gpu=options["cuda"] and near is None)
            if opened.ntotal != config.documents:
                raise Damaged(
                    f"{folder / config.dense.index}: {opened.ntotal} vectors, and the system has {config.documents} "
                    "documents"
                )
            cut = partial(quantised.cut, dimensions=config.dense.dimensions, normalize=config.dense.normalize)
            encoder = Encoder(
                folder / config.dense.retriever,
                precision=config.dense.precision,
                vectors=config.dense.vectors,
                **options,
            )
            dense = Retriever(
                encoder,
                documents,
                lambda vectors, order, k: index.search(opened, cut(vectors), order, k),
                neighbours=None if near is None else (near, index.reader(opened)),
            )
        if config.ranker is not None:
            ranker = PairScorer(folder / config.ranker.folder, precision=config.ranker.precision, **options)
        if lexical is not None:
            lexical.wait()
        return cls(config, documents, lexical=lexical, dense=dense, ranker=ranker)

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

        Equal scores of the ranker keep the order before it, all others are in order of id. `seconds` is told how long
        each part took: `encode` (tokenise too), `search`, `bm25`, `fuse`, `rank`, `text`. `without` has for each
        query the id of a document to leave out, such as the document that the query is; another takes its place.
        UserError if the system cannot rank so many documents.
        """
        self.config.check_k(k)
        texts = _checked(queries, "search: queries")
        if not texts:
            return []
        without = [None] * len(texts) if without is None else without
        found = self._search(texts, k, Seconds() if seconds is None else seconds, without)
        return found[0] if isinstance(queries, str) else found

    def rerank(self, query: str, documents: Sequence[str]) -> list[tuple[int, float]]:
        """Order documents for a query by the ranker: the places of the documents in the list with their scores, best
        first. Documents with equal scores stay in their order. UserError if the system has no ranker."""
        if self._ranker is None:
            raise UserError(f"rerank: {self.config.name!r} has no ranker. Load a system that has one.")
        texts = _checked(documents, "rerank: documents")
        with self._one_at_a_time:
            (scores,) = self._ranker(_checked(query, "rerank: query"), [texts])
        return sorted(enumerate(scores.tolist()), key=lambda one: -one[1])

    def embed(self, texts: str | Sequence[str], side: Literal["query", "document"] = "query") -> np.ndarray:
        """Compute the retriever's vectors: (d,) for a text, (N, d) for a list of N.

        `side` says what the texts are: models with prompts, or with two towers, read queries and documents differently.
        UserError if the system has no retriever.
        """
        if self._dense is None:
            raise UserError(f"embed: {self.config.name!r} has no retriever. Load a system that has one.")
        if side not in ("query", "document"):
            raise UserError(f"embed: side is {side!r}. Use 'query' or 'document'.")
        with self._one_at_a_time:
            vectors = self._dense.encode(_checked(texts, "embed: texts"), side)
        return vectors[0] if isinstance(texts, str) else vectors

    def text_of(self, doc_id: str) -> str:
        """A document as a query; UserError where there is none of this id."""
        if self.documents.place(doc_id) is None:
            raise UserError(f"id: no document is called {doc_id!r}; accepted: the id of a document")
        return document_text(*self.documents.texts([doc_id])[doc_id])[:QUERY_CHARACTERS]

    def _search(self, texts: list[str], k: int, spent: Seconds, without: Sequence[str | None]) -> list[list[Hit]]:
        """The same for a list that has some."""
        with self._one_at_a_time:
            lists = self._lists(texts, k, spent, without)
            with spent.of("fuse"):
                final = ranked = _fused(lists, len(texts), self.config)
            scores = lists if self.config.fusion is None else {**lists, "fusion": ranked}
            if self._ranker is not None and self.config.ranker is not None:
                judged = self._judged(texts, ranked, self._ranker, self.config.ranker.depth, spent)
                with spent.of("rank"):
                    final = _reordered(ranked, judged, lists, self.config)
                scores = {**scores, "ranker": judged}
        with spent.of("text"):
            by_stage = {stage: [dict(found) for found in own] for stage, own in scores.items()}
            shown = [found[:k] for found in final]
            known = self.documents.texts([doc_id for found in shown for doc_id, _ in found])
        return [
            [
                Hit(one, score, {stage: own[q][one] for stage, own in by_stage.items() if one in own[q]}, *known[one])
                for one, score in found
            ]
            for q, found in enumerate(shown)
        ]

    def _lists(
        self, texts: Sequence[str], k: int, spent: Seconds, without: Sequence[str | None]
    ) -> dict[str, list[Found]]:
        """Both lists as long as the config says; one alone as long as is needed."""
        lexical, dense, ranker = self.config.lexical, self.config.dense, self.config.ranker
        neighbours = None if dense is None else dense.neighbours
        alone = max(k, 0 if ranker is None else ranker.depth, 0 if neighbours is None else neighbours.context)
        lists = {}
        coming = None
        if self._lexical is not None and lexical is not None:
            coming = self._lexical(texts, alone if dense is None else lexical.k, without)
        if self._dense is not None and dense is not None:
            with spent.of("encode"):
                vectors = self._dense.encode(texts)
            with spent.of("search"):
                length = min(self.config.documents, alone if lexical is None else dense.k)
                lists["dense"] = self._dense.nearest(vectors, length, without)
        if coming is None:
            return lists
        with spent.of("bm25"):
            return {"lexical": coming(), **lists}

    def _judged(
        self, texts: Sequence[str], ranked: list[Found], ranker: PairScorer, depth: int, spent: Seconds
    ) -> list[Found]:
        """The ranker's scores of each query's first documents, which stay in their order."""
        first = [[doc_id for doc_id, _ in found[:depth]] for found in ranked]
        with spent.of("text"):
            known = self.documents.texts([doc_id for ids in first for doc_id in ids])
        with spent.of("rank"):
            scores = ranker(texts, [[document_text(*known[doc_id]) for doc_id in ids] for ids in first])
        return [list(zip(ids, own.tolist(), strict=True)) for ids, own in zip(first, scores, strict=True)]


def _checked(texts: str | Sequence[str], what: str) -> list[str]:
    """One text or several as a list."""
    found = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    if not all(isinstance(text, str) for text in found):
        raise UserError(f"{what} must be a string or a list of strings.")
    return found


def _fused(lists: Mapping[str, list[Found]], queries: int, config: SystemConfig) -> list[Found]:
    """The documents of all lists in one order."""
    if config.fusion is None:
        return lists["dense" if "dense" in lists else "lexical"]
    other: List = "dense" if config.fusion.first == "lexical" else "lexical"
    one, two = (as_ranking(lists[name]) for name in (config.fusion.first, other))
    lexical = [0 if config.fusion.first == "lexical" else 1]
    return _as_lists(fuse([one, two], config.fusion, lexical=lexical), queries)


def _reordered(
    ranked: list[Found], judged: list[Found], lists: Mapping[str, list[Found]], config: SystemConfig
) -> list[Found]:
    """Each query's first documents by the ranker's scores, or by the weighted sum; the others follow, with scores below
    these."""
    weights = None if config.ranker is None else config.ranker.weights
    lexical_k = 0 if config.lexical is None else config.lexical.k
    final = []
    for q, (found, own) in enumerate(zip(ranked, judged, strict=True)):
        if weights is not None:
            own = weighted(own, {name: of_all[q] for name, of_all in lists.items()}, weights, lexical_k)
        final.append(reordered(found, sorted(own, key=lambda one: -one[1])))
    return final


def weighted(judged: Found, lists: Mapping[str, Found], weights: Weights, lexical_k: int) -> Found:
    """The weighted sums of the ranker's scores and those of the lists that they are in.

    A document that a list lacks gets the list's lowest score. It gets 0 if BM25's list has fewer documents than the
    `lexical_k` that were asked for.

    >>> lists = {"dense": [("a", 0.5)], "lexical": [("b", 8.0)]}
    >>> weighted([("a", 1.0), ("b", 2.0)], lists, Weights(ranker=1, retriever=2, bm25=0.5), lexical_k=2)
    [('a', 2.0), ('b', 7.0)]
    """
    dense, lexical = lists.get("dense", []), lists.get("lexical", [])
    parts = [(dict(judged), weights.ranker), (dict(dense), weights.retriever), (dict(lexical), weights.bm25)]
    cut = lexical if len(lexical) >= lexical_k else []
    lowest = [0.0, *(min((score for _, score in found), default=0.0) for found in (dense, cut))]
    return [
        (one, sum(weight * scores.get(one, low) for (scores, weight), low in zip(parts, lowest, strict=True)))
        for one, _ in judged
    ]


def as_ranking(lists: Sequence[Found]) -> pa.Table:
    """Lists as one ranking, whose queries are called by their numbers."""
    rows = [
        (str(query), doc_id, rank, score)
        for query, found in enumerate(lists)
        for rank, (doc_id, score) in enumerate(found, 1)
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in RANKING]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, RANKING, strict=True)]
    return pa.table(arrays, schema=RANKING)


def _as_lists(ranking: pa.Table, queries: int) -> list[Found]:
    """The lists of a ranking that `as_ranking` made."""
    lists: list[Found] = [[] for _ in range(queries)]
    columns = (ranking[name].to_pylist() for name in ("query_id", "doc_id", "score"))
    for query, doc_id, score in zip(*columns, strict=True):
        lists[int(query)].append((doc_id, score))
    return lists
