"""Draw charts of soft labels and of models trained on them (Zerveas et al., 2023, Figures 2 and 11 to 13).

Also draw charts of measures along an axis, such as the size of a model (Moiseev et al., 2023, Figure 3).
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from sparring.components.charts.label_curves import Mark, by_rank, normalised, picture, softmax
from sparring.components.config import Config
from sparring.components.data.groups import ids_of, rows_of
from sparring.components.data.tables import GROUPS, first
from sparring.components.data.vectors import DocumentVectors, Lists, QueryVectors, context_vectors
from sparring.components.evaluation.measures import mean_and_deviation
from sparring.components.files import read_json, write_json
from sparring.components.neighbours.reciprocal import NeighboursConfig, contexts_per_batch
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

PICTURES = "pictures.json"
"""File of the charts, in the form of `components.charts.label_curves.picture`."""


class PicturesConfig(Config):
    """Number of groups and ranks in the charts."""

    queries: int = Field(200, ge=1)
    """Number of first groups in the charts."""
    candidates: int = Field(40, ge=1)
    """Number of first ranks in the charts."""


@Description(part="evaluation", shows=(PICTURES,), heading="Labels and what was learned from them")
def pictures(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    vectors: Path,
    queries: Path,
    groups: Path,
    labels: Path | None,
    model: Path,
    trained: Path,
    similarity: NeighboursConfig,
    config: PicturesConfig,
) -> dict[str, Any]:
    """Write `pictures.json`: similarities, labels and predicted distributions by rank.

    `groups` have the original labels, `labels` the smoothed ones. `vectors` are the documents', `queries` those of the
    groups' queries before the training, and `trained` those of the same queries by `model`.
    """
    table = first(groups / "groups.parquet", GROUPS, config.queries).combine_chunks()
    ids = table["doc_ids"].combine_chunks()
    offsets = np.r_[0, np.cumsum(ids.value_lengths().to_numpy())].astype(np.int64)
    documents = rows_of(ids.flatten(), ids_of(data / "documents.parquet", "doc_id"), source=str(groups))
    held, start, after = DocumentVectors(vectors), QueryVectors(queries), QueryVectors(trained)
    lists = Lists(start.rows(table["query_id"]), documents, offsets)
    mask, truth = lists.mask, lists.padded(_targets(table)) > 0
    similar = _similarities(lists, truth, start, held, similarity)
    before = _scores(lists, start, held)
    later = _scores(lists._replace(queries=after.rows(table["query_id"])), after, held)
    heat = read_json(model / "model" / "temperature.json")["temperature"]
    shown = slice(0, config.candidates)
    longest = int(mask.sum(1).argmax())
    example = slice(longest, longest + 1)

    predicted = {"before": softmax(before, mask, heat), "after": softmax(later, mask, heat)}
    shares = {"labels": by_rank(_to_one(lists.padded(_targets(table))), mask)[shown]}
    if labels is not None:
        smooth = first(labels / "groups.parquet", GROUPS, config.queries).combine_chunks()
        shares["smoothed labels"] = by_rank(_to_one(lists.padded(_targets(smooth))), mask)[shown]
    charts = [
        picture(
            "Similarity to what is relevant",
            "Of a query's candidates, most similar first; mean and deviation over "
            "queries. Their ranges differ from query to query.",
            "rank",
            {"similarity": by_rank(similar, mask)[shown]},
        ),
        picture(
            "The same for one query, in one range",
            "Labels must fall soon: divided by the largest they do not, but between the least and the largest.",
            "rank",
            {
                method: _one(normalised(similar[example], mask[example], method), mask[example])[shown]
                for method in ("max", "max-min")
            },
        ),
        picture("What is to be learned", "Shares of the target distribution, largest first.", "rank", shares),
        picture(
            "What is predicted",
            "Shares of the predicted distribution, largest first, at the temperature that was learned.",
            "rank",
            {name: by_rank(share, mask)[shown] for name, share in predicted.items()},
        ),
    ]
    write_json(out / PICTURES, charts)
    right = {name: float((share * truth).sum(1).mean()) for name, share in predicted.items()}
    return {
        "groups": len(table),
        "predicted_of_labelled_before": right["before"],
        "predicted_of_labelled_after": right["after"],
        "temperature": heat,
    }


@Description(part="evaluation", shows=(PICTURES,), heading="By {x}")
def along(
    out: Path, machine: Machine, *, results: Path, axis: str, curves: dict[str, dict[str, int]]
) -> dict[str, Any]:
    """Write `pictures.json`: each measure of some systems by their places on an axis, with mean and deviation over
    seeds."""
    values: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for row in read_json(results / "metrics.json")["rows"]:
        systems = values.setdefault((row["collection"], row["split"], row["measure"]), {})
        systems.setdefault(row["system"], []).append(row["value"])
    drawn = []
    for (collection, split, measure), systems in values.items():
        lines: dict[str, list[Mark]] = {
            name: sorted(
                (place, *mean_and_deviation(systems[system])) for system, place in places.items() if system in systems
            )
            for name, places in curves.items()
        }
        caption = f"{collection}, {split} split; the mean and deviation over the seeds."
        drawn.append(picture(measure, caption, axis, {name: marks for name, marks in lines.items() if marks}))
    write_json(out / PICTURES, [chart for chart in drawn if chart["curves"]])
    return {"measures": len(drawn)}


def _targets(table: pa.Table) -> np.ndarray:
    return np.asarray(table["targets"].combine_chunks().flatten().to_numpy(zero_copy_only=False), np.float64)


def _to_one(targets: np.ndarray) -> np.ndarray:
    return targets / np.maximum(targets.sum(1, keepdims=True), 1e-12)


def _one(values: np.ndarray, mask: np.ndarray) -> list[Mark]:
    """Return a query's numbers by rank."""
    return [(rank, value, None) for rank, value, _ in by_rank(values, mask)]


def _similarities(
    lists: Lists, truth: np.ndarray, queries: QueryVectors, vectors: DocumentVectors, config: NeighboursConfig
) -> np.ndarray:
    """Return the mean similarity (Q, N) of each candidate to the labelled documents (Algorithm 1, line 5)."""
    import torch

    from sparring.components.neighbours.smoothing import evidence

    similar, documents, mask = [], lists.padded(lists.documents), lists.mask
    batch = contexts_per_batch(documents.shape[1])
    with torch.inference_mode():
        for part, query_vectors, document_vectors in context_vectors(queries, vectors, lists.queries, documents, batch):
            right, real = torch.from_numpy(truth[part]), torch.from_numpy(mask[part])
            similar.append(
                evidence(
                    torch.from_numpy(query_vectors).float(),
                    torch.from_numpy(document_vectors).float(),
                    right,
                    real,
                    config,
                )
            )
    return torch.cat(similar).double().numpy()


def _scores(lists: Lists, queries: QueryVectors, vectors: DocumentVectors) -> np.ndarray:
    """Compute the inner products (Q, N) of queries and their candidates."""
    documents = lists.padded(lists.documents)
    batch = contexts_per_batch(documents.shape[1])
    parts = context_vectors(queries, vectors, lists.queries, documents, batch)
    scores = [np.einsum("qd,qnd->qn", a.astype(np.float64), h.astype(np.float64)) for _, a, h in parts]
    return np.concatenate(scores)
