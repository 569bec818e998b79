"""How long a unit of work takes: measured on these machines, or as a stated cluster's hardware says."""

from __future__ import annotations

import math
import multiprocessing
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from sparring.components.compute.processor import cpu_info
from sparring.workflows.distributed.session import ray_session
from sparring.workflows.distributed.site import Site
from sparring.workflows.estimating.load import Others
from sparring.workflows.estimating.trial import NO_TIME, Spec, Trial, measure, send
from sparring.workflows.running.view import progress_view
from sparring.workflows.store.cost import Cost, Kind, ModelTask, Work

UNITS: dict[Kind, float] = {
    "reading": 1e-4,
    "tokenising": 2.5e-6,
    "BM25 indexing": 1e-6,
    "BM25 retrieval": 8e-3,
    "Java": 2.0,
    "scores": 2.5e-11,
    "index": 2.5e-11,
    "rows": 1e-6,
    "bytes": 1e-9,
    "loading": 3e-9,
    "draws": 1.2e-8,
}
"""Seconds of a unit on one core of an Intel Xeon with AMX, from records of runs and from tests/benchmarks/RESULTS.md. A
slower machine, or a busy one, takes longer by one factor, which is measured."""

TRIALS = 30.0
"""Seconds for which models are tried at most, beside importing torch."""

SHARES = {"encoding": 0.65, "scoring": 0.65, "training": 0.45, "generating": 0.15}
"""Where a task is not tried: the share of the rate of matrix products alone that a CPU reaches. Generating is
never tried: its products are those of one token at a time."""

LOOP = 2.7e-3
"""Seconds of `_loop` on the core that `UNITS` were measured on."""
LOOPS = 40
IMPORT = 2.2
"""Seconds in which it imports torch and transformers."""
RAY, MODELS, JAVA, WORKER, GROUP, MAP, LATER = 1.5, 2.3, 0.2, 3.0, 6.0, 0.5, 0.6
"""Seconds of starting Ray; in imports of torch, all that a process imports for a model (transformers imports torch's
compiler with the first one), the first map without a model, that with one, and the first training; seconds of every
later map and training beside its work."""
ROOFLINE = 0.1
"""Seconds for which a process does a model's products alone, twice, when it first has one of a shape."""
DRAWN = 8e-9
"""Seconds of a random number of those."""
CHECKED, CHECK = 4, 2.0
"""Rows of a batch that a training looks at twice before its first update, in fp32; and how many times as long as in an
update each takes."""
STEP = 0.05
"""Seconds of any step beside its work: its record, its lock."""


@dataclass
class Rates:
    """Seconds of units of work on a site."""

    site: Site
    slowness: float = 1.0
    """Factor of `UNITS`."""
    own: float = 1.0
    """The share of the time that a process on one core computes in; other programs take the rest."""
    others: float = 0.0
    """The share of all cores that other programs took while models were tried."""
    reading: float = 1.0
    """Factor of the seconds in which records of the source were read."""
    imported: float = IMPORT
    """Seconds in which a process imports torch."""
    trials: dict[str, Trial] = field(default_factory=dict)
    """By the key of a task."""
    products: float = 0.0
    """Operations a second of one worker in matrix products alone; 0 where not measured."""
    notes: list[str] = field(default_factory=list)
    """What is assumed rather than measured."""

    def alone(self) -> Rates:
        """The rates of the same machines without other programs on them."""
        trials = {
            key: Trial(one.unit * one.own, one.fixed * one.own, products=one.products)
            for key, one in self.trials.items()
        }
        return replace(
            self,
            slowness=self.slowness * self.own,
            imported=self.imported * self.own,
            reading=self.reading * self.own,
            own=1.0,
            others=0.0,
            trials=trials,
        )

    def seconds(self, work: Work) -> float:
        """Seconds that all workers together take for some work."""
        if work.task is not None:
            return self._of_model(work, work.task)
        stated = self.site.cluster.hardware
        if work.kind == "bytes" and stated is not None:
            return work.amount / (stated.disk_gb_per_second * 1e9 * self.site.nodes)
        if work.kind == "scores" and self.site.cuda and stated is not None:  # in fp32, a sixteenth of the rate in bf16
            rate = stated.gpu_teraflops * 1e12 / 16 * stated.share_of_peak * self.site.gpus * self.site.nodes
            return 2 * work.amount / rate
        unit = UNITS[work.kind] * self.slowness
        if work.kind == "Java":
            return work.amount * unit
        if work.pool in ("driver", "one"):
            return work.amount * unit
        return work.amount * unit / (self.site.workers(work.pool, gpu=False) * self.site.threads(work.pool) ** 0.9)

    def fixed(self, task: ModelTask) -> float:
        """Seconds that a task takes beside its units."""
        trial = self.trials.get(task.key)
        if trial is not None:
            return trial.fixed
        if task.use != "training":
            return self.loading(task)
        batch = task.options["config"].batch
        rows = 2 * CHECK * min(CHECKED, batch) / batch
        checked = 0.0 if self.site.cuda else rows * task.operations / (self._in_fp32() * SHARES["training"])
        return 2 * self.slowness + checked

    def loading(self, task: ModelTask) -> float:
        """Seconds in which a task's model is read."""
        return UNITS["loading"] * 4 * task.model.shape.parameters * self.slowness

    def roofline(self, task: ModelTask) -> float:
        """Seconds in which a process measures what its processor reaches, when it first has a model of a shape."""
        shape, tokens = task.model.shape, self.site.cluster.batch_tokens(cuda=self.site.cuda)
        if self.site.cuda or not self.products or task.use == "generating":
            return 0.0
        weights = shape.layers * shape.weights_per_layer
        return 2 * max(ROOFLINE, 2 * tokens * weights / self.products) + DRAWN * weights * self.slowness

    def _in_fp32(self) -> float:
        """Operations a second of a training's cores in fp32."""
        return FP32_OPERATIONS / self.slowness * self.site.threads("train")

    def _of_model(self, work: Work, task: ModelTask) -> float:
        workers = self.site.workers(work.pool)
        trial = self.trials.get(task.key)
        if trial is not None:  # an update is all workers' together, each with its share of the batch
            return work.amount * trial.unit / (1 if task.use == "training" else workers)
        seconds = work.amount * task.operations / self.operations_per_second(task.use, workers)
        stated = self.site.cluster.hardware
        return seconds + (work.amount * stated.update_seconds if stated and task.use == "training" else 0.0)

    def operations_per_second(self, use: str, workers: int) -> float:
        """Of all workers in a kind of model work that was not tried."""
        stated = self.site.cluster.hardware
        if stated is not None and self.site.cuda:
            gpus = min(self.site.gpus * self.site.nodes, workers)
            return stated.gpu_teraflops * 1e12 * stated.share_of_peak * gpus
        if stated is not None:
            return stated.core_gigaflops * 1e9 * self.site.cores * self.site.nodes
        return (self.products or 1e11) * SHARES[use] * workers


def assumed(site: Site) -> Rates:
    """The rates of a cluster that is not here, as its `hardware` states them."""
    hardware = site.cluster.hardware
    assert hardware is not None
    kind = (
        f"models run at {hardware.share_of_peak:.0%} of {hardware.gpu_teraflops:g} teraflops on each of "
        f"{site.gpus * site.nodes} GPUs"
        if site.cuda
        else f"models run at {hardware.core_gigaflops:g} gigaflops on each of {site.cores * site.nodes} cores"
    )
    return Rates(
        site,
        notes=[
            f"assumed, not measured (cluster: hardware): {kind}",
            f"each update of a training takes {hardware.update_seconds:g} s beside that",
            "other work takes as long as on a core of an Intel Xeon",
        ],
    )


def measured(site: Site, tasks: Iterable[tuple[Work, ModelTask]]) -> Rates:
    """Rates of these machines, by trying each task on a few batches: as many processes at once as the step will have
    workers (on a cluster that was joined, one process on one of its machines)."""
    with Others() as others:
        rates = _tried_in_pools(site, tasks)
    if not site.cluster.address:  # else the models were tried on another machine
        rates.others = others.share
        for key, one in rates.trials.items():  # a core that nobody used was not taken
            rates.trials[key] = one._replace(own=max(one.own, 1 - others.share))
    return rates


def _tried_in_pools(site: Site, tasks: Iterable[tuple[Work, ModelTask]]) -> Rates:
    slow, share = slowness()
    rates = Rates(site, slowness=slow, own=share)
    pools: dict[tuple[int, int], dict[str, ModelTask]] = {}
    operations: dict[str, float] = {}
    for work, task in tasks:
        if task.measurable:
            key = site.workers_of_node(work.pool), site.threads(work.pool)
            pools.setdefault(key, {})[task.key] = task
            operations[task.key] = operations.get(task.key, 0.0) + work.amount * task.operations
    left, late = TRIALS, list[str]()
    for (workers, threads), tasks_of_pool in pools.items():
        wanted = sorted(tasks_of_pool, key=lambda key: -operations[key])  # the least matters least if no time is left
        specs = [_spec(site, tasks_of_pool[key]) for key in wanted]
        began = time.monotonic()
        results = _tried(site, specs, workers=workers, threads=threads, seconds=left)
        rates.imported = max(seconds for seconds, _ in results)
        left = max(0.0, left - (time.monotonic() - began - rates.imported))
        for key, *found in zip(wanted, *(trials for _, trials in results), strict=True):
            good = [one for one in found if isinstance(one, Trial)]
            if good:
                rates.trials[key] = Trial(*np.mean(good, axis=0).tolist())
            elif NO_TIME in found:
                late.append(key)
            else:
                rates.notes.append(f"{tasks_of_pool[key].use} could not be tried ({found[0]})")
    if late:
        rates.notes.append(
            f"{len(late)} of {len(operations)} kinds of work were not tried within {TRIALS:.0f} s, so their time is a "
            "guess"
        )
    known = [one.products for one in rates.trials.values() if one.products]
    rates.products = float(np.median(known)) if known else 0.0
    return rates


def _spec(site: Site, task: ModelTask) -> Spec:
    options = dict(task.options)
    if task.use == "training":
        options |= {"recompute": site.cluster.recompute, "workers": site.workers("train")}
    sizes, shape = task.sizes, task.model.shape
    return Spec(
        task.use,
        task.model.config,
        shape.vocabulary,
        [int(one) for one in sizes.document_lengths],
        [int(one) for one in sizes.query_lengths],
        options,
        task.operations,
    )


def _tried(
    site: Site, specs: list[Spec], *, workers: int, threads: int, seconds: float
) -> list[tuple[float, list[Trial | str]]]:
    """For each worker the seconds of importing torch, and what it measured of each spec in so many `seconds`."""
    options: dict[str, Any] = {
        "threads": threads,
        "batch_tokens": site.cluster.batch_tokens(cuda=site.cuda),
        "cuda": site.cuda,
        "seconds": seconds,
    }
    if site.cluster.address:
        ray = ray_session(site.cluster)
        how = {"num_gpus": 1} if site.cuda else {"num_cpus": threads}
        imported, *found = ray.get(ray.remote(**how)(_measured_there).remote(specs, options))
        return [(imported, found)]
    if site.cuda:
        workers = 1  # one GPU is as fast as another
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="sparring-estimate-") as place, progress_view() as view:
        folders = [Path(place) / f"{number}" for number in range(workers)]
        pipes = [context.Pipe(duplex=False) for _ in folders]
        processes = [
            context.Process(target=send, args=(theirs, specs, folder), kwargs=options)
            for (_, theirs), folder in zip(pipes, folders, strict=True)
        ]
        with view.step("estimate", folders[0]):  # all try the same; one of them tells
            try:
                for folder, process, (_, theirs) in zip(folders, processes, pipes, strict=True):
                    folder.mkdir()
                    process.start()
                    theirs.close()
                return _received([ours for ours, _ in pipes], len(specs), seconds)
            finally:
                for process in processes:
                    process.kill()
                    process.join()


def _measured_there(specs: list[Spec], options: dict[str, Any]) -> list[Any]:
    """What one process of a cluster measures."""
    with tempfile.TemporaryDirectory(prefix="sparring-estimate-") as folder:
        return list(measure(specs, Path(folder), **options))


def _received(connections: list[Connection], count: int, seconds: float) -> list[tuple[float, list[Trial | str]]]:
    """What processes send within so many `seconds` from when the last of them has imported torch: a trial that is
    under way then would last longer on a busy machine than anybody waits."""
    found: dict[Connection, list[Any]] = {connection: [] for connection in connections}
    open_ones, ends = set(connections), math.inf
    while open_ones and (left := ends - time.monotonic()) > 0:
        for connection in wait(open_ones, None if left == math.inf else left):
            assert isinstance(connection, Connection)
            try:
                found[connection].append(connection.recv())
            except EOFError:  # it is done, or was killed
                open_ones.discard(connection)
        if ends == math.inf and all(found.values()):
            ends = time.monotonic() + seconds
    if not all(found.values()):
        raise RuntimeError("a process that was to try models ended before it began")
    killed = NO_TIME if time.monotonic() >= ends else "its process was killed"
    return [(values[0], [*values[1:], *[killed] * (1 + count - len(values))]) for values in found.values()]


def slowness() -> tuple[float, float]:
    """How many times longer this machine takes, as busy as it is, than the core that `UNITS` were measured on; and the
    share of that time that this process had."""
    _loop()  # takes as long as six others: NumPy imports what it draws with
    began, own = time.perf_counter(), time.thread_time()
    for _ in range(LOOPS):
        _loop()
    took, computed = time.perf_counter() - began, time.thread_time() - own
    return max(0.2, took / LOOPS / LOOP), min(1.0, computed / took)


def _loop() -> int:
    """Some Python and some NumPy."""
    numbers = np.random.default_rng(0).integers(0, 1000, 40_000)
    counts: dict[int, int] = {}
    for number in np.sort(numbers).tolist():
        counts[number] = counts.get(number, 0) + 1
    return len(counts)


def quick(site: Site) -> Rates:
    """Rates that take no trial: the rate of this machine's matrix products, where torch is needed in this process
    anyway, and shares of it."""
    slow, share = slowness()
    rates = Rates(site, slowness=slow, own=share)
    rates.imported = IMPORT * rates.slowness
    on_core = next((rate for name, rate in OPERATIONS.items() if name in cpu_info()), FP32_OPERATIONS)
    on_cores = on_core / rates.slowness * site.threads("map")
    rates.products = GPU_OPERATIONS if site.cuda else on_cores
    rates.notes.append("models were not tried")
    return rates


GPU_OPERATIONS = 1e14
"""The same of a GPU: a third of an A100's peak. An H100 reached 3.5e14 in encoding, 1.3e14 in training by 128 pairs."""
OPERATIONS, FP32_OPERATIONS = {"amx_bf16": 4.6e11, "avx512_bf16": 4.0e11}, 1.4e11
"""Operations a second of a core's products in bf16, by the instructions that it has, and in fp32 where it has neither:
of an Intel Xeon, an AMD EPYC and an Intel Xeon, each as if it were as fast as the core that `UNITS` were measured on.
"""


def learn(rates: Rates, finished: Iterable[tuple[Cost, dict[str, Any] | None]]) -> None:
    """Take the rates of tasks that finished steps of the same graph did, as their records have them."""
    times: dict[str, list[tuple[float, float]]] = {}
    for cost, record in finished:
        work = next((one for one in cost.work if one.task is not None), None)
        seconds = (record or {}).get("summary", {}).get("model_seconds")
        if work is None or not seconds or not work.amount:
            continue
        workers = 1 if work.task.use == "training" else rates.site.workers(work.pool)
        own = seconds if work.task.use == "training" else seconds / workers  # workers add their seconds up
        computed = (record or {})["time"]
        beside = max(0.0, computed.get("compute", 0.0) + computed.get("files", 0.0) - seconds)
        fixed = beside if work.task.use == "training" else rates.loading(work.task)  # others' is in their other work
        times.setdefault(work.task.key, []).append((own * workers / work.amount, fixed))
    for key, values in times.items():
        rates.trials[key] = Trial(*np.mean(values, axis=0).tolist())
