"""Encode a collection's documents, and the queries of a split, shard by shard on Ray Data."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from sparring.components.config import Config
from sparring.components.data.groups import query_ids_of
from sparring.components.data.tables import QUERIES, read
from sparring.components.data.vectors import SHARDS
from sparring.components.files import remove, save_array, write_array, write_json
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.shards import Shard, map_shards, row_shards
from sparring.workflows.distributed.site import Site
from sparring.workflows.store.cost import Cost, Made, ModelTask, Sizes, Vectors, Work
from sparring.workflows.store.dag import Description

FILES_AT_ONCE = 64
"""Files of vectors that a worker looks through for copies; changes no result."""


class EncodeConfig(Config):
    """How vectors are made and kept."""

    shard: int = Field(2_000, ge=1)
    """Texts in one file; the most that each worker loses where encoding is interrupted."""
    precision: Literal["bf16", "fp32", "int8"] = "bf16"
    """Of the forward pass's matrix products. `int8` rounds: faster on a CPU without products in bf16."""
    vectors: Literal["float16", "float32"] = "float16"
    """Of the vectors that are stored."""


def _task(data: Sizes, retriever: Made, side: str, config: EncodeConfig) -> ModelTask:
    """Texts of one side, as the retriever reads them."""
    limit = getattr(retriever.config, f"{side}_tokens") or (32 if side == "query" else 128)
    lengths = np.minimum((data.query_lengths if side == "query" else data.document_lengths) + 2, limit)
    return ModelTask.of_texts("encoding", retriever, data, lengths, side=side, precision=config.precision)


def _documents_cost(site: Site, *, data: Sizes, tokens: Sizes, retriever: Made, config: EncodeConfig) -> Cost:
    """Each document once."""
    vectors = Vectors(
        data.documents,
        getattr(retriever.config, "projection", None) or retriever.shape.width,
        2 if config.vectors == "float16" else 4,
        config.shard,
    )
    shards = -(-data.documents // config.shard)
    return Cost(
        work=(Work("encoding", data.documents, "map", _task(data, retriever, "document", config)),),
        makes=vectors,
        kept=vectors.bytes,
        objects=shards + 1,
        needs=(site.pass_through(retriever, "map"),),
    )


def _queries_cost(site: Site, *, data: Sizes, tokens: Sizes, retriever: Made, split: str, config: EncodeConfig) -> Cost:
    """Each query of the split once."""
    count, item = data.asked(split), 2 if config.vectors == "float16" else 4
    width = getattr(retriever.config, "projection", None) or retriever.shape.width
    return Cost(
        work=(Work("encoding", count, "map", _task(data, retriever, "query", config)),),
        makes=Vectors(count, width, item, count),
        kept=float(count) * (width * item + 20),
        objects=2,
        needs=(site.pass_through(retriever, "map"),),
    )


@Description(part="encoding", models="encoding", version=2, droppable=("documents-*.npy",), cost=_documents_cost)
def encode_documents(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, retriever: Path, config: EncodeConfig
) -> dict[str, Any]:
    """Write `documents-00000.npy ...`, the documents' vectors, and their names in the order of the documents table
    (`documents.json`).

    Each document is encoded once, whatever the number of shards or workers. Documents with the same tokens get the
    same vector: their scores are equal, in whatever batch each was.
    """
    documents = pq.ParquetFile(data / "documents.parquet").metadata.num_rows
    shards = row_shards(documents, config.shard, "documents-{:05d}.npy", side="document")
    counted = _encoded(out, cluster, shards, tokens, retriever, config)
    names = [shard.file for shard in shards]
    map_shards(
        _Equalling,
        row_shards(len(shards), FILES_AT_ONCE, "equal-{:05d}.json"),
        out=out,
        cluster=cluster,
        pool=cluster.map,
        unit="files",
        vectors=str(out),
        tokens=tokens,
        names=names,
    )
    remove(out, "equal-*.json")
    width = int(np.load(out / shards[0].file, mmap_mode="r").shape[1])
    write_json(out / SHARDS, names)
    size = sum((out / name).stat().st_size for name in names)
    return {"documents": documents, "width": width, "bytes": size, **counted}


@Description(part="encoding", models="encoding", droppable=("queries.npy",), cost=_queries_cost)
def encode_queries(
    out: Path, cluster: Cluster, *, data: Path, tokens: Path, retriever: Path, split: str, config: EncodeConfig
) -> dict[str, Any]:
    """Write `queries.npy`, the vectors of the split's queries in the order of the queries table, and `queries.json`,
    their ids."""
    ids = query_ids_of(data, [split]).to_pylist()
    splits = read(data / "queries.parquet", QUERIES, columns=["split"])["split"]
    write_array(out / "rows.npy", np.flatnonzero(pc.equal(splits, split).to_numpy(zero_copy_only=False)))
    shards = row_shards(len(ids), config.shard, "part-{:05d}.npy", side="query")
    counted = _encoded(out, cluster, shards, tokens, retriever, config, rows=out / "rows.npy")
    parts = [np.load(out / shard.file) for shard in shards] or [np.empty((0, 0), config.vectors)]
    write_array(out / "queries.npy", np.concatenate(parts))
    write_json(out / "queries.json", ids)
    remove(out, "part-*.npy", "rows.npy")
    return {"queries": len(ids), **counted}


def _encoded(
    out: Path,
    cluster: Cluster,
    shards: list[Shard],
    tokens: Path,
    retriever: Path,
    config: EncodeConfig,
    rows: Path | None = None,
) -> dict[str, float]:
    """Encode shards of a side's texts; what the workers counted."""
    cuda = cluster.cuda()
    return map_shards(
        Encoder,
        shards,
        out=out,
        cluster=cluster,
        pool=cluster.map,
        unit="texts",
        gpu=cuda,
        tokens=tokens,
        model=retriever / "model",
        rows=rows,
        config=config,
        batch_tokens=cluster.batch_tokens(cuda=cuda),
        cuda=cuda,
    )


class Encoder:
    """A worker that turns rows of a token store into a retriever's vectors.

    `rows` is a file of those that shards count on, None for all texts of a side.
    """

    def __init__(self, *, tokens: Path, model: Path, rows: Path | None, config: EncodeConfig, **options: Any) -> None:
        from sparring.components.data.token_store import TokenStore
        from sparring.components.models.dual_encoder import DualEncoder
        from sparring.components.models.inference import Texts, TimedInference

        self.inference = TimedInference(DualEncoder, model, precision=config.precision, **options)
        store, limits = TokenStore(tokens, model), self.inference.config
        self._readings = {
            "query": Texts(store.template, store.queries, limits.query_tokens),
            "document": Texts(store.template, store.documents, limits.document_tokens),
        }
        self._rows, self._dtype = None if rows is None else np.load(rows), config.vectors

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        """Write the vectors of one shard; the seconds that the model took."""
        rows = np.arange(task["start"], task["stop"])
        vectors, took = self.vectors(task["side"], rows if self._rows is None else self._rows[rows])
        save_array(path, vectors.astype(self._dtype))
        return took

    def vectors(self, side: str, rows: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        """(N, d) fp32 vectors of rows of the token store, and the seconds that the model took."""
        return self.inference.timed(self._readings[side], rows, side)

    def lengths(self, side: str, rows: np.ndarray) -> np.ndarray:
        """(N,) tokens of rows of the token store as the model reads them."""
        return self._readings[side].lengths(rows)


class _Equalling:
    """Gives every copy of a document the vector of the first, as rounding differs from batch to batch."""

    def __init__(self, *, vectors: str, tokens: Path, names: list[str], threads: int) -> None:
        self._paths = [Path(vectors) / name for name in names]
        self._same = np.load(tokens / "documents.same.npy", mmap_mode="r")

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Rewrite those of some files that hold copies. A first document's vector stays, so the order of files and
        repetitions change nothing."""
        begins = np.cumsum([0, *(len(np.load(one, mmap_mode="r")) for one in self._paths)])
        changed = 0
        for number in range(task["start"], task["stop"]):
            first = self._same[begins[number] : begins[number + 1]]
            copies = np.flatnonzero(first != np.arange(begins[number], begins[number + 1]))
            if not len(copies):
                continue
            vectors = np.load(self._paths[number])
            of = np.searchsorted(begins, first[copies], side="right") - 1
            for file in np.unique(of):
                taken = np.load(self._paths[file], mmap_mode="r")[first[copies[of == file]] - begins[file]]
                vectors[copies[of == file]] = taken
            write_array(self._paths[number], vectors)
            changed += len(copies)
        write_json(path, changed)
