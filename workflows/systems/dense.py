"""A retriever as a system: its documents' vectors, an index over them, and its rankings."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.components.config import UserError
from sparring.components.data.tokenizers import MODEL_CONFIG, lengths_of
from sparring.components.files import read_json
from sparring.components.retrieval import quantised
from sparring.components.retrieval.kind import DEFAULT, kind_named
from sparring.components.retrieval.quantised import Kind
from sparring.components.retrieval.stage import RetrieverStage
from sparring.components.systems import model_folder
from sparring.workflows.distributed.limits import cores
from sparring.workflows.steps.encode import EncodeConfig, encode_queries
from sparring.workflows.steps.quantise import rescore, smaller_vectors
from sparring.workflows.steps.search import SearchConfig, build_index, candidates, search
from sparring.workflows.store.dag import Step, step
from sparring.workflows.systems.model import Model
from sparring.workflows.systems.system import Cost, Names, System, TimeSpent, path_for

if TYPE_CHECKING:
    from sparring.workflows.store.store import Store
    from sparring.workflows.systems.library import Library, Plan


@dataclass(frozen=True, eq=False)
class Dense(System):
    """A retriever with the documents' vectors, perhaps an index over them, and its rankings.

    Each split's queries are encoded and ranked by steps of their own. A step that depends on one split's ranking, such
    as a training, is therefore independent of the other splits. Only rankings that another step reads are made.
    """

    label: str
    """Beginning of its steps' labels."""
    data: Step
    """The collection."""
    model: Model
    vectors: Step
    """The documents' vectors."""
    index: Step | None
    k: int
    """Number of documents retrieved for a query."""
    encode: EncodeConfig
    search: SearchConfig
    is_variant: bool = False
    """True if it searches the vectors of another row in another way. Such a system is not the run's retriever."""
    size: str = ""
    """Ending of its rankings' names, which tells it from other searches of the same vectors."""

    stage = "dense"

    @property
    def expense(self) -> float:  # type: ignore[override]
        """2, or less for a model that is cut to some of its layers: the fewer, the less."""
        layers = getattr(self.model.begun.inputs.get("config"), "layers", None)
        if layers is None:
            return 2
        return 2 - 1 / (1 + (layers if isinstance(layers, int) else len(layers)))

    @property
    def searched_vectors(self) -> Step:
        """The searched vectors: the encoded ones, or quantised copies."""
        return self._smaller(self.search.vectors)

    @property
    def has_vectors(self) -> bool:
        """True if its embedding space can be analysed in a separate row."""
        return not self.is_variant and self.model.kind == DEFAULT

    @property
    def rescored_by(self) -> Step | None:
        """The vectors that order candidates. None if candidates are not rescored."""
        if self.search.rescore is None:
            return None
        return self.vectors if self.search.rescore_by == "encoded" else self._smaller(self.search.rescore_by)

    @property
    def _name(self) -> str:
        return f"{self.label}, {self.size}" if self.size else self.label

    def _smaller(self, kind: Kind) -> Step:
        dimensions = self.search.dimensions
        if kind == "encoded" and dimensions is None:
            return self.vectors
        size = "" if dimensions is None else f" of {dimensions} dimensions"
        return step(
            f"{self.label} {'' if kind == 'encoded' else f'{kind} '}vectors{size}",
            smaller_vectors,
            vectors=self.vectors,
            retriever=self.model.step,
            dimensions=dimensions,
            kind=kind,
        )

    def searching(self, search: SearchConfig, size: str = "", *, variant: bool = False) -> "Dense":
        """Search the same encoded vectors in another way. Nothing is encoded again."""
        dense = replace(self, search=search, index=None, size=size, is_variant=variant)
        if self.model.dimensions is not None and (wrong := search.unfit(self.model.dimensions)):
            raise ValueError(f"search: {wrong}")
        if search.index is None:
            return dense
        index = step(
            f"{dense._name} index",
            build_index,
            vectors=dense.searched_vectors,
            factory=search.index,
            ef_construction=search.ef_construction,
            kind=self.model.kind,
        )
        return replace(dense, index=index)

    @property
    def kept(self) -> list[Step]:
        """Steps whose files a finished run keeps: the searched vectors or index, and the vectors that order candidates.
        Of vectors behind an index only the description is read, which is never dropped."""
        vectors = self.searched_vectors
        searched = [vectors] if self.index is None or vectors is not self.vectors else []
        return [node for node in (*searched, self.index, self.rescored_by) if node is not None]

    @property
    def retriever(self) -> Step:
        """The step that wrote the retriever."""
        return self.model.step

    def queries(self, split: str) -> Step:
        """The vectors of a split's queries."""
        return step(
            f"{self.label} queries ({split})",
            encode_queries,
            data=self.data,
            tokens=self.model.tokens,
            retriever=self.model.step,
            split=split,
            config=self.encode,
        )

    def retrieve(self, split: str) -> Step:
        """Search for a split's queries. The result is the ranking, or candidates for it."""
        inputs: dict[str, Any] = {
            "data": self.data,
            "vectors": self.searched_vectors,
            "queries": self.queries(split),
            "index": self.index,
            "k": self.k,
            "config": self.search.of_candidates(),
        }
        if self.search.rescore is None:
            return ranked_by_vectors(self._name, split, **inputs)
        return step(f"{self._name} candidates ({split})", candidates, times=self.search.rescore, **inputs)

    def ranking(self, split: str) -> Step:
        """Rank the documents for a split's queries."""
        retrieved = self.retrieve(split)
        if self.rescored_by is None:
            return retrieved
        return step(
            f"{self._name} ranking ({split})",
            rescore,
            data=self.data,
            vectors=self.rescored_by,
            queries=self.queries(split),
            ranking=retrieved,
            k=self.k,
        )

    def cost(self, split: str) -> Cost:
        """The vectors or the index, the query's vector, and the search."""
        searches = list({node.fingerprint: node for node in (self.retrieve(split), self.ranking(split))}.values())
        return Cost(
            index=(self.index or self.searched_vectors,),
            retrieve=tuple(map(TimeSpent, [self.queries(split), *searches])),
            models=(self.retriever,),
        )

    @property
    def models(self) -> list[Step]:
        """The retriever."""
        return [self.retriever]

    @property
    def searched(self) -> list[Step]:
        """The searched index or vectors, and the vectors that order candidates."""
        return [node for node in (self.index or self.searched_vectors, self.rescored_by) if node is not None]

    def check_folder(self) -> None:
        """Raise UserError unless a FAISS index finds the same documents."""
        label = self.ranking("queries").label.removesuffix(" (queries)")
        if self.rescored_by is not None:
            raise UserError(f"{label!r} orders what is found by other vectors; accepted: one kind of vectors")
        if self.search.vectors == "binary":
            raise UserError(
                f"{label!r} finds documents by the Hamming distance of bits; accepted: whole vectors, int8, or an index"
            )

    def fetch(self, store: "Store") -> None:
        """Fetch the quantisation of the vectors behind an index, because queries are quantised in the same way. Other
        kinds need all rows."""
        if self.model.kind == DEFAULT:
            store.fetch([self.searched_vectors], quantised.FILE)
        else:
            store.fetch([self.searched_vectors])

    def describe(self, name: str, store: "Store", names: Names) -> RetrieverStage:
        """Describe the retriever and its index."""
        model, stage = store.path(self.retriever) / "model", kind_named(self.model.kind).stage
        details = stage.details(partial(_path_for, name), read_json(model / MODEL_CONFIG), self.search)
        return stage(
            retriever=path_for("retriever", name),
            k=self.k,
            query_tokens=lengths_of(model)["query_tokens"],
            precision=self.encode.precision,
            vectors=self.encode.vectors,
            **{"kind": self.model.kind, **details},
        )

    def open(self, name: str, plan: "Plan", library: "Library") -> Any:
        """Open the retriever, and its vectors or its index."""
        return library.retriever(self, name, plan)

    def write(self, stage: RetrieverStage, folder: Path, store: "Store") -> None:
        """Copy the retriever, and write the index or the documents' representations."""
        model_folder.copy(store.path(self.retriever) / "model", folder / stage.retriever)
        index = None if self.index is None else store.path(self.index)
        stage.write(folder, store.path(self.searched_vectors), index, self.search, threads=cores())


def ranked_by_vectors(
    name: str,
    split: str,
    *,
    data: Step,
    vectors: Step,
    queries: Step,
    k: int,
    index: Step | None = None,
    config: SearchConfig | None = None,
) -> Step:
    """Rank the documents for a split's queries by their vectors, without an index if it is None. If `config` is None,
    all vectors are compared."""
    config = config or SearchConfig().of_candidates()
    return step(
        f"{name} ranking ({split})",
        search,
        data=data,
        vectors=vectors,
        queries=queries,
        index=index,
        k=k,
        config=config,
    )


def _path_for(name: str, stem: str, ending: str) -> str:
    """Name a file of a stage."""
    return path_for(stem, name, ending)
