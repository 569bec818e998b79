"""The description of a deployed system, `system.json`: its stages in order, each of which reads earlier ones.

The last stage's ranking is the result, or a reader's answer with the ranking that it read. Paths are relative to the
system's folder.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparring.components.config import Config, Damaged, UserError, listing, parse
from sparring.components.data import reading
from sparring.components.expansion.relevance_model import RelevanceConfig
from sparring.components.files import check_whole
from sparring.components.models.generator_configs import GenerateConfig
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
    """Analyzer, which splits documents and queries into terms."""
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


class QueryRerankerConfig(Config):
    """A query reranker, which predicts the rank of the first right document that an expansion retrieves."""

    folder: str = "query-reranker"
    """Folder of the query reranker."""
    precision: Literal["bf16", "fp32", "int8"] = "fp32"
    """Precision of the forward pass's matrix products. On a CPU without bf16 instructions, `int8` is faster."""
    template: Literal["paper", "released"] = "paper"
    """Layout of its input, as `components.expansion.query_reading` describes it."""
    passage: bool = False
    """True if it also reads the first document that the expansion retrieves."""


class ExpansionStage(StageConfig):
    """Expansions of the query, and the rankings that a lexical stage's index has for the chosen ones (Chuang et al.,
    2023, chapter 3). The expansions come from feedback documents or from a language model."""

    kind: Literal["expansion"] = "expansion"
    of: str
    """Name of the lexical stage. Its own ranking has the feedback documents, and is the ranking of a query without an
    expansion."""
    relevance: RelevanceConfig | None = None
    """Settings of sampling expansions from feedback documents. If None, a language model writes them."""
    frequencies: str | None = None
    """File with the number of documents that have each term, for feedback documents."""
    generate: GenerateConfig | None = None
    """Settings of a language model that writes expansions. If None, they come from feedback documents."""
    generator: str | None = None
    """Folder of the language model."""
    architecture: Literal["seq2seq", "causal"] = "seq2seq"
    """Kind of the language model. `seq2seq` reads its input and then writes. `causal` continues its input."""
    query_tokens: int = Field(64, ge=3)
    """Maximum length of the language model's input in tokens, special tokens included."""
    seed: list[int | str] = []
    """Beginning of the key of a random choice. The query's text follows, so that a query always has the same
    expansions."""
    question: bool = False
    """True if the query without an expansion is a candidate too."""
    choice: Literal["first", "lowest", "concat", "all"] = "first"
    """Expansions that are searched for. `first`: the first that was generated. `lowest`: those with the lowest
    predicted rank. `concat`: all as one query. `all`: each, and the rankings are fused."""
    reranker: QueryRerankerConfig | None = None
    """Predicts ranks for `choice: lowest`."""
    number: int | None = Field(None, ge=1)
    """Choose among so many expansions that were generated first. If None, among all."""
    most: int = Field(1, ge=1)
    """Number of expansions with the lowest predicted ranks whose rankings are fused."""
    fusion: FusionConfig | None = None
    """Fusion of the rankings of several expansions of a query."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.relevance is None) == (self.generate is None):
            raise ValueError("relevance, generate: accepted: one of them")
        if self.generate is not None and self.generator is None:
            raise ValueError("generator: none; accepted: the folder of a language model")
        if self.relevance is not None and self.frequencies is None:
            raise ValueError("frequencies: none; accepted: the file of the terms' frequencies")
        if (self.reranker is None) == (self.choice == "lowest"):
            raise ValueError("reranker: accepted with `choice: lowest`, and needed there")
        if (self.fusion is None) == (self.choice == "all" or self.most > 1):
            raise ValueError("fusion: accepted for several expansions of a query, and needed there")
        return self

    @property
    def inputs(self) -> list[str]:
        return [self.of]

    @property
    def paths(self) -> list[str]:
        named = [self.frequencies, self.generator, None if self.reranker is None else self.reranker.folder]
        return [path for path in named if path is not None]


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


class ReaderStage(StageConfig):
    """A reader that writes an answer from the first documents of a ranking (Izacard and Grave, 2021). It is the last
    stage, and leaves the ranking as it is."""

    kind: Literal["reader"] = "reader"
    of: str
    """Name of the stage whose ranking is read."""
    folder: str = "reader"
    """Folder of the reader."""
    passages: int = Field(ge=1)
    """Number of documents that it reads."""
    passage_tokens: int = Field(ge=8)
    """Maximum length of the query with one document, special tokens included."""
    template: reading.Template | None = None
    """Layout of its input, as `components.data.reading` describes it."""
    new_tokens: int = Field(ge=1)
    """Maximum length of an answer in tokens."""
    precision: Literal["bf16", "fp32"] = "fp32"
    """Precision of the forward passes."""

    @property
    def inputs(self) -> list[str]:
        return [self.of]

    @property
    def paths(self) -> list[str]:
        return [self.folder]


Stage = Annotated[
    LexicalStage | DenseStage | ExpansionStage | NeighboursStage | FusedStage | RankerStage | ReaderStage,
    Field(discriminator="kind"),
]
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
    """In order. The result is the ranking of the last one. If that is a reader, the result is its answer and the
    ranking that it read."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for name, stage in self.stages.items():
            earlier = list(self.stages)[: list(self.stages).index(name)]
            for source in stage.inputs:
                if source not in earlier:
                    raise ValueError(f"stages.{name}: it reads {source!r}; accepted: {listing(earlier)}")
                if isinstance(self.stages[source], ReaderStage):
                    raise ValueError(f"stages.{name}: {source!r} is a reader; accepted: a reader as the last stage")
            if isinstance(stage, NeighboursStage) and not isinstance(self.stages[stage.of], DenseStage):
                raise ValueError(f"stages.{name}.of: {stage.of!r} has no vectors; accepted: a dense stage")
            if isinstance(stage, ExpansionStage) and not isinstance(self.stages[stage.of], LexicalStage):
                raise ValueError(f"stages.{name}.of: {stage.of!r} has no Lucene index; accepted: a lexical stage")
            if isinstance(stage, FusedStage):
                stage.weights(len(stage.of))
        read = {source for stage in self.stages.values() for source in stage.inputs}
        if unread := [name for name in list(self.stages)[:-1] if name not in read]:
            raise ValueError(f"stages: no stage reads {listing(unread)}; accepted: without it, or as the last one")
        return self

    @property
    def reader(self) -> ReaderStage | None:
        """The reader that answers queries. None if the system only ranks documents."""
        last = list(self.stages.values())[-1]
        return last if isinstance(last, ReaderStage) else None

    @property
    def answer(self) -> str:
        """Name of the stage whose ranking is the result."""
        return list(self.stages)[-1] if self.reader is None else self.reader.of

    @property
    def limit(self) -> int:
        """Largest number of documents that the system can rank. A single list can be extended to all documents; with
        several lists, their lengths are part of the system."""
        return self._reach(self.answer)

    def _reach(self, name: str) -> int:
        stage = self.stages[name]
        if isinstance(stage, FusedStage):
            return stage.depth
        if isinstance(stage, NeighboursStage | RankerStage | ReaderStage):
            return self._reach(stage.of)
        if isinstance(stage, ExpansionStage):
            return self._reach(stage.of) if stage.fusion is None else stage.fusion.depth
        return self.documents if self.has_one_list else stage.k

    @property
    def has_one_list(self) -> bool:
        """True if a single stage searches the documents, and once for a query."""
        searching = [stage for stage in self.stages.values() if isinstance(stage, (*FIRST, ExpansionStage))]
        return len(searching) == 1

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
        depths = [stage.depth for stage in self.stages.values() if isinstance(stage, RankerStage)]
        depths += [stage.context for stage in self.stages.values() if isinstance(stage, NeighboursStage)]
        depths += [stage.passages for stage in self.stages.values() if isinstance(stage, ReaderStage)]
        return min(max([k, *depths]), self.documents)

    def is_lexical(self, name: str) -> bool:
        """Tell whether a stage's scores are BM25's, in which 0 means that no word is shared."""
        stage = self.stages[name]
        if isinstance(stage, FusedStage):
            return all(map(self.is_lexical, stage.of))
        return isinstance(stage, LexicalStage | ExpansionStage)

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
