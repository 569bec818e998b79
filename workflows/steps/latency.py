"""Measure what a system needs to answer queries: the time of a query that is asked by itself, memory, and disk."""

import itertools
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

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
STATUS = Path("/proc/self/status")
WORK = ("user", "nice", "system", "irq", "softirq", "steal")
"""Kinds of processor time in which a machine computes, or another machine on the same hardware does."""
BUSY = 0.2
"""Share of the processors that other programs may use before the machine counts as busy."""


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
    return measured | ({"note": note} if (note := busy(measured["others_share"])) else {})


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

        began, before = time.perf_counter(), seconds_of_others()
        seconds = asked(ask, texts)
        share = (seconds_of_others() - before) / ((psutil.cpu_count() or 1) * (time.perf_counter() - began))
        p50, p95, p99 = (1000 * float(value) for value in np.percentile(seconds, [50, 95, 99]))
        times = {"queries": len(seconds), "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}
        write_json(path, {**times, "memory_gb": peak_memory() / 1e9, **self._needs, "others_share": max(share, 0.0)})


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


def seconds_of_others() -> float:
    """Return the processor time that all other processes of the machine have used, in seconds.

    The time that this process's threads wait would not tell: Java's compiler waits for its own searches.
    """
    machine, process = psutil.cpu_times(), psutil.Process().cpu_times()
    return sum(getattr(machine, kind, 0.0) for kind in WORK) - process.user - process.system


def busy(share: float) -> str:
    """Say that the machine was busy, if other programs used more than the share `BUSY` of its processors."""
    if share <= BUSY:
        return ""
    return f"Other programs used {100 * share:.0f} % of the processors, so these times may be too long."
