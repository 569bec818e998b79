"""Smaller vectors, made of those that were encoded: their first dimensions, with 8 bits or 1 bit for each.

What a query's vector becomes (`Smaller.queries`) and what is kept of a document's (`Smaller.documents`) have an inner
product (`Smaller.products`), which approximates that of the vectors. The query keeps its 32 bits.

- The first dimensions: for retrievers that learnt so (Kusupati et al., 2022). Cosines are those of the shorter vectors.
- `int8`: the nearest of 255 numbers at even distances, between the least and the greatest of a dimension's values over
  the collection, made symmetric. A query has these distances as factors, so that products are those of rounded vectors.
- `binary`: whether a number is above 0. The product is with 1 and -1; candidates are found by their Hamming distance
  (`components.retrieval.hamming`), where the query has one bit a dimension too.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from sparring.components.config import Config, UserError
from sparring.components.data.vectors import DocumentVectors, Shards
from sparring.components.files import write_json
from sparring.components.retrieval import hamming, topk

FILE = "smaller.json"
"""The file beside vectors that says how they were made."""
BLOCK = 65_536
"""Vectors that are converted together."""

Floats = npt.NDArray[np.float32]
Kind = Literal["encoded", "int8", "binary"]


def cut(vectors: npt.NDArray, dimensions: int | None, *, normalize: bool) -> Floats:
    """(N, dimensions) the first dimensions in fp32; None for all. Shorter vectors have length 1 again if `normalize`.

    >>> cut(np.array([[3, 4, 12], [0, 0, 2]], np.float16), 2, normalize=True).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    if dimensions is None or dimensions >= vectors.shape[1]:
        return np.asarray(vectors, np.float32)
    shorter = np.asarray(vectors[:, :dimensions], np.float32)
    if not normalize:
        return shorter
    return shorter / np.maximum(np.linalg.norm(shorter, axis=1, keepdims=True), np.float32(1e-12))


class Smaller(Config):
    """How vectors were made of others."""

    dimensions: int
    """The first so many."""
    vectors: Kind = "encoded"
    """What is kept of a dimension: as many bits as were encoded, 8, or 1."""
    normalize: bool
    """Whether similarity is cosine, so that shorter vectors have length 1 again."""
    scale: list[float] | None = None
    """(dimensions,) of `int8`: the distance of two numbers next to each other."""

    @classmethod
    def of(cls, vectors: Shards, dimensions: int | None, kind: Kind, *, normalize: bool) -> Self:
        """How vectors of a collection are made smaller. UserError if they have fewer dimensions."""
        width = int(vectors[0].shape[1])
        if dimensions is not None and dimensions > width:
            raise UserError(
                f"search.dimensions: {dimensions}: the vectors have {width}; accepted: as many at most",
                code="too-large",
            )
        made = cls(dimensions=dimensions or width, vectors=kind, normalize=normalize)
        return made if kind != "int8" else made.model_copy(update={"scale": made._scale(vectors).tolist()})

    def _scale(self, vectors: Shards) -> Floats:
        """Of all documents, so that it depends on nothing but them."""
        largest = np.zeros(self.dimensions, np.float32)
        for shard in vectors:
            for start in range(0, len(shard), BLOCK):
                block = self._cut(shard[start : start + BLOCK])
                largest = np.maximum(largest, np.abs(block).max(0, initial=0))
        return np.where(largest == 0, np.float32(1), largest / np.float32(127))

    def _cut(self, vectors: npt.NDArray) -> Floats:
        return cut(vectors, self.dimensions, normalize=self.normalize)

    def documents(self, vectors: npt.NDArray) -> npt.NDArray:
        """(N, width) what is kept of documents' vectors: int8, bits packed as uint8, or the type that they had."""
        shorter = self._cut(vectors)
        if self.vectors == "binary":
            return np.packbits(shorter > 0, axis=1)
        if self.vectors == "int8":
            return np.clip(np.rint(shorter / np.asarray(self.scale, np.float32)), -127, 127).astype(np.int8)
        return shorter.astype(vectors.dtype)

    def queries(self, vectors: npt.NDArray) -> Floats:
        """(Q, dimensions) what queries' vectors become."""
        shorter = self._cut(vectors)
        return shorter * np.asarray(self.scale, np.float32) if self.vectors == "int8" else shorter

    def numbers(self, kept: npt.NDArray) -> Floats:
        """(..., dimensions) the numbers that a query's vector is multiplied with, of what is kept of documents'."""
        if self.vectors != "binary":
            return np.asarray(kept, np.float32)
        bits = np.unpackbits(kept, axis=-1, count=self.dimensions)
        return bits.astype(np.float32) * 2 - 1

    def save(self, folder: Path) -> None:
        """Write it beside the vectors."""
        write_json(folder / FILE, self.model_dump(mode="json"))


def read(folder: Path) -> Smaller | None:
    """How the vectors in a folder were made of others; None for those that were encoded."""
    path = folder / FILE
    return Smaller.model_validate_json(path.read_text()) if path.exists() else None


def top_k(
    queries: npt.NDArray,
    documents: Sequence[npt.NDArray],
    how: Smaller | None,
    order: topk.Keys | None,
    k: int,
    *,
    device: str,
    threads: int,
) -> topk.Keys:
    """(Q, k) keys of the k best documents of each query, as `topk.top_k` returns them; of bits by Hamming distance."""
    if how is None:
        return topk.top_k(queries, documents, order, k, device=device)
    if how.vectors == "binary":
        bits = how.documents(queries)
        return hamming.top_k(bits, documents, order, k, dimensions=how.dimensions, threads=threads)
    return topk.top_k(how.queries(queries), documents, order, k, device=device)


def products(
    queries: npt.NDArray, documents: DocumentVectors, rows: npt.NDArray[np.int64], how: Smaller | None
) -> Floats:
    """(Q, N) inner products of queries with some documents each, given as rows of the documents' vectors."""
    asked = np.asarray(queries, np.float32) if how is None else how.queries(queries)
    found = np.empty(rows.shape, np.float32)
    batch = max(1, BLOCK // max(1, rows.shape[1]))
    for part, kept in documents.lists(rows, batch):
        numbers = np.asarray(kept, np.float32) if how is None else how.numbers(kept)
        found[part] = np.einsum("qnd,qd->qn", numbers, asked[part])
    return found


def rescored(
    queries: npt.NDArray,
    candidates: topk.Keys,
    order: topk.Keys,
    documents: DocumentVectors,
    how: Smaller | None,
    k: int,
) -> topk.Keys:
    """(Q, at most k) keys of the best candidates of each query by these vectors of the documents. `order` has the tie
    rank of each row."""
    there = candidates != topk.NO_DOCUMENT
    ranks = np.where(there, topk.tie_ranks_of(candidates), 0)
    rows = np.argsort(order)[ranks]
    found = topk.keys(products(queries, documents, rows, how), ranks)
    return np.sort(np.where(there, found, topk.NO_DOCUMENT), axis=1)[:, :k]
