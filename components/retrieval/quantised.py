"""Quantised vectors: the first dimensions of encoded vectors, with 8 bits or 1 bit for each.

The inner product of a converted query (`Quantiser.queries`) and a converted document (`Quantiser.documents`)
approximates that of their vectors. The query keeps its 32 bits.

- The first dimensions: for retrievers trained for it (Kusupati et al., 2022). Cosines are those of the shorter vectors.
- `int8`: the nearest of 255 evenly spaced numbers, between the least and the greatest of a dimension's values over the
  collection, made symmetric. Queries are multiplied by the spacing, so that products are those of rounded vectors.
- `binary`: whether a number is above 0. The product is with 1 and -1. Candidates are retrieved by Hamming distance
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
"""File of the quantiser, in the folder of the vectors."""
BLOCK = 65_536
"""Vectors that are converted together."""

Floats = npt.NDArray[np.float32]
Kind = Literal["encoded", "int8", "binary"]


def cut(vectors: npt.NDArray, dimensions: int | None, *, normalize: bool) -> Floats:
    """Cut vectors to their first dimensions, in fp32. If None, keep all. If `normalize`, shorter vectors have length 1.

    >>> cut(np.array([[3, 4, 12], [0, 0, 2]], np.float16), 2, normalize=True).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    if dimensions is None or dimensions >= vectors.shape[1]:
        return np.asarray(vectors, np.float32)
    shorter = np.asarray(vectors[:, :dimensions], np.float32)
    if not normalize:
        return shorter
    return shorter / np.maximum(np.linalg.norm(shorter, axis=1, keepdims=True), np.float32(1e-12))


class Quantiser(Config):
    """A conversion of vectors to fewer dimensions and fewer bits."""

    dimensions: int
    """Number of dimensions that are kept, the first ones."""
    vectors: Kind = "encoded"
    """Bits of a dimension: as encoded, 8, or 1."""
    normalize: bool
    """True for cosine similarity. Shorter vectors are then normalised to length 1 again."""
    scale: list[float] | None = None
    """(dimensions,) for `int8`: spacing of the numbers."""

    @classmethod
    def of(cls, vectors: Shards, dimensions: int | None, kind: Kind, *, normalize: bool) -> Self:
        """Fit a quantiser to a collection's vectors. UserError if they have fewer dimensions."""
        plain = cls.unscaled(int(vectors[0].shape[1]), dimensions, kind, normalize=normalize)
        return plain.scaled(plain.largest(vectors)) if kind == "int8" else plain

    @classmethod
    def unscaled(cls, width: int, dimensions: int | None, kind: Kind, *, normalize: bool) -> Self:
        """Return a quantiser of vectors with `width` dimensions that is not fitted yet. UserError if `dimensions` is
        larger."""
        if dimensions is not None and dimensions > width:
            raise UserError(
                f"search.dimensions: {dimensions}: the vectors have {width}; accepted: as many at most",
                code="too-large",
            )
        return cls(dimensions=dimensions or width, vectors=kind, normalize=normalize)

    def scaled(self, largest: Floats) -> Self:
        """Return the quantiser with the spacing for a collection. `largest` has its largest absolute values."""
        scale = np.where(largest == 0, np.float32(1), largest / np.float32(127))
        return self.model_copy(update={"scale": scale.tolist()})

    def largest(self, vectors: Shards) -> Floats:
        """Compute the largest absolute value (dimensions,) of each dimension."""
        largest = np.zeros(self.dimensions, np.float32)
        for shard in vectors:
            for start in range(0, len(shard), BLOCK):
                block = self._cut(shard[start : start + BLOCK])
                largest = np.maximum(largest, np.abs(block).max(0, initial=0))
        return largest

    def _cut(self, vectors: npt.NDArray) -> Floats:
        return cut(vectors, self.dimensions, normalize=self.normalize)

    def documents(self, vectors: npt.NDArray) -> npt.NDArray:
        """Convert documents' vectors: (N, width) in int8, bits packed as uint8, or the original type."""
        shorter = self._cut(vectors)
        if self.vectors == "binary":
            return np.packbits(shorter > 0, axis=1)
        if self.vectors == "int8":
            return np.clip(np.rint(shorter / np.asarray(self.scale, np.float32)), -127, 127).astype(np.int8)
        return shorter.astype(vectors.dtype)

    def queries(self, vectors: npt.NDArray) -> Floats:
        """Convert queries' vectors: (Q, dimensions)."""
        shorter = self._cut(vectors)
        return shorter * np.asarray(self.scale, np.float32) if self.vectors == "int8" else shorter

    def numbers(self, kept: npt.NDArray) -> Floats:
        """Expand converted documents to the factors of a query's vector: (..., dimensions)."""
        if self.vectors != "binary":
            return np.asarray(kept, np.float32)
        bits = np.unpackbits(kept, axis=-1, count=self.dimensions)
        return bits.astype(np.float32) * 2 - 1

    def save(self, folder: Path) -> None:
        """Write the quantiser next to the vectors."""
        write_json(folder / FILE, self.model_dump(mode="json"))


def read(folder: Path) -> Quantiser | None:
    """Read the quantiser of the vectors in a folder. Return None if they are as encoded."""
    path = folder / FILE
    return Quantiser.model_validate_json(path.read_text()) if path.exists() else None


def top_k(
    queries: npt.NDArray,
    documents: Sequence[npt.NDArray],
    quantiser: Quantiser | None,
    order: topk.Keys | None,
    k: int,
    *,
    device: str,
    threads: int,
) -> topk.Keys:
    """Return (Q, k) keys of each query's best documents, as `topk.top_k` does. Bits have Hamming distance."""
    if quantiser is None:
        return topk.top_k(queries, documents, order, k, device=device)
    if quantiser.vectors == "binary":
        bits = quantiser.documents(queries)
        return hamming.top_k(bits, documents, order, k, dimensions=quantiser.dimensions, threads=threads)
    return topk.top_k(quantiser.queries(queries), documents, order, k, device=device)


def products(
    queries: npt.NDArray, documents: DocumentVectors, rows: npt.NDArray[np.int64], quantiser: Quantiser | None
) -> Floats:
    """Compute (Q, N) inner products of each query with N documents, given as rows of the documents' vectors."""
    vectors = np.asarray(queries, np.float32) if quantiser is None else quantiser.queries(queries)
    scores = np.empty(rows.shape, np.float32)
    batch = max(1, BLOCK // max(1, rows.shape[1]))
    for part, kept in documents.lists(rows, batch):
        numbers = np.asarray(kept, np.float32) if quantiser is None else quantiser.numbers(kept)
        scores[part] = np.einsum("qnd,qd->qn", numbers, vectors[part])
    return scores


def rescore(
    queries: npt.NDArray,
    candidates: topk.Keys,
    order: topk.Keys,
    documents: DocumentVectors,
    quantiser: Quantiser | None,
    k: int,
) -> topk.Keys:
    """Return (Q, at most k) keys of each query's best candidates by these vectors. `order` has each row's tie rank."""
    real = candidates != topk.NO_DOCUMENT
    ranks = np.where(real, topk.tie_ranks_of(candidates), 0)
    rows = np.argsort(order)[ranks]
    keys = topk.keys(products(queries, documents, rows, quantiser), ranks)
    return np.sort(np.where(real, keys, topk.NO_DOCUMENT), axis=1)[:, :k]
