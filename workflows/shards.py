"""The resumable map over shards that encoding, BM25, scoring and search share.

One file a shard, renamed into place when it is whole; a shard whose file is there is not done again. Through Ray
Data the rows that travel are descriptions of shards; what is computed goes from the actor straight to its file.
"""

import json
import logging
import os
import socket
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from components.config import UserError
from components.files import replacing, sweep
from workflows.cluster import Cluster, Pool, ray_session
from workflows.progress import Progress


class Shard(NamedTuple):
    """One piece of work and the file it fills."""

    file: str
    """The file's name in the step's directory."""
    size: int
    """Units of work in it, for the bar."""
    task: dict[str, Any]
    """What the worker needs to know: plain values."""


class Worker(Protocol):
    """Built once in each actor from plain values and paths; then called for each shard."""

    def __init__(self, *, threads: int, **constructor: Any) -> None: ...

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        """Do the work and write its file (or directory) at `path`."""


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
) -> float:
    """Fill `out` with every shard's file, doing only those that are not there.

    Returns the seconds in which at least one worker was at a shard: what the step took beyond them is orchestration.
    """
    sweep(out)
    waiting = [shard for shard in shards if not (out / shard.file).exists()]
    total, left = sum(shard.size for shard in shards), sum(shard.size for shard in waiting)
    with Progress(out, total, unit, done=total - left) as progress:
        if not waiting:
            return 0.0
        done = _through_ray if cluster.mode == "ray" else _inline
        intervals = []
        for size, began, ended in done(worker, waiting, out, cluster, pool, gpu, constructor):
            progress.add(size)
            intervals.append((began, ended))
    return covered(intervals)


def covered(intervals: list[tuple[float, float]]) -> float:
    """The length of the union of some intervals."""
    total, reached = 0.0, float("-inf")
    for began, ended in sorted(intervals):
        total += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return total


def _inline(
    worker: type, shards: list[Shard], out: Path, cluster: Cluster, pool: Pool, gpu: bool, constructor: dict[str, Any]
) -> Iterator[tuple[int, float, float]]:
    with ShardActor(worker, out, pool.threads, constructor) as actor:
        for shard in shards:
            yield shard.size, *actor.fill(shard)


def _through_ray(
    worker: type, shards: list[Shard], out: Path, cluster: Cluster, pool: Pool, gpu: bool, constructor: dict[str, Any]
) -> Iterator[tuple[int, float, float]]:
    ray_session(cluster)
    from ray import data  # after the session's environment is set

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # its import sets it to INFO

    # Rows of plain text: an actor's constructor must stay small, or Ray cannot start it again (ray#53727).
    rows = [{"file": shard.file, "size": shard.size, "task": json.dumps(shard.task)} for shard in shards]
    with warnings.catch_warnings():
        # Ray 2.60 deprecates the only way there is to bound restarts; a constructor that kills its process would
        # otherwise be tried for ever.
        warnings.filterwarnings("ignore", message=".*ray_remote_args.*")
        done = data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _DataActor,
            batch_size=1,
            compute=data.ActorPoolStrategy(size=cluster.workers(pool, len(shards), gpu=gpu)),
            num_cpus=pool.threads,
            num_gpus=1 if gpu else 0,
            max_restarts=4,
            fn_constructor_kwargs={"worker": worker, "out": out, "threads": pool.threads, "constructor": constructor},
        )
    rows_done = iter(done.iter_rows())
    while (row := _next(rows_done)) is not None:
        if row["mistake"]:
            raise UserError(row["mistake"])
        if row["failure"]:
            raise _failed(row["failure"])
        yield int(row["size"]), float(row["began"]), float(row["ended"])


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


class ShardActor:
    """A worker with its threads set, filling shards."""

    def __init__(self, worker: type, out: Path, threads: int, constructor: dict[str, Any]) -> None:
        self._out = out
        self._worker = worker(**constructor, threads=threads)

    def __enter__(self) -> "ShardActor":
        return self

    def __exit__(self, *_: Any) -> None:
        if hasattr(self._worker, "close"):
            self._worker.close()

    def fill(self, shard: Shard) -> tuple[float, float]:
        """Do one shard, whose file appears whole or not at all; when it began and ended."""
        began = time.time()
        with replacing(self._out / shard.file) as path:
            self._worker(shard.task, path)
        return began, time.time()


class _DataActor:
    """What Ray Data calls: the description of a shard in, its size out, or what went wrong in words.

    An error that passed through Ray would be one of Ray's, and end in Ray's advice.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs
        self._actor: ShardActor | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        row: dict[str, Any] = {"size": int(batch["size"][0]), "began": 0.0, "ended": 0.0, "mistake": "", "failure": ""}
        try:
            self._actor = self._actor or ShardActor(**self._kwargs)
            shard = Shard(batch["file"][0], row["size"], json.loads(batch["task"][0]))
            row["began"], row["ended"] = self._actor.fill(shard)
        except UserError as error:
            row["mistake"] = str(error)
        except Exception:
            where = f"In process {os.getpid()} on {socket.gethostname()}:\n"
            row["failure"] = where + traceback.format_exc()
        return {name: [value] for name, value in row.items()}
