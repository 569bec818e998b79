"""Set up and try Sparring on the oldest patch release of each supported Python that this machine has.

    make test-pythons

On each: set-up, `sparring doctor`, a small run with BM25, a training and a search, and the unit tests of readers and
formats. Prints a table, and fails if a step fails or results differ. The environments are in build/pythons, but for
that of the Python that `.venv` has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
UNITS = ["tests/components/sources", "tests/components/data", "tests/components/test_modules.py"]
HEAD = ["Python", "set-up", "downloads", "on disk", "BM25 RR@10", "retriever RR@10", "unit tests"]


def main() -> int:
    """Try each; the exit status."""
    command = ["sh", str(ROOT / "cluster" / "find-python.sh"), "--all"]
    pythons = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    tried = [tried_on(python) for python in pythons]
    rows = [HEAD, *(row for row, _ in tried)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    print()
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    results = [{key: value for key, value in result.items() if key != "python"} for _, result in tried]
    if any(result != results[0] for result in results):
        print("error: results differ between Pythons:", *map(json.dumps, results), sep="\n", file=sys.stderr)
        return 1
    return 0


def tried_on(python: str) -> tuple[list[str], dict[str, Any]]:
    """A row of the table, and what the small run found."""
    version = version_of(Path(python))
    print(f"\nPython {version}", flush=True)
    place, sizes = ROOT / ".venv", ["as .venv", "", ""]
    if version_of(place / "bin" / "python") != version:
        place = ROOT / "build" / "pythons" / version
        began = time.monotonic()
        call([python, "cluster/environment.py", "setup"], SPARRING_ENVIRONMENT=str(place))
        seconds = time.monotonic() - began
        disk = subprocess.run(["du", "-sk", place], capture_output=True, text=True, check=True).stdout.split()[0]
        sizes = [f"{seconds:.0f} s", f"{fetched_megabytes(place / 'setup.log'):,.0f} MB", f"{int(disk) / 1024:,.0f} MB"]
        call([python, "cluster/environment.py", "setup", "development"], SPARRING_ENVIRONMENT=str(place))
    call([str(place / "bin" / "sparring"), "doctor"])
    with tempfile.TemporaryDirectory() as folder:
        small = [str(place / "bin" / "python"), "-m", "tests.support.small_run", folder]
        result = json.loads(call(small).splitlines()[-1])
    passed = None
    if sizes[1]:  # the whole suite has tests for the Python of .venv
        units = call([str(place / "bin" / "python"), "-m", "pytest", "-q", "-n", "2", *UNITS])
        passed = re.search(r"\d+ passed", units)
    measures = [f"{result['measures'][f'{system} RR@10']:.3f}" for system in ("BM25", "retriever")]
    return [version, *sizes, *measures, passed[0] if passed else "in `make test`"], result


def version_of(python: Path) -> str:
    """A Python's version; empty if there is no such Python."""
    if not python.exists():
        return ""
    command = [str(python), "-I", "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def fetched_megabytes(log: Path) -> float:
    """Megabytes of packages that pip fetched, from the index or its cache."""
    units = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
    result = re.findall(r"^ *(?:Downloading|Using cached) \S+ \(([\d.]+) (kB|MB|GB)\)", log.read_text(), re.M)
    return sum(float(size) * units[unit] for size, unit in result)


def call(command: list[str], **variables: str) -> str:
    """What a command prints on stdout, which must succeed; its other output passes through."""
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise SystemExit(f"error: {' '.join(command)}: exit status {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
