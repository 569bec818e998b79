"""The resumable map over shards, for encoding, BM25, scoring and search.

Each shard has one file, which is renamed into place when it is whole. A shard whose file is there is not repeated. Only
descriptions of shards travel between processes. A worker writes its results straight to the shard's file.
"""

import json
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import chdir, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sparring.components import timing
from sparring.components.config import UserError
from sparring.components.files import read_json, remove_leftovers
from sparring.workflows.distributed import oom
from sparring.workflows.distributed.cluster import Pool
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.ray_map import Advance, map_on_ray
from sparring.workflows.distributed.ray_map import Shard as Shard
from sparring.workflows.distributed.shard_worker import Filler, Worker
from sparring.workflows.store import attempts, transfer
from sparring.workflows.store.dag import Function, description
from sparring.workflows.store.progress import Progress

SHARDS = 32
"""Number of shards that give every worker work."""
LEAST_ROWS = 256
"""Number of rows from which batches of similar lengths need little padding."""


def shard_size(rows: int, most: int) -> int:
    """Return the number of rows that a model works on in one shard: `most`, or fewer if all rows make fewer than
    `SHARDS` shards, so that all workers have work. It is at least `LEAST_ROWS`, as rows of similar lengths are batched
    within a shard. The number of workers does not change it."""
    return min(most, max(LEAST_ROWS, -(-rows // SHARDS)))


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
                    progress.set_done(done + advance.under_way, advance.note)
                    counts.update(advance.counts)
                    if advance.size:
                        keep()
            transfer.collect(out)
    return dict(counts)


SUMMARY = "summary.json"
"""File with the summary of a step that ran in a worker. It is removed once it was read."""


def run_in_worker(function: Function, out: Path, machine: Machine, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Run a step function whole in a worker, and return its summary.

    On a cluster that was joined, Ray chooses a node. Otherwise the worker is this process, which has the same disk and
    memory as any other.
    """
    transfer.remove(out, SUMMARY)  # of an attempt whose source may have been another
    step, folder = Shard(SUMMARY, 1, {}), Path.cwd()
    constructor: dict[str, Any] = {"step": partial(function, **inputs), "out": str(out), "folder": str(folder)}
    pool = machine.cluster.map
    if machine.cluster.address is None:
        with Filler(_Whole, out, pool.threads, constructor) as filler:
            filler.fill(step.file, step.task)
    else:
        try:
            for _ in map_on_ray(_Whole, [step], out, machine, pool, False, constructor):
                pass
        except UserError as error:
            advice = ". A worker of the cluster looked for it: use a URL, or a path that all nodes see"
            advice = advice if error.code == "missing-file" else ""
            raise UserError(f"{error}{advice}", key=error.key, code=error.code) from None
    transfer.download(out / SUMMARY)
    summary: dict[str, Any] | None = read_json(out / SUMMARY)
    transfer.remove(out, SUMMARY)
    return summary or {}


class _Whole:
    """A worker that runs a step function, in the folder to which the paths in its configs are relative."""

    on_demand: ClassVar = {"out": ("*",)}

    def __init__(self, *, step: partial[Any], out: str, folder: str, threads: int) -> None:
        self._step, self._out, self._folder = step, Path(out), Path(folder)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        inputs = transfer.localize(self._step.keywords, description(self._step.func).workers_read)
        with chdir(self._folder) if self._folder.is_dir() else nullcontext():
            summary = self._step.func(self._out, None, **inputs)
        transfer.sync(self._out)
        path.write_text(json.dumps(summary))


def _map_inline(
    worker: type, shards: list[Shard], out: Path, pool: Pool, constructor: dict[str, Any], progress: Progress
) -> Generator[Advance]:
    with Filler(worker, out, pool.threads, constructor) as filler:
        for shard in shards:
            counts = filler.fill(shard.file, shard.task, progress.add)
            yield Advance(shard.size, counts)
