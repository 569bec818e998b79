"""Seconds per unit of work: from records of earlier runs, else from a table of rates measured on a reference machine,
scaled by a short benchmark."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparring.components.compute.processor import cpu_info, describe_processor
from sparring.workflows.estimating.collection import finished_sizes
from sparring.workflows.estimating.site import Site
from sparring.workflows.estimating.sizes import UNKNOWN
from sparring.workflows.estimating.work import Inputs, Work, work_of
from sparring.workflows.store.dag import Step, function_name
from sparring.workflows.store.store import RECORD, Store

ROW = 1e-6
"""Seconds per row of a table."""
PRODUCT = 2.5e-11
"""Seconds per multiplication in a search for vectors."""
SECONDS = {
    "analyse": 5e-6,
    "choose": 4e-7,
    "choose_neighbours": 2e-5,
    "evaluate.averages": 1.2e-8,
    "evaluate.evaluate": 2e-6,
    "evaluate.results": 1.2e-8,
    "expand.expand_by_relevance": 1.5e-5,
    "ingest": 1e-4,
    "latency.measure_latency": 10.0,
    "lucene.lucene_feedback": 8e-3,
    "lucene.lucene_index": 1e-6,
    "lucene.lucene_search": 8e-3,
    "mine.mine": 3e-4,
    "neighbours": 2e-5,
    "quantise.rescore": 2e-5,
    "search": PRODUCT,
    "sentences.similarity": 6e-5,
    "sentences.transfer": PRODUCT,
    "smooth.smooth": 2e-5,
    "start": 3e-9,
    "tokenize": 2.5e-6,
}
"""Seconds per unit (`work`) on one core of an Intel Xeon with AMX, by step function or by module; `ROW` for others."""
SHARES = {"encoding": 0.65, "scoring": 0.65, "training": 0.45, "generating": 0.15}
"""Share of a device's rate of matrix products that a model reaches."""
BF16 = {"amx_bf16": 4.6e11, "avx512_bf16": 4.0e11}
FP32 = 1.4e11
"""Matrix products of one core in bf16, by its instructions, and in fp32, in operations per second."""
GPU = 1e14
"""The rate of a GPU: a third of an A100's peak."""
LOOP = 2.7e-3
"""Seconds of `_loop` on the reference core."""
WRITING = 1.3
"""Time to read, check and write records, as a multiple of the time to read them."""
STEP, RAY, JAVA, TRAINING = 0.05, 1.5, 1.0, 2.0
"""Seconds to record a step, to start Ray, to start Java, and to prepare a training."""
FIRST = {"inline": 5.0, "map": 6.6, "train": 13.0}
LATER = {"inline": 0.0, "map": 0.5, "train": 0.6}
"""Seconds until workers have imported what models need, for the first step of a kind and for later steps."""


@dataclass
class Rates:
    """Seconds per unit of work on some machines."""

    site: Site
    slowness: float = 1.0
    """Factor of the table."""
    share: float = 1.0
    """Share of a core that this process gets; other programs take the rest."""
    learned: dict[str, float] = field(default_factory=dict)
    """Seconds per unit in records, by `rate_key`."""
    notes: list[str] = field(default_factory=list)
    """Assumptions to show."""
    _started: set[str] = field(default_factory=set)

    def seconds(self, node: Step, work: Work) -> float:
        """Time a step, with what it starts if no step before it has."""
        name, workers = short_name(function_name(node.function)), self.site.workers("map", gpu=False)
        on_cpus = (work.alone + work.after / workers) * self.slowness
        return self._starts(work) + self._works(name, work) + on_cpus

    def gpu_seconds(self, node: Step, work: Work) -> float:
        """Time the GPUs of a step's models and products. Count a second in which a part of the GPUs compute as that
        part of a second."""
        gpus = self.site.gpus * self.site.nodes
        if not self.site.cuda or not (work.use or work.multiplies):
            return 0.0
        workers = self.site.workers(work.pool)
        return self._works(short_name(function_name(node.function)), work) * min(1.0, workers / gpus)

    def _starts(self, work: Work) -> float:
        ray, models = self.site.cluster.mode == "ray" and work.pool != "driver", work.model is not None
        kind = "inline" if not ray else "train" if work.pool == "train" else "map"
        seconds = STEP + (self._first("ray", RAY) if ray else 0.0) + (JAVA if work.pool == "java" else 0.0)
        if models or work.loads_models:
            seconds += self._first(kind, FIRST[kind], LATER[kind])
        elif ray:
            seconds += LATER[kind]
        return (seconds + (TRAINING if work.use == "training" else 0.0)) * self.slowness

    def _first(self, part: str, first: float, later: float = 0.0) -> float:
        if part in self._started:
            return later
        self._started.add(part)
        return first

    def _works(self, name: str, work: Work) -> float:
        key = rate_key(name, work)
        if key in self.learned:
            return work.amount * self.learned[key]
        if work.use:
            stated = self.site.cluster.hardware
            overhead = work.updates * stated.update_seconds if stated is not None else 0.0
            return work.amount / self._operations(work) + overhead
        if work.read_seconds:
            return float(work.amount * WRITING * work.read_seconds)
        if work.multiplies and self.site.cuda:  # in fp32, a sixteenth of the rate in bf16
            return 2 * 16 * work.amount / self._operations(work)
        seconds = work.amount * SECONDS.get(name, SECONDS.get(name.partition(".")[0], ROW)) * self.slowness
        if work.pool in ("driver", "one"):
            return seconds
        return seconds / (self.site.workers(work.pool, gpu=False) * self.site.threads(work.pool) ** 0.9)

    def _operations(self, work: Work) -> float:
        """Operations per second of all workers in a model, or in search on GPUs."""
        site, stated, workers = self.site, self.site.cluster.hardware, self.site.workers(work.pool)
        if stated is not None and not site.cuda:
            return stated.core_gigaflops * 1e9 * site.cores * site.nodes
        if stated is not None:
            rate = stated.gpu_teraflops * 1e12 * stated.share_of_peak
            return rate * min(site.gpus * site.nodes, workers)
        core = next((rate for name, rate in BF16.items() if name in cpu_info()), FP32)
        core = FP32 if work.precision == "fp32" else core
        rate = GPU if site.cuda else core / self.slowness * site.threads(work.pool)
        return rate * SHARES.get(work.use, 1.0) * workers


def short_name(function: str) -> str:
    """Shorten a step function's dotted path to its module and its name."""
    return ".".join(function.rsplit(".", 2)[-2:])


def rate_key(name: str, work: Work) -> str:
    """Name the rate of a step's model, which other steps may share. Empty if no model computes."""
    if work.model is None or not work.use:
        return ""
    config = work.model.config
    return f"{name} {config.model} {config.layers} {work.kind} {work.precision}"


def rates_of(site: Site, store: Store) -> Rates:
    """Find the rates of these machines."""
    stated = site.cluster.hardware
    if stated is None:
        slow, share = slowness()
        return Rates(site, slow, share, learn_rates(site, store))
    models = (
        f"models run at {stated.share_of_peak:.0%} of {stated.gpu_teraflops:g} teraflops on each of "
        f"{site.gpus * site.nodes} GPUs"
        if site.cuda
        else f"models run at {stated.core_gigaflops:g} gigaflops on each of {site.cores * site.nodes} cores"
    )
    notes = [
        f"assumed, not measured (cluster: hardware): {models}",
        f"each update of a training takes {stated.update_seconds:g} s in addition",
        "other work takes as long as on a core of an Intel Xeon",
    ]
    return Rates(site, notes=notes)


def learn_rates(site: Site, store: Store) -> dict[str, float]:
    """Learn the rates of models from all records in a store that this machine wrote with the same workers.

    Sizes flow through the records as they do through a graph.
    """
    records = [json.loads(path.read_text()) for path in store.root.glob(f"*/{RECORD}")]
    profile = site.cluster.model_dump(mode="json", include={"device", "train", "map", "score", "recompute"})
    sums: dict[str, tuple[float, float]] = {}
    sizes: dict[str, Any] = {}
    for record in sorted(records, key=lambda record: record["started"]):
        sizes[record["fingerprint"]] = UNKNOWN
        with suppress(Exception):  # a record of another version, whose inputs may have other names
            name, folder = short_name(record["function"]), f"{record['function'].rpartition('.')[2]}-"
            if name == "ingest.ingest":
                folder += record["fingerprint"][:12]
                sizes[record["fingerprint"]] = finished_sizes(record, store.root / folder) or UNKNOWN
                continue
            work = work_of(record["function"], site, _resolved(record["inputs"], sizes))
            if work is None:
                continue
            sizes[record["fingerprint"]] = work.makes
            same_machine = describe_processor().items() <= record["machine"].items()
            same_profile = profile.items() <= (record["cluster"] or {}).items()
            if same_machine and same_profile and (key := rate_key(name, work)):
                amount, seconds = sums.get(key, (0.0, 0.0))
                sums[key] = (amount + work.amount, seconds + record["time"]["compute"] + record["time"]["files"])
    return {key: seconds / amount for key, (amount, seconds) in sums.items() if seconds >= 1.0 and amount}


def _resolved(value: Any, sizes: Mapping[str, Any]) -> Any:
    """Replace the artifacts in a record's inputs by their sizes."""
    if isinstance(value, dict):
        if value.keys() == {"step"}:
            return sizes.get(value["step"], UNKNOWN)
        return Inputs({key: _resolved(item, sizes) for key, item in value.items()})
    return [_resolved(item, sizes) for item in value] if isinstance(value, list) else value


def slowness() -> tuple[float, float]:
    """Measure how many times longer this machine takes, as busy as it is, than the reference core; and the share of a
    core that this process gets."""
    _loop()  # NumPy imports what it draws with
    began, began_thread = time.perf_counter(), time.thread_time()
    for _ in range(40):
        _loop()
    took, computed = time.perf_counter() - began, time.thread_time() - began_thread
    return max(0.2, took / 40 / LOOP), min(1.0, computed / took)


def _loop() -> int:
    """Run some Python and some NumPy."""
    numbers = np.random.default_rng(0).integers(0, 1000, 40_000)
    counts: dict[int, int] = {}
    for number in np.sort(numbers).tolist():
        counts[number] = counts.get(number, 0) + 1
    return len(counts)
