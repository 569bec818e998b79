"""A collection as recipes use it: its tables, the models that read it, BM25 over it."""

from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass, replace

from sparring.components.config import UserError
from sparring.components.data.tokenizers import TOKEN_LIMITS
from sparring.components.models.configs import Pretrained
from sparring.components.models.reader_configs import ReaderConfig
from sparring.components.models.shape import dimensions_of
from sparring.components.retrieval.kind import DEFAULT
from sparring.components.retrieval.lucene import RM3Config
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.stages.phases import COLLECTION
from sparring.workflows.steps.answers import answering
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.steps.lucene import VectorIndexConfig, lucene_feedback, lucene_index, lucene_search
from sparring.workflows.steps.start import start
from sparring.workflows.steps.tokenize import TemplatedConfig, TokenizeConfig, check_lengths, tokenize
from sparring.workflows.store.dag import Step, in_phase, step


@dataclass(frozen=True)
class Model:
    """A model at one moment of its training, and what belongs to it at every moment."""

    step: Step
    """The step that wrote it."""
    tokens: Step
    """The token store that it reads."""
    objective: str
    """What trains it: a file's name in `components/objectives`, or with a dot in it a module's path."""

    @property
    def begun(self) -> Step:
        """The step that wrote the model that all trainings began from."""
        begun = self.step
        while "start" in begun.inputs:
            begun = begun.inputs["start"]
        return begun

    @property
    def kind(self) -> str:
        """The kind of a retriever. A model that a step makes of vectors, such as a whitened one, is dense."""
        return getattr(self.begun.inputs.get("config"), "kind", DEFAULT)

    @property
    def dimensions(self) -> int | None:
        """How many a retriever's vectors have, as far as that is known before it is opened."""
        return dimensions_of(self.begun.inputs.get("config"))

    def after(self, training: Step) -> "Model":
        """The same model as a training left it."""
        return replace(self, step=training)


class Collection:
    """A collection's tables and token stores, and BM25 over it."""

    def __init__(self, config: CollectionConfig) -> None:
        with in_phase(COLLECTION):
            self.data = step("data", ingest, source=config.data)
        self._config = config
        self._stores: dict[Hashable, Step] = {}

    @property
    def tokens(self) -> Step:
        """The first model's token store, which also says which texts are the same."""
        if not self._stores:
            raise RuntimeError("a collection has tokens once a model reads it: call initial_model first")
        return next(iter(self._stores.values()))

    def initial_model(
        self, label: str, config: Pretrained, objective: str = "retriever", *, encoder: Model | None = None
    ) -> Model:
        """A model before any training here, or with another's encoder. Models with the same tokenizer and prompts share
        a token store."""
        try:
            check_lengths({key: getattr(config, key, None) for key in TOKEN_LIMITS}, self._config.tokens)
        except UserError as error:
            raise ValueError(f"{label}: {error}") from None  # whoever builds the graph knows the file
        # A template or an end token changes the tokenizer.
        keys = ("query_prompt", "document_prompt", "end_token", "template")
        prompts = [getattr(config, key, None) or "" for key in keys]
        with nullcontext() if encoder else in_phase(COLLECTION):  # another's encoder is there once that is trained
            made = step(label, start, config=config, encoder=None if encoder is None else encoder.step)
        tokens = self._config.tokens
        if isinstance(config, ReaderConfig) and config.template is not None:
            tokens = TemplatedConfig(**tokens.model_dump(), template=config.template)
        return self._model(made, objective, (config.model, config.revision, *prompts), tokens)

    def foreign_retriever(self, trained: Step) -> Model:
        """A retriever that was trained on another collection, with a token store of this one."""
        return self._model(trained, "retriever", trained.fingerprint, self._config.tokens)

    def _model(self, node: Step, objective: str, reads: Hashable, config: TokenizeConfig) -> Model:
        """A model with the token store of those that read the same, which is made if there is none yet."""
        if reads not in self._stores:
            label = f"{objective.rpartition('.')[2]} tokens" if self._stores else "tokens"
            with in_phase(COLLECTION):
                self._stores[reads] = step(label, tokenize, data=self.data, model=node, config=config)
        return Model(node, self._stores[reads], objective)

    @property
    @in_phase(COLLECTION)
    def bm25_index(self) -> Step:
        """The index that BM25 searches."""
        return step("bm25 index", lucene_index, data=self.data, config=self._config.bm25.index)

    def bm25(self, *splits: str) -> Step:
        """BM25's ranking of the queries of some splits."""
        return step(
            f"bm25 ranking ({', '.join(splits)})",
            lucene_search,
            data=self.data,
            index=self.bm25_index,
            splits=list(splits),
            k=self._config.k,
            config=self._config.bm25.search,
        )

    @property
    @in_phase(COLLECTION)
    def term_vectors(self) -> Step:
        """BM25's index with term vectors, which relevance feedback reads."""
        config = VectorIndexConfig(**self._config.bm25.index.model_dump())
        return step("bm25 index with term vectors", lucene_index, data=self.data, config=config)

    def bm25_with_feedback(self, split: str, rm3: RM3Config) -> Step:
        """BM25's ranking of the queries of a split with relevance feedback by RM3."""
        if self._config.bm25.index.language != "en":
            rm3 = rm3.model_copy(update={"filter_terms": False})
        return step(
            f"RM3 ranking ({split})",
            lucene_feedback,
            data=self.data,
            index=self.term_vectors,
            splits=[split],
            k=self._config.k,
            config=self._config.bm25.search,
            rm3=rm3,
        )

    def answering(self, ranking: Step, splits: list[str]) -> Step:
        """A ranking of the queries of some splits that says which documents bear an answer."""
        return step(
            f"{ranking.label} answers",
            answering,
            data=self.data,
            ranking=ranking,
            splits=splits,
            config=self._config.answers,
        )
