"""Encode a collection's documents and the queries of a split, shard by shard."""

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow.compute as pc
from pydantic import Field

from sparring.components.config import Config
from sparring.components.data.groups import query_ids_of
from sparring.components.data.ragged import Ragged
from sparring.components.data.tables import QUERIES, read, rows_in
from sparring.components.data.tokenizers import MODEL_CONFIG
from sparring.components.data.vectors import (
    KIND,
    SHARDS,
    document_lengths,
    document_shards,
    joined,
    read_rows,
    save_rows,
)
from sparring.components.files import read_json, remove, replacing, write_json
from sparring.components.retrieval.kind import DEFAULT, kind_of
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards, row_shards, shard_size
from sparring.workflows.store import transfer
from sparring.workflows.store.dag import Description

FILES_AT_ONCE = 64
"""Number of files of vectors that a worker searches for copies at a time. It changes no result."""


class EncodeConfig(Config):
    """Precision and storage of vectors."""

    shard: int = Field(2_000, ge=1)
    """Largest number of texts in one file. If encoding is interrupted, each worker loses at most one file."""
    precision: Literal["bf16", "fp32", "int8"] = "bf16"
    """Precision of the forward pass's matrix products. On a CPU without bf16 instructions, `int8` is faster, but it
    rounds."""
    vectors: Literal["float16", "float32"] = "float16"
    """Type of the numbers in the stored vectors."""


MODELS = {"tokens": ("*",), "retriever": ("model/*.safetensors", "state/*"), "data": ("*.parquet",)}
"""Inputs that only the workers read."""


@Description(
    part="encoding",
    models="encoding",
    version=4,
    droppable=("documents-*.npy",),
    workers_read={**MODELS, "out": ("documents-*.npy",)},
)
def encode_documents(
    out: Path, machine: Machine, *, data: Path, tokens: Path, retriever: Path, config: EncodeConfig
) -> dict[str, Any]:
    """Write `documents-00000.npy ...`, the documents' representations, and `documents.json`, the names of these files
    in the order of the documents table and their numbers of documents. A dense retriever represents a text as a vector.

    Each document is encoded once, whatever the number of shards or workers. Documents with the same tokens get the same
    representation, so their scores are equal, in whatever batch each was.
    """
    documents = rows_in(data / "documents.parquet")
    shards = row_shards(documents, shard_size(documents, config.shard), "documents-{:05d}.npy", side="document")
    counted = _encoded(out, machine, shards, tokens, retriever, config)
    write_json(out / SHARDS, {shard.file: shard.size for shard in shards})
    groups = row_shards(len(shards), FILES_AT_ONCE, "equal-{:05d}.json")
    map_shards(
        _Equalling,
        groups,
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="files",
        vectors=str(out),
        tokens=tokens,
    )
    width = read_json(out / groups[0].file)["width"]
    remove(out, "equal-*.json")
    sizes = transfer.finished_sizes(out)
    size = sum(sizes[shard.file] for shard in shards)
    return {"documents": documents, **({"width": width} if width else {}), "bytes": size, **counted}


@Description(
    part="encoding",
    models="encoding",
    version=2,
    droppable=("queries.npy",),
    workers_read={**MODELS, "out": ("part-*.npy", "queries.npy")},
)
def encode_queries(
    out: Path, machine: Machine, *, data: Path, tokens: Path, retriever: Path, split: str, config: EncodeConfig
) -> dict[str, Any]:
    """Write `queries.npy`, the representations of the split's queries in the order of the queries table, and
    `queries.json`, their ids."""
    ids = query_ids_of(data, [split]).to_pylist()
    shards = row_shards(len(ids), shard_size(len(ids), config.shard), "part-{:05d}.npy", side="query")
    counted = _encoded(out, machine, shards, tokens, retriever, config, data=str(data), split=split)
    write_json(out / "queries.json", ids)
    map_shards(
        _Joining,
        [Shard("queries.npy", len(shards), {"files": [shard.file for shard in shards], "dtype": config.vectors})],
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="files",
        vectors=str(out),
    )
    transfer.remove(out, "part-*.npy")
    return {"queries": len(ids), **counted}


def _encoded(
    out: Path,
    machine: Machine,
    shards: list[Shard],
    tokens: Path,
    retriever: Path,
    config: EncodeConfig,
    **queries: str,
) -> dict[str, float]:
    """Encode shards of one side's texts. If the retriever is not dense, write the name of its kind too. Return the
    workers' counts. `queries` are the collection and the split of queries."""
    kind, cuda = read_json(retriever / "model" / MODEL_CONFIG)["kind"], machine.cuda
    if kind != DEFAULT:
        write_json(out / KIND, kind)
    return map_shards(
        Encoder,
        shards,
        out=out,
        machine=machine,
        pool=machine.cluster.map,
        unit="texts",
        gpu=cuda,
        tokens=tokens,
        model=retriever / "model",
        **queries,
        config=config,
        batch_tokens=machine.batch_tokens,
        cuda=cuda,
    )


class Encoder:
    """A worker that turns rows of a token store into a retriever's representations.

    With `data` and `split`, the shards count the queries of this split. If None, they count all texts of a side.
    """

    on_demand: ClassVar = {"data": ("*",)}

    def __init__(
        self,
        *,
        tokens: Path,
        model: Path,
        config: EncodeConfig,
        data: str | None = None,
        split: str | None = None,
        **options: Any,
    ) -> None:
        from sparring.components.data.token_store import TokenStore
        from sparring.components.models.inference import Texts, TimedInference

        self.kind = kind_of(model)
        self.inference = TimedInference(self.kind.model(), model, precision=config.precision, **options)
        store, limits = TokenStore(tokens, model), self.inference.config
        self._readings = {
            "query": Texts(store.template, store.queries, limits.query_tokens),
            "document": Texts(store.template, store.documents, limits.document_tokens),
        }
        self._rows, self._dtype = None if data is None else _rows_of(Path(data), split), config.vectors

    def prepare(self, task: dict[str, Any]) -> dict[str, Any]:
        """Read the texts of one shard."""
        rows = np.arange(task["start"], task["stop"])
        rows = rows if self._rows is None else self._rows[rows]
        return {**task, "inputs": self.inference.prepare(self._readings[task["side"]], rows)}

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        """Write the representations of one shard. Return the seconds that the model took."""
        representations, took = self.inference.timed_outputs(task["inputs"], task["side"])
        save_rows(path, self.kind.keep(representations, self._dtype))
        return took

    def represent(self, side: str, rows: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
        """Compute fp32 representations (N, ...) of rows of the token store. Return the seconds that the model took,
        too."""
        return self.inference.timed(self._readings[side], rows, side)

    def lengths(self, side: str, rows: np.ndarray) -> np.ndarray:
        """Count the tokens (N,) of rows of the token store as the model reads them."""
        return self._readings[side].lengths(rows)


def _rows_of(data: Path, split: str | None) -> np.ndarray:
    """Return the rows of a split's queries in the queries table."""
    splits = read(data / "queries.parquet", QUERIES, columns=["split"])["split"]
    return np.flatnonzero(pc.equal(splits, split).to_numpy(zero_copy_only=False))


class _Joining:
    """A worker that joins files of representations into one."""

    on_demand: ClassVar = {"vectors": ("*",)}

    def __init__(self, *, vectors: str, threads: int) -> None:
        self._folder = Path(vectors)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Write one file with the rows of all."""
        files = [self._folder / name for name in task["files"]]
        transfer.download(*files)
        save_rows(path, joined([read_rows(file) for file in files] or [np.empty((0, 0), task["dtype"])]))


class _Equalling:
    """A worker that gives every copy of a document the representation of the first. Rounding differs from batch to
    batch."""

    on_demand: ClassVar = {"vectors": ("documents-*.npy",), "tokens": ("*.ids.npy", "*.offsets.npy")}

    def __init__(self, *, vectors: str, tokens: Path, threads: int) -> None:
        folder = Path(vectors)
        self._paths, self._begins = document_shards(folder).paths, np.cumsum([0, *document_lengths(folder)])
        self._same = np.load(tokens / "documents.same.npy", mmap_mode="r")

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Rewrite the files that hold copies. The representation of a first document stays, so neither the order of
        files nor repetitions change the result."""
        begins, changed = self._begins, 0
        for number in range(task["start"], task["stop"]):
            first = self._same[begins[number] : begins[number + 1]]
            copies = np.flatnonzero(first != np.arange(begins[number], begins[number + 1]))
            if not len(copies):
                continue
            files = np.searchsorted(begins, first[copies], side="right") - 1
            transfer.download(self._paths[number], *(self._paths[file] for file in np.unique(files)))
            parts, rows = [read_rows(self._paths[number])], np.arange(len(first))
            for file in np.unique(files):
                wanted = first[copies[files == file]] - begins[file]
                rows[copies[files == file]] = sum(map(len, parts)) + np.arange(len(wanted))
                parts.append(read_rows(self._paths[file])[wanted])
            with replacing(self._paths[number]) as temporary:
                save_rows(temporary, joined(parts)[rows])
            transfer.upload(self._paths[number])
            changed += len(copies)
        transfer.download(self._paths[task["start"]])
        rows = read_rows(self._paths[task["start"]])
        write_json(path, {"changed": changed, "width": None if isinstance(rows, Ragged) else int(rows.shape[1])})
