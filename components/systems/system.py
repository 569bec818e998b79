"""A system that answers queries: lists of documents, their fusion, a ranker over the first of them, and a reader."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, overload

import numpy as np

from sparring.components.config import Damaged, UserError
from sparring.components.data.tables import document_text
from sparring.components.retrieval.kinds.lexical import LexicalStage
from sparring.components.retrieval.stage import FirstStage, RetrieverStage
from sparring.components.systems import config as configs
from sparring.components.systems.config import SystemConfig
from sparring.components.systems.documents import Documents, InMemory
from sparring.components.systems.loaded import BM25, LoadedEncoder, LoadedRetriever, PairScorer
from sparring.components.systems.rankings import Ranking
from sparring.components.systems.reading import ReaderAnswer
from sparring.components.systems.searching import LaterStage, Search, Seconds
from sparring.components.systems.stages.ranker import RankerStage

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


class Answered(NamedTuple):
    """A system's answer to a query: the reader's text and the retrieved documents."""

    answer: ReaderAnswer | None
    """None if the system has no reader."""
    hits: list[Hit]


class LoadedSystem:
    """A system with its models and indexes loaded. Any thread may search. One search runs at a time, on all threads
    that the system was given."""

    def __init__(
        self,
        config: SystemConfig,
        documents: Documents,
        parts: Mapping[str, Any],
    ) -> None:
        """`parts` has the opened index or models of each stage that computes with some, by the stage's name."""
        self.config, self.documents, self._parts = config, documents, parts
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
        parts: dict[str, Any] = {
            name: BM25(folder / stage.index, stage, threads=threads) for name, stage in config.of_kind(LexicalStage)
        }
        documents = InMemory.of_folder(folder / configs.DOCUMENTS, config.documents)
        options: dict[str, Any] = {"threads": threads, "batch_tokens": BATCH_TOKENS, "cuda": False}
        if config.has_models:
            options |= models()
        for name, stage in config.stages.items():
            if isinstance(stage, RetrieverStage):
                parts[name] = _retriever(folder, stage, documents, options, rows=config.data_is_read(name))
            elif name not in parts:
                parts[name] = stage.open(folder, options)
        return cls(config, documents, parts).wait()

    def wait(self) -> Self:
        """Wait until all of it is open; Damaged if an index cannot be read."""
        for name in self._in_java:
            self._parts[name].wait()
        return self

    @property
    def _in_java(self) -> list[str]:
        """Names of the stages that Lucene searches."""
        return [name for name, stage in self.config.stages.items() if stage.in_java]

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
        each part took: `encode` (tokenise too), `search`, `bm25`, `expand` (the searches for expansions too), `fuse`,
        `rank`, `text`. `without` has for each query the id of a document to leave out, such as the document that the
        query is; the next document moves up.
        UserError if the system cannot rank so many documents.
        """
        self.config.check_k(k)
        texts = _checked(queries, "search: queries")
        if not texts:
            return []
        without = [None] * len(texts) if without is None else without
        lists, _ = self._search(texts, k, Seconds() if seconds is None else seconds, without)
        return lists[0] if isinstance(queries, str) else lists

    @overload
    def answer(
        self, queries: str, k: int = 10, seconds: Seconds | None = None, *, without: Sequence[str | None] | None = None
    ) -> Answered: ...

    @overload
    def answer(
        self,
        queries: list[str] | tuple[str, ...],
        k: int = 10,
        seconds: Seconds | None = None,
        *,
        without: Sequence[str | None] | None = None,
    ) -> list[Answered]: ...

    def answer(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        seconds: Seconds | None = None,
        *,
        without: Sequence[str | None] | None = None,
    ) -> Answered | list[Answered]:
        """Find at most k documents for a query as `search` does, and answer the query if the system has a reader. For
        several queries, return a list. `seconds` also has the part `read`.

        The reader reads as many documents as its stage says, whatever k is.
        """
        self.config.check_k(k)
        texts = _checked(queries, "answer: queries")
        if not texts:
            return []
        without = [None] * len(texts) if without is None else without
        spent = Seconds() if seconds is None else seconds
        lists, rankings = self._search(texts, k, spent, without)
        answered = [Answered(*pair) for pair in zip(self._read(texts, rankings, spent), lists, strict=True)]
        return answered[0] if isinstance(queries, str) else answered

    def rerank(self, query: str, documents: Sequence[str]) -> list[tuple[int, float]]:
        """Order documents for a query by the last ranker: the places of the documents in the list with their scores,
        best first. Documents with equal scores stay in their order. UserError if the system has no ranker."""
        rankers = list(self.rankers.values())
        if not rankers:
            raise UserError(f"rerank: {self.config.name!r} has no ranker. Load a system that has one.", code="no-model")
        texts = _checked(documents, "rerank: documents")
        with self._one_at_a_time:
            (scores,) = rankers[-1](_checked(query, "rerank: query"), [texts])
        return sorted(enumerate(scores.tolist()), key=lambda place: -place[1])

    def embed(self, texts: str | Sequence[str], side: Literal["query", "document"] = "query") -> np.ndarray:
        """Compute the first retriever's vectors: (d,) for a text, (N, d) for a list of N.

        `side` says what the texts are: models with prompts, or with two towers, read queries and documents differently.
        UserError if the system has no retriever.
        """
        retrievers = [self._parts[name] for name, _ in self.config.of_kind(RetrieverStage)]
        if not retrievers:
            raise UserError(
                f"embed: {self.config.name!r} has no retriever. Load a system that has one.", code="no-model"
            )
        if side not in ("query", "document"):
            raise UserError(f"embed: side is {side!r}. Use 'query' or 'document'.")
        with self._one_at_a_time:
            vectors = retrievers[0].encode(_checked(texts, "embed: texts"), side)
        return vectors[0] if isinstance(texts, str) else vectors

    @property
    def encoders(self) -> dict[str, LoadedEncoder]:
        """Models of the retrievers whose texts have a vector each, by the stage's name."""
        stages = self.config.of_kind(RetrieverStage)
        return {name: self._parts[name].encode for name, stage in stages if stage.has == "vectors"}

    @property
    def rankers(self) -> dict[str, PairScorer]:
        """Models of the rankers, by the stage's name."""
        return {name: self._parts[name] for name, _ in self.config.of_kind(RankerStage)}

    def text_of(self, doc_id: str) -> str:
        """Return a document's text as a query. Raise UserError if there is no such document."""
        if self.documents.place(doc_id) is None:
            raise UserError(
                f"id: no document is called {doc_id!r}; accepted: the id of a document", code="unknown-document"
            )
        return document_text(*self.documents.texts([doc_id])[doc_id])[:QUERY_CHARACTERS]

    def _search(
        self, texts: list[str], k: int, spent: Seconds, without: Sequence[str | None]
    ) -> tuple[list[list[Hit]], list[Ranking]]:
        """Search for a list of at least one query. Return the first k documents and the whole rankings."""
        with self._one_at_a_time:
            search = self._ranked(texts, k, spent, without)
        ranked = search.rankings[self.config.answer]
        with spent.of("text"):
            scored = [name for name in self.config.stages if name in search.scores]
            tables = {name: [dict(ranking) for ranking in search.scores[name]] for name in scored}
            shown = [ranking[:k] for ranking in ranked]
            titles_and_texts = self.documents.texts([doc_id for ranking in shown for doc_id, _ in ranking])
        hits = [
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
        return hits, ranked

    def _read(self, texts: Sequence[str], rankings: list[Ranking], spent: Seconds) -> Sequence[ReaderAnswer | None]:
        """Answer queries from the first documents of their rankings. None for each if the system has no reader."""
        stage = self.config.reader
        if stage is None:
            return [None] * len(texts)
        first = [[doc_id for doc_id, _ in ranking[: stage.passages]] for ranking in rankings]
        with spent.of("text"):
            contents = self.documents.texts(list(dict.fromkeys(doc_id for ids in first for doc_id in ids)))
        with self._one_at_a_time, spent.of("read"):
            contents_read = [{doc_id: contents[doc_id] for doc_id in ids} for ids in first]
            answers: list[ReaderAnswer] = self._parts[list(self.config.stages)[-1]](texts, contents_read)
            return answers

    def _ranked(self, texts: Sequence[str], k: int, spent: Seconds, without: Sequence[str | None]) -> Search:
        """Search by each stage in order. Java searches while the retrievers do."""
        config, parts = self.config, self._parts
        search = Search(config, self.documents, parts, texts, without, spent)
        first = [name for name, _ in config.of_kind(FirstStage)]
        finish = {name: parts[name].begin(name, search, config.length(name, k)) for name in first}
        for name in sorted(first, key=lambda name: config.stages[name].in_java):
            finish[name]()
        for name, stage in config.of_kind(LaterStage):
            stage.rank(name, search)
        return search


def _retriever(
    folder: Path, stage: RetrieverStage, documents: Documents, options: Mapping[str, Any], *, rows: bool
) -> LoadedRetriever:
    """Open a retriever's model and its search. Damaged if the index has another number of documents."""
    opened = stage.search(folder, len(documents.order), threads=options["threads"], cuda=options["cuda"], rows=rows)
    encoder = LoadedEncoder(folder / stage.retriever, precision=stage.precision, vectors=stage.vectors, **options)
    return LoadedRetriever(encoder, documents, *opened)


def _checked(texts: str | Sequence[str], argument: str) -> list[str]:
    """Return one text or many as a list. Raise UserError for anything else."""
    checked = [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)
    if not all(isinstance(text, str) for text in checked):
        raise UserError(f"{argument} must be a string or a list of strings.", key=argument, code="not-text")
    return checked
