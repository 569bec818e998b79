"""Where the demo's time and memory go: seconds a step, the share that is orchestration, peak memory.

    make bench ARGS="-k demo"                    (SPARRING_BENCH_CONFIG names another config)

Runs the config in a store of its own. Orchestration is the wall time less the time in which a step was at compute or
file work: what the record calls busy for steps that work through Ray, the whole step for those that work in the
driver. Memory is the proportional set size of the driver and all processes below it.
"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests.benchmarks.table import machine, write

ROOT = Path(__file__).parents[2]


def test_demo(tmp_path: Path) -> None:
    config = os.environ.get("SPARRING_BENCH_CONFIG", "configs/demo.yaml")
    store, runs = tmp_path / "store", tmp_path / "runs"
    command = [sys.executable, "-m", "workflows", "--store", str(store), "--runs", str(runs), "run", config]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT)
    peak = _Peak(process.pid)
    assert process.wait() == 0
    wall = time.monotonic() - began
    peak.stop()
    records = sorted(
        (json.loads(path.read_text()) for path in store.glob("*/artifact.json")), key=lambda r: r["started"]
    )
    rows, busy = [], 0.0
    for record in records:
        here = record["summary"].get("busy_seconds", record["seconds"])
        busy += here
        name = record["function"].rpartition(".")[2]
        rows.append([record["label"], name, f"{record['seconds']:.1f}", f"{here:.1f}"])
    rows.append(["whole run", "", f"{wall:.1f}", f"{busy:.1f}"])
    lines = [
        f"Orchestration: {wall - busy:.0f} of {wall:.0f} s ({(wall - busy) / wall:.0%}). "
        f"Peak memory: {peak.bytes / 2**30:.1f} GiB.",
        machine(ROOT),
    ]
    write(
        "Seconds of each step",
        f'make bench ARGS="-k demo" on {config}',
        ["step", "function", "seconds", "busy"],
        rows,
        lines,
    )


class _Peak:
    """The largest memory of a process and its descendants, looked at twice a second."""

    def __init__(self, pid: int) -> None:
        self.bytes, self._pid, self._stop = 0, pid, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            self.bytes = max(self.bytes, sum(map(_pss, _tree(self._pid))))


def _tree(root: int) -> list[int]:
    """A process and everything below it."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents.setdefault(parent, []).append(int(folder.name))
    found, front = [], [root]
    while front:
        pid = front.pop()
        found.append(pid)
        front += parents.get(pid, [])
    return found


def _pss(pid: int) -> int:
    try:
        lines = (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
