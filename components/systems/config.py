"""The description of a deployed system, `system.json`: its stages in order, each of which reads earlier ones.

The last stage's ranking is the answer. Paths are relative to the system's folder.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config, Damaged, UserError, listing, parse
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
VERSION = 2
AGAIN = "export the system again"
"""Advice for a folder that differs from the export."""


class StageConfig(Config):
    """Base of all stages."""

    @property
    def inputs(self) -> list[str]:
        """Names of the stages whose rankings this one reads."""
        return []

    @property
    def paths(self) -> list[str]:
        """Files and folders of this stage, relative to the system's folder."""
        return []


class LexicalStage(BM25Config, StageConfig):
    """BM25's ranking."""

    kind: Literal["lexical"] = "lexical"
    index: str = "lucene"
    """Folder of the Lucene index."""
    analysis: AnalyzerConfig
    """How documents and queries are split into terms."""
    rm3: RM3Config | None = None
    """Relevance feedback. If None, there is none."""
    k: int = Field(ge=1)
    """Number of documents in the ranking, if other stages need its full length."""

    @property
    def paths(self) -> list[str]:
        return [self.index]


class DenseStage(StageConfig):
    """A retriever's ranking: the documents with the largest inner products with the query's vector."""

    kind: Literal["dense"] = "dense"
    retriever: str = "retriever"
    """Folder of the retriever. Only its query side is used: the documents' vectors may be another model's."""
    index: str = "index.faiss"
    """FAISS index. Row i is the i-th document."""
    k: int = Field(ge=1)
    """Number of documents in the ranking, if other stages need its full length."""
    query_tokens: int = Field(ge=3)
    """Maximum length of a query, special tokens included."""
    precision: Literal["bf16", "fp32", "int8"] = "fp32"
    """Precision of the forward pass's matrix products. On a CPU without bf16 instructions, `int8` is faster."""
    vectors: Literal["float16", "float32"] = "float32"
    """Type that a query's vector is rounded to, as the documents' vectors were."""
    dimensions: int | None = Field(None, ge=1, exclude_if=lambda dimensions: dimensions is None)
    """Number of leading dimensions that are used. If None, all are."""
    normalize: bool = Field(False, exclude_if=lambda normalize: not normalize)
    """Scale the shortened vector to length 1."""

    @property
    def paths(self) -> list[str]:
        return [self.retriever, self.index]


class NeighboursStage(NeighboursRerankConfig, StageConfig):
    """Reranking of a dense stage's first documents by reciprocal nearest neighbours, as far as `example.py` does it.
    The remaining documents follow in their old order."""

    kind: Literal["neighbours"] = "neighbours"
    of: str
    """Name of the dense stage."""
    tau: float = Field(0.0, ge=0, le=0)
    """No extension of the neighbour set."""
    geometric: Literal["max-min", "none"] = "max-min"
    """Scale inner products to the range from 0 to 1, or mix them as they are."""
    weight: Literal["linear"] = "linear"
    """A neighbour's weight is its inner product."""
    row_sums: Literal["free"] = "free"
    """Weights are not divided by their sum."""

    @property
    def inputs(self) -> list[str]:
        return [self.of]


class FusedStage(FusionConfig, StageConfig):
    """Fusion of two or more rankings."""

    kind: Literal["fused"] = "fused"
    of: list[str] = Field(min_length=2)
    """Names of the fused stages. With two, `weight` belongs to the second."""

    @property
    def inputs(self) -> list[str]:
        return self.of


class RankerStage(StageConfig):
    """A ranker that reorders the first documents of a ranking. The remaining documents follow in their old order."""

    kind: Literal["ranker"] = "ranker"
    of: str
    """Name of the stage whose ranking is reordered."""
    folder: str = "ranker"
    """Folder of the ranker."""
    depth: int = Field(ge=1)
    """Number of documents that it reorders."""
    precision: Literal["bf16", "fp32", "int8"] = "fp32"
    """Precision of the forward pass's matrix products. On a CPU without bf16 instructions, `int8` is faster."""
    weight: float = 1.0
    """Weight of the ranker's score in the sum that documents are ordered by."""
    priors: dict[str, float] = {}
    """Weight of other stages' scores in that sum, by stage. A document that a ranking lacks has the ranking's lowest
    score, or 0 if BM25 found fewer documents than its `k`."""

    @property
    def inputs(self) -> list[str]:
        return [self.of, *self.priors]

    @property
    def paths(self) -> list[str]:
        return [self.folder]


Stage = Annotated[LexicalStage | DenseStage | NeighboursStage | FusedStage | RankerStage, Field(discriminator="kind")]
FIRST = (LexicalStage, DenseStage)
"""Stages that search all documents."""


class SystemConfig(Config):
    """A system: named stages, each of which reads earlier ones."""

    version: Literal[2]
    name: str
    """Its name in the tables of the run that measured it."""
    documents: int = Field(ge=1)
    """Number of documents."""
    stages: dict[str, Stage] = Field(min_length=1)
    """In order. The last one's ranking is the answer."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, stage in self.stages.items():
            earlier = list(self.stages)[: list(self.stages).index(name)]
            for source in stage.inputs:
                if source not in earlier:
                    raise ValueError(f"stages.{name}: it reads {source!r}; accepted: {listing(earlier)}")
            if isinstance(stage, NeighboursStage) and not isinstance(self.stages[stage.of], DenseStage):
                raise ValueError(f"stages.{name}.of: {stage.of!r} has no vectors; accepted: a dense stage")
            if isinstance(stage, FusedStage):
                stage.weights(len(stage.of))
        read = {source for stage in self.stages.values() for source in stage.inputs}
        if unread := [name for name in list(self.stages)[:-1] if name not in read]:
            raise ValueError(f"stages: no stage reads {listing(unread)}; accepted: without it, or as the last one")
        return self

    @property
    def answer(self) -> str:
        """Name of the stage whose ranking is the answer."""
        return list(self.stages)[-1]

    @property
    def limit(self) -> int:
        """Largest number of documents that the system can rank. A single list can be extended to all documents; with
        several lists, their lengths are part of the system."""
        return self._reach(self.answer)

    def _reach(self, name: str) -> int:
        stage = self.stages[name]
        if isinstance(stage, FusedStage):
            return stage.depth
        if isinstance(stage, NeighboursStage | RankerStage):
            return self._reach(stage.of)
        return self.documents if self.has_one_list else stage.k

    @property
    def has_one_list(self) -> bool:
        """Whether a single stage searches the documents."""
        return sum(isinstance(stage, FIRST) for stage in self.stages.values()) == 1

    def check_k(self, k: int, key: str = "k") -> None:
        """Raise UserError, naming `key`, if the system cannot rank `k` documents."""
        if not 1 <= k <= self.limit:
            reason = "the size of the collection" if self.limit == self.documents else "all that the system ranks"
            raise UserError(f"{key}: got {k} documents for a query; accepted: 1 to {self.limit}, {reason}")

    def length(self, name: str, k: int) -> int:
        """Return the number of documents that a searching stage must list so that the system can rank `k`."""
        stage = self.stages[name]
        assert isinstance(stage, FIRST)
        if not self.has_one_list:
            return min(stage.k, self.documents)
        depths = [
            stage.depth if isinstance(stage, RankerStage) else stage.context
            for stage in self.stages.values()
            if isinstance(stage, RankerStage | NeighboursStage)
        ]
        return min(max([k, *depths]), self.documents)

    def reads_vectors(self, name: str) -> bool:
        """Tell whether another stage reads the documents' vectors of a dense stage."""
        return any(isinstance(stage, NeighboursStage) and stage.of == name for stage in self.stages.values())

    def of_kind(self, *kinds: type[Config]) -> Iterator[tuple[str, Config]]:
        """List the names and descriptions of the stages of some kinds, in order."""
        return ((name, stage) for name, stage in self.stages.items() if isinstance(stage, kinds))

    @property
    def parts(self) -> list[str]:
        """Files and folders of the system, without its description."""
        return [DOCUMENTS, *dict.fromkeys(path for stage in self.stages.values() for path in stage.paths)]


def read(folder: Path) -> SystemConfig:
    """Read the description of a system in a folder. UserError if the folder is no complete system."""
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
