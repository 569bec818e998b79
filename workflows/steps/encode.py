"""Encode a collection's documents, and the queries of some splits, shard by shard on Ray Data."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from components.config import Config
from components.data.tables import QUERIES, read
from components.data.vectors import SHARDS
from components.files import remove, replacing, save_array, write_array, write_json
from workflows.distributed.cluster import Cluster
from workflows.distributed.shards import Shard, map_shards, row_shards
from workflows.store.dag import Description

VECTORS = ("documents-*.npy", "queries.npy")
"""The files of the vectors, as glob patterns."""


class EncodeConfig(Config):
    """How vectors are made and kept."""

    shard: int = Field(2_000, ge=1)
    """Documents in one file; the most that each worker loses where encoding is interrupted."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Of the forward pass."""
    vectors: Literal["float16", "float32"] = "float16"
    """Of the vectors that are stored."""


@Description(part="encoding", models="encoding", droppable=VECTORS)
def encode(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, retriever: Path, splits: list[str], config: EncodeConfig
) -> dict[str, Any]:
    """`documents-00000.npy ...`, their names in the order of the documents table (`documents.json`), and `queries.npy`
    with `queries.json`.

    Each document is encoded once, whatever the number of shards or workers.
    """
    documents = pq.ParquetFile(data / "documents.parquet").metadata.num_rows
    shards = row_shards(documents, config.shard, "documents-{:05d}.npy", side="document")
    queries, counted = _encoded(out, cluster, shards, data, tokens, retriever, splits, config)
    width = int(np.load(out / shards[0].file, mmap_mode="r").shape[1])
    write_json(out / SHARDS, [shard.file for shard in shards])
    size = sum((out / shard.file).stat().st_size for shard in shards)
    return {"documents": documents, "queries": queries, "width": width, "bytes": size, **counted}


@Description(part="encoding", models="encoding", droppable=VECTORS)
def encode_queries(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, retriever: Path, documents: Path, splits: list[str],
    config: EncodeConfig,
) -> dict[str, Any]:  # fmt: skip
    """The same for a retriever of which only the query tower was trained: `documents` is the artifact that has the
    documents' vectors. Their files are linked, or copied where the filesystem has no links."""
    for name in [SHARDS, *json.loads((documents / SHARDS).read_text())]:
        if not (out / name).exists():
            with replacing(out / name) as path:
                try:
                    os.link(documents / name, path)
                except OSError:  # no links here, or not between these places
                    shutil.copyfile(documents / name, path)
    queries, counted = _encoded(out, cluster, [], data, tokens, retriever, splits, config)
    return {"queries": queries, **counted}


def _encoded(
    out: Path, cluster: Cluster, shards: list[Shard], data: Path, tokens: Path, retriever: Path, splits: list[str],
    config: EncodeConfig,
) -> tuple[int, dict[str, float]]:  # fmt: skip
    """Encode the splits' queries, and shards of documents; how many queries, and what the workers counted."""
    queries = read(data / "queries.parquet", QUERIES, columns=["query_id", "split"])
    rows = np.flatnonzero(np.isin(queries["split"].to_numpy(zero_copy_only=False).astype(str), splits))
    parts = row_shards(len(rows), config.shard, "part-queries-{:05d}.npy", side="query")
    write_array(out / "rows.npy", rows)
    cuda = cluster.cuda()
    counted = map_shards(
        Encoder, parts + shards, out=out, cluster=cluster, pool=cluster.map, unit="texts", gpu=cuda,
        tokens=tokens, model=retriever / "model", rows=out / "rows.npy", config=config,
        batch_tokens=cluster.batch_tokens(cuda=cuda), cuda=cuda,
    )  # fmt: skip
    vectors = [np.load(out / part.file) for part in parts]
    write_array(out / "queries.npy", np.concatenate(vectors) if vectors else np.empty((0, 0)))
    write_json(out / "queries.json", queries["query_id"].take(rows).to_pylist())
    remove(out, "part-queries-*.npy", "rows.npy")
    return len(rows), counted


class Encoder:
    """A worker that turns rows of a token store into a retriever's vectors."""

    def __init__(self, *, tokens: Path, model: Path, rows: Path, config: EncodeConfig, **options: Any) -> None:
        from components.data.token_store import TokenStore
        from components.models.dual_encoder import DualEncoder
        from components.models.inference import Texts, TimedInference

        self.inference = TimedInference(DualEncoder, model, precision=config.precision, **options)
        store, limits = TokenStore(tokens, model), self.inference.config
        self._readings = {
            "query": Texts(store.template, store.queries, limits.query_tokens),
            "document": Texts(store.template, store.documents, limits.document_tokens),
        }
        self._queries, self._dtype = np.load(rows), config.vectors

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        """Write the vectors of one shard; the seconds that the model took."""
        rows = np.arange(task["start"], task["stop"])
        side = task["side"]
        vectors, took = self.vectors(side, self._queries[rows] if side == "query" else rows)
        save_array(path, vectors.astype(self._dtype))
        return {**took, "query_seconds": took["model_seconds"] if side == "query" else 0.0}

    def vectors(self, side: str, rows: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        """(N, d) fp32 vectors of rows of the token store, and the seconds that the model took."""
        return self.inference.timed(self._readings[side], rows, side)

    def lengths(self, side: str, rows: np.ndarray) -> np.ndarray:
        """(N,) tokens of rows of the token store as the model reads them."""
        return self._readings[side].lengths(rows)
