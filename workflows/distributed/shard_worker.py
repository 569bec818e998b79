"""The worker's side of the map over shards: a process that fills one shard after another.

A process stays from one step to the next with everything that it has imported. Within a step it also keeps its worker,
with the model that it has loaded.

A process on a GPU has up to three shards at once. It reads the next one and writes the previous one to the disk while
the GPU computes the present one. A process on CPUs has no such idle processor. It works in its main thread alone,
because glibc and OpenMP serve this thread best.
"""

import json
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from sparring.components import progress, timing
from sparring.components.compute.processor import release_memory
from sparring.components.config import UserError
from sparring.components.files import replacing
from sparring.workflows.distributed.session import node_name
from sparring.workflows.store import cache, s3, transfer
from sparring.workflows.store.availability import remade

UNITS_SECONDS = 0.5
"""Seconds between two reports of the progress within a shard."""


class Worker(Protocol):
    """A worker. It is built once in each process from plain values and paths, and then called for each shard.

    The artifacts that the values name are downloaded from an object store before. A worker may name files that it
    downloads itself when it opens them, by `transfer.download`. They stand in its attribute `on_demand`: glob patterns
    by the name of the argument, for example `{"vectors": ("documents-*.npy",)}`.

    A worker may also have a method `prepare(task)`, which reads what the task needs and returns the task with it. In a
    process on a GPU another thread calls it while the worker computes the shard before. A method `close()` is called
    at the end.
    """

    def __init__(self, *, threads: int, **constructor: Any) -> None: ...

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float] | None:
        """Do the task and write its file (or directory) at `path`. Return seconds to add up over the shards, or None.

        A killed attempt's last seconds can be lost, so results belong in the file.
        """


class Filler:
    """A worker that fills shards of one directory."""

    def __init__(self, worker: type, out: Path, threads: int, constructor: dict[str, Any]) -> None:
        self._out, self._computing = s3.local_path(out), threading.Lock()
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

    def fill(
        self, file: str, task: dict[str, Any], on_units: Callable[[int], object] = lambda units: None
    ) -> dict[str, float]:
        """Fill one shard, and return the worker's counts. The file appears whole or not at all.

        A file that is already there is left alone, since a process that died may have finished it. `on_units` is called
        with units that are done within the shard. Threads may fill several shards at once. One of them computes, while
        the remaining ones read and write.
        """
        counts: dict[str, float] = {}
        with cache.holding():
            if not (self._out / file).exists():
                task = transfer.localize(task)
                if hasattr(self._worker, "prepare"):
                    with timing.timed("files"):
                        task = self._worker.prepare(task)
                # On leaving, the lock is released before the file is synchronised with the disk.
                with (
                    replacing(self._out / file) as path,
                    self._computing,
                    progress.listening(on_units),
                    timing.timed("compute"),
                ):
                    counts = self._worker(task, path) or {}
            transfer.upload(self._out / file)
        return counts

    def units_of(self, file: str) -> "UnitsFile":
        """Return the file of the units that are done within a shard."""
        return UnitsFile(self._out, file)

    def close(self) -> None:
        """Free what the worker holds."""
        if hasattr(self._worker, "close"):
            self._worker.close()
        self._holds.close()


class Report(NamedTuple):
    """Report of a process on a shard or on the start of a map: counts and times, or why it failed."""

    counts: dict[str, float]
    time: list[timing.Interval]
    mistake: UserError | None = None
    """A user's mistake."""
    failure: str = ""
    """Traceback of any other error. If raised, it would reach the driver as one of Ray's, with Ray's advice."""
    skipped: bool = False
    """Nothing was done, because an earlier shard of the map has failed in the same process."""


class MapProcess:
    """Ray actor that fills the shards of one map after another.

    A map has a number, and later maps of a driver have greater ones. On a GPU the calls of a map that is over may run
    after those of the next map, since several threads take them.
    """

    def __init__(self, idle_seconds: float | None) -> None:
        """Start the process. It ends after `idle_seconds` without work, or never if None."""
        self._lock, self._beginning = threading.Lock(), threading.Lock()
        self._filler: Filler | None = None
        self._map_id, self._over, self._failed = 0, 0, 0
        self._busy, self._last_used = 0, time.monotonic()
        if idle_seconds is not None:
            threading.Thread(target=self._end_when_idle, args=(idle_seconds,), daemon=True).start()

    def node(self) -> str:
        """Return the id of the Ray node that this process runs on. The answer shows that the process has started."""
        import ray

        timing.set_node(node_name())
        return str(ray.get_runtime_context().get_node_id())

    def begin(self, map_id: int, filler: dict[str, Any]) -> Report:
        """Make the filler for a map's shards from its arguments, unless the map is over."""

        def work() -> dict[str, float]:
            with self._beginning:
                if map_id <= max(self._over, self._map_id):
                    return {}
                self._free(self._map_id)
                new = Filler(**filler)
                with self._lock:
                    self._filler, self._map_id = new, map_id
            if map_id <= self._over:  # finished meanwhile by other processes
                self._free(map_id)
            return {}

        return self._reported(map_id, work)

    def fill(self, map_id: int, file: str, task: dict[str, Any]) -> Report:
        """Fill a shard of the map that has begun. After an error this process fills no further shard of the map."""
        if map_id == self._failed:
            return Report({}, [], skipped=True)
        filler = self._filler
        assert filler is not None

        def work() -> dict[str, float]:
            with filler.units_of(file) as units:
                return filler.fill(file, task, units.add)

        return self._reported(map_id, work)

    def finish(self, map_id: int) -> None:
        """Free the filler of a map that is over."""
        self._over = max(self._over, map_id)
        self._free(map_id)

    def _reported(self, map_id: int, work: Callable[[], dict[str, float]]) -> Report:
        with self._lock:
            self._busy += 1
        timing.drain()  # leftovers of a shard that failed
        try:
            return Report(work(), timing.drain())
        except UserError as error:
            self._failed = map_id
            return Report({}, [], mistake=_plain(remade(error)))
        except Exception:
            self._failed = map_id
            process = f"In process {os.getpid()} on {socket.gethostname()}:\n"
            return Report({}, [], failure=process + traceback.format_exc())
        finally:
            with self._lock:
                self._busy, self._last_used = self._busy - 1, time.monotonic()

    def _free(self, map_id: int) -> None:
        with self._lock:
            filler = self._filler if self._map_id == map_id else None
            self._filler = None if filler is not None else self._filler
        if filler is not None:
            filler.close()
            del filler
            release_memory()

    def _end_when_idle(self, idle_seconds: float) -> None:
        import ray

        while True:
            time.sleep(idle_seconds / 4)
            with self._lock:
                if not self._busy and time.monotonic() - self._last_used > idle_seconds:
                    ray.kill(ray.get_runtime_context().current_actor)


def _plain(error: UserError) -> UserError:
    """Return a mistake as every process can read it: without the fields of its own class, such as a path here."""
    return UserError(str(error), key=error.key, code=error.code)


class UnitsFile:
    """Hidden file next to a shard with the number of units that are done within it. The driver reads it (`units_in`).

    If the store is on S3, the driver sees only the files of its own node.
    """

    def __init__(self, out: Path, file: str) -> None:
        self._path = units_path(out, file)
        self._units, self._written = 0, time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self._path.unlink(missing_ok=True)

    def add(self, units: int) -> None:
        """Count more units as done."""
        self._units += units
        if time.monotonic() - self._written > UNITS_SECONDS:
            self._path.write_text(json.dumps(self._units))
            self._written = time.monotonic()


def units_path(out: Path, file: str) -> Path:
    """Return the place of a shard's file of units."""
    return out / f".{file}.units"


def units_in(out: Path, file: str) -> int:
    """Read how many units of a shard are done, as far as the shard's process has said."""
    try:
        return int(units_path(out, file).read_text())
    except (FileNotFoundError, ValueError):  # nothing yet, or in the middle of a write
        return 0
