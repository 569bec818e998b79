"""The interface of a kind, and how a kind is found by its name.

A kind is a family of first-stage retriever, and has two halves. Every kind has the index (`IndexKind`): what it is
built of, in which files, how it is built, and what it costs. Kinds with a model that is trained have the other half too
(`RetrieverKind`): how the model is configured, what is stored of a text, and how stored representations are searched.

`kind: NAME` in a config names a file of `components/retrieval/kinds`. For example, `kind: dense` is the class `Dense`
of `kinds/dense.py`. A name with a dot is the path of any other module. The module assigns its class to `Kind`.

Losses, mining, groups and evaluation see scores and rankings. They do not know which kind they serve.

Reading a config imports the kind's module. A kind of this project therefore imports torch inside its methods.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import SerializeAsAny, WrapValidator

from sparring.components import modules
from sparring.components.config import Config, Invalid, UserError, listing, parse
from sparring.components.data.ragged import Ragged
from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.data.vectors import document_shards, stored_kind
from sparring.components.files import read_json
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.models.shape import ModelShape
from sparring.components.retrieval import topk
from sparring.components.retrieval.stage import FirstStage, RetrieverStage, StoredStage

if TYPE_CHECKING:
    from sparring.components.models.text_encoder import TextEncoder

Rows = npt.NDArray | Ragged
"""Stored representations, one row a text: an array (N, ...), or rows of different lengths."""

DEFAULT = "dense"
"""The kind of a config that names none."""


PART = 2**20
"""Number of documents in a part of an index. Smaller indexes are built in one part, by all threads of one worker: on 2
cores, Lucene takes 1.3 times the processor time for 400,000 documents in four parts."""
MAX_PARTS = 64
"""Maximum number of parts of one file of an index. The parts of larger indexes have more documents."""


class IndexFile(NamedTuple):
    """One file of an index, or a part of one, and the rows of documents that it covers."""

    name: str
    first: int
    stop: int

    @property
    def rows(self) -> int:
        """Number of documents."""
        return self.stop - self.first

    def cut(self, rows: int, name: str) -> list[IndexFile]:
        """Cut the file evenly into files of at most `rows` documents. `name` has places for `first` and `stop`.

        >>> IndexFile("index", 0, 9).cut(5, "part-{}-{}")
        [IndexFile(name='part-0-4', first=0, stop=4), IndexFile(name='part-4-9', first=4, stop=9)]
        """
        count = max(1, -(-self.rows // rows))
        ends = [self.first + self.rows * number // count for number in range(count + 1)]
        return [IndexFile(name.format(*pair), *pair) for pair in pairwise(ends)]

    def parts(self) -> list[IndexFile]:
        """Cut the file into parts that workers can build at the same time. The cut depends on the documents alone."""
        return self.cut(max(PART, -(-self.rows // MAX_PARTS)), "part-{:010d}-{:010d}")


class IndexShape(NamedTuple):
    """The cost of an index."""

    factory: str
    bytes: float
    """Size of a document in it."""
    looks: float
    """Number of documents that a query is compared with."""
    products: float = 0.0
    """Number of comparisons of documents while it is built."""
    sample: int = 0
    """Number of documents that are held in memory to train it."""
    advice: str = "a machine with more memory"
    """An alternative if the index does not fit in memory."""


@dataclass(frozen=True)
class IndexOptions:
    """Search options of an index. Each kind uses the options that apply to its indexes."""

    probes: int
    ef: int


@dataclass(frozen=True)
class VectorIndex:
    """Options of `build_index` for retriever kinds."""

    factory: str
    """The name of the index, such as FAISS's factory string."""
    ef_construction: int
    """Candidates that a graph holds while it is built."""
    gpu: bool = False
    """Train and fill the index on a GPU (`index_on_gpu`)."""
    trained: Path | None = None
    """File that `train_index` wrote. If None, the index is trained on the documents that it is built of."""


class IndexKind(ABC):
    """The index of a kind. A kind without a model, such as lexical, is nothing else.

    Each kind also has a method `open_index`, which opens one file of an index. What it returns differs: a retriever's
    index finds documents by their places, Lucene finds them by their ids.
    """

    in_java: ClassVar[bool] = False
    """True if Java builds the index. Java needs separate processes."""
    trains: ClassVar[bool] = False
    """True if all files and parts of an index share something that is made of a sample of all documents."""
    stage: ClassVar[type[FirstStage]]
    """The stage of a deployed system that searches with a retriever of this kind."""

    @abstractmethod
    def documents(self, folder: Path) -> Sequence[Any]:
        """Open the documents in a folder, one item for each file.

        The length of an item is its number of documents, and a slice of an item has some of them.
        """

    @abstractmethod
    def index_shape(
        self, factory: str, documents: int, width: float, *, ef_construction: int = 0, memory: float = math.inf
    ) -> IndexShape:
        """Estimate what an index over documents of so many numbers costs, on machines with so many bytes of memory.

        `width` is the number of a document's numbers, or of its characters for a lexical index. `ef_construction` is
        the number of candidates that a graph holds while it is built.
        """

    @abstractmethod
    def index_files(self, factory: str, documents: int) -> list[IndexFile]:
        """Divide an index over so many documents into files that are built and searched in parallel."""

    def index_on_gpu(self, factory: str) -> bool:
        """Check whether an index can be built and searched on the GPUs of the machine that this runs on."""
        return False

    def merges(self, factory: str) -> bool:
        """Check whether a file of an index can be merged from parts (`IndexFile.parts`), and finds what a file finds
        that was built as a whole."""
        return False

    def train_index(self, path: Path, documents: Sequence[Any], index: Any, *, threads: int) -> None:
        """Write what all files and parts of an index share, if the kind `trains`."""
        raise NotImplementedError

    @abstractmethod
    def build_index(
        self,
        path: Path,
        documents: Sequence[Any],
        index: Any,
        *,
        threads: int,
        on_added: Callable[[int], None],
    ) -> None:
        """Write one file or part of an index. `on_added` is called with the number of documents in each step.

        `index` says how: a `VectorIndex` for retriever kinds, a `LuceneIndex` for lexical.
        """

    def merge_index(self, path: Path, parts: Sequence[Path], index: Any) -> None:
        """Write a file of an index out of its parts, in the order of the documents, if the kind `merges` them."""
        raise NotImplementedError


class RetrieverKind(IndexKind):
    """A family of first-stage retriever whose model is trained."""

    config: ClassVar[type[Config]]
    """The config of a start model, with `kind: NAME`."""
    stage: ClassVar[type[RetrieverStage]] = StoredStage
    loader: ClassVar[str] = "SentenceTransformer"
    """The function or class of the ecosystem that opens the folder of a saved model."""

    # The model

    @abstractmethod
    def model(self) -> type[TextEncoder]:
        """Return the class that starts, loads, trains and saves models of this kind."""

    @abstractmethod
    def check_export(self, folder: Path) -> None:
        """Raise UserError if `loader`, where it is installed, represents texts in another way than we do."""

    # Storage

    @abstractmethod
    def keep(self, representations: npt.NDArray[np.float32], dtype: str) -> Rows:
        """Turn what the model made of N texts into the rows that are stored, with numbers of type `dtype`."""

    @abstractmethod
    def numbers(self, config: Any, shape: ModelShape, tokens: float) -> float:
        """Estimate how many numbers are stored of a text of so many tokens. Costs are computed from it."""

    # Exact search

    @abstractmethod
    def top_k(
        self,
        queries: Rows,
        documents: Sequence[Rows],
        order: topk.Keys,
        k: int,
        *,
        folder: Path,
        device: str,
        threads: int,
    ) -> topk.Keys:
        """Return the keys (Q, min(k, documents)) of each query's k best documents, best first (`topk`).

        `documents` are some consecutive files of `folder`, and `order` has the tie rank of each of their rows. The
        lists of all files are merged afterwards.
        """

    # Search with an index

    def check_index(self, factory: str, documents: Rows | None = None) -> None:
        """Raise UserError if `search.index` names no index of this kind, or none that fits such documents."""
        raise UserError(f"search.index: {factory}: {type(self).__name__} retrievers have no index; accepted: null")

    def documents(self, folder: Path) -> Sequence[Rows]:
        """Open the documents' stored representations."""
        return document_shards(folder)

    def index_shape(
        self, factory: str, documents: int, width: float, *, ef_construction: int = 0, memory: float = math.inf
    ) -> IndexShape:
        """Estimate the cost of an index that holds all numbers in 4 bytes and compares a query with all documents."""
        return IndexShape(factory, 4.0 * width, float(documents))

    def index_files(self, factory: str, documents: int) -> list[IndexFile]:
        """Raise NotImplementedError: by default a kind has no index."""
        raise NotImplementedError

    def build_index(
        self,
        path: Path,
        documents: Sequence[Rows],
        index: VectorIndex,
        *,
        threads: int,
        on_added: Callable[[int], None],
    ) -> None:
        """Raise NotImplementedError: by default a kind has no index."""
        raise NotImplementedError

    def open_index(
        self, path: Path, *, folder: Path, options: IndexOptions, threads: int, gpu: bool
    ) -> Callable[[Rows, topk.Keys, int], topk.Keys]:
        """Open one file of an index. The function returned is called like `top_k`, with queries, `order` and k.

        `folder` has the documents' representations, or what says how they were stored.
        """
        raise NotImplementedError


def kind_module(name: str) -> str:
    """Return the dotted path of a kind's module."""
    return name if "." in name else f"components.retrieval.kinds.{name}"


@cache
def index_kind_named(name: str) -> IndexKind:
    """Find a kind by its name, with or without a model. UserError if no module of that name defines one."""
    module = kind_module(name)
    if modules.file_of(module) is None:
        raise _unknown(name, "is no retriever kind")
    try:
        kind = getattr(modules.load(module), "Kind", None)
    except ImportError as error:
        raise UserError(f"kind: {name!r}: its module cannot be imported: {error}", code="unknown-kind") from None
    if not (isinstance(kind, type) and issubclass(kind, IndexKind)):
        message = f"kind: {name!r}: the module defines no `Kind`. Assign a subclass of RetrieverKind to it."
        raise UserError(message, code="unknown-kind")
    return kind()


def kind_named(name: str) -> RetrieverKind:
    """Find a kind of models by its name. UserError if there is none."""
    kind = index_kind_named(name)
    if not isinstance(kind, RetrieverKind):
        raise _unknown(name, "has no model that is trained")
    return kind


def _unknown(name: str, problem: str) -> UserError:
    """Refuse a name, and list the kinds of models."""
    names = sorted(path.stem for path in (Path(__file__).parent / "kinds").glob("[!_]*.py"))
    models = [name for name in names if isinstance(index_kind_named(name), RetrieverKind)]
    message = f"kind: {name!r} {problem}. Use {listing(models)}, or the dotted path of a module."
    return UserError(message, code="unknown-kind")


def kind_of(model: Path) -> RetrieverKind:
    """Find the kind of a saved model."""
    return kind_named(read_json(model / MODEL_CONFIG)["kind"])


def kind_stored(folder: Path) -> RetrieverKind:
    """Find the kind of the representations that the step `encode_documents` or `encode_queries` stored."""
    return kind_named(stored_kind(folder) or DEFAULT)


def load(model: Path, *, frozen: bool = False) -> TextEncoder:
    """Load a saved retriever of any kind."""
    return kind_of(model).model().load(model, frozen=frozen)


def _of_its_kind(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Read a config as one of the kind that it names."""
    name = value.get("kind", DEFAULT) if isinstance(value, dict) else getattr(value, "kind", DEFAULT)
    if name == DEFAULT or not isinstance(name, str):
        return validate(value)
    try:
        config = kind_named(name).config
        return value if isinstance(value, config) else parse(config, value, where=f"kind {name}")
    except UserError as error:
        raise Invalid(str(error), error.code) from None


RetrieverConfig = Annotated[SerializeAsAny[DualEncoderConfig], WrapValidator(_of_its_kind)]
"""A retriever's config in a recipe. It is read as the kind that its `kind` names. Without a name it is dense."""
