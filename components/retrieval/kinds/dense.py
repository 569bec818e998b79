"""Dense retrieval: each text is one vector. Vectors are compared by inner product, exactly or with a FAISS index."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sparring.components.config import Damaged, UserError
from sparring.components.data.vectors import document_shards
from sparring.components.models.configs import DualEncoderConfig
from sparring.components.models.shape import ModelShape
from sparring.components.retrieval import quantised, topk
from sparring.components.retrieval.kind import IndexFile, IndexOptions, IndexShape, RetrieverKind, Rows, VectorIndex
from sparring.components.retrieval.stage import Nearest, RetrieverStage, Vectors

if TYPE_CHECKING:
    from sparring.components.models.dual_encoder import DualEncoder

INDEX = "index.faiss"
"""The file of a FAISS index over all documents."""
GRAPH = 2**24
"""Maximum number of documents in one graph. FAISS cannot merge graphs, so larger collections have several, each in a
file (`index.0000000000.faiss` ...). A query is searched for in all of them."""
TEXTS = ["a", "What is it?", "one two three", "B-25, c. 1940"]
"""Texts for which an exported retriever is compared with ours."""
APART = 1e-4
"""The largest difference of vectors, as a share of their largest number, if that is above 1."""
PROBES, EF = 16, 128
"""Cells of an inverted file and candidates of a graph that are looked at by default."""

RETRIEVER = """\
from sentence_transformers import SentenceTransformer
(retriever := SentenceTransformer(stage["retriever"])).max_seq_length = stage["query_tokens"]
vector = retriever.encode_query([query]).astype(stage["vectors"]).astype("float32")
"""
CUT = """\
encode_query(
    [query], truncate_dim=stage["dimensions"], normalize_embeddings=stage.get("normalize", False))\
"""
NEAR = """\
import faiss
# More than the list holds are searched for, as FAISS keeps any of the documents with the score of the last.
hits = (index := faiss.read_index(stage["index"])).search(vector, stage["k"] * (2 - hasattr(index, "hnsw")))
hits = sorted((-s, list(documents)[i], i) for s, i in zip(hits[0][0].tolist(), hits[1][0].tolist()) if i >= 0)
rows = {id: i for s, id, i in hits[: stage["k"]]}
scores["NAME"] = {id: -s for s, id, i in hits[: stage["k"]]}
"""
KEPT = """\
getattr(index, "make_direct_map", lambda: None)()  # an inverted file needs it to return vectors
kept["NAME"] = vector, index, rows
"""


class DenseStage(RetrieverStage):
    """A retriever's ranking: the documents with the largest inner products with the query's vector."""

    kind: Literal["dense"] = "dense"
    index: str = INDEX
    """FAISS index. Row i is the i-th document."""
    dimensions: int | None = Field(None, ge=1, exclude_if=lambda dimensions: dimensions is None)
    """Number of leading dimensions that are used. If None, all are."""
    normalize: bool = Field(False, exclude_if=lambda normalize: not normalize)
    """Scale the shortened vector to length 1."""

    has: ClassVar[Literal["vectors", "words"] | None] = "vectors"

    @property
    def contents(self) -> dict[str, str]:
        return {
            self.retriever: "the retriever, for `SentenceTransformer`",
            self.index: "the documents' vectors, for `faiss.read_index`; row i is line i of the documents",
        }

    def sentence(self, name: str) -> str:
        """Name the number of documents."""
        return f"`{name}`: the retriever lists the {self.k} documents nearest to the query's vector."

    @property
    def encoding(self) -> str:
        """Lines of a program that compute `vector`, (1, d), of the query."""
        return RETRIEVER if self.dimensions is None else RETRIEVER.replace("encode_query([query])", CUT)

    def lines(self, system: Any, name: str) -> str:
        """Search a FAISS index, and keep the vectors if another stage reads them."""
        return self.encoding + NEAR + (KEPT if system.data_is_read(name) else "")

    @classmethod
    def details(cls, path: Callable[[str, str], str], model: Mapping[str, Any], search: Any) -> dict[str, Any]:
        """Name the index, and how vectors are shortened."""
        dimensions = search.dimensions or model.get("truncate")
        normalize = dimensions is not None and model["similarity"] == "cosine"
        return {"index": path("index", ".faiss"), "dimensions": dimensions, "normalize": normalize}

    def write(self, folder: Path, rows: Path, index: Path | None, search: Any, *, threads: int) -> None:
        """Copy the index with its search parameters. Without an index, write a flat one of all vectors."""
        from sparring.components.retrieval import index as indexes

        quantiser = quantised.read(rows)
        if index is not None:
            opened = indexes.read(single_file(index), probes=search.probes, ef=search.ef, threads=threads, gpu=False)
        elif quantiser is not None and quantiser.vectors == "int8":
            opened = indexes.of_int8(quantiser.scale or [], document_shards(rows))
        else:
            opened = indexes.build("Flat", document_shards(rows), threads=threads)
        indexes.write(opened, folder / self.index)

    def search(
        self, folder: Path, documents: int, *, threads: int, cuda: bool, rows: bool
    ) -> tuple[Nearest, Vectors | None]:
        """Open the FAISS index. Vectors are read from it too."""
        from sparring.components.retrieval import index

        path = folder / self.index
        opened = index.read(path, threads=threads, gpu=False)
        if cuda and not rows and index.built_for_gpus() and index.fits_a_gpu(opened):
            opened = index.to_gpu(opened)
        if opened.ntotal != documents:
            raise Damaged(f"{path}: {opened.ntotal} vectors, and the system has {documents} documents", path)
        cut = partial(quantised.cut, dimensions=self.dimensions, normalize=self.normalize)
        nearest = lambda vectors, order, k: index.search(opened, cut(vectors), order, k)  # noqa: E731
        return nearest, index.reader(opened) if rows else None


def single_file(folder: Path) -> Path:
    """Return the one file of a FAISS index. UserError if the index has several."""
    if not (folder / INDEX).exists() and (graphs := list(folder.glob("index.*.faiss"))):
        raise UserError(
            f"search.index: it has {len(graphs)} graphs, which FAISS cannot merge into one file; accepted: an index "
            f"that FAISS can merge, such as IVF4096,PQ64, or at most {GRAPH:,} documents"
        )
    return folder / INDEX


class Dense(RetrieverKind):
    """One vector a text (`components.models.dual_encoder`)."""

    config = DualEncoderConfig
    trains = True
    stage = DenseStage

    def model(self) -> type[DualEncoder]:
        """Return the dual encoder, which `SentenceTransformer(folder)` loads too."""
        from sparring.components.models.dual_encoder import DualEncoder

        return DualEncoder

    def check_export(self, folder: Path) -> None:
        """Compare vectors with those of sentence-transformers."""
        if find_spec("sentence_transformers") is None:
            return
        from sentence_transformers import SentenceTransformer

        from sparring.components.models.dual_encoder import DualEncoder
        from sparring.components.models.text_encoder import Side, represent

        model = DualEncoder.load(folder).eval()
        exported = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        for side in get_args(Side):
            # sentence-transformers has one limit for a shared tower
            limit = model.max_tokens("document" if model.config.towers == "shared" else side)
            expected = represent(model, folder, TEXTS, side, limit).numpy()
            cut_last = model.config.truncate is not None and model.config.similarity == "cosine"
            encode = getattr(exported, f"encode_{side}")
            vectors = encode(TEXTS, show_progress_bar=False, normalize_embeddings=cut_last)
            difference = np.abs(vectors - expected).max()
            if not difference <= APART * max(1.0, np.abs(expected).max()):
                raise UserError(
                    "the exported retriever gives other vectors in sentence-transformers: "
                    f"of a {side} by {difference:.2g}"
                )

    def keep(self, representations: npt.NDArray[np.float32], dtype: str) -> Rows:
        """Keep the vectors in another precision."""
        return representations.astype(dtype)

    def numbers(self, config: Any, shape: ModelShape, tokens: float) -> float:
        """Count the dimensions of a vector."""
        return float(getattr(config, "projection", None) or shape.width)

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
        """Compare every query with every document, whose vectors may be smaller ones (`retrieval.quantised`)."""
        vectors, shards = cast(npt.NDArray, queries), cast(Sequence[npt.NDArray], documents)
        return quantised.top_k(vectors, shards, quantised.read(folder), order, k, device=device, threads=threads)

    def check_index(self, factory: str, documents: Rows | None = None) -> None:
        """Refuse a factory string that FAISS does not know, or that makes no ranking by inner products."""
        from sparring.components.retrieval import index

        if documents is None:
            index.check_factory(factory)
        else:
            index.create(factory, cast(npt.NDArray, documents).shape[1])

    def index_shape(
        self, factory: str, documents: int, width: float, *, ef_construction: int = 0, memory: float = math.inf
    ) -> IndexShape:
        """Read the cost of a FAISS index from its factory string.

        `Flat` holds 4 bytes a number, `SQ8` one, `PQ64` 64 in all; an inverted file 8 more for the number of the
        document; HNSW 8 bytes for each of its two M neighbours at the bottom.
        """
        parts = factory.replace("_HNSW32", "").split(",")
        item = 4.0 * width
        for part in parts:
            if match := re.match(r"PQ(\d+)(?:x(\d+))?", part):
                item = float(match[1]) * int(match[2] or 8) / 8
            elif part in ("SQ8", "SQ4", "SQfp16"):
                item = width * {"SQ8": 1.0, "SQ4": 0.5, "SQfp16": 2.0}[part]
        cells = next((int(match[1]) for part in parts if (match := re.match(r"IVF(\d+)", part))), None)
        graph = next((int(match[1]) for part in parts if (match := re.match(r"HNSW(\d+)", part))), None)
        lists = next((int(match[1]) for match in [re.search(r"IVF(\d+)", factory)] if match), 0)
        sample = min(documents, max(65_536, 64 * lists))
        products = 20.0 * sample * lists + float(documents) * lists
        if "HNSW" in factory:
            products += float(documents) * ef_construction * 40
        size, looks = item, float(documents)
        if graph is not None:
            size, looks = item + 8.0 * graph + 8, EF * 2.0 * graph
        elif cells is not None:
            size, looks = item + 8, cells + documents * min(1.0, PROBES / cells)
        return IndexShape(factory, size, looks, products, sample, f"search.index: {_fitting(documents, memory)}")

    def index_files(self, factory: str, documents: int) -> list[IndexFile]:
        """Build one index over all documents, or several graphs over very many."""
        whole = IndexFile(INDEX, 0, documents)
        if documents <= GRAPH or self.merges(factory):
            return [whole]
        return whole.cut(GRAPH, "index.{:010d}.faiss")

    def merges(self, factory: str) -> bool:
        """Check whether FAISS can merge such indexes."""
        from sparring.components.retrieval import index

        return index.merges(factory)

    def train_index(self, path: Path, documents: Sequence[Rows], index: VectorIndex, *, threads: int) -> None:
        """Write an empty FAISS index that was trained on a sample of the documents."""
        from sparring.components.retrieval.index import train, write

        shards = cast(Sequence[npt.NDArray], documents)
        write(train(index.factory, shards, threads=threads, gpu=index.gpu), path)

    def build_index(
        self,
        path: Path,
        documents: Sequence[Rows],
        index: VectorIndex,
        *,
        threads: int,
        on_added: Callable[[int], None],
    ) -> None:
        """Build a FAISS index, in which row i is document i."""
        from sparring.components.retrieval.index import build, write

        shards = cast(Sequence[npt.NDArray], documents)
        options = {name: value for name, value in vars(index).items() if name != "factory"}
        write(build(index.factory, shards, threads=threads, on_added=on_added, **options), path)

    def merge_index(self, path: Path, parts: Sequence[Path], index: VectorIndex) -> None:
        """Merge FAISS indexes."""
        from sparring.components.retrieval.index import merge, write

        write(merge(parts), path)

    def open_index(
        self, path: Path, *, folder: Path, options: IndexOptions, threads: int, gpu: bool
    ) -> Callable[[Rows, topk.Keys, int], topk.Keys]:
        """Open a FAISS index. If its vectors are quantised, queries are converted to fit."""
        from sparring.components.retrieval import index

        opened = index.read(path, threads=threads, gpu=gpu, probes=options.probes, ef=options.ef)
        quantiser = quantised.read(folder)

        def search(queries: Rows, order: topk.Keys, k: int) -> topk.Keys:
            if opened.ntotal != len(order):
                raise ValueError(f"{path}: {opened.ntotal} documents, and the collection has {len(order)}")
            vectors = cast(npt.NDArray, queries)
            return index.search(opened, vectors if quantiser is None else quantiser.queries(vectors), order, k)

        return search

    def index_on_gpu(self, factory: str) -> bool:
        """Check whether this build of FAISS has such an index on GPUs."""
        from sparring.components.retrieval import index

        return index.on_gpu(factory)


def _fitting(documents: int, memory: float) -> str:
    """Name an inverted file of product quantizers that fits in four fifths of a machine's memory."""
    cells = 2 ** max(10, min(20, round(math.log2(max(1.0, 8 * math.sqrt(documents))))))
    for size in (64, 32, 16):
        if documents * (size + 8.0) < 0.8 * memory:
            return f"IVF{cells},PQ{size} ({documents * (size + 8.0) / 1e9:,.0f} GB)"
    return "none of FAISS's: machines with more memory, or exact search (null), which reads vectors from disk"


Kind = Dense
