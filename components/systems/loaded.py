"""Loaded parts of a system: BM25, a retriever, a ranker. Each answers many queries at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from sparring.components.data.tokens import Tokens
from sparring.components.retrieval import lucene, topk
from sparring.components.retrieval.kinds.lexical import Lexical, LexicalStage
from sparring.components.retrieval.lucene_search import Searcher
from sparring.components.retrieval.stage import Nearest, Vectors
from sparring.components.systems.documents import Documents
from sparring.components.systems.rankings import Ranking, reordered
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

    def _search(self, texts: Sequence[str], k: int, without: Sequence[str | None]) -> list[Ranking]:
        answers = self._searcher.result().search(texts, k + any(doc_id is not None for doc_id in without))
        lists = [zip(hits.doc_ids.to_pylist(), hits.scores.tolist(), strict=True) for hits in answers]
        return [[hit for hit in hits if hit[0] != doc_id][:k] for hits, doc_id in zip(lists, without, strict=True)]


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
        from sparring.components.models.inference import Texts

        config = self._inference.config
        prompt, limit = (
            (config.query_prompt, config.query_tokens)
            if side == "query"
            else (config.document_prompt, config.document_tokens)
        )
        tokens = Tokens.of(self._tokenizer([prompt + text for text in texts], add_special_tokens=False)["input_ids"])
        reading = Texts(self._template, tokens, limit)
        return self._kind.keep(self._inference.ask(reading, np.arange(len(texts)), side), self._dtype)


class LoadedRetriever:
    """Model of a retriever, with the documents that it searches."""

    def __init__(
        self, encoder: LoadedEncoder, documents: Documents, nearest: Nearest, vectors: Vectors | None = None
    ) -> None:
        """Combine a model with a search among the documents' vectors. `vectors` reads the vectors of documents, for
        reranking by neighbours."""
        self.encode, self._nearest, self._documents, self._vectors = encoder, nearest, documents, vectors

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
        from sparring.components.models.inference import Pairs

        pairs = [(query, text) for query, texts in enumerate(documents) for text in texts]
        places = {pair: place for place, pair in enumerate(dict.fromkeys(pairs))}
        tokens = Tokens.of(
            self._tokenizer([*queries, *(text for _, text in places)], add_special_tokens=False)["input_ids"]
        )
        rows = np.array([(query, len(queries) + place) for (query, _), place in places.items()], np.int64)
        reading = Pairs(self._template, tokens, tokens, self._inference.config.pair_tokens)
        distinct = self._inference.ask(reading, rows) if len(rows) else np.empty(0, np.float32)
        scores = distinct[np.array([places[pair] for pair in pairs], np.int64)]
        return np.split(scores, np.cumsum([len(texts) for texts in documents])[:-1])
