"""Cores and memory that this process may use: the machine's, within the limits of its control groups.

Containers and services have such limits (cgroups v1 and v2).
"""

import os
from collections.abc import Iterator
from pathlib import Path

OWN = Path("/proc/self/cgroup")
"""File that names the groups that this process is in."""
MOUNT = Path("/sys/fs/cgroup")
"""Folder where the groups are mounted. In a container the mount may begin at the container's own group."""
UNLIMITED = float("inf")


def cores() -> int:
    """Count the cores that this process may run on, within its CPU quota."""
    return max(1, int(min(len(os.sched_getaffinity(0)), cpus())))


def available_memory() -> float:
    """Return the bytes of memory that this process and its children may use."""
    return min(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")), memory())


def cpus() -> float:
    """Return the CPUs whose time this process may use in a period. Infinite if there is no quota."""
    return min((_quota(group) for group in _groups("cpu")), default=UNLIMITED)


def memory() -> float:
    """Return the bytes of memory that this process may use. Infinite if there is no limit."""
    names = ("memory.max", "memory.limit_in_bytes")
    return min((_number(group / name) for group in _groups("memory") for name in names), default=UNLIMITED)


def _quota(group: Path) -> float:
    """Return a group's own quota in CPUs."""
    try:
        words = (group / "cpu.max").read_text().split()
    except OSError:
        words = [str(_number(group / f"cpu.cfs_{name}_us")) for name in ("quota", "period")]
    quota, period = map(_limit, words)
    return UNLIMITED if quota == UNLIMITED else quota / period


def _groups(controller: str) -> Iterator[Path]:
    """Yield the folders of the groups whose limits hold for this process: its own group and all above it."""
    try:
        lines = OWN.read_text().splitlines()
    except OSError:  # not Linux, or no control groups
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = MOUNT / controller if controllers else MOUNT  # v1 has a hierarchy for each controller, v2 one for all
        group = mount / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def _number(file: Path) -> float:
    """Read the limit in a file. Infinite if the file is missing."""
    try:
        return _limit(file.read_text())
    except OSError:
        return UNLIMITED


def _limit(word: str) -> float:
    """Convert a limit to a number. `max`, and in v1 a negative number, mean that there is no limit."""
    number = UNLIMITED if word.strip() == "max" else float(word)
    return number if number >= 0 else UNLIMITED
