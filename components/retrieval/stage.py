"""A deployed system is made of stages. Each class of stage says how it is described in `system.json`, on the card and
in `example.py`. A retriever kind supplies the class of its first stage (`IndexKind.stage`)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from sparring.components.config import Config, Damaged, UserError
from sparring.components.data.vectors import KIND, SHARDS, document_shards
from sparring.components.files import read_json
from sparring.components.retrieval import topk

Nearest = Callable[[Any, np.ndarray, int], topk.Keys]
"""Function from (Q, d) vectors, or the rows of Q queries of another kind, the tie rank of each document, and k. It
returns (Q, k) keys of the best documents."""
Vectors = Callable[[np.ndarray], np.ndarray]
"""Function from (n,) rows of documents to their (n, d) fp32 vectors."""

INDEX = "index"
"""Folder of an index's files."""


class StageConfig(Config):
    """Base of all stages."""

    in_java: ClassVar[bool] = False
    """True if Lucene searches, in a thread of its own."""
    is_last: ClassVar[bool] = False
    """True if no other stage can read it."""
    has: ClassVar[Literal["vectors", "words"] | None] = None
    """Data that other stages can read of it: a vector of each document, or an index of words."""

    @property
    def inputs(self) -> list[str]:
        """Names of the stages whose rankings this one reads."""
        return []

    @property
    def contents(self) -> dict[str, str]:
        """Files and folders of this stage, relative to the system's folder, with a description of each."""
        return {}

    @property
    def precisions(self) -> set[str]:
        """Precisions that its models compute in. Empty if it has no model."""
        return set()

    def is_lexical(self, system: Any) -> bool:
        """Tell whether its scores are BM25's, in which 0 means that no word is shared. `system` is the
        `SystemConfig`."""
        return self.has == "words"

    @property
    def lexical_k(self) -> int | None:
        """Number of requested documents. If a ranking has fewer, the score of all others is 0. None if it does not tell
        their score."""
        return None

    def sentence(self, name: str) -> str:
        """Describe the stage for the card, in one sentence."""
        raise NotImplementedError

    def lines(self, system: Any, name: str) -> str:
        """Return the lines of `example.py` that compute `scores["NAME"]`, with their imports. `system` is the
        `SystemConfig`. The program has the variables `query`, `stage`, `documents` and `scores`."""
        raise NotImplementedError

    def open(self, folder: Path, options: Mapping[str, Any]) -> Any:
        """Open the models of this stage in a system's folder. None if it has none. Options are those of `Inference`."""
        return None


class FirstStage(StageConfig):
    """Base of the stages that search all documents."""

    k: int = Field(ge=1)
    """Number of documents in the ranking, if other stages need its full length."""


class RetrieverStage(FirstStage):
    """Base of the stages of retrievers: a model represents the query, which is compared with the documents."""

    retriever: str = "retriever"
    """Folder of the retriever. Only its query side is used: the documents may be represented by another model."""
    query_tokens: int = Field(ge=3)
    """Maximum length of a query, special tokens included."""
    precision: Literal["bf16", "fp32", "int8"] = "fp32"
    """Precision of the forward pass's matrix products. On a CPU without bf16 instructions, `int8` is faster."""
    vectors: Literal["float16", "float32"] = "float32"
    """Type that a query's numbers are rounded to, as the documents' numbers were."""

    @property
    def precisions(self) -> set[str]:
        return {self.precision}

    @classmethod
    def details(cls, path: Callable[[str, str], str], model: Mapping[str, Any], search: Any) -> dict[str, Any]:
        """Return the fields that this kind adds. `path` names a file of the stage from its stem and ending. `model` has
        the settings in the model's folder, and `search` those of the run's search."""
        raise NotImplementedError

    def write(self, folder: Path, rows: Path, index: Path | None, search: Any, *, threads: int) -> None:
        """Write the index or the documents' representations to a system's folder. `rows` is the run's folder of stored
        representations, `index` its folder of an index, and `search` has the settings of its search."""
        raise NotImplementedError

    def search(
        self, folder: Path, documents: int, *, threads: int, cuda: bool, rows: bool
    ) -> tuple[Nearest, Vectors | None]:
        """Open what `write` wrote. With `rows`, also return a function that reads the documents' vectors. Damaged if
        the number of documents differs."""
        raise NotImplementedError


class StoredStage(RetrieverStage):
    """Base of the stages of retrievers whose documents are stored as a run stores them, perhaps with an index of files
    of their kind."""

    kind: str
    rows: str = "rows"
    """Folder of the documents' representations."""
    index: str | None = None
    """Folder of the index. If None, all documents are compared."""
    factory: str | None = None
    """Name of the index."""
    probes: int = Field(1, ge=1)
    """Number of cells of the index that are searched for each query."""
    ef: int = Field(1, ge=1)
    """Number of candidates that a graph holds during a search."""

    @property
    def _loader(self) -> str:
        from sparring.components.retrieval.kind import kind_named

        return kind_named(self.kind).loader

    @property
    def contents(self) -> dict[str, str]:
        files = {self.retriever: f"the retriever, for `{self._loader}`", self.rows: "the documents' representations"}
        return files if self.index is None else {**files, self.index: "an index of the representations"}

    def sentence(self, name: str) -> str:
        """Name the kind and the number of documents."""
        return f"`{name}`: the retriever, of the kind {self.kind}, lists the {self.k} best documents."

    @classmethod
    def details(cls, path: Callable[[str, str], str], model: Mapping[str, Any], search: Any) -> dict[str, Any]:
        """Name the folders, and the index with its search parameters."""
        index = {"index": path(INDEX, ""), "factory": search.index, "probes": search.probes, "ef": search.ef}
        return {"rows": path("rows", ""), **(index if search.index is not None else {})}

    def lines(self, system: Any, name: str) -> str:
        """Raise UserError: a kind writes its own lines."""
        raise UserError(f"kind: {self.kind!r} has no lines for `example.py`. Write `lines` of its `stage`.")

    def write(self, folder: Path, rows: Path, index: Path | None, search: Any, *, threads: int) -> None:
        """Copy the representations, and the index."""
        (folder / self.rows).mkdir()
        for name in (SHARDS, KIND, *read_json(rows / SHARDS)):
            shutil.copyfile(rows / name, folder / self.rows / name)
        if index is not None and self.index is not None:
            (folder / self.index).mkdir()
            for file in index.glob("index.*"):
                shutil.copyfile(file, folder / self.index / file.name)

    def search(
        self, folder: Path, documents: int, *, threads: int, cuda: bool, rows: bool
    ) -> tuple[Nearest, Vectors | None]:
        """Open the representations, and the index."""
        from sparring.components.retrieval.kind import IndexOptions

        stored = sum(map(len, document_shards(folder / self.rows)))
        if stored != documents:
            raise Damaged(f"{folder / self.rows}: {stored} documents, and the system has {documents}")
        options = IndexOptions(self.probes, self.ef)
        index = None if self.index is None else folder / self.index
        inputs = folder / self.rows, documents, index, self.factory
        return open_search(*inputs, options, threads=threads, cuda=cuda), None


def open_search(
    rows: Path, documents: int, index: Path | None, factory: str | None, options: Any, *, threads: int, cuda: bool
) -> Nearest:
    """Open a search among the representations of so many documents in a folder, or by an index of their kind."""
    from sparring.components.retrieval.kind import kind_stored

    kind = kind_stored(rows)
    if index is None or factory is None:
        shards, device = document_shards(rows), "cuda" if cuda else "cpu"
        return lambda queries, order, k: kind.top_k(
            queries, shards, order, k, folder=rows, device=device, threads=threads
        )
    gpu = cuda and kind.index_on_gpu(factory)
    parts = [
        (file, kind.open_index(index / file.name, folder=rows, options=options, threads=threads, gpu=gpu))
        for file in kind.index_files(factory, documents)
    ]
    if len(parts) == 1:
        return parts[0][1]

    def search(queries: Any, order: np.ndarray, k: int) -> topk.Keys:
        lists = [part(queries, order[file.first : file.stop], k) for file, part in parts]
        return topk.merge(lists, min(k, len(order)))

    return search
