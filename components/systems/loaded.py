"""Loaded parts of a system: BM25, a retriever, a ranker. Each answers many queries at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from sparring.components.config import UserError
from sparring.components.data.tokens import Tokens
from sparring.components.retrieval import lucene, quantised, topk
from sparring.components.retrieval.kinds.lexical import Lexical, LexicalStage
from sparring.components.retrieval.lucene_search import Searcher
from sparring.components.retrieval.stage import Nearest, Vectors
from sparring.components.systems.documents import Documents
from sparring.components.systems.rankings import Ranking, reordered
from sparring.components.systems.searching import Search
from sparring.components.systems.stages.neighbours import NeighboursStage

_java = ThreadPoolExecutor(1, "lucene")
"""Searches for all lists of a process: pyjnius keeps the object of a call where calls of other threads replace it."""


class BM25:
    """BM25, which any thread may search."""

    def __init__(self, folder: Path, config: LexicalStage, *, threads: int) -> None:
        lucene.runtime()
        self._searcher = _java.submit(self._open, folder, config, threads)

    @staticmethod
    def _open(folder: Path, config: LexicalStage, threads: int) -> Searcher:
        return Lexical().open_index(folder, config=config, rm3=config.rm3, analysis=config.analysis, threads=threads)

    def wait(self) -> None:
        """Wait until the index is open. Raise Damaged if it cannot be opened."""
        self._searcher.result()

    def __call__(self, texts: Sequence[str], k: int, without: Sequence[str | None]) -> Callable[[], list[Ranking]]:
        """Start a search, and return a function that waits for the rankings. `without` has each query's excluded
        document, or None."""
        return _java.submit(self._search, texts, k, without).result

    def begin(self, name: str, search: Search, k: int) -> Callable[[], None]:
        """Start a search for k documents of each query, and return a function that waits for the rankings and adds
        them."""
        wait = self(search.texts, k, search.without)

        def finish() -> None:
            with search.seconds.of("bm25"):
                search.add(name, wait())

        return finish

    def _search(self, texts: Sequence[str], k: int, without: Sequence[str | None]) -> list[Ranking]:
        answers = self._searcher.result().search(texts, k + any(doc_id is not None for doc_id in without))
        lists = [zip(hits.doc_ids.to_pylist(), hits.scores.tolist(), strict=True) for hits in answers]
        return [[hit for hit in hits if hit[0] != doc_id][:k] for hits, doc_id in zip(lists, without, strict=True)]


class Embedded(NamedTuple):
    """Vectors of texts, and the numbers of tokens that the model read."""

    vectors: np.ndarray
    """(N, d) in fp32."""
    tokens: np.ndarray
    """(N,), special tokens and prompts included."""


class LoadedEncoder:
    """A retriever's model, which represents texts."""

    def __init__(self, folder: Path, *, precision: str, vectors: str, **options: Any) -> None:
        """`vectors` is the type that a query's numbers are rounded to. Options are those of `Inference`."""
        from sparring.components.data.template import Template
        from sparring.components.data.tokenizers import load_tokenizer
        from sparring.components.models.inference import Inference
        from sparring.components.retrieval.kind import kind_of

        self._kind, self._dtype = kind_of(folder), vectors
        self._inference = Inference(self._kind.model(), folder, precision=precision, **options)
        self._tokenizer = load_tokenizer(folder)
        self._template = Template.of(self._tokenizer)

    def __call__(self, texts: Sequence[str], side: Literal["query", "document"] = "query") -> Any:
        """Represent N queries or documents as the steps `encode_queries` and `encode_documents` store them: (N, d)
        vectors, or the rows of another kind."""
        prompt, limit = self._form(side)
        representations, _ = self._read(self._ids([prompt + text for text in texts]), limit, side)
        return self._kind.keep(representations, self._dtype)

    def embed(
        self, texts: Sequence[str] | Sequence[Sequence[int]], side: Literal["query", "document"] | None = None
    ) -> Embedded:
        """Compute the vectors of N texts, or of N lists of token ids, with or without special tokens around them.

        If `side` is None, texts are read as documents without a prompt, as `SentenceTransformer.encode` reads them.
        Vectors are not rounded as those of `__call__` are.
        """
        prompt, limit = self._form(side or "document")
        prompt = prompt if side else ""
        if all(isinstance(text, str) for text in texts):
            ids = self._ids([f"{prompt}{text}" for text in texts])
        else:
            (before,) = self._ids([prompt.rstrip()])
            ids = [[*before, *self._without_special(list(map(int, text)))] for text in texts]
        return Embedded(*self._read(ids, limit, side or "document"))

    def check_ids(self, texts: Sequence[Sequence[int]], key: str) -> None:
        """Raise UserError, naming `key`, for a token id that the vocabulary lacks."""
        size = len(self._tokenizer)
        if wrong := [token for text in texts for token in text if token >= size]:
            raise UserError(
                f"{key}: got the token {wrong[0]}; accepted: 0 to {size - 1}, the ids of this model's own tokenizer",
                key=key,
                code="too-large",
            )

    def check_size(self, size: int, key: str) -> None:
        """Raise UserError, naming `key`, unless the model was trained for vectors of so many dimensions."""
        if size not in self.sizes:
            trained = "whole vectors have" if len(self.sizes) == 1 else "the model was trained for"
            raise UserError(
                f"{key}: got {size}; accepted: {', '.join(map(str, self.sizes))}, which {trained}",
                key=key,
                code="unknown-value",
            )

    def cut(self, vectors: np.ndarray, size: int | None) -> np.ndarray:
        """Cut (N, d) vectors to their first dimensions, in fp32. If None, keep all. With cosine similarity, shorter
        vectors have length 1."""
        return quantised.cut(vectors, size, normalize=self._inference.config.similarity == "cosine")

    @property
    def sizes(self) -> list[int]:
        """Numbers of dimensions that vectors may have: all, and those that the model was trained to be cut to."""
        whole, trained = self._inference.dimensions, getattr(self._inference.config, "matryoshka", None) or ()
        return sorted({whole, *(size for size in trained if size < whole)})

    @property
    def limit(self) -> int:
        """Maximum number of tokens of a document, special tokens included."""
        return self._form("document")[1]

    def _form(self, side: str) -> tuple[str, int]:
        """Return the prompt and the maximum number of tokens of a side."""
        config = self._inference.config
        if side == "query":
            return config.query_prompt, config.query_tokens
        return config.document_prompt, config.document_tokens

    def _ids(self, texts: list[str]) -> Sequence[Sequence[int]]:
        """Tokenize texts, without special tokens."""
        ids: Sequence[Sequence[int]] = self._tokenizer(texts, add_special_tokens=False)["input_ids"]
        return ids

    def _without_special(self, ids: list[int]) -> list[int]:
        """Drop the special tokens that the tokenizer puts around a text."""
        before, after = self._template.before, self._template.after
        ids = ids[len(before) :] if ids[: len(before)] == before else ids
        end = len(ids) - len(after)
        return ids[:end] if end >= 0 and ids[end:] == after else ids

    def _read(self, ids: Sequence[Sequence[int]], limit: int, side: str) -> tuple[np.ndarray, np.ndarray]:
        """Represent N lists of token ids, cut to `limit` tokens. Return the numbers of tokens too."""
        from sparring.components.models.inference import Texts

        reading, rows = Texts(self._template, Tokens.of(ids), limit), np.arange(len(ids))
        return self._inference.ask(reading, rows, side), reading.lengths(rows)


class LoadedRetriever:
    """Model of a retriever, with the documents that it searches."""

    def __init__(
        self, encoder: LoadedEncoder, documents: Documents, nearest: Nearest, vectors: Vectors | None = None
    ) -> None:
        """Combine a model with a search among the documents' vectors. `vectors` reads the vectors of documents, for
        reranking by neighbours."""
        self.encode, self._nearest, self._documents, self._vectors = encoder, nearest, documents, vectors

    def begin(self, name: str, search: Search, k: int) -> Callable[[], None]:
        """Return a function that encodes the queries, lists k documents for each, and adds the rankings."""

        def finish() -> None:
            with search.seconds.of("encode"):
                search.vectors[name] = self.encode(search.texts)
            with search.seconds.of("search"):
                search.add(name, self.search(search.vectors[name], k, search.without))

        return finish

    def search(self, queries: Any, k: int, without: Sequence[str | None]) -> list[Ranking]:
        """Find the k documents with the highest scores for each encoded query, equal ones in order of id. `without`
        names for each query a document to leave out, or None."""
        places = [None if doc_id is None else self._documents.place(doc_id) for doc_id in without]
        most = min(k + any(place is not None for place in places), len(self._documents.order))
        rankings = []
        for row, place in zip(self._nearest(queries, self._documents.order, most), places, strict=True):
            keys = row[row != topk.NO_DOCUMENT]
            keys = (keys if place is None else keys[topk.tie_ranks_of(keys) != place])[:k]
            ids = self._documents.sorted.take(pa.array(topk.tie_ranks_of(keys))).to_pylist()
            rankings.append(list(zip(ids, topk.scores_of(keys).tolist(), strict=True)))
        return rankings

    def by_neighbours(self, query: np.ndarray, ranking: Ranking, config: NeighboursStage) -> Ranking:
        """Rerank the first documents of a query's ranking by their neighbours among one another."""
        assert self._vectors is not None
        ids = [doc_id for doc_id, _ in ranking[: config.context]]
        places = np.array([self._documents.place(doc_id) for doc_id in ids], np.int64)
        similar = similarities(query, self._vectors(self._documents.by_id[places]), config)
        first = zip(ids, similar.tolist(), strict=True)
        return reordered(ranking, sorted(first, key=lambda hit: (-hit[1], hit[0])))


def similarities(query: np.ndarray, documents: np.ndarray, config: NeighboursStage) -> np.ndarray:
    """Compute (n,) similarities of a query to the documents of its list, by their neighbours among one another."""
    import torch

    from sparring.components.neighbours.reciprocal import scores
    from sparring.components.neighbours.reranking import shared_by_copies

    with torch.inference_mode():
        query_vectors, list_vectors = (torch.from_numpy(vectors).float()[None] for vectors in (query, documents))
        return shared_by_copies(scores(query_vectors, list_vectors, config)[0].numpy(), documents)


class PairScorer:
    """Model of a ranker."""

    def __init__(self, folder: Path, *, precision: str, **options: Any) -> None:
        """Options are those of `Inference`."""
        from sparring.components.data.template import Template
        from sparring.components.data.tokenizers import load_tokenizer
        from sparring.components.models.cross_encoder import CrossEncoder
        from sparring.components.models.inference import Inference

        self._inference = Inference(CrossEncoder, folder, precision=precision, **options)
        self._tokenizer = load_tokenizer(folder)
        self._template = Template.of(self._tokenizer)

    def __call__(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Compute the fp32 scores of each query's documents. Equal texts of a query are scored once."""
        return self.score(queries, documents).scores

    def score(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> Scored:
        """Compute the scores of each query's documents, and the numbers of tokens of the pairs. Equal texts of a query
        are scored once."""
        from sparring.components.models.inference import Pairs

        pairs = [(query, text) for query, texts in enumerate(documents) for text in texts]
        places = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
        tokens = Tokens.of(
            self._tokenizer([*queries, *(text for _, text in places)], add_special_tokens=False)["input_ids"]
        )
        rows = np.array([(query, len(queries) + place) for (query, _), place in places.items()], np.int64)
        reading = Pairs(self._template, tokens, tokens, self._inference.config.pair_tokens)
        distinct = self._inference.ask(reading, rows) if len(rows) else np.empty(0, np.float32)
        lengths = reading.lengths(rows) if len(rows) else np.empty(0, np.int64)
        order = np.array([places[pair] for pair in pairs], np.int64)
        ends = np.cumsum([len(texts) for texts in documents])[:-1]
        return Scored(np.split(distinct[order], ends), np.split(lengths[order], ends))

    @property
    def limit(self) -> int:
        """Maximum number of tokens of a pair, special tokens included."""
        return int(self._inference.config.pair_tokens)


class Scored(NamedTuple):
    """Scores of queries' documents, and the numbers of tokens that the model read."""

    scores: list[np.ndarray]
    """For each query, (n,) in fp32."""
    tokens: list[np.ndarray]
    """For each query, (n,), special tokens included."""
