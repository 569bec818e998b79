"""The graph: a plan of at least 500 steps, and running again what is finished.

    make bench ARGS="-k plan"        (SPARRING_BENCH_SEEDS: how many games)

One game of AR2 with both controls a seed, on a toy collection with toy models; the wall time of the whole command, of
which the start of Python and its imports are a part.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from tests.benchmarks.measure import PAIRS, seconds_of
from tests.benchmarks.table import machine, write
from tests.support import tiny, toy

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("SPARRING_BENCH_SEEDS", "20"))
WANTED = {"a plan, nothing done": 1.0, "a plan, all done": 1.0, "a run, all done": 3.0}


def test_plan(tmp_path: Path) -> None:
    beir = tiny.write_beir(tmp_path / "beir", toy.write_data(tmp_path / "data"))
    tree = {**tiny.ar2(beir, toy.write_encoder(tmp_path / "encoder")), "seeds": list(range(1, SEEDS + 1))}
    place = tiny.place(tmp_path / "run", tree)

    def said(command: str) -> str:
        line = [sys.executable, "-m", "workflows", *place.words(command)]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    def taken(command: str) -> list[float]:
        return [seconds_of(lambda: said(command) and None) for _ in range(PAIRS)]

    steps = int(said("plan").splitlines()[-1].split()[0])
    seconds = {"a plan, nothing done": taken("plan")}
    said("run")
    assert "nothing to run" in said("run")
    seconds |= {"a plan, all done": taken("plan"), "a run, all done": taken("run")}
    rows = [
        [
            job,
            f"{steps}",
            f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})",
            f"< {WANTED[job]:g}",
            "yes" if median(times) < WANTED[job] else "no",
        ]
        for job, times in seconds.items()
    ]
    head = ["job", "steps", "seconds (range)", "wanted", "reached"]
    write("The graph", 'make bench ARGS="-k plan"', head, rows, [machine(ROOT)])
