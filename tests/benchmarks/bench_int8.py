"""What `precision: int8` gives where the processor has VNNI, and what its rounding does to rankings.

make bench ARGS="-k int8"
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import numpy as np
import pyarrow.parquet as pq
import pytest

from sparring.components.compute.precision import has_int8
from tests.benchmarks.bench_encode import an_encoder, share_of_roofline
from tests.benchmarks.conftest import ROOT, World
from tests.benchmarks.measure import HEAD, by_turns
from tests.benchmarks.table import machine, write

DEPTH = 100
"""Documents of a ranking."""


def test_int8(few_of_each: tuple[str, World]) -> None:
    name, few = few_of_each
    if not has_int8(few.device):
        pytest.skip("no VNNI")
    rows, kinds = np.arange(len(few.documents())), dict.fromkeys(["fp32", few.precision, "int8"])
    encoders = {kind: an_encoder(few, precision=kind, vectors="float32") for kind in kinds}

    def encoding(kind: str) -> Callable[[], np.ndarray]:
        return lambda: encoders[kind].represent("document", rows)[0]

    job, subject = "encode a corpus, int8", encoding("int8")
    table = [
        *(
            by_turns(subject, encoding(kind)).row(job, kind, "texts/s", len(rows), 1.2)
            for kind in kinds
            if kind != "int8"
        ),
        share_of_roofline(encoders["int8"], "int8", subject, rows).row(job, "the floor", "texts/s", len(rows), 0.6),
    ]
    right = right_documents(few)
    queries = np.arange(len(few.queries()))
    rankings = {
        kind: ranked(encoder.represent("query", queries)[0] @ encoder.represent("document", rows)[0].T, right)
        for kind, encoder in encoders.items()
    }
    expected = rankings["fp32"][0]
    lines = [f"{len(rows):,} documents, {len(queries):,} queries with one right document each."]
    for kind, (places, quality) in rankings.items():
        shared = median(len(set(a) & set(b)) / DEPTH for a, b in zip(places, expected, strict=True))
        first = float((places[:, 0] == expected[:, 0]).mean())
        lines.append(
            f"{kind}: of a query's first {DEPTH} documents {shared:.1%} (median) are fp32's, of the first "
            f"ones {first:.1%}; nDCG@10 {quality.mean():.4f}."
        )
    write(f"Products in int8, {name}", 'make bench ARGS="-k int8"', HEAD, table, [*lines, machine(ROOT)])


def right_documents(few: World) -> np.ndarray:
    """The row of each query's right document."""
    table = pq.read_table(few.data / "qrels.parquet").to_pydict()
    names = pq.read_table(few.data / "documents.parquet", columns=["doc_id"])["doc_id"].to_pylist()
    query_ids = pq.read_table(few.data / "queries.parquet", columns=["query_id"])["query_id"].to_pylist()
    relevant, place = (
        dict(zip(table["query_id"], table["doc_id"], strict=True)),
        {name: i for i, name in enumerate(names)},
    )
    return np.asarray([place[relevant[name]] for name in query_ids])


def ranked(scores: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Q, DEPTH) first documents, and (Q,) nDCG@10."""
    ranks = 1 + (scores > scores[np.arange(len(right)), right][:, None]).sum(1)
    return np.argsort(-scores, 1)[:, :DEPTH], np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0)
