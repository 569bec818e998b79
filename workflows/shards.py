"""The resumable map over shards that encoding, BM25, scoring and search share.

One file a shard, renamed into place when it is whole; a shard whose file is there is not done again. Through Ray
Data the rows that travel are descriptions of shards; what is computed goes from the worker straight to its file.

Ray's processes stay from one step to the next with all that they have imported, so that only a run's first step waits
for Python, Ray and torch to start; a pool of actors would be started anew by each.
"""

import json
import logging
import math
import os
import socket
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa

from components import clock
from components.config import UserError
from components.files import replacing, sweep
from components.processor import release
from workflows import memory, mirror
from workflows.cluster import Cluster, Pool, node_name, ray_session
from workflows.progress import Progress
from workflows.room import Room, held

IDLE_SECONDS = 2.0
"""How long a worker that nothing is asked of keeps its model and its memory."""
MOST_DEATHS = 4
"""How often what a process was handed is begun again when it died."""
HANDED = 8
"""How many shards Ray hands to a process at once: before it gets more, Ray Data, which looks ten times a second, must
have seen that it is through."""


class Shard(NamedTuple):
    """One piece of work and the file it fills."""

    file: str
    """The file's name in the step's directory."""
    size: int
    """Units of work in it, for the bar."""
    task: dict[str, Any]
    """What the worker needs to know: plain values."""


def runs(count: int, size: int, file: str, **task: Any) -> list[Shard]:
    """Shards of so many consecutive rows, `size` each: the task has `start` and `stop`, `file` a place for a number."""
    cuts = [(start, min(start + size, count)) for start in range(0, count, size)]
    return [Shard(file.format(i), b - a, {**task, "start": a, "stop": b}) for i, (a, b) in enumerate(cuts)]


def joined(out: Path, shards: list[Shard], dtype: Any) -> np.ndarray:
    """The arrays in the shards' files, one after another."""
    with clock.at("files"):
        return np.concatenate([np.empty(0, dtype), *(np.load(out / shard.file) for shard in shards)])


def mapped_rows(
    worker: Any, rows: int, size: int, *, out: Path, cluster: Cluster, pool: Pool, unit: str, **constructor: Any
) -> tuple[np.ndarray, dict[str, float]]:
    """`map_shards` over so many rows, `size` at a time, with models or vectors: a float32 for each row (or for what a
    row holds), and what the workers counted. The parts stay until their step removes them."""
    shards, cuda = runs(rows, size, "part-{:05d}.npy"), cluster.cuda()
    counted = map_shards(
        worker, shards, out=out, cluster=cluster, pool=pool, unit=unit, gpu=cuda, cuda=cuda, **constructor
    )
    return joined(out, shards, np.float32), counted


class Worker(Protocol):
    """Built once in each process from plain values and paths; then called for each shard."""

    def __init__(self, *, threads: int, **constructor: Any) -> None: ...

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float] | None:
        """Do the work and write its file (or directory) at `path`; perhaps numbers to add up over the shards."""


def map_shards(
    worker: type,
    shards: list[Shard],
    *,
    out: Path,
    cluster: Cluster,
    pool: Pool,
    unit: str,
    gpu: bool = False,
    **constructor: Any,
) -> dict[str, float]:
    """Fill `out` with every shard's file, doing only those that are not there; the sums of what the workers counted."""
    sweep(out)
    waiting = [shard for shard in shards if not (out / shard.file).exists()]
    total, left = sum(shard.size for shard in shards), sum(shard.size for shard in waiting)
    with Progress(out, total, unit, done=total - left) as progress:
        counted: Counter[str] = Counter()
        if waiting:
            mirror.sync(out)  # what this step wrote for its workers
            done = _through_ray if cluster.mode == "ray" else _inline
            with memory.told(memory.of_map(cluster, pool, model="batch_tokens" in constructor, cuda=gpu)):
                for size, counts in done(worker, waiting, out, cluster, pool, gpu, constructor):
                    progress.add(size)
                    counted.update(counts)
            mirror.bring(out)
    return dict(counted)


def _inline(
    worker: type, shards: list[Shard], out: Path, cluster: Cluster, pool: Pool, gpu: bool, constructor: dict[str, Any]
) -> Iterator[tuple[int, dict[str, float]]]:
    with Filler(worker, out, pool.threads, constructor) as filler:
        for shard in shards:
            yield shard.size, filler.fill(shard)


def _through_ray(
    worker: type, shards: list[Shard], out: Path, cluster: Cluster, pool: Pool, gpu: bool, constructor: dict[str, Any]
) -> Iterator[tuple[int, dict[str, float]]]:
    ray_session(cluster)
    from ray import data  # after the session's environment is set

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # its import sets it to INFO

    rows = [{"file": shard.file, "size": shard.size, "task": json.dumps(shard.task)} for shard in shards]
    about = {
        "made_from": {"worker": worker, "out": out, "threads": pool.threads, "constructor": constructor},
        "run": f"{out} {time.time_ns()}",
    }
    size = cluster.workers(pool, len(shards), gpu=gpu)
    # On a GPU a process ends after each task of Ray's, unless it is an actor's.
    how: dict[str, Any] = (
        {"fn": _OnGPU, "fn_constructor_kwargs": about, "compute": data.ActorPoolStrategy(size=size),
         "num_gpus": pool.gpus, "max_restarts": MOST_DEATHS}
        if gpu else
        {"fn": _fill, "fn_kwargs": about, "compute": data.TaskPoolStrategy(size=size), "max_retries": MOST_DEATHS}
    )  # fmt: skip
    # Actors have their next shards before they are through with one.
    items = data.from_blocks([pa.Table.from_pylist(run) for run in dealt(rows, size, 1 if gpu else HANDED)])
    items.context.target_max_block_size = 1  # byte: what is told of a shard comes at once, not with its run's last
    with warnings.catch_warnings():
        # Ray 2.60 deprecates the only way there is to bound retries; what kills its process would be tried for ever.
        warnings.filterwarnings("ignore", message=".*ray_remote_args.*")
        done = items.map_batches(batch_size=None, num_cpus=pool.threads, **how)
    room = Room(gpus=size * pool.gpus) if gpu else Room(cpus=size * pool.threads)
    # Left to the garbage collector, Ray Data would end what still runs some time, and if need be start a Ray to do so.
    with held(room, cluster.room()), closing(iter(done.iter_rows())) as rows_done:
        with clock.at("start"):  # until the first shard is done, but for what the workers say of their own time
            row = _next(rows_done)
        while row is not None:
            if row["mistake"]:
                raise UserError(row["mistake"])
            if row["failure"]:
                raise _failed(row["failure"])
            clock.add(clock.Interval(*interval) for interval in json.loads(row["time"]))
            yield int(row["size"]), json.loads(row["counts"])
            with clock.at("waiting"):
                row = _next(rows_done)


def dealt(items: list[Any], workers: int, most: int) -> list[list[Any]]:
    """Items in runs that workers take one after another: at first half a worker's part of what is left, but for `most`,
    at the end single ones, so that all end at about the same time (guided self-scheduling, Polychronopoulos and Kuck
    1987)."""
    found, start = [], 0
    while start < len(items):
        count = min(most, math.ceil((len(items) - start) / (2 * workers)))
        found.append(items[start : start + count])
        start += count
    return found


def _next(rows: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """The next row; what workers raise comes as a row, so Ray's own errors are about processes."""
    from ray.data.exceptions import SystemException
    from ray.exceptions import RayError

    try:
        return next(rows, None)
    except (RayError, SystemException) as error:
        raise RuntimeError(
            "a worker's process died again and again (killed, out of memory, or at its start)"
        ) from error


def _failed(story: str) -> RuntimeError:
    """What a worker met, in a line, with its whole story as a note."""
    error = RuntimeError(story.strip().splitlines()[-1])
    error.add_note(story)
    return error


class Filler:
    """A worker with its threads set, filling shards."""

    def __init__(self, worker: type, out: Path, threads: int, constructor: dict[str, Any]) -> None:
        self._out = mirror.place(out)
        self._out.mkdir(parents=True, exist_ok=True)
        with clock.at("start"):
            self._worker = worker(**mirror.here(constructor), threads=threads)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def fill(self, shard: Shard) -> dict[str, float]:
        """Do one shard, whose file appears whole or not at all, if it is not there: a process that died may have
        done it. What the worker counted."""
        counted: dict[str, float] = {}
        if not (self._out / shard.file).exists():
            with replacing(self._out / shard.file) as path, clock.at("compute"):
                counted = self._worker(shard.task, path) or {}
        mirror.send(self._out / shard.file)
        return counted

    def close(self) -> None:
        """Let go of what the worker holds."""
        if hasattr(self._worker, "close"):
            self._worker.close()


def _fill(batch: dict[str, Any], *, made_from: dict[str, Any], run: str) -> Iterator[dict[str, Any]]:
    """What Ray Data calls: descriptions of shards in; for each, as soon as it is done, its size, or what went wrong in
    words, and then no more.

    An error that passed through Ray would be one of Ray's, and end in Ray's advice.
    """
    for file, size, task in zip(batch["file"], batch["size"], batch["task"], strict=True):
        row: dict[str, Any] = {"size": int(size), "counts": "", "time": "", "mistake": "", "failure": ""}
        try:
            clock.on(node_name())
            clock.drain()  # of a shard that failed
            row["counts"] = json.dumps(_resident.fill(Shard(file, int(size), json.loads(task)), made_from, run))
            row["time"] = json.dumps(clock.drain())
        except UserError as error:
            row["mistake"] = str(error)
        except Exception:
            where = f"In process {os.getpid()} on {socket.gethostname()}:\n"
            row["failure"] = where + traceback.format_exc()
        yield {name: [value] for name, value in row.items()}
        if row["mistake"] or row["failure"]:
            return


class _OnGPU:
    """`_fill` as the actor that Ray Data makes of a class."""

    def __init__(self, **about: Any) -> None:
        self._about = about

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from _fill(batch, **self._about)


class _Resident:
    """The filler that this process of Ray's is working with: it stays from shard to shard of a step.

    Nobody tells a process that the step is over, so a filler that nothing is asked of goes by itself, with its model
    and its memory.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._filler: Filler | None = None
        self._run, self._asked = "", 0.0

    def fill(self, shard: Shard, made_from: dict[str, Any], run: str) -> dict[str, float]:
        with self._lock:
            if run != self._run:
                self._let_go()
            self._filler, self._run = self._filler or Filler(**made_from), run
            try:
                return self._filler.fill(shard)
            finally:
                self._asked = time.monotonic()
                timer = threading.Timer(IDLE_SECONDS, self._if_idle)
                timer.daemon = True
                timer.start()

    def _if_idle(self) -> None:
        with self._lock:
            if time.monotonic() - self._asked >= IDLE_SECONDS:
                self._let_go()

    def _let_go(self) -> None:
        filler, self._filler, self._run = self._filler, None, ""
        if filler is not None:
            filler.close()
            del filler
            release()


_resident = _Resident()
