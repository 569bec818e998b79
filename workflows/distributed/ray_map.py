"""A map over shards on Ray: actors that fill one shard after another, and `ray.wait`.

Ray Data filled the shards before, and lacks four things (Ray 2.60):

- An actor pool belongs to one execution of a dataset, and ends with it. Each step on GPUs waited 20 to 26 s for new
  processes that import torch. Here the processes stay for the next steps of their kind (`resources.keep_warm`).
- It takes the driver 8.5 ms of CPU time a shard, and so at most 118 shards/s. Here a shard is one call of an actor: 2.8
  ms, with the start of 32 processes.
- A pool that loses all of its nodes waits without end and without a word. Here the wait has a limit and says why.
- A dataset returns rows when a block is done. Here a step also sees the progress within a shard.

Ray still places the processes, asks the autoscaler for the missing ones, and says when a process or a node has died.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Generator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sparring.components import timing
from sparring.workflows.distributed import nodes, resources
from sparring.workflows.distributed.cluster import Pool
from sparring.workflows.distributed.machine import Machine
from sparring.workflows.distributed.resources import Resources
from sparring.workflows.distributed.session import ray_session, session_id
from sparring.workflows.distributed.shard_worker import MapProcess, Report, units_in, units_path

MAX_DEATHS = 4
"""Number of times that a shard starts again after the process that computed it has died."""
MAX_NODE_DEATHS = 16
"""Number of times that a shard starts again after a node has died with it. Spot nodes die for reasons of their own."""
START_SECONDS = 60.0
"""Minimum number of seconds to wait for the first process to start."""
IDLE_SECONDS = 30.0
"""Seconds without work after which a process leaves a cluster that was joined: fewer than a map waits for a place."""
LOOK_SECONDS = 1.0
"""Seconds between two looks at the progress within the shards."""
GROW_SECONDS = 5.0
"""Seconds between two looks for nodes that have joined."""
STARVED_SECONDS = 20.0
"""Seconds without a started process after which the progress says so."""
SHARDS_ON_CPU, SHARDS_ON_GPU = 2, 3
"""Number of shards that a process has at once. On CPUs the second one waits in the process. On a GPU one is read, one
computed and one written."""


class Shard(NamedTuple):
    """A piece of work, and the file for its result."""

    file: str
    """The file's name in the step's directory."""
    size: int
    """Number of units of work in it, for the progress bar."""
    task: dict[str, Any]
    """Plain values for the worker. The text of a path in the store is replaced by the path on the worker's node."""


class Advance(NamedTuple):
    """Progress of a map: a shard that is done, or a look at those that are being filled."""

    size: int
    """Units of the shard that is done."""
    counts: dict[str, float]
    """Counts of its worker."""
    under_way: int = 0
    """Units that are done within unfinished shards, as far as they were seen."""
    note: str = ""
    """Sentence for the progress about processes that died or do not start. Empty if all is well."""


class Kind(NamedTuple):
    """Everything that must be equal for a map to use the processes of an earlier map."""

    session: str
    """Ray's session."""
    joined: bool
    """The cluster was joined, so others may want its processors."""
    cpus: int
    gpus: float

    @property
    def holds(self) -> Resources:
        """Processors that a process keeps from others, even while it waits for a step.

        A process with a GPU asks Ray for no CPU: it uses one, but must not keep it from others between two steps. In a
        Ray of this run alone, `reserve` shares out the CPUs, so that processes of every number of threads are alike.
        """
        return Resources(0 if self.gpus or not self.joined else self.cpus, self.gpus)


def map_on_ray(
    worker: type,
    shards: list[Shard],
    out: Path,
    machine: Machine,
    pool: Pool,
    gpu: bool,
    constructor: dict[str, Any],
) -> Generator[Advance]:
    """Fill shards with Ray's processes. Yield an `Advance` for each shard that is done, and for each look."""
    ray = ray_session(machine.cluster)
    size = machine.workers(pool, len(shards), gpu=gpu)
    joined, gpus = machine.cluster.address is not None, pool.gpus if gpu else 0.0
    kind = Kind(session_id(), joined, pool.threads if joined and not gpu else 0, gpus)
    needs = Resources(gpus=size * gpus) if gpu else Resources(cpus=size * pool.threads)
    filler = {"worker": worker, "out": out, "threads": pool.threads, "constructor": constructor}
    most = len(shards) if joined and pool.workers is None else size  # nodes may have joined in an earlier map
    with resources.reserve(needs, machine.resources, kind=kind, most=most) as warm:
        if not warm:
            _require_processors(ray, machine, pool, kind)
        run = _RayMap(ray, machine, pool, kind, size, shards, out, filler, warm)
        try:
            yield from run.advances()
        except BaseException:
            run.end(abandoned=True)
            raise
        run.end(abandoned=False)


def _require_processors(ray: Any, machine: Machine, pool: Pool, kind: Kind) -> None:
    """Wait until the cluster has the processors of one process. Maps go on with fewer processes than they could use."""
    name, share = ("GPU", kind.gpus) if kind.gpus else ("CPU", float(pool.threads))
    nodes.wait_for_processors(ray, machine.cluster, name, 1, share)


class _Process:
    """The driver's handle of a process."""

    def __init__(self, kind: Kind) -> None:
        self.kind, self.node = kind, ""
        self.begun, self.was_warm = False, False
        self.actor = (
            _actor_class()
            .options(
                name=f"map process {uuid.uuid4().hex[:6]}" + f" ({kind.gpus:g} GPU)" * bool(kind.gpus),
                num_cpus=kind.holds.cpus,
                num_gpus=kind.gpus,
                max_concurrency=SHARDS_ON_GPU if kind.gpus else 1,  # 1 is the main thread
                scheduling_strategy="SPREAD",
            )
            .remote(IDLE_SECONDS if kind.joined else None)
        )
        self.calls: dict[Any, Shard | None] = {}
        """Shards by the reference to their report. None is for calls about the process itself."""
        self.starting: Any = self.actor.node.remote()
        """Reference to the node. None when it is known."""

    def shards(self) -> list[Shard]:
        """Return the shards that the process has, the first one first."""
        return [shard for shard in self.calls.values() if shard is not None]

    def kill(self) -> None:
        """End the process at once. A process of an earlier session has ended with it."""
        import ray

        if self.kind.session == session_id():
            with suppress(ValueError):  # it is unknown to Ray
                ray.kill(self.actor)


@cache
def _actor_class() -> Any:
    import ray

    return ray.remote(MapProcess)  # once, since Ray keeps each class for ever


class _RayMap:
    """One map: its processes, and the shards that wait."""

    def __init__(
        self,
        ray: Any,
        machine: Machine,
        pool: Pool,
        kind: Kind,
        size: int,
        shards: list[Shard],
        out: Path,
        filler: dict[str, Any],
        warm: list[_Process],
    ) -> None:
        self._ray, self._machine, self._pool, self._kind, self._size = ray, machine, pool, kind, size
        self._out, self._waiting = out, deque(shards)
        self._id, self._filler = time.time_ns(), ray.put(filler)
        self._processes: list[_Process] = []
        self._deaths = defaultdict[str, list[str]](list)
        """Nodes on which processes died with a shard, by its file. A node is "" if it is not known."""
        self._deaths_at_start: list[str] = []
        self._restarts = 0
        self._any_done = False
        self._grown = self._looked = self._alone_since = time.monotonic()
        self._announced, self._under_way = False, dict[str, int]()
        for process in warm:
            process.was_warm = True
            self._open(process)

    def advances(self) -> Generator[Advance]:
        """Fill all shards."""
        while self._waiting or any(process.shards() for process in self._processes):
            self._start_processes()
            self._hand_out()
            for process, ref in self._answered():
                advance = self._received(process, ref)
                if advance is not None:
                    yield advance
            if time.monotonic() - self._looked > LOOK_SECONDS:
                self._looked = time.monotonic()
                files = [shard.file for process in self._processes for shard in process.shards()]
                self._under_way = {file: units_in(self._out, file) for file in files}
                yield Advance(0, {}, sum(self._under_way.values()), self._note())

    def _note(self) -> str:
        """Say in a few words which processes died, or that none has started for long."""
        waited = time.monotonic() - self._alone_since
        if waited > STARVED_SECONDS:
            return f"no process has started for {waited:.0f} s; other programs may hold the processors"
        died = "a process" if self._restarts == 1 else f"{self._restarts} processes"
        return f"{died} died and started again" if self._restarts else ""

    def end(self, *, abandoned: bool) -> None:
        """Keep the processes for the next map. If this one is `abandoned`, end those that work on it.

        On a cluster that was joined, end processes that have not started too: Ray still looks for places for them.
        """
        for process in self._processes:
            works = bool(process.calls) and abandoned
            if works or (process.starting is not None and self._kind.joined):
                process.kill()
                continue
            process.actor.finish.remote(self._id)
            process.calls, process.begun = {}, False
            resources.keep_warm(self._kind, process, self._kind.holds, process.kill)
        for path in self._out.glob(units_path(self._out, "*").name):  # those of processes that died
            path.unlink(missing_ok=True)

    def _start_processes(self) -> None:
        """Start as many processes as can be used. Ray asks the autoscaler for places that are missing."""
        wanted = min(self._wanted(), len(self._waiting) + sum(len(process.shards()) for process in self._processes))
        while len(self._processes) < wanted:
            self._open(_Process(self._kind))

    def _wanted(self) -> int:
        """Count the processes that the cluster has room for. Nodes that join during the map are used too."""
        grows = self._kind.joined and self._pool.workers is None
        if grows and time.monotonic() - self._grown > GROW_SECONDS:
            self._grown = time.monotonic()
            gpus, cpus = self._pool.gpus, self._pool.threads
            total = self._ray.cluster_resources()
            room = total.get("GPU", 0) / gpus if self._kind.gpus else total.get("CPU", 0) / cpus
            self._size = max(self._size, int(room) // self._machine.parts)
        return self._size

    def _open(self, process: _Process) -> None:
        """Let a process begin this map. It gets shards when it has loaded what it needs."""
        process.begun = False
        process.calls = {process.actor.begin.remote(self._id, self._filler): None}
        self._processes.append(process)

    def _hand_out(self) -> None:
        """Give shards to the processes that have the fewest.

        A process gets a shard ahead only as long as enough of them wait for everyone, so that all end together.
        """
        begun = [process for process in self._processes if process.begun]
        for level in range(SHARDS_ON_GPU if self._kind.gpus else SHARDS_ON_CPU):
            for process in begun:
                if not self._waiting or (level and len(self._waiting) <= 2 * len(self._processes)):
                    return
                if len(process.calls) <= level:
                    shard = self._waiting.popleft()
                    call = process.actor.fill.options(name=f"{self._out.name}: {shard.file}")
                    process.calls[call.remote(self._id, shard.file, shard.task)] = shard

    def _answered(self) -> list[tuple[_Process, Any]]:
        """Wait until a process answers, for a look at most. Return all answers that are there."""
        by_ref = {ref: process for process in self._processes for ref in process.calls}
        by_ref |= {process.starting: process for process in self._processes if process.starting is not None}
        with timing.timed("waiting" if self._any_done else "start"):  # the workers' own times take precedence
            refs = list(by_ref)
            answered, _ = self._ray.wait(refs, timeout=LOOK_SECONDS)
            if answered and len(refs) > 1:
                answered, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0)
            self._check_start()
        return [(by_ref[ref], ref) for ref in answered]

    def _check_start(self) -> None:
        """Say what the map waits for while none of its processes has started, and give up after `wait_seconds`."""
        if any(process.starting is None for process in self._processes):
            self._alone_since = time.monotonic()
            return
        _require_processors(self._ray, self._machine, self._pool, self._kind)
        limit = max(START_SECONDS, self._machine.cluster.wait_seconds)
        waited = time.monotonic() - self._alone_since
        count, name = (self._kind.gpus, "GPU") if self._kind.gpus else (self._pool.threads, "CPU")
        place = f"{count:g} {name}{'s' * (count != 1)} of one node"
        if waited > limit:
            raise RuntimeError(
                f"no process of this step has started on {place} within {limit:.0f} s (wait_seconds in the profile). "
                "Repeat the command when other work on the cluster is done, or ask for less in the profile."
            )
        if waited > nodes.SAY_SECONDS and self._kind.joined and not self._announced:
            self._announced = True
            print(
                f"waiting for {place}, at most {limit:.0f} s (wait_seconds in the profile): no process of this step "
                "has started yet, and other work on the cluster may hold what it needs",
                file=sys.stderr,
                flush=True,
            )

    def _received(self, process: _Process, ref: Any) -> Advance | None:
        """Take an answer. A worker's own errors come as reports, so Ray's errors are about processes."""
        from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError, WorkerCrashedError

        if process not in self._processes:
            return None  # lost, as another of its answers has shown
        try:
            answer: Any = self._ray.get(ref)
        except (RayActorError, OutOfMemoryError, NodeDiedError, WorkerCrashedError) as error:
            self._lose(process, error)
            return None
        if ref == process.starting:
            process.starting, process.node = None, answer
            return None
        report: Report = answer
        shard = process.calls.pop(ref)
        if report.mistake:
            raise report.mistake
        if report.failure:
            raise _failure(report.failure)
        timing.record(report.time)
        if shard is None:
            process.begun = True
            self._deaths_at_start.clear()
            return None
        self._any_done = True
        self._under_way.pop(shard.file, None)
        return None if report.skipped else Advance(shard.size, report.counts, sum(self._under_way.values()))

    def _lose(self, process: _Process, error: Exception) -> None:
        """Let other processes fill the shards of one that has died, as often as the limits allow."""
        self._processes.remove(process)
        process.kill()
        self._restarts += 1
        lost = process.shards()
        self._waiting.extendleft(reversed(lost))
        living = {node["NodeID"]: node["NodeManagerHostname"] for node in self._ray.nodes() if node["Alive"]}
        if lost:
            deaths, where = self._deaths[lost[0].file], lost[0].file
            deaths.append(process.node)
        elif not process.begun and not process.was_warm:
            self._deaths_at_start.append(process.node)
            deaths, where = self._deaths_at_start, "its start"
        else:  # it waited, or died between two steps
            return
        of_itself = sum(node in living or not node for node in deaths)
        if of_itself > MAX_DEATHS or len(deaths) > MAX_NODE_DEATHS:
            node = living.get(process.node, "a node that was lost")
            raise RuntimeError(
                "a worker's process died again and again (killed, out of memory, or at its start): "
                f"{len(deaths)} times at {where} in {self._out.name}, the last time on {node}"
            ) from error


def _failure(trace: str) -> RuntimeError:
    """Return an error with a traceback's last line as its message and the whole traceback as a note."""
    error = RuntimeError(trace.strip().splitlines()[-1])
    error.add_note(trace)
    return error
