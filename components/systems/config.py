"""What a system is made of, as `system.json` says it: lists, how they are fused, and what reorders the first documents.

At least one of two lists: BM25's (`lexical`) and a retriever's (`dense`). Paths are relative to the system's folder.
"""

import json
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config, Damaged, UserError, parse
from sparring.components.files import check_whole
from sparring.components.neighbours.reranking import NeighboursRerankConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.retrieval.lucene import AnalyzerConfig, BM25Config, RM3Config
from sparring.components.yaml_files import read_text

SYSTEM = "system.json"
FOLDER = "system"
"""The system's folder among what `export` writes."""
DOCUMENTS = "documents.jsonl"
"""The documents as BEIR's `corpus.jsonl` has them, in the order of the dense index's rows."""
VERSION = 1
AGAIN = "export the system again"
"""What to do about a folder that is not as it was exported."""

List = Literal["lexical", "dense"]


class Lexical(BM25Config):
    """BM25's list."""

    index: str = "lucene"
    """Folder of the Lucene index."""
    analysis: AnalyzerConfig
    """How the index was made, and queries are read."""
    rm3: RM3Config | None = None
    """Relevance feedback."""
    k: int = Field(ge=1)
    """Documents of the list."""


class Neighbours(NeighboursRerankConfig):
    """Reranking of a list's first documents by reciprocal nearest neighbours, as far as a short program does it.
    The others follow in their old order."""

    tau: float = Field(0.0, ge=0, le=0)
    """No extension of the neighbour set."""
    geometric: Literal["max-min", "none"] = "max-min"
    """Inner products are mixed in the range from 0 to 1, or as they are."""
    weight: Literal["linear"] = "linear"
    """A neighbour's weight is its inner product."""
    row_sums: Literal["free"] = "free"
    """Weights are not divided by their sum."""


class Dense(Config):
    """A retriever's list: the documents with the largest inner products with the query's vector."""

    retriever: str = "retriever"
    """Folder of the retriever, whose query side alone is asked: documents may have another's vectors."""
    index: str = "index.faiss"
    """FAISS index, in which row i is the i-th document."""
    k: int = Field(ge=1)
    """Documents of the list."""
    query_tokens: int = Field(ge=3)
    """Where a query is cut, special tokens included."""
    precision: Literal["bf16", "fp32", "int8"] = "fp32"
    """Of the forward pass's matrix products. `int8` rounds: faster on a CPU without products in bf16."""
    vectors: Literal["float16", "float32"] = "float32"
    """What a query's vector is rounded to, as the documents' were."""
    dimensions: int | None = Field(None, ge=1, exclude_if=lambda dimensions: dimensions is None)
    """A query's vector is its first so many dimensions; null for all."""
    normalize: bool = Field(False, exclude_if=lambda normalize: not normalize)
    """Whether the shorter vector has length 1 again."""
    neighbours: Neighbours | None = None
    """How the list's first documents are reranked by their neighbours, whose vectors are the index's."""


class Fused(FusionConfig):
    """Fusion of both lists."""

    first: List = "lexical"
    """The list that `weight` is not of, and whose document `interleave` puts first."""


class Weights(Config):
    """What a document's scores count for in its place among the first: `ranker f + retriever s + bm25 b`."""

    ranker: float
    retriever: float
    bm25: float


class Ranker(Config):
    """A ranker that reorders the first documents. The others follow in their old order."""

    folder: str = "ranker"
    depth: int = Field(ge=1)
    """How many it reorders."""
    precision: Literal["bf16", "fp32", "int8"] = "fp32"
    """Of the forward pass's matrix products. `int8` rounds: faster on a CPU without products in bf16."""
    weights: Weights | None = None
    """Null to order by the ranker's scores alone. A document that BM25's list lacks has 0
    there, one that the retriever's lacks the list's lowest score."""


class SystemConfig(Config):
    """A system. Without a fusion of its two lists the dense one is ranked; BM25's counts in the ranker's weights."""

    version: Literal[1]
    name: str
    """What it was called where it was measured."""
    documents: int = Field(ge=1)
    """Number of documents."""
    lexical: Lexical | None = None
    dense: Dense | None = None
    fusion: Fused | None = None
    ranker: Ranker | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        both = self.lexical is not None and self.dense is not None
        weights = None if self.ranker is None else self.ranker.weights
        if self.lexical is None and self.dense is None:
            raise ValueError("a system retrieves by `lexical`, `dense` or both; it has neither")
        if self.fusion is not None and not both:
            raise ValueError("fusion: there is one list; accepted: null")
        if both and self.fusion is None and weights is None:
            raise ValueError("there are two lists; accepted: one, or `fusion`, or `ranker.weights`")
        alone = self.lexical is None and self.ranker is None
        if self.dense is not None and self.dense.neighbours is not None and not alone:
            raise ValueError("dense.neighbours: it is not the last stage; accepted: without `lexical` and `ranker`")
        for name, one, key in (("bm25", self.lexical, "lexical"), ("retriever", self.dense, "dense")):
            if weights is not None and one is None and getattr(weights, name) != 0:
                raise ValueError(f"ranker.weights.{name}: there is no `{key}`; accepted: 0")
        return self

    @property
    def limit(self) -> int:
        """The most documents that it can rank: all, unless it is of two lists, whose lengths are part of it."""
        if self.fusion is not None:
            return self.fusion.depth
        return self.documents if self.lexical is None or self.dense is None else self.dense.k

    def check_k(self, k: int, key: str = "k") -> None:
        """UserError, naming `key`, unless the system can rank `k` documents."""
        if not 1 <= k <= self.limit:
            what = "the size of the collection" if self.limit == self.documents else "all that the system ranks"
            raise UserError(f"{key}: got {k} documents for a query; accepted: 1 to {self.limit}, {what}")

    @property
    def parts(self) -> list[str]:
        """The files and folders that it is made of, beside its description."""
        named = [DOCUMENTS]
        named += [self.lexical.index] if self.lexical is not None else []
        named += [self.dense.retriever, self.dense.index] if self.dense is not None else []
        return named + ([self.ranker.folder] if self.ranker is not None else [])


def read(folder: Path) -> SystemConfig:
    """The description of the system in a folder; UserError for a folder that is none, that lacks a part,
    or whose models are cut."""
    path = folder / SYSTEM
    if not path.exists():
        inside = folder / FOLDER
        meant = f"; did you mean {inside}?" if (inside / SYSTEM).exists() else ""
        raise UserError(
            f"{folder}: no {SYSTEM}; accepted: a system's folder, as `export` writes it{meant}", code="missing-file"
        )
    try:
        tree = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not JSON: {error}") from None
    version = tree.get("version") if isinstance(tree, dict) else None
    if version != VERSION:
        raise UserError(f"{path}: version: got {version!r}; accepted: {VERSION}; {AGAIN}")
    config = parse(SystemConfig, tree, where=str(path))
    for part in config.parts:
        if not (folder / part).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{path}: {part!r} is outside of the folder; accepted: names inside it")
        if not (folder / part).exists():
            raise UserError(f"{folder}: no {part}, which {SYSTEM} names; {AGAIN}")
        try:
            check_whole(folder / part)
        except Damaged as error:
            raise UserError(f"{error}; {AGAIN}") from None
    return config
