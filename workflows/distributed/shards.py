"""The resumable map over shards, for encoding, BM25, scoring and search.

Each shard has one file, which is renamed into place when it is whole. A shard whose file is there is not repeated. Only
descriptions of shards travel between processes. A worker writes its results straight to the shard's file.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from sparring.components import timing
from sparring.components.files import remove_leftovers
from sparring.workflows.distributed import oom
from sparring.workflows.distributed.cluster import Pool
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.ray_map import Advance, map_on_ray
from sparring.workflows.distributed.ray_map import Shard as Shard
from sparring.workflows.distributed.shard_worker import Filler, Worker
from sparring.workflows.store import attempts, transfer
from sparring.workflows.store.progress import Progress


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
    finished = transfer.finished_sizes(out)
    waiting = [shard for shard in shards if shard.file not in finished]
    total, remaining = sum(shard.size for shard in shards), sum(shard.size for shard in waiting)
    name, counts = worker.__name__, Counter[str]()
    if len(waiting) < len(shards):
        counts.update(attempts.counts(out, name))
    with Progress(out, total, unit, done=total - remaining) as progress:
        if waiting:
            transfer.sync(out)  # the files that this step has written for its workers
            if machine.cluster.mode == "ray":
                run = map_on_ray(worker, waiting, out, machine, pool, gpu, constructor)
            else:
                run = _map_inline(worker, waiting, out, pool, constructor, progress)
            advice = oom.map_advice(machine, pool, model="batch_tokens" in constructor, gpu=gpu)
            done = total - remaining
            # Closing ends at once what still runs after an error.
            with oom.advise(advice), attempts.keeping(out, name, counts) as keep, closing(run):
                for advance in run:
                    done += advance.size
                    progress.set_done(done + advance.under_way)
                    counts.update(advance.counts)
                    if advance.size:
                        keep()
            transfer.collect(out)
    return dict(counts)


def _map_inline(
    worker: type, shards: list[Shard], out: Path, pool: Pool, constructor: dict[str, Any], progress: Progress
) -> Generator[Advance]:
    with Filler(worker, out, pool.threads, constructor) as filler:
        for shard in shards:
            counts = filler.fill(shard.file, shard.task, progress.add)
            yield Advance(shard.size, counts)
