"""Analysis of a retriever's embedding space (Moiseev et al., 2023, section 4; Wang and Isola, 2020).

All functions take vectors of length 1: queries `(n, d)`, and for each query a relevant document, `(n, d)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sparring.components.config import Config

Floats = npt.NDArray[np.float64]

COSINES, RATIOS = (-1.0, 1.0), (-1.0, 3.0)
"""Ranges of the histograms."""
BINS = 80
SAME_PLACE = 1e-6
"""Largest coordinate difference of texts in one place, by rounding."""
BLOCK = 256
"""Number of texts whose distances to all others are in memory at once."""


class EmbeddingSpaceConfig(Config):
    """Analysis of a retriever's embedding space."""

    queries: int = Field(1_000, ge=2)
    """Number of evaluated queries that are analysed, each with a relevant document; the same ones for every system."""
    map: int = Field(300, ge=0)
    """Number of these queries that the t-SNE map shows, each with its document; 0 for no map."""
    perplexity: float = Field(30.0, gt=0)
    """t-SNE's perplexity: about how many neighbours of a text the map keeps close."""


def unit_length(vectors: npt.NDArray) -> Floats:
    """Scale the vectors to length 1. Zero vectors stay zero."""
    wide = vectors.astype(np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)


def alignment(queries: Floats, documents: Floats) -> float:
    """Mean squared distance between a query and its document: 0 if they coincide, 2 if they are orthogonal."""
    return float(np.square(queries - documents).sum(1).mean())


def uniformity(vectors: Floats) -> float:
    """`log mean e^(-2 |x - y|^2)` over all pairs: 0 if all coincide, about -4 if they are spread over the sphere."""
    count, total = len(vectors), 0.0
    for start in range(0, count, BLOCK):  # the pairs of thousands of texts would fill memory
        rest = vectors[start:]
        kernel = np.exp(4 * (rest[:BLOCK] @ rest.T) - 4)  # |x - y|^2 = 2 - 2 x y
        total += kernel[np.triu_indices(len(kernel), 1, len(rest))].sum()
    return float(np.log(total / (count * (count - 1) / 2)))


def anisotropy(vectors: Floats) -> float:
    """Mean cosine of two different texts: 0 if directions are used evenly, 1 if all are the same (Ethayarajh, 2019)."""
    count = len(vectors)
    return float((np.square(vectors.sum(0)).sum() - np.square(vectors).sum()) / (count * (count - 1)))


def same_tower_ratios(queries: Floats, documents: Floats, compared: npt.NDArray[np.bool_]) -> Floats:
    """Return s(q_i, q_j) / s(q_i, d_j) where `compared` (n, n) is True (Moiseev et al., 2023, Figure 6)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (queries @ queries.T)[compared] / (queries @ documents.T)[compared]
    return ratios[np.isfinite(ratios)]


def histogram(values: Floats, span: tuple[float, float]) -> list[float]:
    """Return the share of the values in each of `BINS` bins. Values outside the span are in none."""
    counts, _ = np.histogram(values, BINS, span)
    return [round(float(share), 6) for share in counts / max(1, len(values))]


def tsne_map(queries: Floats, documents: Floats, perplexity: float) -> dict[str, list[list[float]]] | None:
    """t-SNE of queries and documents together (van der Maaten and Hinton, 2008): points within about 0 to 1. None where
    they all lie in one place, as those of a retriever that has collapsed."""
    from sklearn.manifold import TSNE

    both = np.concatenate([queries, documents])
    if np.ptp(both, axis=0).max() < SAME_PLACE:  # scikit-learn would divide by it, and end the process
        return None
    tsne = TSNE(perplexity=min(perplexity, (len(both) - 1) / 3), init="pca", random_state=0)
    points = tsne.fit_transform(both.astype(np.float32))
    points = (points - points.min(0)) / max(1e-9, float(np.ptp(points, axis=0).max()))
    rounded = [[round(float(x), 4), round(float(y), 4)] for x, y in points]
    return {"queries": rounded[: len(queries)], "documents": rounded[len(queries) :]}


def analyse(
    queries: npt.NDArray, documents: npt.NDArray, nearest: npt.NDArray, same: npt.NDArray, config: EmbeddingSpaceConfig
) -> dict[str, Any]:
    """Run the whole analysis, and return it as JSON.

    `nearest` (n, d) are the documents that are ranked first. Documents with the same text have the same number in
    `same` (n,); ratios leave out their pairs.
    """
    queries, documents, nearest = unit_length(queries), unit_length(documents), unit_length(nearest)
    ratio = same_tower_ratios(queries, documents, same[:, None] != same[None, :])
    cosines = (queries * nearest).sum(1)
    low, median, high = np.quantile(ratio, [0.25, 0.5, 0.75]).tolist() if len(ratio) else [None] * 3
    return {
        "queries": len(queries),
        "alignment": alignment(queries, documents),
        "uniformity": {"queries": uniformity(queries), "documents": uniformity(documents)},
        "anisotropy": {"queries": anisotropy(queries), "documents": anisotropy(documents)},
        "ratio": {"median": median, "quartiles": [low, high], "histogram": histogram(ratio, RATIOS)},
        "nearest": {"mean": float(cosines.mean()), "histogram": histogram(cosines, COSINES)},
        "map": tsne_map(queries[: config.map], documents[: config.map], config.perplexity) if config.map > 1 else None,
    }


def mean_over_seeds(seeds: list[dict[str, Any]]) -> dict[str, float | None]:
    """Average the main numbers of an analysis over seeds."""
    by_name = {
        "alignment": [analysis["alignment"] for analysis in seeds],
        "ratio": [analysis["ratio"]["median"] for analysis in seeds],
        "nearest": [analysis["nearest"]["mean"] for analysis in seeds],
        **{
            f"{name}_{side}": [analysis[name][side] for analysis in seeds]
            for name in ("uniformity", "anisotropy")
            for side in ("queries", "documents")
        },
    }
    return {name: None if None in values else sum(values) / len(values) for name, values in by_name.items()}
