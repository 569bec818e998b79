"""The stages of a system, loaded: BM25, a retriever, a ranker. Each answers for several queries at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from components.data.tokens import Tokens
from components.retrieval import lucene, topk
from components.systems.config import Lexical
from components.systems.documents import Documents

Found = list[tuple[str, float]]
"""What a query has found: documents' ids with scores, best first."""

Nearest = Callable[[np.ndarray, np.ndarray, int], topk.Keys]
"""(Q, d) vectors, the tie rank of each row of the documents, and k, to (Q, k) keys of the nearest documents."""


class BM25:
    """BM25's lists. Java is started and asked in a thread of its own, so that any thread may call this."""

    def __init__(self, folder: Path, config: Lexical, *, threads: int) -> None:
        lucene.runtime()
        self._java = ThreadPoolExecutor(1, "lucene")
        self._searcher = self._java.submit(self._open, folder, config, threads)

    @staticmethod
    def _open(folder: Path, config: Lexical, threads: int) -> lucene.Searcher:
        searcher = lucene.Searcher(folder, config.analysis, k1=config.k1, b=config.b, threads=threads)
        if config.rm3 is not None:
            searcher.feed_back(**config.rm3.model_dump())
        return searcher

    def __call__(self, texts: Sequence[str], k: int) -> Callable[[], list[Found]]:
        """Begin to search; what is returned waits for the lists."""
        return self._java.submit(lambda: list(self._searcher.result().search(texts, k))).result


class Retriever:
    """A retriever's lists."""

    def __init__(
        self, folder: Path, documents: Documents, nearest: Nearest, *, precision: str, vectors: str, **options: Any
    ) -> None:
        """`nearest` looks among the documents' vectors; `vectors` is the type that a query's vector is rounded to.
        Options are those of `Inference`."""
        from components.data.template import Template
        from components.data.tokenizers import load_tokenizer
        from components.models.dual_encoder import DualEncoder
        from components.models.inference import Inference

        self._inference = Inference(DualEncoder, folder, precision=precision, **options)
        self._tokenizer, self._vectors, self._nearest = load_tokenizer(folder), vectors, nearest
        self._template, self._documents = Template.of(self._tokenizer), documents

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """(Q, d) the queries' vectors, as the step `encode_queries` stores them."""
        from components.models.inference import Texts

        config = self._inference.config
        prompted = [config.query_prompt + text for text in texts]
        tokens = Tokens.of(self._tokenizer(prompted, add_special_tokens=False)["input_ids"])
        reading = Texts(self._template, tokens, config.query_tokens)
        return self._inference.ask(reading, np.arange(len(texts)), "query").astype(self._vectors)

    def __call__(self, texts: Sequence[str], k: int) -> list[Found]:
        """The k documents with the largest inner products, equal ones in order of id."""
        keys = self._nearest(self.encode(texts), self._documents.order, k)
        return [self._found(row[row != topk.NO_DOCUMENT]) for row in keys]

    def _found(self, keys: topk.Keys) -> Found:
        ids = self._documents.sorted.take(pa.array(topk.tie_ranks_of(keys))).to_pylist()
        return list(zip(ids, topk.scores_of(keys).tolist(), strict=True))


class PairScorer:
    """A ranker's scores."""

    def __init__(self, folder: Path, *, precision: str, **options: Any) -> None:
        """Options are those of `Inference`."""
        from components.data.template import Template
        from components.data.tokenizers import load_tokenizer
        from components.models.cross_encoder import CrossEncoder
        from components.models.inference import Inference

        self._inference = Inference(CrossEncoder, folder, precision=precision, **options)
        self._tokenizer = load_tokenizer(folder)
        self._template = Template.of(self._tokenizer)

    def __call__(self, queries: Sequence[str], documents: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """The fp32 scores of each query's documents."""
        from components.models.inference import Pairs

        texts = [*queries, *(text for own in documents for text in own)]
        tokens = Tokens.of(self._tokenizer(texts, add_special_tokens=False)["input_ids"])
        lengths = [len(own) for own in documents]
        rows = np.stack([np.repeat(np.arange(len(queries)), lengths), np.arange(len(queries), len(texts))], 1)
        reading = Pairs(self._template, tokens, tokens, self._inference.config.pair_tokens)
        scores = self._inference.ask(reading, rows) if len(rows) else np.empty(0, np.float32)
        return np.split(scores, np.cumsum(lengths)[:-1])
