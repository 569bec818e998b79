"""Encode a collection's documents, and the queries of some splits, shard by shard on Ray Data."""

import os
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from components.config import Config
from components.files import remove, replacing, save_array, write_array, write_json
from components.processor import settle
from components.tables import QUERIES, read
from workflows.cluster import Cluster
from workflows.shards import Shard, map_shards, runs


class EncodeConfig(Config):
    """How vectors are made and kept."""

    shard: int = Field(2_000, ge=1)
    """Documents in one file; what an interrupted encoding loses at most, for each worker."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """Of the forward pass."""
    vectors: Literal["float16", "float32"] = "float16"
    """Of what is stored."""


def encode(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, retriever: Path, splits: list[str], config: EncodeConfig
) -> dict[str, Any]:
    """`documents-00000.npy ...` in the order of the documents table, and `queries.npy` with `queries.json`.

    Each document is encoded once, whatever the number of shards or workers.
    """
    documents = pq.ParquetFile(data / "documents.parquet").metadata.num_rows
    shards = runs(documents, config.shard, "documents-{:05d}.npy", side="document")
    queries, counted = _encoded(out, cluster, shards, data, tokens, retriever, splits, config)
    width = int(np.load(out / shards[0].file, mmap_mode="r").shape[1])
    size = sum((out / shard.file).stat().st_size for shard in shards)
    return {"documents": documents, "queries": queries, "width": width, "bytes": size, **counted}


def encode_queries(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, retriever: Path, documents: Path, splits: list[str],
    config: EncodeConfig,
) -> dict[str, Any]:  # fmt: skip
    """The same for a retriever that learned on its queries' side alone: `documents` is the artifact with its documents.

    Their files are linked to and not copied, where the filesystem has links.
    """
    for file in sorted(documents.glob("documents-*.npy")):
        if not (out / file.name).exists():
            with replacing(out / file.name) as path:
                try:
                    os.link(file, path)
                except OSError:  # no links here, or not between these places
                    shutil.copyfile(file, path)
    queries, counted = _encoded(out, cluster, [], data, tokens, retriever, splits, config)
    return {"queries": queries, **counted}


def _encoded(
    out: Path, cluster: Cluster, shards: list[Shard], data: Path, tokens: Path, retriever: Path, splits: list[str],
    config: EncodeConfig,
) -> tuple[int, dict[str, float]]:  # fmt: skip
    """Encode the splits' queries, and shards of documents; how many queries, and what was counted."""
    queries = read(data / "queries.parquet", QUERIES, columns=["query_id", "split"])
    rows = np.flatnonzero(np.isin(queries["split"].to_numpy(zero_copy_only=False).astype(str), splits))
    parts = runs(len(rows), config.shard, "part-queries-{:05d}.npy", side="query")
    write_array(out / "rows.npy", rows)
    cuda = cluster.cuda()
    counted = map_shards(
        Encoder, parts + shards, out=out, cluster=cluster, pool=cluster.map, unit="texts", gpu=cuda,
        tokens=tokens, model=retriever / "model", rows=out / "rows.npy", config=config,
        batch_tokens=cluster.tokens_at_once(cuda=cuda), cuda=cuda,
    )  # fmt: skip
    vectors = [np.load(out / part.file) for part in parts]
    write_array(out / "queries.npy", np.concatenate(vectors) if vectors else np.empty((0, 0)))
    write_json(out / "queries.json", queries["query_id"].take(rows).to_pylist())
    remove(out, "part-queries-*.npy")
    return len(rows), counted


class Encoder:
    """A retriever that turns rows of the token store into vectors."""

    def __init__(
        self, *, tokens: Path, model: Path, rows: Path, config: EncodeConfig, batch_tokens: int, cuda: bool,
        threads: int,
    ) -> None:  # fmt: skip
        from components.dual_encoder import DualEncoder
        from components.inference import Inference
        from components.text import TokenStore

        settle(threads)
        retriever = DualEncoder.load(model)
        self.inference = Inference(retriever, cuda=cuda, precision=config.precision, batch_tokens=batch_tokens)
        store = TokenStore(tokens, model)
        self._template, self._tokens = store.template, {"query": store.queries, "document": store.documents}
        self._limits = {"query": retriever.tokens("query"), "document": retriever.tokens("document")}
        self._queries, self._config = np.load(rows), config

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        """Write the vectors of one shard; how long it took, and could not have been shorter."""
        if task["side"] == "query":
            rows = self._queries[task["start"] : task["stop"]]
        else:
            rows = np.arange(task["start"], task["stop"])
        vectors, took = self.vectors(task["side"], rows)
        save_array(path, vectors.astype(self._config.vectors))
        return {**took, "query_seconds": took["model_seconds"] if task["side"] == "query" else 0.0}

    def vectors(self, side: str, rows: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        """(N, d) fp32 vectors of rows of the token store, and how long they took."""
        tokens, limit = self._tokens[side], self._limits[side]
        return self.inference(self.lengths(side, rows), lambda at: self._template.texts(tokens, rows[at], limit), side)

    def lengths(self, side: str, rows: np.ndarray) -> np.ndarray:
        """(N,) tokens of rows of the token store as the model reads them."""
        return self._template.lengths(self._tokens[side], rows, self._limits[side])
