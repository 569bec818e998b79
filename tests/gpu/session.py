"""Run everything that waits for a GPU, in order of worth, within a few minutes of one.

    make gpu                          # 12 minutes; records in build/gpu
    make gpu ARGS="--minutes 5"       # a part of it; the same command goes on with the rest
    make gpu ARGS="--rehearse"        # the whole list with tiny sizes on the CPU; records in build/gpu-rehearsal

Each job leaves a log and a record. A repeated command skips the jobs that are done. A job that reaches its limit, or
the end of the time, is interrupted and runs again next time. The exit status is 1 if a job failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.benchmarks.table import machine

ROOT = Path(__file__).resolve().parents[2]
GRACE = 10.0
"""Seconds between the request to end and the kill of a job's processes."""
SHARED_GPU = {
    "device": "cuda",
    "parallel_steps": 8,
    "train": {"workers": 1, "threads": 1, "gpus": 0.125},
    "map": {"workers": 1, "threads": 1, "gpus": 0.125},
}
"""Profile in which eight small trainings share a GPU."""


class Job(NamedTuple):
    """A command, and the most seconds that it may take."""

    name: str
    words: list[str]
    seconds: float
    environment: dict[str, str] = {}


def pytest(*words: str) -> list[str]:
    """Return the command of some tests."""
    return [sys.executable, "-m", "pytest", "-n", "0", "-q", "-rA", "-p", "no:cacheprovider", "-m", "", *words]


def bench(*names: str) -> list[str]:
    """Return the command of some benchmarks."""
    words = ["--timeout", "0", "-o", "python_files=bench_*.py", "-s", "-k", " or ".join(names)]
    return pytest("tests/benchmarks", *words)


def sparring(folder: Path, *words: str) -> list[str]:
    """Return the command of a run whose store is in the folder."""
    places = ["--store", str(folder / "store"), "--runs", str(folder / "runs")]
    return [sys.executable, "-m", "workflows", *places, "run", *words]


def jobs(folder: Path, *, rehearsal: bool) -> list[Job]:
    """List all jobs, the one that matters most first."""
    training = "tests/gpu/test_training.py"
    sizes = {"SPARRING_BENCH_DEVICE": "cpu" if rehearsal else "cuda", "SPARRING_BENCH_PAIRS": "1" if rehearsal else "3"}
    sizes |= {"SPARRING_BENCH_DOCUMENTS": "40", "SPARRING_BENCH_PACKAGES": "numpy"} if rehearsal else {}
    vectors = {"SPARRING_BENCH_VECTORS": "20000", "SPARRING_BENCH_ASKED": "100"} if rehearsal else {}
    profile = folder / "shared-gpu.yaml"
    profile.write_text(yaml.safe_dump(SHARED_GPU))
    tiny = [f"{part}.updates=2" for part in ("pretrain.generator.train", "pretrain.train", "retriever_1.train")]
    tiny += ["seeds=[1]", "data={format: docstrings, packages: [pydantic], dev: 0.1, test: 0.1}"]
    words = [word for value in tiny for word in ("--set", value)]
    simlm = (
        sparring(folder, "configs/simlm/from-random.yaml", "--cluster", "cluster/inline.yaml", "--no-estimate", *words)
        if rehearsal
        else sparring(folder, "configs/simlm/starts-squad.yaml", "--cluster", str(profile), "--no-estimate")
    )
    listed = [
        Job("tests", pytest("tests/gpu", "-k", "not compiled and not index"), 150),
        Job("models", bench("test_encode", "test_retriever", "test_ranker"), 150, sizes),
        Job("faiss", pytest("tests/gpu/test_ray.py", "-k", "index"), 60),
        Job("exact-search", bench("test_topk and not peak"), 90, {**sizes, **vectors}),
        Job("gradient-caching", bench("test_large_batches"), 60, sizes),
        Job("refresh", bench("test_refresh"), 90, sizes),
        Job("compiled", pytest(training, "-k", "compiled"), 90),
        Job("simlm", simlm, 720),
    ]
    return [job._replace(seconds=math.inf) for job in listed] if rehearsal else listed


def run(job: Job, folder: Path, seconds: float) -> dict[str, Any]:
    """Run a job for at most so many seconds, and write its log and its record."""
    began = time.monotonic()
    environment = {**os.environ, **job.environment, "SPARRING_TEST_RESULTS": str(folder / "RESULTS.md")}
    with (folder / f"{job.name}.log").open("w") as log:
        process = subprocess.Popen(
            job.words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
        try:
            status = "done" if process.wait(seconds) == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "interrupted"
            end(process)
        except BaseException:
            end(process)
            raise
    record = {
        "job": job.name,
        "status": status,
        "exit": process.returncode,
        "seconds": round(time.monotonic() - began, 1),
        "command": job.words[1:],
        "environment": job.environment,
        "machine": machine(ROOT),
    }
    (folder / f"{job.name}.json").write_text(json.dumps(record, indent=1) + "\n")
    return record


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a job as Ctrl+C does. Kill what is left of its processes a little later."""
    os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def is_done(folder: Path, job: Job) -> bool:
    """Check whether an earlier session has finished a job."""
    record = folder / f"{job.name}.json"
    return record.exists() and json.loads(record.read_text())["status"] == "done"


def session(listed: list[Job], folder: Path, seconds: float) -> bool:
    """Run the jobs that are not done, for at most so many seconds. Return False if one failed."""
    ends, well = time.monotonic() + seconds, True
    for job in listed:
        remaining = ends - time.monotonic()
        if is_done(folder, job):
            print(f"{job.name}: done before", flush=True)
        elif remaining < 1:
            print(f"{job.name}: the time is over; repeat the command", flush=True)
        else:
            record = run(job, folder, min(job.seconds, remaining))
            print(f"{job.name}: {record['status']} in {record['seconds']:g} s ({folder / job.name}.log)", flush=True)
            well = well and record["status"] != "failed"
    return well


def main() -> int:
    """Run the session, and return the exit status."""
    parser = argparse.ArgumentParser(description="Run everything that waits for a GPU, in order of worth.")
    parser.add_argument("--minutes", type=float, default=12.0, metavar="N", help="most minutes in all (default: 12)")
    parser.add_argument("--folder", type=Path, help="folder of the records (default: build/gpu)")
    parser.add_argument("--rehearse", action="store_true", help="run the whole list with tiny sizes on the CPU")
    arguments = parser.parse_args()
    folder = (arguments.folder or ROOT / "build" / ("gpu-rehearsal" if arguments.rehearse else "gpu")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return 0 if session(jobs(folder, rehearsal=arguments.rehearse), folder, 60 * arguments.minutes) else 1


if __name__ == "__main__":
    sys.exit(main())
