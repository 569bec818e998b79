"""Measure the vectors of labelled sentences by people's ratings of pairs, and by a classifier trained on them (Conneau
and Kiela, 2018; Chuang et al., 2022, Tables 2.1, 2.2 and 2.11)."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.data.examples import labelled_sentences, rated_pairs, splits_of
from sparring.components.data.groups import ids_of, rows_of
from sparring.components.data.tables import DEV, write
from sparring.components.data.vectors import DocumentVectors
from sparring.components.evaluation.measures import PER_QUERY, PER_QUERY_FILE, means
from sparring.components.evaluation.similarity import SimilarityConfig, cosines, per_pair, space
from sparring.components.evaluation.transfer import TransferConfig, cross_validated, features, on_given_splits
from sparring.components.files import write_json
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

SIMILARITY = "similarity.json"
"""Alignment, uniformity, and the distribution of cosines by rating (`components.evaluation.similarity.space`)."""


def _refuses_pairs(data: Path, split: str) -> None:
    """Refuse a split without rated pairs."""
    rated_pairs(data, split)


def _refuses_labels(data: Path, split: str | None) -> None:
    """Refuse a split without labelled sentences."""
    labelled_sentences(data, split)


@Description(part="evaluation", version=2, shows=(SIMILARITY,), refuses=_refuses_pairs)
def similarity(
    out: Path, machine: Machine, *, data: Path, vectors: Path, split: str, config: SimilarityConfig
) -> dict[str, Any]:
    """Write `per_query.parquet` and `similarity.json`.

    `per_query.parquet` has a value for each pair of the split. The mean of the values is the correlation of cosines and
    ratings. `vectors` are the sentences'.
    """
    examples = rated_pairs(data, split)
    first, second = _vectors(examples, data, vectors)
    assert second is not None
    ratings, subsets = examples["score"].to_numpy(), examples["subset"].to_pylist()
    near = cosines(first, second)
    values = {name: per_pair(name, near, ratings, subsets, config.aggregation) for name in config.measures}
    analysis = space(first, second, ratings, config)
    write_json(out / SIMILARITY, analysis)
    shown = {name: analysis[name] for name in ("pairs", "aligned", "alignment", "uniformity")}
    by_measure = {name: (examples, numbers) for name, numbers in values.items()}
    return {"measures": _write(out, by_measure), "subsets": len(set(subsets)), **shown}


@Description(part="evaluation", refuses=_refuses_labels)
def transfer(
    out: Path, machine: Machine, *, data: Path, vectors: Path, split: str | None, config: TransferConfig
) -> dict[str, Any]:
    """Write `per_query.parquet`: whether a linear classifier over the frozen vectors gets each example right. On
    request it also has the accuracy on the examples that the classifier's penalty is chosen by.

    With a `split` the classifier is trained on `train`, and its penalty is chosen on `dev` if there is such a split.
    Without a `split`, all examples are cross-validated. `vectors` are the sentences'.
    """
    if split is None:
        measured = chose = labelled_sentences(data, None)
        result = cross_validated(*_classes(measured, data, vectors), config)
    else:
        measured = labelled_sentences(data, split)
        learnt = chose = labelled_sentences(data, "train")
        train, dev = _classes(learnt, data, vectors), None
        if DEV in splits_of(data) and split != DEV:
            chose = labelled_sentences(data, DEV)
            dev = _classes(chose, data, vectors)
        result = on_given_splits(train, dev, _classes(measured, data, vectors), config)
    values: dict[Any, tuple[pa.Table, npt.NDArray]] = {"accuracy": (measured, result.right)}
    if result.dev is not None:
        values["dev accuracy"] = chose, result.dev
    means = _write(out, {name: values[name] for name in config.measures})
    dev_accuracy = None if result.dev is None else float(result.dev.mean())
    return {
        "measures": means,
        "dev_accuracy": dev_accuracy,
        "inverse_penalties": result.chosen,
        "examples": len(measured),
        "classes": len(pc.unique(measured["label"])),
    }


def _vectors(examples: pa.Table, data: Path, vectors: Path) -> tuple[npt.NDArray, npt.NDArray | None]:
    """Read the vectors (n, d) of the first sentences, and of the second sentences if the examples are pairs."""
    ids, held = ids_of(data / "documents.parquet", "doc_id"), DocumentVectors(vectors)

    def of(column: str) -> npt.NDArray:
        rows, places = np.unique(rows_of(examples[column], ids, source="examples"), return_inverse=True)
        return np.asarray(held[rows][places])

    return of("first"), None if examples["second"].null_count else of("second")


def _classes(examples: pa.Table, data: Path, vectors: Path) -> tuple[npt.NDArray, npt.NDArray]:
    """Return the features (n, d) that a classifier reads of the examples, and their classes (n,)."""
    return features(*_vectors(examples, data, vectors)), np.asarray(examples["label"].to_pylist())


def _write(out: Path, values: dict[Any, tuple[pa.Table, npt.NDArray]]) -> dict[str, float]:
    """Write the values of each example by measure, and return their means."""
    ids = {name: examples["example_id"].to_pylist() for name, (examples, _) in values.items()}
    columns = [
        [example_id for entries in ids.values() for example_id in entries],
        [name for name, entries in ids.items() for _ in entries],
        np.concatenate([entries for _, entries in values.values()]),
    ]
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, PER_QUERY, strict=True)], PER_QUERY.names
    )
    write(out / PER_QUERY_FILE, table, PER_QUERY)
    return means(table)
