"""Analyse a retriever's embedding space: distances, distributions and a map of queries and documents."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparring.components.config import UserError
from sparring.components.data.groups import ids_of, measured_queries, positives, rows_of
from sparring.components.data.tables import RANKING, TEXT, read
from sparring.components.data.vectors import DocumentVectors, QueryVectors
from sparring.components.evaluation import embedding_space
from sparring.components.evaluation.embedding_space import EmbeddingSpaceConfig
from sparring.components.files import write_json
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.store.dag import Description

ANALYSIS = "analysis.json"


@Description(part="evaluation", shows=(ANALYSIS,))
def analyse(
    out: Path,
    machine: Machine,
    *,
    data: Path,
    tokens: Path,
    vectors: Path,
    queries: Path,
    ranking: Path,
    split: str,
    config: EmbeddingSpaceConfig,
) -> dict[str, Any]:
    """Write `analysis.json` of the split's judged queries (`components.evaluation.embedding_space`).

    `vectors` are the documents', `queries` those of the split's queries. The summary has the numbers of the analysis.
    Each query is compared with its first relevant document, and with the first document of the ranking.
    """
    query_ids = ids_of(data / "queries.parquet", "query_id")
    document_ids = ids_of(data / "documents.parquet", "doc_id")
    relevant = positives(data)
    first = read(ranking / "ranking.parquet", RANKING, columns=["query_id", "doc_id"], filters=[("rank", "==", 1)])
    top = dict(zip(first["query_id"].to_pylist(), first["doc_id"].to_pylist(), strict=True))
    chosen = [query for query in measured_queries(data, split, config.queries) if query in top]
    rows = rows_of(pa.array(chosen, TEXT), query_ids, source="queries")
    chosen, rows = _judged(chosen, rows, relevant)
    if len(chosen) < 2:
        raise UserError(f"no two queries of the split {split!r} have a relevant document and a ranking")
    right = np.asarray([relevant[int(row)][0] for row in rows])
    nearest = rows_of(pa.array([top[query] for query in chosen], TEXT), document_ids, source=str(ranking))
    query_vectors, document_vectors = QueryVectors(queries), DocumentVectors(vectors)
    same = np.load(tokens / "documents.same.npy", mmap_mode="r")
    analysis = embedding_space.analyse(
        query_vectors[query_vectors.rows(pa.array(chosen, TEXT))],
        _documents(document_vectors, right),
        _documents(document_vectors, nearest),
        np.asarray(same[right]),
        config,
    )
    write_json(out / ANALYSIS, analysis)
    return {
        "queries": analysis["queries"],
        "alignment": analysis["alignment"],
        "uniformity": analysis["uniformity"],
        "anisotropy": analysis["anisotropy"],
        "ratio": analysis["ratio"]["median"],
        "nearest": analysis["nearest"]["mean"],
    }


def _judged(ids: list[str], rows: np.ndarray, relevant: dict[int, np.ndarray]) -> tuple[list[str], np.ndarray]:
    """Return the queries that have a relevant document. A split that is measured by answers alone has queries
    without."""
    kept = np.asarray([int(row) in relevant for row in rows], bool)
    return pc.filter(pa.array(ids, TEXT), pa.array(kept)).to_pylist(), rows[kept]


def _documents(vectors: DocumentVectors, rows: np.ndarray) -> np.ndarray:
    """Read the vectors (n, d) of rows in any order."""
    distinct, places = np.unique(rows, return_inverse=True)
    return np.asarray(vectors[distinct][places])
