"""Where the demo's time and memory go: seconds a step, the share that is orchestration, peak memory.

    make bench ARGS="-k demo"                    (SPARRING_BENCH_CONFIG names another config)

Runs the config in a store of its own. Orchestration is the wall time less the time in which a step was at compute or
file work: what the record calls busy for steps that work through Ray, the whole step for those that work in the
driver. Memory is the proportional set size of the driver and all processes below it.
"""

import json
import os
import sys
from pathlib import Path

from tests.benchmarks.processes import watched
from tests.benchmarks.table import machine, write

ROOT = Path(__file__).parents[2]


def test_demo(tmp_path: Path) -> None:
    config = os.environ.get("SPARRING_BENCH_CONFIG", "configs/demo.yaml")
    store, runs = tmp_path / "store", tmp_path / "runs"
    command = [sys.executable, "-m", "workflows", "--store", str(store), "--runs", str(runs), "run", config]
    wall, peak = watched(command, cwd=ROOT)
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
        f"Peak memory: {peak / 2**30:.1f} GiB.",
        machine(ROOT),
    ]
    write(
        "Seconds of each step",
        f'make bench ARGS="-k demo" on {config}',
        ["step", "function", "seconds", "busy"],
        rows,
        lines,
    )
