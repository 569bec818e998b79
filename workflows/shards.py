"""The resumable map over shards that encoding, BM25, scoring and search share.

One file a shard, renamed into place when it is whole; a shard whose file is there is not done again. Through Ray
Data the rows that travel are descriptions of shards; what is computed goes from the actor straight to its file.
"""

import json
import logging
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

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
    for row in done.iter_rows():
        yield int(row["size"]), float(row["began"]), float(row["ended"])


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
    """What Ray Data calls: descriptions of shards in, their sizes out."""

    def __init__(self, **kwargs: Any) -> None:
        self._actor = ShardActor(**kwargs)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        times = [
            self._actor.fill(Shard(file, int(size), json.loads(task)))
            for file, size, task in zip(batch["file"], batch["size"], batch["task"], strict=True)
        ]
        return {"size": batch["size"], "began": [began for began, _ in times], "ended": [ended for _, ended in times]}
