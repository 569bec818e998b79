"""The resumable map over shards, for encoding, BM25, scoring and search.

Each shard has one file, which is renamed into place when it is whole. A shard whose file is there is not repeated. Only
descriptions of shards travel through Ray Data. A worker writes its results straight to the shard's file.

If it can, the map uses Ray tasks and not a pool of actors. The processes that run tasks stay from one step to the next
with everything that they have imported, so only a run's first step waits for Python, Ray and torch to start. A pool of
actors starts anew for each step.
"""

import json
import logging
import math
import time
import warnings
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparring.components import timing
from sparring.components.config import UserError
from sparring.components.files import remove_leftovers
from sparring.workflows.distributed import nodes, oom
from sparring.workflows.distributed.cluster import Pool
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.resources import Resources, reserve
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.distributed.shard_worker import Filler, FillOnGPU, Worker, fill_batch
from sparring.workflows.store import attempts, transfer
from sparring.workflows.store.progress import Progress

if TYPE_CHECKING:
    from ray.data import Dataset

MAX_DEATHS = 4
"""Number of times that Ray starts a batch of shards again after its process has died."""
BATCH = 8
"""Maximum number of shards that Ray hands to a process at once. Ray Data looks ten times a second whether a process is
done, and this is enough work until then."""


class Shard(NamedTuple):
    """A piece of work, and the file for its result."""

    file: str
    """The file's name in the step's directory."""
    size: int
    """Number of units of work in it, for the progress bar."""
    task: dict[str, Any]
    """Plain values for the worker. The text of a path in the store is replaced by the path on the worker's node."""


def row_shards(rows: int, size: int, file: str, **task: Any) -> list[Shard]:
    """Cut rows into shards of `size` rows. `start` and `stop` are added to the task. `file` has a place for a
    number."""
    cuts = [(start, min(start + size, rows)) for start in range(0, rows, size)]
    return [
        Shard(file.format(number), stop - start, {**task, "start": start, "stop": stop})
        for number, (start, stop) in enumerate(cuts)
    ]


def map_rows(
    worker: Any, rows: int, size: int, *, out: Path, machine: Machine, pool: Pool, unit: str, **constructor: Any
) -> tuple[np.ndarray, dict[str, float]]:
    """Run `map_shards` over `rows` rows, `size` at a time, on a GPU if there is one.

    Return the float32 numbers of all shards, one after another, and the workers' counts. The shards' files stay until
    their step removes them.
    """
    shards, cuda = row_shards(rows, size, "part-{:05d}.npy"), machine.cuda
    counts = map_shards(
        worker, shards, out=out, machine=machine, pool=pool, unit=unit, gpu=cuda, cuda=cuda, **constructor
    )
    with timing.timed("files"):
        values = np.concatenate([np.empty(0, np.float32), *(np.load(out / shard.file) for shard in shards)])
    return values, counts


def map_shards(
    worker: type[Worker],
    shards: list[Shard],
    *,
    out: Path,
    machine: Machine,
    pool: Pool,
    unit: str,
    gpu: bool = False,
    **constructor: Any,
) -> dict[str, float]:
    """Make the file of every shard that is not in `out` yet, and return the sums of the workers' counts."""
    remove_leftovers(out)
    made = transfer.made(out)
    waiting = [shard for shard in shards if shard.file not in made]
    total, remaining = sum(shard.size for shard in shards), sum(shard.size for shard in waiting)
    name, counts = worker.__name__, Counter[str]()
    if len(waiting) < len(shards):
        counts.update(attempts.counts(out, name))
    with Progress(out, total, unit, done=total - remaining) as progress:
        if waiting:
            transfer.sync(out)  # the files that this step has written for its workers
            run = _map_through_ray if machine.cluster.mode == "ray" else _map_inline
            advice = oom.map_advice(machine, pool, model="batch_tokens" in constructor, gpu=gpu)
            with oom.advise(advice), attempts.keeping(out, name, counts) as keep:
                for size, shard_counts in run(worker, waiting, out, machine, pool, gpu, constructor):
                    progress.add(size)
                    counts.update(shard_counts)
                    keep()
            transfer.collect(out)
    return dict(counts)


def _map_inline(
    worker: type, shards: list[Shard], out: Path, machine: Machine, pool: Pool, gpu: bool, constructor: dict[str, Any]
) -> Iterator[tuple[int, dict[str, float]]]:
    with Filler(worker, out, pool.threads, constructor) as filler:
        for shard in shards:
            yield shard.size, filler.fill(shard.file, shard.task)


def _map_through_ray(
    worker: type, shards: list[Shard], out: Path, machine: Machine, pool: Pool, gpu: bool, constructor: dict[str, Any]
) -> Iterator[tuple[int, dict[str, float]]]:
    ray = ray_session(machine.cluster)
    from ray import data  # after ray_session has set Ray's environment

    logging.getLogger("ray.data").setLevel(logging.ERROR)  # importing it sets INFO

    rows = [{"file": shard.file, "size": shard.size, "task": json.dumps(shard.task)} for shard in shards]
    arguments = {
        "filler": {"worker": worker, "out": out, "threads": pool.threads, "constructor": constructor},
        "map_id": f"{out} {time.time_ns()}",
    }
    size = machine.workers(pool, len(shards), gpu=gpu)
    # On a GPU a Ray process ends after each task, unless it belongs to an actor.
    options: dict[str, Any] = (
        {
            "fn": FillOnGPU,
            "fn_constructor_kwargs": arguments,
            "compute": data.ActorPoolStrategy(size=size),
            "num_gpus": pool.gpus,
            "max_restarts": MAX_DEATHS,
            "batch_size": 1,
        }  # with GPUs Ray Data refuses None
        if gpu
        else {
            "fn": fill_batch,
            "fn_kwargs": arguments,
            "compute": data.TaskPoolStrategy(size=size),
            "max_retries": MAX_DEATHS,
            "batch_size": None,
        }
    )
    # Ray hands an actor its next shards before the present one is done, so single shards are enough.
    batches = cut_batches(rows, size, 1 if gpu else BATCH)
    items = data.from_blocks([pa.Table.from_pylist(batch) for batch in batches])
    items.context.target_max_block_size = (
        1  # one byte, so that the row of each shard comes at once and not with the batch's last
    )
    with warnings.catch_warnings():
        # Ray 2.60 deprecates the only way to bound retries. Without a bound, a shard that kills its process is retried
        # for ever.
        warnings.filterwarnings("ignore", message=".*ray_remote_args.*")
        done = items.map_batches(num_cpus=pool.threads, **options)
    needs = Resources(gpus=size * pool.gpus) if gpu else Resources(cpus=size * pool.threads)
    # Closing ends what still runs now. The garbage collector would do it some time later, and would start a new Ray for
    # that if this one is gone.
    with reserve(needs, machine.resources), closing(_rows(done)) as rows_done:
        # Ray Data goes on with fewer workers than `size`.
        kind, per_worker = ("GPU", pool.gpus) if gpu else ("CPU", float(pool.threads))
        nodes.wait_for_processors(ray, machine.cluster, kind, 1, per_worker)
        nodes.wait_for_room(ray, machine.cluster, Resources(pool.threads, pool.gpus if gpu else 0))
        with timing.timed("start"):  # until the first shard is done; the workers' own times take precedence
            row = _next(rows_done)
        while row is not None:
            if row["mistake"]:
                raise UserError(row["mistake"])
            if row["failure"]:
                raise _failure(row["failure"])
            timing.record(timing.Interval(*interval) for interval in json.loads(row["time"]))
            yield int(row["size"]), json.loads(row["counts"])
            with timing.timed("waiting"):
                row = _next(rows_done)


def cut_batches(items: list[Any], workers: int, most: int) -> list[list[Any]]:
    """Cut items into batches that workers take one after another.

    Each batch is half of a worker's part of the remaining items, and at most `most` items. The last batches are single
    items, so that all workers end at about the same time (guided self-scheduling; Polychronopoulos and Kuck, 1987).
    """
    batches, start = [], 0
    while start < len(items):
        count = min(most, math.ceil((len(items) - start) / (2 * workers)))
        batches.append(items[start : start + count])
        start += count
    return batches


def _rows(done: "Dataset") -> Generator[dict[str, Any]]:
    """Yield rows as they come. `iter_rows` would prefetch, and so delay each row until the next one is there."""
    with closing(iter(done.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0))) as batches:
        for batch in batches:
            yield from batch.to_pylist()


def _next(rows: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the next row. A worker's own errors come as rows, so Ray's errors are about processes."""
    from ray.data.exceptions import SystemException
    from ray.exceptions import RayError

    try:
        return next(rows, None)
    except (RayError, SystemException) as error:
        raise RuntimeError(
            "a worker's process died again and again (killed, out of memory, or at its start)"
        ) from error


def _failure(trace: str) -> RuntimeError:
    """Return an error with a traceback's last line as its message and the whole traceback as a note."""
    error = RuntimeError(trace.strip().splitlines()[-1])
    error.add_note(trace)
    return error
