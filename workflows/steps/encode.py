"""Encode a collection's documents, and the queries of some splits, shard by shard on Ray Data."""

import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from pydantic import Field

from components.clock import at
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
    counted = map_shards(
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
    return {"documents": documents, "queries": len(rows), "width": width, "bytes": size, **counted}


class Encoder:
    """A retriever that turns rows of the token store into vectors."""

    def __init__(
        self, *, tokens: Path, model: Path, rows: Path, config: EncodeConfig, batch_tokens: int, cuda: bool,
        threads: int,
    ) -> None:  # fmt: skip
        import torch

        from components import inference
        from components.dual_encoder import DualEncoder
        from components.floor import Products
        from components.text import TokenStore

        settle(threads)
        self.device = torch.device("cuda" if cuda else "cpu")
        encoder = DualEncoder.load(model)
        self.products = Products(encoder.tower("document"))
        self._rate = self.products.rate(tokens=batch_tokens, device=self.device.type, precision=config.precision)
        self._model = inference.ready(encoder, device=self.device, precision=config.precision)
        store = TokenStore(tokens, model)
        self._template, self._tokens = store.template, {"query": store.queries, "document": store.documents}
        self._rows, self._config, self.batch_tokens = np.load(rows), config, batch_tokens

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        """Write the vectors of one shard; how long it took, and could not have been shorter."""
        side, start = task["side"], task["start"]
        if side == "query":
            rows = self._rows[start : start + self._config.shard]
        else:
            rows = np.arange(start, min(start + self._config.shard, len(self._tokens["document"])))
        began = time.perf_counter()
        vectors = self.vectors(side, rows).astype(self._config.vectors)
        seconds = time.perf_counter() - began
        with at("files"), path.open("wb") as file:
            np.save(file, vectors)
        floor = self.products.operations(self.lengths(side, rows)) / self._rate
        return {"model_seconds": seconds, "floor_seconds": floor}

    def vectors(self, side: Any, rows: np.ndarray) -> np.ndarray:
        """(N, d) fp32 vectors of rows of the token store."""
        import torch

        from components.text import to_device, token_batches

        limit, store = self._model.tokens(side), self._tokens[side]
        batches = token_batches(self.lengths(side, rows), self.batch_tokens)
        found = []
        with torch.inference_mode():
            for chosen in batches:
                with at("files"):
                    batch = self._template.texts(store, rows[chosen], limit)
                found.append(self._model(to_device(batch, self.device), side))
        order = np.argsort(np.concatenate(batches))
        return torch.cat(found).cpu().numpy()[order]  # fetched once: a GPU goes on while its next batch is put together

    def lengths(self, side: Any, rows: np.ndarray) -> np.ndarray:
        """(N,) tokens of rows of the token store as the model reads them."""
        return self._template.lengths(self._tokens[side], rows, self._model.tokens(side))
