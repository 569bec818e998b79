"""Find the processes of a run by kind, to kill some of them."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import psutil

from sparring.workflows.distributed.cluster import Cluster


class Victim(NamedTuple):
    """A kind of process of a run."""

    parts: tuple[str, ...]
    """Parts of its command line. The driver needs none, because its process id is at hand."""
    weight: int
    """Relative frequency with which it is chosen."""
    within: float = 0.0
    """Maximum seconds between finding a process and killing it. Workers come and go with steps."""


DRIVER, JAVA, NODE, HEAD = "driver", "Java", "node", "head"
VICTIMS = {
    DRIVER: Victim((), 4),
    JAVA: Victim((sys.executable, "java.serve"), 1, 3.0),
    "map worker": Victim(("ray::", "MapProcess"), 4, 1.0),
    "train worker": Victim(("ray::", "RayTrainWorker"), 4, 5.0),
    NODE: Victim(("--raylet_socket_name",), 1),
    HEAD: Victim(("/gcs_server",), 1),
}
ENDING = {DRIVER, JAVA, NODE, HEAD}
"""Kinds whose death ends the run, so that its command must be repeated. Ray replaces workers."""


def kinds(cluster: Cluster) -> list[str]:
    """List the kinds of processes that may be killed on a cluster.

    On a cluster that was joined, the head serves other programs too.
    """
    if cluster.mode == "inline":
        return [DRIVER, JAVA]
    return [kind for kind in VICTIMS if kind != HEAD or not cluster.address]


def find(driver: int, kind: str) -> list[psutil.Process]:
    """Find the processes of a kind below a driver."""
    processes = []
    with suppress(psutil.NoSuchProcess):
        if kind == DRIVER:
            return [psutil.Process(driver)]
        for process in psutil.Process(driver).children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if matches(" ".join(process.cmdline()), VICTIMS[kind].parts):
                    processes.append(process)
    return processes


def matches(line: str, parts: Iterable[str]) -> bool:
    """Check whether a command line has all parts."""
    return all(part in line for part in parts)
