"""Where queries and documents lie in a retriever's space (paper 000, section 4; Wang and Isola 2020).

All of it looks at vectors brought to length 1: queries `(n, d)`, and for each a relevant document `(n, d)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from components.config import Config

Numbers = npt.NDArray[np.float64]

COSINES, RATIOS = (-1.0, 1.0), (-1.0, 3.0)
"""What the histograms span."""
BINS = 80


class AnalysisConfig(Config):
    """How a retriever's space is looked at."""

    queries: int = Field(1_000, ge=2)
    """How many of the measured queries, each with a relevant document; the same for every system."""
    map: int = Field(300, ge=0)
    """How many of them are on the map, each with its document; 0 for no map."""
    perplexity: float = Field(30.0, gt=0)
    """About how many neighbours the map keeps near (t-SNE)."""


def unit(vectors: npt.NDArray) -> Numbers:
    """The vectors at length 1; zeros stay zeros."""
    wide = vectors.astype(np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)


def alignment(queries: Numbers, documents: Numbers) -> float:
    """Mean squared distance of a query to its document: 0 where they coincide, 2 where they have nothing in common."""
    return float(np.square(queries - documents).sum(1).mean())


def uniformity(vectors: Numbers) -> float:
    """`log mean e^(-2 |x - y|^2)` over all pairs: 0 where all coincide, about -4 where they fill a large sphere."""
    distances = 2 - 2 * (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    return float(np.log(np.exp(-2 * distances).mean()))


def anisotropy(vectors: Numbers) -> float:
    """Mean cosine of two different texts: 0: directions are used alike, 1: all lie in one (Ethayarajh 2019)."""
    count = len(vectors)
    return float((np.square(vectors.sum(0)).sum() - np.square(vectors).sum()) / (count * (count - 1)))


def ratios(queries: Numbers, documents: Numbers, other: npt.NDArray[np.bool_]) -> Numbers:
    """s(q_i, q_j) / s(q_i, d_j) over all pairs that `other` (n, n) lets count (paper 000, Figure 6)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (queries @ queries.T)[other] / (queries @ documents.T)[other]
    return found[np.isfinite(found)]


def histogram(values: Numbers, span: tuple[float, float]) -> list[float]:
    """The share of the values in each of so many bins; those beyond the span are in none."""
    counts, _ = np.histogram(values, BINS, span)
    return [round(float(share), 6) for share in counts / max(1, len(values))]


def flat_map(queries: Numbers, documents: Numbers, perplexity: float) -> dict[str, list[list[float]]]:
    """t-SNE of both together (van der Maaten and Hinton 2008): places in the plane, about 0 to 1 each way."""
    from sklearn.manifold import TSNE

    both = np.concatenate([queries, documents])
    made = TSNE(perplexity=min(perplexity, (len(both) - 1) / 3), init="pca", random_state=0)
    places = made.fit_transform(both.astype(np.float32))
    places = (places - places.min(0)) / max(1e-9, float(np.ptp(places, axis=0).max()))
    listed = [[round(float(x), 4), round(float(y), 4)] for x, y in places]
    return {"queries": listed[: len(queries)], "documents": listed[len(queries) :]}


def about(
    queries: npt.NDArray, documents: npt.NDArray, nearest: npt.NDArray, same: npt.NDArray, config: AnalysisConfig
) -> dict[str, Any]:
    """All of it: `nearest` (n, d) are the documents ranked first, `same` (n,) names each document's text."""
    asked, right, first = unit(queries), unit(documents), unit(nearest)
    ratio = ratios(asked, right, same[:, None] != same[None, :])
    cosines = (asked * first).sum(1)
    low, median, high = np.quantile(ratio, [0.25, 0.5, 0.75]).tolist() if len(ratio) else [None] * 3
    return {
        "queries": len(asked),
        "alignment": alignment(asked, right),
        "uniformity": {"queries": uniformity(asked), "documents": uniformity(right)},
        "anisotropy": {"queries": anisotropy(asked), "documents": anisotropy(right)},
        "ratio": {"median": median, "quartiles": [low, high], "histogram": histogram(ratio, RATIOS)},
        "nearest": {"mean": float(cosines.mean()), "histogram": histogram(cosines, COSINES)},
        "map": flat_map(asked[: config.map], right[: config.map], config.perplexity) if config.map > 1 else None,
    }


def numbers(seeds: list[dict[str, Any]]) -> dict[str, float | None]:
    """Means over the analyses of several seeds."""
    read = {
        "alignment": [one["alignment"] for one in seeds],
        "ratio": [one["ratio"]["median"] for one in seeds],
        "nearest": [one["nearest"]["mean"] for one in seeds],
        **{f"{name}_{side}": [one[name][side] for one in seeds]
           for name in ("uniformity", "anisotropy") for side in ("queries", "documents")},
    }  # fmt: skip
    return {name: None if None in values else sum(values) / len(values) for name, values in read.items()}
