"""The worker's side of the map over shards: a Ray process that fills one shard after another.

A Ray process stays from one step to the next with everything that it has imported. Within a step it also keeps its
worker, with the model that it has loaded.
"""

import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, Self

from sparring.components import timing
from sparring.components.compute.processor import release_memory
from sparring.components.config import UserError
from sparring.components.files import replacing
from sparring.workflows.distributed.session import node_name
from sparring.workflows.store import cache, s3, transfer
from sparring.workflows.store.availability import remade

IDLE_SECONDS = 2.0
"""Seconds without a shard after which a process frees its worker, with its model and its memory."""


class Worker(Protocol):
    """A worker. It is built once in each process from plain values and paths, and then called for each shard.

    The artifacts that the values name are downloaded from an object store before. A worker may name files that it
    downloads itself when it opens them, by `transfer.download`. They stand in its attribute `on_demand`: glob patterns
    by the name of the argument, for example `{"vectors": ("documents-*.npy",)}`.
    """

    def __init__(self, *, threads: int, **constructor: Any) -> None: ...

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float] | None:
        """Do the task and write its file (or directory) at `path`. Return seconds to add up over the shards, or None.

        A killed attempt's last seconds can be lost, so results belong in the file.
        """


class Filler:
    """A worker that fills shards of one directory."""

    def __init__(self, worker: type, out: Path, threads: int, constructor: dict[str, Any]) -> None:
        self._out = s3.local_path(out)
        self._out.mkdir(parents=True, exist_ok=True)
        self._holds = cache.Holds()
        work = constructor.get("work")  # of a worker that does it in a child process
        on_demand = getattr(work if isinstance(work, type) else worker, "on_demand", None)
        with timing.timed("start"), cache.holding(self._holds):
            self._worker = worker(**transfer.localize(constructor, on_demand), threads=threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def fill(self, file: str, task: dict[str, Any]) -> dict[str, float]:
        """Fill one shard, and return the worker's counts. The file appears whole or not at all.

        A file that is already there is left alone, since a process that died may have finished it.
        """
        counts: dict[str, float] = {}
        with cache.holding():
            if not (self._out / file).exists():
                with replacing(self._out / file) as path, timing.timed("compute"):
                    counts = self._worker(transfer.localize(task), path) or {}
            transfer.upload(self._out / file)
        return counts

    def close(self) -> None:
        """Free what the worker holds."""
        if hasattr(self._worker, "close"):
            self._worker.close()
        self._holds.close()


def fill_batch(batch: dict[str, Any], *, filler: dict[str, Any], map_id: str) -> Iterator[dict[str, Any]]:
    """Fill a batch of shards for Ray Data. Yield a row for each shard as soon as it is done, and none after one that
    failed.

    An error is returned as text in its row. If raised, it would reach the driver as one of Ray's, with Ray's advice.
    """
    for file, size, task in zip(batch["file"], batch["size"], batch["task"], strict=True):
        row: dict[str, Any] = {"size": int(size), "counts": "", "time": "", "mistake": "", "failure": ""}
        try:
            timing.set_node(node_name())
            timing.drain()  # leftovers of a shard that failed
            row["counts"] = json.dumps(_resident.fill(file, json.loads(task), filler, map_id))
            row["time"] = json.dumps(timing.drain())
        except UserError as error:
            row["mistake"] = str(remade(error))
        except Exception:
            process = f"In process {os.getpid()} on {socket.gethostname()}:\n"
            row["failure"] = process + traceback.format_exc()
        yield {name: [value] for name, value in row.items()}
        if row["mistake"] or row["failure"]:
            return


class FillOnGPU:
    """`fill_batch` as a class, from which Ray Data makes an actor."""

    def __init__(self, **arguments: Any) -> None:
        self._arguments = arguments

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from fill_batch(batch, **self._arguments)


class _Resident:
    """Keeps this process's filler from shard to shard of one step.

    Ray does not tell a process that a step is over. So a timer frees the filler when no shard has come for a while.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._filler: Filler | None = None
        self._map_id, self._last_used = "", 0.0

    def fill(self, file: str, task: dict[str, Any], filler: dict[str, Any], map_id: str) -> dict[str, float]:
        """Fill a shard of the map with this id, with the filler that the map's first shard in this process has made."""
        with self._lock:
            if map_id != self._map_id:
                self._free()
            self._filler, self._map_id = self._filler or Filler(**filler), map_id
            try:
                return self._filler.fill(file, task)
            finally:
                self._last_used = time.monotonic()
                timer = threading.Timer(IDLE_SECONDS, self._free_if_idle)
                timer.daemon = True
                timer.start()

    def _free_if_idle(self) -> None:
        with self._lock:
            if time.monotonic() - self._last_used >= IDLE_SECONDS:
                self._free()

    def _free(self) -> None:
        filler, self._filler, self._map_id = self._filler, None, ""
        if filler is not None:
            filler.close()
            del filler
            release_memory()


_resident = _Resident()
