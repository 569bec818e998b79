"""Measure what a system needs to answer queries: the time of a query that is asked by itself, memory, and disk."""

import itertools
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sparring.components.data.groups import judged_queries
from sparring.components.data.tables import QUERIES, read
from sparring.components.evaluation.budget import FILE
from sparring.components.files import read_json, write_json
from sparring.workflows.distributed.child import Child
from sparring.workflows.distributed.cluster import Cluster
from sparring.workflows.distributed.limits import cores
from sparring.workflows.distributed.machine import Machine, resolve_machine
from sparring.workflows.store.dag import Description

MOST, LEAST = 200, 20
"""Bounds of the number of measured queries, as far as the split has so many."""
SECONDS = 10.0
"""Seconds after which no more than the least number of queries is asked."""
WARM_SECONDS = 1.0
"""Seconds of queries that are not measured, at the beginning: Java compiles, and files are read."""
RESULTS = 10
"""Number of documents that a query asks for."""
STATUS, THREADS = Path("/proc/self/status"), Path("/proc/self/task")
BUSY = 0.2
"""Share of its time that a process may wait for a processor before the machine counts as busy."""


@Description(part="evaluation", alone=True)
def measure_latency(out: Path, machine: Machine, *, data: Path, split: str, system: Any) -> dict[str, Any]:
    """Open a system in a new process on the driver's machine, ask it queries one after another, and write
    `latency.json`.

    The file has the percentiles `p50_ms`, `p95_ms` and `p99_ms` over so many `queries`, `open_seconds`, the peak of the
    process's resident memory (`memory_gb`), and the size of models, indexes and documents (`disk_gb`). If the system
    cannot be opened, it has the `reason` instead. `system` is a resolved `Deployment`.
    """
    if system.reason:
        write_json(out / FILE, {"reason": system.reason})
        return {"reason": system.reason}
    judged = judged_queries(data, split, MOST)
    texts = read(data / "queries.parquet", QUERIES, columns=["query_id", "text"], filters=[("query_id", "in", judged)])
    cluster = machine.cluster.model_copy(update={"mode": "inline"})
    child = Child(cores())
    with TemporaryDirectory() as folder:
        answers = Path(folder) / FILE
        try:
            child.tell(Questioner, {"system": system, "cluster": cluster})
            child.tell(list(dict.fromkeys(texts["text"].to_pylist())), answers)
        except (EOFError, OSError):
            raise RuntimeError(f"the process that answers queries died (exit status {child.end()})") from None
        except BaseException:
            child.end()
            raise
        child.end()
        measured: dict[str, Any] = read_json(answers)
    write_json(out / FILE, measured)
    return measured | ({"note": note} if (note := busy(measured["waiting_share"])) else {})


class Questioner:
    """An open system in a process of its own, which is asked queries."""

    def __init__(self, *, system: Any, cluster: Cluster) -> None:
        began = time.perf_counter()
        machine = resolve_machine(cluster)
        options = {"cuda": machine.cuda, "batch_tokens": machine.batch_tokens}
        self._system = system.open(threads=cores(), models=lambda: options)
        self._needs = {"open_seconds": time.perf_counter() - began, "disk_gb": system.bytes / 1e9}

    def __call__(self, texts: Sequence[str], path: Path) -> None:
        """Ask queries, and write what they needed to a file."""
        k = min(RESULTS, self._system.config.limit)

        def ask(text: str) -> float:
            began = time.perf_counter()
            self._system.answer(text, k)
            return time.perf_counter() - began

        before = processor_times()
        seconds = asked(ask, texts)
        computed, waited = (after - begin for after, begin in zip(processor_times(), before, strict=True))
        p50, p95, p99 = (1000 * float(value) for value in np.percentile(seconds, [50, 95, 99]))
        times = {"queries": len(seconds), "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}
        share = waited / (computed + waited) if computed else 0.0
        write_json(path, {**times, "memory_gb": peak_memory() / 1e9, **self._needs, "waiting_share": share})


def asked(
    ask: Callable[[str], float], texts: Sequence[str], *, now: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Ask queries for a while without counting them, and then each once until the time is over. Return the seconds of
    those that count."""
    began = now()
    for number, text in enumerate(itertools.cycle(reversed(texts))):
        if number and now() - began > WARM_SECONDS:
            break
        ask(text)
    began, seconds = now(), list[float]()
    for text in texts:
        if len(seconds) >= LEAST and now() - began > SECONDS:
            break
        seconds.append(ask(text))
    return seconds


def peak_memory() -> int:
    """Return the largest resident memory that this process has had, in bytes.

    Linux counts the memory of the process that started this one as the peak of `getrusage`.
    """
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def processor_times() -> tuple[float, float]:
    """Return the seconds that this process's threads have computed, and those that they waited for a processor. Both
    are 0 on systems that do not count them."""
    times = [0.0, 0.0]
    for thread in THREADS.glob("*/schedstat"):
        with suppress(OSError):  # the thread ended
            computed, waited, _ = map(int, thread.read_text().split())
            times = [times[0] + computed / 1e9, times[1] + waited / 1e9]
    return times[0], times[1]


def busy(share: float) -> str:
    """Say that the machine was busy, if the process waited for more than the share `BUSY` of its time."""
    if share <= BUSY:
        return ""
    return (
        f"Other programs used the processors: {100 * share:.0f} % of the time this process waited for one. Its times "
        "are too long."
    )
