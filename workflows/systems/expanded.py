"""One generator's query expansions as a system (Chuang et al., 2023, chapter 3). Systems of several generators fuse
them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sparring.components.config import UserError
from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.expansion import feedback
from sparring.components.expansion.relevance_model import RelevanceConfig
from sparring.components.files import read_json
from sparring.components.models.generator_configs import GenerateConfig
from sparring.components.retrieval.fusion import FusionConfig
from sparring.components.systems import model_folder
from sparring.components.systems.stages.expansion import ExpansionStage as Stage
from sparring.components.systems.stages.expansion import QueryRerankerConfig
from sparring.workflows.store.dag import Step
from sparring.workflows.systems.lexical import Lexical
from sparring.workflows.systems.system import Cost, Names, Rankings, System, path_for

if TYPE_CHECKING:
    from sparring.workflows.store.store import Store
    from sparring.workflows.systems.library import Library, Plan


@dataclass(frozen=True)
class Generator:
    """Source of a query's expansions: feedback documents, or a language model."""

    seed: Sequence[int | str]
    """Beginning of the keys of random choices. A query's id follows."""
    relevance: RelevanceConfig | None = None
    """Sampling of expansions from feedback documents. If None, a language model writes them."""
    writer: Step | None = None
    """The language model."""
    generate: GenerateConfig | None = None
    """Options of the language model's writing."""
    question: bool = False
    """True if the query without an expansion is a candidate too."""


@dataclass(frozen=True)
class QueryReranker:
    """A model that predicts the rank of the first right document that an expansion retrieves."""

    model: Step
    precision: Literal["bf16", "fp32", "int8"]
    template: Literal["paper", "released"]
    passage: bool
    """True if it reads the first document that the expansion retrieves."""

    def described(self, folder: str) -> QueryRerankerConfig:
        """Describe it as `system.json` does, in a folder."""
        return QueryRerankerConfig(
            folder=folder, precision=self.precision, template=self.template, passage=self.passage
        )


@dataclass(frozen=True, eq=False)
class Expanded(System):
    """BM25's rankings of chosen expansions of the queries, by one generator."""

    rankings: Rankings
    """The recipe's steps."""
    data: Step
    lexical: Lexical
    """BM25, which searches for expansions. Its ranking of a query has the feedback documents, and is the ranking of a
    query without an expansion."""
    generator: Generator
    price: Callable[[str], Cost]
    """Cost of a split's queries."""
    choice: Literal["first", "lowest", "concat", "all"] = "first"
    """Expansions that are searched for, as `components.systems.stages.expansion.ExpansionStage` has them."""
    reranker: QueryReranker | None = None
    """Chooses among the expansions, with `choice: lowest`."""
    number: int | None = None
    """Choose among so many expansions that were generated first. If None, among all."""
    most: int = 1
    """Number of chosen expansions whose rankings are fused."""
    fusion: FusionConfig | None = None
    """Fusion of the rankings of a query's expansions."""

    stage = "expansion"
    expense = 4

    @property
    def parts(self) -> Sequence[System]:
        """Return BM25, which searches the expanded queries."""
        return [self.lexical]

    def ranking(self, split: str) -> Step:
        """Return the recipe's step."""
        return self.rankings(split)

    def cost(self, split: str) -> Cost:
        """Return the cost of expanding, choosing and searching."""
        return self.price(split)

    @property
    def is_lexical(self) -> bool:
        """True: its scores are BM25's."""
        return True

    @property
    def models(self) -> list[Step]:
        """The language model and the query reranker."""
        reranker = None if self.reranker is None else self.reranker.model
        return [node for node in (self.generator.writer, reranker) if node is not None]

    def check_folder(self) -> None:
        """Raise UserError if the folder's `example.py` cannot choose in the same way."""
        if self.reranker is not None and self.reranker.template == "released":
            raise UserError(
                f"{self.ranking('queries').label!r} has a query reranker with template: released, which `example.py` "
                "does not read; accepted: template: paper. `search CONFIG` and `serve CONFIG` answer with it"
            )

    def fetch(self, store: Store) -> None:
        """Fetch the run's queries: a query with the text of one of these keeps that one's expansions."""
        store.fetch([self.data], "queries.parquet")

    def describe(self, name: str, store: Store, names: Names) -> Stage:
        """Describe the generator, and the choice among its expansions."""
        generator = self.generator
        model: dict[str, Any] = {}
        if generator.writer is not None:
            settings = read_json(store.path(generator.writer) / "model" / MODEL_CONFIG)
            model = {key: settings[key] for key in ("architecture", "query_tokens")}
        reranker = None if self.reranker is None else self.reranker.described(path_for("query-reranker", name))
        return Stage(
            of=names(self.lexical),
            **model,
            relevance=generator.relevance,
            frequencies=None if generator.relevance is None else path_for("frequencies", name, ".json"),
            generate=generator.generate,
            generator=None if generator.writer is None else path_for("generator", name),
            seed=list(generator.seed),
            question=generator.question,
            choice=self.choice,
            reranker=reranker,
            number=self.number,
            most=self.most,
            fusion=self.fusion,
        )

    def open(self, name: str, plan: Plan, library: Library) -> Any:
        """Open the models."""
        stage = plan.config.stages[name]
        assert isinstance(stage, Stage)
        return library.expander(self, stage)

    def write(self, stage: Stage, folder: Path, store: Store) -> None:
        """Copy the models, or count the documents that have each term."""
        if stage.generator is not None and self.generator.writer is not None:
            model_folder.copy(store.path(self.generator.writer) / "model", folder / stage.generator)
        if stage.reranker is not None and self.reranker is not None:
            model_folder.copy(store.path(self.reranker.model) / "model", folder / stage.reranker.folder)
        if stage.frequencies is not None:
            feedback.count(folder / stage.frequencies, store.path(self.data))
