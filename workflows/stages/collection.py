"""A collection in a recipe: its tables, token stores and BM25."""

from collections.abc import Hashable
from contextlib import nullcontext

from sparring.components.config import Invalid, UserError
from sparring.components.data.tokenizers import TOKEN_LIMITS
from sparring.components.models.configs import Pretrained
from sparring.components.models.reader_configs import ReaderConfig
from sparring.components.retrieval.lucene import RM3Config
from sparring.workflows.stages.config import CollectionConfig
from sparring.workflows.steps.answers import answering
from sparring.workflows.steps.ingest import ingest
from sparring.workflows.steps.lucene import VectorIndexConfig, lucene_index
from sparring.workflows.steps.start import start, start_as_it_comes
from sparring.workflows.steps.tokenize import TemplatedConfig, TokenizeConfig, check_lengths, tokenize
from sparring.workflows.store.dag import Step, in_phase, step
from sparring.workflows.systems.lexical import Lexical
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.phases import COLLECTION


class Collection:
    """A collection's tables and token stores, and BM25 over it."""

    def __init__(self, config: CollectionConfig) -> None:
        with in_phase(COLLECTION):
            self.data = step("data", ingest, source=config.data)
        self._config = config
        self._stores: dict[Hashable, Step] = {}

    @property
    def tokens(self) -> Step:
        """The first model's token store. It also identifies texts that are the same."""
        if not self._stores:
            raise RuntimeError("a collection has tokens once a model reads it: call initial_model first")
        return next(iter(self._stores.values()))

    def initial_model(
        self, label: str, config: Pretrained, objective: str = "retriever", *, encoder: Model | None = None
    ) -> Model:
        """Start a model from its config, or with another model's encoder. Models with the same tokenizer and prompts
        share a token store."""
        self._check_lengths(label, config)
        with nullcontext() if encoder else in_phase(COLLECTION):  # another's encoder is there once that is trained
            node = step(label, start, config=config, encoder=None if encoder is None else encoder.step)
        tokens = self._config.tokens
        if isinstance(config, ReaderConfig) and config.template is not None:
            tokens = TemplatedConfig(**tokens.model_dump(), template=config.template)
        return self._model(node, objective, _reads(config), tokens)

    def model_as_it_comes(self, label: str, config: Pretrained, objective: str = "retriever") -> Model:
        """Return a model that is used but not trained, with the lengths of its folder."""
        self._check_lengths(label, config)
        tokens = self._config.tokens
        with in_phase(COLLECTION):
            node = step(label, start_as_it_comes, config=config, most=tokens.max_tokens)
        return self._model(node, objective, _reads(config), tokens, f"{label} tokens")

    def _check_lengths(self, label: str, config: Pretrained) -> None:
        try:
            check_lengths({key: getattr(config, key, None) for key in TOKEN_LIMITS}, self._config.tokens)
        except UserError as error:
            # whoever builds the graph knows the file
            raise Invalid(f"{label}: {error}", error.code, error.key) from None

    def foreign_retriever(self, trained: Step) -> Model:
        """Give a retriever that was trained on another collection a token store of this one."""
        return self._model(trained, "retriever", trained.fingerprint, self._config.tokens)

    def _model(
        self, node: Step, objective: str, reads: Hashable, config: TokenizeConfig, label: str | None = None
    ) -> Model:
        """Give a model the token store of its tokenizer and prompts. Make the store if there is none yet. If `label` is
        None, the objective names it."""
        if reads not in self._stores:
            label = label or (f"{objective.rpartition('.')[2]} tokens" if self._stores else "tokens")
            with in_phase(COLLECTION):
                self._stores[reads] = step(label, tokenize, data=self.data, model=node, config=config)
        return Model(node, self._stores[reads], objective)

    @property
    @in_phase(COLLECTION)
    def bm25_index(self) -> Step:
        """The index that BM25 searches."""
        return step("bm25 index", lucene_index, data=self.data, config=self._config.bm25.index)

    @property
    def lexical(self) -> Lexical:
        """BM25."""
        return Lexical(self.data, self.bm25_index, self._config.k, self._config.bm25.search)

    def bm25(self, *splits: str) -> Step:
        """Rank the documents for the queries of some splits by BM25."""
        return self.lexical.ranking(*splits)

    @property
    @in_phase(COLLECTION)
    def term_vectors(self) -> Step:
        """BM25's index with term vectors, which relevance feedback reads."""
        config = VectorIndexConfig(**self._config.bm25.index.model_dump())
        return step("bm25 index with term vectors", lucene_index, data=self.data, config=config)

    def with_feedback(self, rm3: RM3Config) -> Lexical:
        """BM25 with relevance feedback by RM3."""
        if self._config.bm25.index.language != "en":
            rm3 = rm3.model_copy(update={"filter_terms": False})
        return Lexical(self.data, self.term_vectors, self._config.k, self._config.bm25.search, rm3)

    def answering(self, ranking: Step, splits: list[str]) -> Step:
        """Mark the documents of some splits' rankings that contain an answer."""
        return step(
            f"{ranking.label} answers",
            answering,
            data=self.data,
            ranking=ranking,
            splits=splits,
            config=self._config.answers,
        )


def _reads(config: Pretrained) -> Hashable:
    """Return what the tokens of a text depend on. A template or an end token changes the tokenizer."""
    keys = ("query_prompt", "document_prompt", "end_token", "template")
    return (config.model, config.revision, *(getattr(config, key, None) or "" for key in keys))
