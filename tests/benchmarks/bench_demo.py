"""Where the demo's time and memory go: seconds a step, the share that is orchestration, peak memory.

    make bench ARGS="-k demo"                    (SPARRING_BENCH_CONFIG names another config)

Runs the config in a store of its own. Orchestration is the wall time less the time in which a step computed or was at
files, as the records have it. Memory is the proportional set size of the driver and all processes below it.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path

from sparring.components.timing import KINDS
from sparring.workflows.report.page import WORDS
from tests.benchmarks.processes import watched
from tests.benchmarks.table import machine, write

ROOT = Path(__file__).parents[2]


def test_demo(tmp_path: Path) -> None:
    config = os.environ.get("SPARRING_BENCH_CONFIG", "configs/demo.yaml")
    store, runs = tmp_path / "store", tmp_path / "runs"
    command = [sys.executable, "-m", "workflows", "--store", str(store), "--runs", str(runs), "run", config]
    wall, memory = watched(command, cwd=ROOT)
    records = sorted(
        (json.loads(path.read_text()) for path in store.glob("*/artifact.json")), key=lambda r: r["started"]
    )
    rows, whole = [], Counter[str]()
    for record in records:
        time = record["time"]
        whole.update(time)
        name = record["function"].rpartition(".")[2]
        models = record["summary"].get("model_seconds")
        share = f"{record['summary']['roofline_seconds'] / models:.0%}" if models else ""
        rows.append(
            [record["label"], name, f"{record['seconds']:.1f}", *(f"{time[kind]:.1f}" for kind in KINDS), share]
        )
    rows.append(["whole run", "", f"{wall:.1f}", *(f"{whole[kind]:.1f}" for kind in KINDS), ""])
    busy = whole["compute"] + whole["files"]
    lines = [
        f"Orchestration: {wall - busy:.0f} of {wall:.0f} s ({(wall - busy) / wall:.1%}); wanted: 10% at most; reached: "
        f"{'yes' if (wall - busy) / wall <= 0.1 else 'no'}. "
        f"Peak memory: {memory.peak() / 2**30:.1f} GiB.",
        machine(ROOT),
    ]
    write(
        "Seconds of each step",
        f'make bench ARGS="-k demo" on {config}',
        ["step", "function", "seconds", *WORDS.values(), "of the floor"],
        rows,
        lines,
    )
