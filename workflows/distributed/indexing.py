"""Building an index of any kind (`components.retrieval.kind`), each of its files by one worker."""

from pathlib import Path
from typing import Any

from sparring.components.retrieval.kind import IndexFile, index_kind_named
from sparring.workflows.distributed.cluster import Pool
from sparring.workflows.distributed.java import InChild
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.shards import Shard, map_shards
from sparring.workflows.store.progress import Progress


def build_index_files(
    out: Path, machine: Machine, *, kind: str, documents: Path, index: Any, factory: str = ""
) -> list[IndexFile]:
    """Build an index over the documents in a folder, and return its files.

    `factory` names the index where a kind has several, and `index` is what the kind's `build_index` takes. An index of
    one file gets all cores that a single task may have (`Machine.task_threads`), as far as the profile allows.
    """
    index_kind = index_kind_named(kind)
    lengths = [len(part) for part in index_kind.documents(documents)]
    files = index_kind.index_files(factory, len(lengths))
    pool, cores = machine.cluster.java if index_kind.in_java else machine.cluster.map, machine.task_threads
    constructor: dict[str, Any] = {"kind": kind, "documents": str(documents), "index": index}
    if index_kind.in_java:
        constructor["work"] = Indexing
    map_shards(
        InChild if index_kind.in_java else Indexing,
        [Shard(file.name, sum(lengths[file.first : file.stop]), {"files": [file.first, file.stop]}) for file in files],
        out=out,
        machine=machine,
        pool=Pool(workers=1, threads=min(cores, (pool.workers or cores) * pool.threads)) if len(files) == 1 else pool,
        unit="documents",
        **constructor,
    )
    return files


class Indexing:
    """A worker that builds files of an index."""

    def __init__(self, *, threads: int, kind: str, documents: str, index: Any) -> None:
        self._kind, self._threads, self._index = index_kind_named(kind), threads, index
        self._documents = self._kind.documents(Path(documents))

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        part = self._documents[slice(*task["files"])]
        if len(part) < len(self._documents):  # progress is counted in files
            self._kind.build_index(path, part, self._index, threads=self._threads, on_added=lambda _: None)
            return
        with Progress(path.parent, sum(map(len, part)), "documents") as progress:
            self._kind.build_index(path, part, self._index, threads=self._threads, on_added=progress.add)
