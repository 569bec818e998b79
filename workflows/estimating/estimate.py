"""The estimate of a run: seconds, memory and disk of each step and of the whole, and what cannot fit."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sparring.components.config import listing
from sparring.components.sources.base import Source
from sparring.workflows.estimating import sizes
from sparring.workflows.estimating.collection import assume, finished_sizes, source_sizes
from sparring.workflows.estimating.rates import Rates, rate_key, rates_of, short_name
from sparring.workflows.estimating.site import Site
from sparring.workflows.estimating.sizes import UNKNOWN
from sparring.workflows.estimating.work import Need, Work, work_of
from sparring.workflows.quantities import size
from sparring.workflows.running.forecast import EXACT
from sparring.workflows.store import s3
from sparring.workflows.store.dag import Step, function_name, mapped
from sparring.workflows.store.store import Store

PROCESS = {"driver": 0.4e9, "map": 0.7e9, "score": 0.7e9, "java": 0.2e9, "train": 0.9e9, "one": 0.4e9}
"""Bytes of a process that has imported what its work needs."""
RAY = 0.9e9
"""Bytes of Ray's own processes on a machine."""
RECORD, FILE, LISTED = 3e4, 1e3, 2e3
"""Bytes that pass the driver for each step, measured on a store on S3, and for each file that workers write; bytes of
the driver's memory for each of these files. The last two are assumptions."""
LEARNED, GUESSED = (0.75, 1.35), (0.4, 1.6)
"""Range of a step's time as factors of its estimate: with rates from records, and with those of the table."""


@dataclass(frozen=True)
class Row:
    """A step's estimate."""

    node: Step
    work: Work | None
    """If None, the step's work is not known."""
    seconds: float = 0.0
    memory: float = 0.0
    """Bytes of the step's processes on the machine that has most of them."""
    gpu_memory: float = 0.0
    """Bytes of the largest process on a GPU."""
    gpu_seconds: float = 0.0
    """Seconds in which all GPUs compute."""
    spread: tuple[float, float] = EXACT
    """Range of the seconds, as factors."""


@dataclass(frozen=True)
class Estimate:
    """Estimates of the steps to run, in order, with the machines, rates and collections that they are for."""

    rows: list[Row]
    site: Site
    rates: Rates
    collections: list[sizes.Collection] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def of(self, nodes: Iterable[Step]) -> "Estimate":
        """Select some steps."""
        names = {node.fingerprint for node in nodes}
        return replace(self, rows=[row for row in self.rows if row.node.fingerprint in names])

    @cached_property
    def _works(self) -> list[Work]:
        return [row.work for row in self.rows if row.work is not None]

    @cached_property
    def seconds(self) -> float:
        """Seconds of the run. With `parallel_steps`, those of the longest chain or of the GPUs if these are more."""
        total, chains = sum(row.seconds for row in self.rows), {"": 0.0}
        for row in self.rows:
            before = max((chains.get(node.fingerprint, 0.0) for node in row.node.upstream), default=0.0)
            chains[row.node.fingerprint] = before + row.seconds
        on_gpus = sum(row.gpu_seconds for row in self.rows)
        return max(total / self.site.cluster.parallel_steps, on_gpus, *chains.values())

    @property
    def spread(self) -> tuple[float, float]:
        """Range of the seconds, as factors. The lower end is for machines without other programs."""
        total = sum(row.seconds for row in self.rows) or 1.0
        low, high = (sum(row.seconds * row.spread[end] for row in self.rows) / total for end in (0, 1))
        return low * self.rates.share, high

    @property
    def between(self) -> tuple[float, float]:
        """The least and the most seconds of the run."""
        low, high = self.spread
        return low * self.seconds, high * self.seconds

    @property
    def kept(self) -> float:
        """Bytes that the steps leave in the store."""
        return sum(work.kept or 0.0 for work in self._works)

    @property
    def disk(self) -> float:
        """Bytes that must be free: those that are kept, and the temporary files of one step."""
        return self.kept + max((work.scratch for work in self._works), default=0.0)

    @property
    def memory(self) -> float:
        """The most bytes that a step needs on one machine."""
        return max((row.memory for row in self.rows), default=0.0)

    @property
    def gpu_memory(self) -> float:
        """The most bytes that a process takes on a GPU."""
        return max((row.gpu_memory for row in self.rows), default=0.0)

    @property
    def gpu_share(self) -> float:
        """Share of the run's time in which the GPUs compute."""
        return sum(row.gpu_seconds for row in self.rows) / (self.seconds or 1.0)

    @property
    def gpu_idle(self) -> dict[str, float]:
        """Seconds of steps in which they use no GPU, by step function, the longest first."""
        idle: dict[str, float] = {}
        for row in self.rows:
            name = row.node.function.__name__
            idle[name] = idle.get(name, 0.0) + row.seconds - row.gpu_seconds
        return dict(sorted(idle.items(), key=lambda item: -item[1]))

    @property
    def driver(self) -> float:
        """Bytes that pass the driver."""
        return sum(RECORD + FILE * work.files + (work.driver or 0.0) for work in self._works)

    @property
    def head_memory(self) -> float:
        """The most bytes of the driver and of Ray's own processes next to it."""
        sizes = [
            LISTED * work.files + sum(need.bytes for need in work.needs if need.pool == "driver")
            for work in self._works
        ]
        return RAY + PROCESS["driver"] + max(sizes, default=0.0)

    def money(self, seconds: float) -> float | None:
        """Price some seconds. None without a price in the profile."""
        price = self.site.cluster.price_per_hour
        return None if price is None else price * seconds / 3600

    @property
    def unknown(self) -> list[str]:
        """Labels of steps whose work is not known."""
        return [row.node.label for row in self.rows if row.work is None]

    @property
    def requests(self) -> dict[str, int]:
        """Most requests to addresses, by the labels of their steps."""
        return {row.node.label: row.work.requests for row in self.rows if row.work is not None and row.work.requests}

    @cached_property
    def problems(self) -> list[str]:
        """Things that cannot fit, the worst first, each with the change that helps."""
        labels: dict[tuple[str, float], list[str]] = {}
        for row in self.rows:
            for problem in _problems(row, self.site):
                labels.setdefault(problem, []).append(row.node.label)
        problems = {
            f"{steps[0]}{f' and {len(steps) - 1} more steps' if steps[1:] else ''}: {text}": times
            for (text, times), steps in labels.items()
        }
        if self.disk > self.site.disk:
            largest = max(self.rows, key=lambda row: (row.work.kept or 0) + row.work.scratch if row.work else 0)
            advice = f"a larger disk, or another place for the store (--store); most of it is {largest.node.label!r}"
            text = f"disk: {size(self.disk)} must be free, and there are {size(self.site.disk)}; {advice}"
            problems[text] = self.disk / (self.site.disk or 1.0)
        return sorted(problems, key=lambda text: -problems[text])

    @property
    def warnings(self) -> list[str]:
        """Why steps are slower than necessary."""
        waiting = ((row.node.label, row.work) for row in self.rows)
        return sorted({f"{label}: {work.warning}" for label, work in waiting if work is not None and work.warning})


def _problems(row: Row, site: Site) -> Iterable[tuple[str, float]]:
    """Yield what a step lacks, and how many times too large that is."""
    for need in row.work.needs if row.work is not None else ():
        if _on_gpu(need, site):
            profile = site.cluster
            pools = {"map": profile.map, "score": profile.scoring_pool(), "train": profile.train}
            share = pools[need.pool].gpus
            available, required = site.gpu_memory * share, need.bytes
            where = "on a GPU" if share == 1 else "on a worker's share of a GPU"
        else:
            available, required, where = site.memory, _on_node(need, site), "on one machine"
        if required > available:
            text = f"{need.subject} takes {size(required)} {where}, and there are {size(available)} of memory"
            yield f"{text}; to change: {need.advice}", required / (available or 1.0)


def _on_gpu(need: Need, site: Site) -> bool:
    return need.gpu and site.cuda


def _on_node(need: Need, site: Site) -> float:
    """Bytes of a need's processes on one machine, with Ray's."""
    per_process = PROCESS[need.pool] + (0.0 if _on_gpu(need, site) else need.bytes)
    return site.workers_of_node(need.pool) * per_process + (RAY if site.cluster.mode == "ray" else 0.0)


def works(
    nodes: Iterable[Step],
    site: Site,
    store: Store | None,
    assumed: Mapping[str, float],
    *,
    seconds: float,
    cache: dict[str, sizes.Collection] | None = None,
) -> tuple[dict[str, Work | None], list[sizes.Collection]]:
    """Describe the work of steps, inputs first, by their fingerprints; and size the collections. Sources are read for
    so many seconds, unless `cache` has their sizes. Without a store no step is finished."""
    described, artifacts = dict[str, Work | None](), dict[str, Any]()
    collections, cache = list[sizes.Collection](), {} if cache is None else cache
    for node in nodes:

        def value(bound: Any, node: Step = node) -> Any:
            if isinstance(bound, Step):
                return artifacts[bound.fingerprint]
            if not isinstance(bound, Source):
                return bound
            record = store.record(node) if store is not None and "documents" not in assumed else None
            finished = finished_sizes(record, store.path(node)) if store is not None and record is not None else None
            read = assume(finished, assumed) if finished else source_sizes(bound, assumed, seconds, cache)
            collections.append(read)
            return read

        bound = mapped(node.inputs, value)
        work = work_of(function_name(node.function), site, bound, in_worker=node.description.in_worker)
        described[node.fingerprint], artifacts[node.fingerprint] = work, UNKNOWN if work is None else work.makes
    return described, collections


def estimate(
    nodes: list[Step],
    waiting: Collection[str],
    site: Site,
    store: Store,
    *,
    assumed: Mapping[str, float],
    seconds: float = 8.0,
) -> Estimate:
    """Estimate steps, inputs first, of which those whose fingerprints are `waiting` are to run."""
    described, collections = works(nodes, site, store, assumed, seconds=seconds)
    rates = rates_of(site, store)
    rows = [_row(node, described[node.fingerprint], rates) for node in nodes if node.fingerprint in waiting]
    data = collections[0] if collections else None
    notes = list(rates.notes)
    if data is not None and not data.exact:
        notes.append("documents and queries are assumed, or extrapolated from a part of the source")
    if data is not None and data.sampled:
        notes.append(f"queries of {listing(data.sampled)} are sampled by share, so their numbers are expectations")
    models = [work.model for work in described.values() if work is not None and work.model is not None]
    notes += [
        f"{name} is not here: taken to be as large as BERT's {'large' if 'large' in name else 'base'}"
        for name in sorted({model.config.model for model in models if not model.shape.read})
    ]
    if s3.is_cached(store.root):
        notes.append(f"all of it is written to {s3.url(store.root)}, whose transfers and price are not in the sums")
    return Estimate(rows, site, rates, collections, notes)


def _row(node: Step, work: Work | None, rates: Rates) -> Row:
    if work is None:
        return Row(node, work)
    site, needs = rates.site, (*work.needs, Need("", 0.0, "one" if work.needs else work.pool))
    measured = rate_key(short_name(function_name(node.function)), work) in rates.learned
    return Row(
        node,
        work,
        rates.seconds(node, work),
        max(_on_node(need, site) for need in needs),
        max(need.bytes if _on_gpu(need, site) else 0.0 for need in needs),
        rates.gpu_seconds(node, work),
        EXACT if site.cluster.hardware is not None else LEARNED if measured else GUESSED,
    )
