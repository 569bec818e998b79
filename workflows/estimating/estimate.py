"""The estimate of a run: each step's cost in seconds, memory and disk, the whole, and what cannot fit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from sparring.components.config import listing
from sparring.components.sources.base import Source
from sparring.workflows.distributed.cluster import Pool as Workers
from sparring.workflows.distributed.site import Site
from sparring.workflows.estimating import rates as rating
from sparring.workflows.estimating.collection import SECONDS, Assumptions, sizes
from sparring.workflows.estimating.rates import Rates
from sparring.workflows.quantities import size
from sparring.workflows.running.forecast import EXACT
from sparring.workflows.store import s3
from sparring.workflows.store.cost import UNKNOWN, Cost, ModelTask, Need, Pool, Sizes, UnknownSize, Work
from sparring.workflows.store.dag import Step, mapped
from sparring.workflows.store.store import Store

PROCESS = {"driver": 0.4e9, "map": 0.7e9, "score": 0.7e9, "java": 0.2e9, "train": 0.9e9, "one": 0.4e9}
"""Bytes of a process that has imported what its work needs."""
RAY = 0.9e9
"""Bytes of Ray's own processes on a machine."""
WRITING = 1.3
"""How many times longer records take to be read, checked and written than to be read alone."""
QUICK = 1.5
"""Seconds that a quick estimate reads a source."""
Spread = tuple[float, float]
"""The least and the most that something takes, as factors of what is estimated."""
TRIED: Spread = (0.75, 1.35)
"""The spread of a step whose models were tried on this machine, or have run on it."""
UNTRIED: Spread = (0.4, 1.6)
"""The spread of any other step. `make demo` took from .4 to 1.1 times the guess on two cores, idle and busy."""
MANY_OBJECTS = 200_000
"""Files of one artifact from which on listing it takes minutes on S3."""


@dataclass(frozen=True)
class Row:
    """A step's estimate."""

    node: Step
    cost: Cost | None
    """None where its function describes none, or a size is not known."""
    waiting: bool
    """Whether the step is to run."""
    seconds: float
    """0 where the step is done or its cost not known."""
    memory: float
    """Bytes of the largest process."""
    node_memory: float
    """Bytes of all its processes on the machine that has most of them."""
    gpu_memory: float
    """Bytes of the largest process on a GPU; 0 where it uses none."""
    spread: Spread
    """How sure the seconds are."""


@dataclass(frozen=True)
class Estimate:
    """Steps in order, and the site and rates that they were estimated for."""

    rows: list[Row]
    site: Site
    rates: Rates
    exact: bool
    """Whether documents and queries were counted."""
    documents: int
    queries: Mapping[str, int]
    notes: list[str] = field(default_factory=list)
    bucket: str | None = None
    """Where the store is on S3."""

    def of(self, nodes: Iterable[Step]) -> Estimate:
        """The estimate of some of its steps alone."""
        names = {node.fingerprint for node in nodes}
        return replace(self, rows=[row for row in self.rows if row.node.fingerprint in names])

    @property
    def waiting(self) -> list[Row]:
        """Steps that are to run."""
        return [row for row in self.rows if row.waiting]

    @cached_property
    def seconds(self) -> float:
        """Of all steps that are to run, one after another, or of the longest chain where several run at once."""
        together = sum(row.seconds for row in self.waiting)
        at_once = self.site.cluster.parallel_steps
        return together if at_once == 1 else max(together / at_once, self._longest_chain())

    @cached_property
    def between(self) -> tuple[float, float]:
        """The least seconds of the run, without other programs on these machines, and the most."""
        waiting, alone = self.waiting, self.alone()
        together = sum(row.seconds for row in waiting) or 1.0
        most = self.seconds * sum(row.seconds * row.spread[1] for row in waiting) / together
        least = self.seconds * sum(row.seconds * row.spread[0] for row in alone.waiting) / together
        return least, most

    @property
    def spread(self) -> Spread:
        """The same as factors of the seconds."""
        least, most = (seconds / self.seconds if self.seconds else 1.0 for seconds in self.between)
        return least, most

    @property
    def kept(self) -> float:
        """Bytes that the steps to run leave in the store."""
        return sum(row.cost.kept for row in self.waiting if row.cost is not None)

    @property
    def disk(self) -> float:
        """Bytes that must be free: what is kept, and the most that one step has beside that."""
        return self.kept + max((row.cost.scratch for row in self.waiting if row.cost is not None), default=0.0)

    @property
    def objects(self) -> float:
        """Files that the steps to run leave in the store, with a record each."""
        return sum(1 + row.cost.objects for row in self.waiting if row.cost is not None)

    @property
    def memory(self) -> float:
        """The most bytes that a step needs on one machine."""
        return max((row.node_memory for row in self.waiting), default=0.0)

    @property
    def gpu_memory(self) -> float:
        """The most bytes that a process takes on a GPU."""
        return max((row.gpu_memory for row in self.waiting), default=0.0)

    def money(self, seconds: float) -> float | None:
        """What so many seconds cost; None without a price."""
        price = self.site.cluster.price_per_hour
        return None if price is None else price * seconds / 3600

    @property
    def unknown(self) -> list[str]:
        """Labels of steps to run whose cost is not known."""
        return [row.node.label for row in self.waiting if row.cost is None]

    @cached_property
    def problems(self) -> list[str]:
        """What cannot fit, the worst first, each with what to change."""
        labels: dict[str, list[str]] = {}
        factors: dict[str, float] = {}
        for row in self.waiting:
            for text, factor in _problems(row, self.site):
                labels.setdefault(text, []).append(row.node.label)
                factors[text] = max(factor, factors.get(text, 0.0))
        found = {
            f"{labels[text][0]}{f' and {len(labels[text]) - 1} more steps' if labels[text][1:] else ''}: {text}": factor
            for text, factor in factors.items()
        }
        if self.disk > self.site.disk:
            largest = max(self.waiting, key=lambda row: row.cost.kept + row.cost.scratch if row.cost else 0.0)
            advice = f"a larger disk, or another place for the store (--store); most of it is {largest.node.label!r}"
            found[f"disk: {size(self.disk)} must be free, and there are {size(self.site.disk)}; {advice}"] = _times(
                self.disk, self.site.disk
            )
        return sorted(found, key=lambda text: -found[text])

    @property
    def warnings(self) -> list[str]:
        """What fits, and is slow or costly for a reason that a key takes away."""
        found = {
            f"{row.node.label}: {row.cost.objects + row.cost.scratch_objects:,.0f} files"
            + ("; a larger encode.shard makes fewer" if row.node.function.__name__ == "encode_documents" else "")
            for row in self.waiting
            if row.cost is not None and row.cost.objects + row.cost.scratch_objects > MANY_OBJECTS
        }
        found |= {
            f"{row.node.label}: {row.cost.slow}" for row in self.waiting if row.cost is not None and row.cost.slow
        }
        return sorted(found)

    def alone(self) -> Estimate:
        """The same on these machines without other programs on them."""
        rates = self.rates.alone()
        starts = Starts(rates)
        rows = [_row(row.node, row.cost, row.waiting, starts) for row in self.rows]
        return replace(self, rates=rates, rows=rows)

    def _longest_chain(self) -> float:
        chains: dict[str, float] = {}
        for row in self.rows:
            before = max((chains[one.fingerprint] for one in row.node.upstream), default=0.0)
            chains[row.node.fingerprint] = before + row.seconds
        return max(chains.values(), default=0.0)


def _problems(row: Row, site: Site) -> list[tuple[str, float]]:
    """What of a step cannot fit, with how many times too large it is."""
    found = []
    for need in row.cost.needs if row.cost is not None else ():
        if _on_gpu(need, site):
            profile = site.cluster
            pools = {"map": profile.map, "score": profile.scoring_pool(), "train": profile.train}
            share = pools.get(need.pool, Workers()).gpus
            there, asked, where = (
                site.gpu_memory * share,
                need.bytes,
                "on a GPU" if share == 1 else "on a worker's share of a GPU",
            )
        else:
            there, asked = site.memory, _on_node(need, site)
            where = "on one machine"
        if asked > there:
            text = (
                f"{need.what} takes {size(asked)} {where}, and there are {size(there)} of memory; "
                f"to change: {need.advice}"
            )
            found.append((text, _times(asked, there)))
    return found + [(limit, float("inf")) for limit in (row.cost.limits if row.cost is not None else ())]


def _on_gpu(need: Need, site: Site) -> bool:
    """Whether a need is of a GPU's memory here."""
    return need.gpu and site.cuda and need.pool != "driver"


def _times(asked: float, there: float) -> float:
    """How many times larger what is asked is than what is there, which may be nothing."""
    return asked / there if there else float("inf")


def _on_node(need: Need, site: Site) -> float:
    """Bytes of a need's processes on one machine, with Ray's where there is one."""
    count = site.workers_of_node(need.pool) if need.pool not in ("driver", "one") else 1
    own = PROCESS[need.pool] if need.gpu and site.cuda else PROCESS[need.pool] + need.bytes
    return count * own + (RAY if site.cluster.mode == "ray" else 0.0)


def costs(
    nodes: Iterable[Step], site: Site, store: Store, assumed: Assumptions, *, seconds: float = SECONDS
) -> tuple[dict[str, Cost | None], list[Any]]:
    """The cost of each step by its fingerprint, None where not known; and the sizes of the collections."""
    nodes, found, made, collections = list(nodes), {}, dict[str, Any](), []
    known_sources: dict[str, Sizes] = {}
    for node in nodes:
        cost, describe = None, node.description.cost
        if describe is not None:

            def value(given: Any, node: Step = node) -> Any:
                if isinstance(given, Step):
                    return made[given.fingerprint]
                if not isinstance(given, Source):
                    return given
                reader = _reader(nodes, node)
                collections.append(
                    sizes(node, given, store, reader, assumed, seconds=seconds, known_sources=known_sources)
                )
                return collections[-1]

            try:
                cost = describe(site, **mapped(node.inputs, value))
            except UnknownSize:
                cost = None
        found[node.fingerprint], made[node.fingerprint] = cost, cost.makes if cost is not None else UNKNOWN
    return found, collections


def _reader(nodes: list[Step], data: Step) -> Any:
    """The config of the model whose tokenizer reads a collection first; None where none does."""
    for node in nodes:
        if node.inputs.get("data") is data and isinstance(model := node.inputs.get("model"), Step):
            return model.inputs.get("config")
    return None


def estimate(
    nodes: list[Step], waiting: Collection[str], site: Site, store: Store, *, assumed: Assumptions, quick: bool = False
) -> Estimate:
    """Estimate the steps, inputs first, of which those whose fingerprints are `waiting` are to run.

    `quick` tries no model: it takes what finished steps of this graph took, and shares of the processor's rate.
    """
    found, collections = costs(nodes, site, store, assumed, seconds=QUICK if quick else SECONDS)
    tasks = [
        (work, work.task)
        for node in nodes
        if node.fingerprint in waiting and (cost := found[node.fingerprint])
        for work in cost.work
        if isinstance(work.task, ModelTask) and work.amount
    ]
    if site.cluster.hardware is not None:
        rates = rating.assumed(site)
    else:
        rates = rating.quick(site) if quick else rating.measured(site, tasks)
        rating.learn(
            rates,
            [
                (cost, store.record(node))
                for node in nodes
                if node.fingerprint not in waiting and (cost := found[node.fingerprint])
            ],
        )
    starts = Starts(rates)
    rows = [_row(node, found[node.fingerprint], node.fingerprint in waiting, starts) for node in nodes]
    first = collections[0] if collections else None
    notes = list(rates.notes)
    if first is not None and not first.exact:
        notes.append("documents and queries are assumed, or extrapolated from a part of the source")
    if first is not None and first.drawn:
        notes.append(
            f"queries of {listing(first.drawn)} are drawn by share: so many are expected, and there will be a "
            "few more or less"
        )
    shapes = {task.model.config.model for _, task in tasks if not task.model.shape.read}
    notes += [
        f"{name} is not here: taken to be as large as BERT's {'large' if 'large' in name else 'base'}"
        for name in sorted(shapes)
    ]
    bucket = s3.url(store.root) if s3.is_cached(store.root) else None
    return Estimate(
        rows,
        site,
        rates,
        all(one.exact for one in collections),
        first.documents if first else 0,
        first.queries if first else {},
        notes,
        bucket,
    )


class Starts:
    """Seconds in which steps start what they need; what one has started the next ones find."""

    def __init__(self, rates: Rates) -> None:
        self.rates, self._running = rates, set[str]()

    def seconds(self, cost: Cost) -> float:
        """Of one step, in the order in which they run."""
        rates = self.rates
        total = rating.STEP * rates.slowness
        pools: set[Pool] = {work.pool for work in cost.work if work.amount}
        ray = rates.site.cluster.mode == "ray"
        models = [work.task for work in cost.work if work.task is not None and work.amount]
        if any(work.kind == "loading" for work in cost.work) or (models and not ray):
            total += self._once("driver", rating.MODELS * rates.imported)
        if pools - {"driver"} and ray:
            total += self._once("ray", rating.RAY * rates.slowness)
            if "train" in pools:
                total += self._once("train", rating.GROUP * rates.imported, rating.LATER * rates.slowness)
            else:
                imports = rating.WORKER if models else rating.JAVA
                total += self._once("model" if models else "map", imports * rates.imported, rating.MAP * rates.slowness)
        # One process does everything where there is no Ray, and there is a group of them for training where there is.
        place = "training" if ray and "train" in pools else "others"
        total += sum(self._once(f"{place}: {task.model.shape}", rates.roofline(task)) for task in models)
        return total + sum(rates.fixed(task) for task in models)

    def _once(self, what: str, first: float, later: float = 0.0) -> float:
        if what in self._running:
            return later
        self._running.add(what)
        return first


def _row(node: Step, cost: Cost | None, waiting: bool, starts: Starts) -> Row:
    rates = starts.rates
    if cost is None or not waiting:
        return Row(node, cost, waiting, 0.0, 0.0, 0.0, 0.0, EXACT)
    seconds = starts.seconds(cost) + sum(_seconds(work, cost, rates) for work in cost.work)
    pools = dict.fromkeys(work.pool for work in cost.work if work.amount)
    needs = [*cost.needs, *(Need("", 0.0, pool, "") for pool in pools)]
    site = rates.site
    memory = max((PROCESS[need.pool] + (0 if need.gpu and site.cuda else need.bytes) for need in needs), default=0.0)
    node_memory = max((_on_node(need, site) for need in needs), default=0.0)
    gpu_memory = max((need.bytes for need in needs if _on_gpu(need, site)), default=0.0)
    tasks = [work.task for work in cost.work if work.task is not None and work.amount]
    stated = site.cluster.hardware is not None
    spread = EXACT if stated else TRIED if tasks and all(task.key in rates.trials for task in tasks) else UNTRIED
    return Row(node, cost, waiting, seconds, memory, node_memory, gpu_memory, spread)


def _seconds(work: Work, cost: Cost, rates: Rates) -> float:
    """Of some work. Reading counts in records, and a source whose records were timed has its own rate."""
    if work.kind == "reading" and cost.makes.read_seconds:
        return float(work.amount * WRITING * cost.makes.read_seconds * rates.reading)
    return rates.seconds(work)
