"""Encode a collection's documents, and the queries of some splits, shard by shard on Ray Data."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from components.config import Config
from components.files import replacing, write_json
from components.processor import settle
from workflows.cluster import Cluster
from workflows.shards import Shard, map_shards


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
    queries = pq.read_table(data / "queries.parquet", columns=["query_id", "split"])
    rows = np.flatnonzero(np.isin(queries["split"].to_numpy(zero_copy_only=False).astype(str), splits))
    shards = [
        Shard(f"documents-{i:05d}.npy", min(config.shard, documents - start), {"side": "document", "start": start})
        for i, start in enumerate(range(0, documents, config.shard))
    ]
    parts = [
        Shard(f"part-queries-{i:05d}.npy", len(chunk), {"side": "query", "start": i * config.shard})
        for i, chunk in enumerate(np.array_split(rows, range(config.shard, len(rows), config.shard)))
        if len(chunk)
    ]
    with replacing(out / "rows.npy") as path, path.open("wb") as file:
        np.save(file, rows)
    cuda = cluster.cuda()
    busy = map_shards(
        Encoder, parts + shards, out=out, cluster=cluster, pool=cluster.map, unit="texts", gpu=cuda,
        tokens=tokens, model=retriever / "model", rows=out / "rows.npy", config=config,
        batch_tokens=cluster.tokens_at_once(cuda=cuda), cuda=cuda,
    )  # fmt: skip
    with replacing(out / "queries.npy") as path, path.open("wb") as file:
        np.save(file, np.concatenate([np.load(out / part.file) for part in parts]) if parts else np.empty((0, 0)))
    write_json(out / "queries.json", queries["query_id"].take(rows).to_pylist())
    for part in parts:
        (out / part.file).unlink()
    width = int(np.load(out / shards[0].file, mmap_mode="r").shape[1])
    size = sum((out / shard.file).stat().st_size for shard in shards)
    return {"documents": documents, "queries": len(rows), "width": width, "bytes": size, "busy_seconds": busy}


class Encoder:
    """A retriever that turns rows of the token store into vectors."""

    def __init__(
        self, *, tokens: Path, model: Path, rows: Path, config: EncodeConfig, batch_tokens: int, cuda: bool,
        threads: int,
    ) -> None:  # fmt: skip
        import torch

        from components.dual_encoder import DualEncoder
        from components.text import TokenStore

        settle(threads)
        self._device = torch.device("cuda" if cuda else "cpu")
        self._model = DualEncoder.load(model).eval().to(self._device)
        if config.precision == "bf16":
            self._model.to(torch.bfloat16)
        store = TokenStore(tokens, model)
        self._template, self._tokens = store.template, {"query": store.queries, "document": store.documents}
        self._rows, self._config, self._batch_tokens = np.load(rows), config, batch_tokens

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write the vectors of one shard."""
        side, start = task["side"], task["start"]
        if side == "query":
            rows = self._rows[start : start + self._config.shard]
        else:
            rows = np.arange(start, min(start + self._config.shard, len(self._tokens["document"])))
        with path.open("wb") as file:
            np.save(file, self.vectors(side, rows).astype(self._config.vectors))

    def vectors(self, side: Any, rows: np.ndarray) -> np.ndarray:
        """(N, d) fp32 vectors of rows of the token store."""
        import torch

        from components.text import texts, to_device, token_batches

        limit = self._model.tokens(side)
        store = self._tokens[side]
        extra = len(self._template.before) + len(self._template.after)
        lengths = np.minimum(store.lengths()[rows] + extra, limit)
        found = np.empty((len(rows), 0), np.float32)
        with torch.inference_mode():
            for chosen in token_batches(lengths, self._batch_tokens):
                sequences = [self._template.single(store[rows[i]], limit) for i in chosen]
                batch = to_device(texts(sequences, self._template), self._device)
                values = self._model(batch, side).cpu().numpy()
                if not found.shape[1]:
                    found = np.empty((len(rows), values.shape[1]), np.float32)
                found[chosen] = values
        return found
