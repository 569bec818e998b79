"""Building an index of any kind (`components.retrieval.kind`) by several workers.

A large index whose kind can merge parts is built in parts. The cut into parts depends on the documents alone, so a
repeated command skips the parts that are there, and the index does not depend on the workers. What all parts share,
such as the cells of an inverted file, is made first, of a sample of all documents.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sparring.components import progress
from sparring.components.files import read_json, write_json
from sparring.components.retrieval import kind as kinds
from sparring.components.retrieval.kind import IndexFile, IndexKind, index_kind_named
from sparring.workflows.distributed.cluster import Pool
from sparring.workflows.distributed.java import InChild
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.ray_map import Shard
from sparring.workflows.distributed.shards import map_shards
from sparring.workflows.store import transfer

TRAINED = "trained"
"""File with what all parts of an index share. It stays until the index is whole."""
ON_GPU = "on-gpu.json"
"""File with a worker's answer whether its GPU can have an index. It is removed once it was read."""


def build_index_files(
    out: Path, machine: Machine, *, kind: str, documents: Path, index: Any, factory: str = "", gpu: bool = False
) -> list[IndexFile]:
    """Build an index over the documents in a folder, and return its files.

    `factory` names the index where a kind has several, and `index` is what the kind's `build_index` takes. With `gpu`
    each worker that trains or builds has a GPU.
    """
    index_kind = index_kind_named(kind)
    lengths = [len(item) for item in index_kind.documents(documents)]
    files = index_kind.index_files(factory, sum(lengths))
    pool = machine.cluster.java if index_kind.in_java else machine.cluster.map
    constructor: dict[str, Any] = {"kind": kind, "documents": str(documents), "index": index}
    if index_kind.in_java:
        constructor["work"] = Indexing

    def run(shards: list[Shard], *, gpu: bool = gpu, **more: Any) -> None:
        map_shards(
            InChild if index_kind.in_java else Indexing,
            shards,
            out=out,
            machine=machine,
            pool=_divided(pool, machine, len(shards), gpu=gpu),
            unit="documents",
            gpu=gpu,
            **constructor,
            **more,
        )

    merged = len(files) == 1 and files[0].rows > kinds.PART and index_kind.merges(factory)
    pieces = files[0].parts() if merged else files
    finished = transfer.finished_sizes(out)
    if not all(file.name in finished for file in files):
        shared: dict[str, Any] = {}
        if index_kind.trains and len(pieces) > 1:
            run([Shard(TRAINED, sum(lengths), {"train": True})])
            shared = {"trained": str(out / TRAINED)}
        run([Shard(piece.name, piece.rows, {"build": _span(piece, lengths)}) for piece in pieces], **shared)
        if merged:
            merge = {"merge": [str(out / piece.name) for piece in pieces]}
            run([Shard(files[0].name, files[0].rows, merge)], gpu=False)
    transfer.remove(out, TRAINED, "part-*")
    return files


def on_gpu(out: Path, machine: Machine, kind: IndexKind, factory: str) -> bool:
    """Check whether an index can be built and searched on the machine's GPUs. A worker with a GPU answers, because the
    driver of a cluster that was joined may have another FAISS. The answer is in a file of `out` for a moment."""
    if not machine.cuda:
        return False
    if machine.cluster.address is None:
        return kind.index_on_gpu(factory)
    question, pool = [Shard(ON_GPU, 1, {"factory": factory})], machine.cluster.map
    map_shards(Asking, question, out=out, machine=machine, pool=pool, unit="questions", gpu=True, kind=kind)
    answer = bool(read_json(out / ON_GPU))
    transfer.remove(out, ON_GPU)
    return answer


def _divided(pool: Pool, machine: Machine, pieces: int, *, gpu: bool) -> Pool:
    """Divide the threads that a pool may have among pieces of work. If there are few pieces, each gets several threads,
    up to those of a single task (`Machine.task_threads`)."""
    allowed = pool.workers * pool.threads if pool.workers else machine.cpus
    threads = max(pool.threads, min(machine.task_threads, allowed // machine.parts // pieces))
    workers = pool.workers if gpu else max(1, allowed // threads)
    return pool.model_copy(update={"threads": threads, "workers": workers})


def _span(file: IndexFile, lengths: Sequence[int]) -> dict[str, int]:
    """Return the documents' files that a file of an index covers, and its rows in the first and the last of them."""
    begins = np.cumsum([0, *lengths])
    first, stop = np.searchsorted(begins, file.first, "right") - 1, np.searchsorted(begins, file.stop, "left")
    rows = {"start": file.first - begins[first], "end": file.stop - begins[stop - 1]}
    return {name: int(value) for name, value in {"first": first, "stop": stop, **rows}.items()}


class Span(Sequence[Any]):
    """Consecutive files of documents, of which the first and the last are cut. Each is opened on access."""

    def __init__(self, files: Sequence[Any], first: int, stop: int, start: int, end: int) -> None:
        self._files, self._start, self._end = files[first:stop], start, end

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        last = number == len(self) - 1
        return self._files[number][0 if number else self._start : self._end if last else None]


class Asking:
    """A worker that says whether it has an index on its GPU."""

    def __init__(self, *, threads: int, kind: IndexKind) -> None:
        self._kind = kind

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        write_json(path, self._kind.index_on_gpu(task["factory"]))


class Indexing:
    """A worker that trains an index, builds files or parts of it, and merges parts."""

    def __init__(self, *, threads: int, kind: str, documents: str, index: Any, trained: str | None = None) -> None:
        self._kind, self._threads = index_kind_named(kind), threads
        self._index = index if trained is None else replace(index, trained=Path(trained))
        self._documents = self._kind.documents(Path(documents))

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        if "train" in task:
            self._kind.train_index(path, self._documents, self._index, threads=self._threads)
        elif "merge" in task:
            self._kind.merge_index(path, list(map(Path, task["merge"])), self._index)
        else:
            documents = Span(self._documents, **task["build"])
            added = progress.report
            self._kind.build_index(path, documents, self._index, threads=self._threads, on_added=added)
