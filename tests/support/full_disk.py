"""A run whose store is on a small disk that fills up, and grows; called with its config, its profile and a folder, in a
namespace of its own in which it may mount a disk: `unshare -rm python -m tests.support.full_disk ...`.

Each line of its output is a size, an exit status, and the last line that the command printed."""

import contextlib
import io
import subprocess
import sys
from pathlib import Path

from sparring.workflows.command_line import KEPT, main

FIRST, GROWS, LARGEST = 40, 1.4, 100_000
"""Kilobytes."""


def mount(folder: Path, options: str) -> None:
    """Mount a disk in memory there, or change one."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def attempt(words: list[str]) -> tuple[int, str]:
    """Run the command; its status, and its last line of errors."""
    with contextlib.redirect_stderr(io.StringIO()) as output, contextlib.redirect_stdout(io.StringIO()):
        status = main(words)
    return status, (output.getvalue().removesuffix(f"{KEPT}\n").strip().splitlines() or [""])[-1]


def fill(config: str, profile: str, disk: Path, runs: str) -> None:
    """Run on larger and larger disks until all is done; before that once on one that is read-only."""
    words = ["--store", str(disk / "store"), "--runs", runs, "run", config, "--cluster", profile, "--no-estimate"]
    size = FIRST
    mount(disk, f"size={size}k")
    mount(disk, "remount,ro")
    print(0, *attempt(words), flush=True)
    mount(disk, f"remount,rw,size={size}k")
    while (tried := attempt(words))[0] != 0 and size < LARGEST:
        print(size, *tried, flush=True)
        size = int(GROWS * size)
        mount(disk, f"remount,size={size}k")
    print(size, *tried, flush=True)
    subprocess.run(["cp", "-a", str(disk / "store"), str(Path(runs).parent / "copy")], check=True)


if __name__ == "__main__":
    fill(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
