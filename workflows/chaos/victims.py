"""The processes of a run by kind, to kill some of them."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

import psutil

from sparring.workflows.distributed.cluster import Cluster


class Victim(NamedTuple):
    """A kind of process of a run."""

    parts: tuple[str, ...]
    """What its command line has in it; nothing of the driver, which is known."""
    weight: int
    """How often it is chosen, beside the others."""
    within: float = 0.0
    """Seconds from when there is one to its death, at most: workers come and go with steps."""


DRIVER, JAVA = "driver", "Java"
VICTIMS = {
    DRIVER: Victim((), 4),
    JAVA: Victim((sys.executable, "java.serve"), 1, 3.0),
    "map worker": Victim(("ray::", "MapBatches("), 4, 1.0),
    "train worker": Victim(("ray::", "RayTrainWorker"), 4, 5.0),
    "node": Victim(("--raylet_socket_name",), 1),
    "head": Victim(("/gcs_server",), 1),
}
ENDING = {DRIVER, JAVA, "node", "head"}
"""Kinds whose death ends the run, so that its command must be repeated; workers are replaced."""


def kinds(cluster: Cluster) -> list[str]:
    """The kinds that a run has on a cluster, and that are its own to kill.

    Of a cluster that was joined that is the driver alone: its nodes serve others too, and workers may be anywhere.
    """
    if cluster.mode == "inline":
        return [DRIVER, JAVA]
    return [DRIVER] if cluster.address else list(VICTIMS)


def find(driver: int, kind: str) -> list[psutil.Process]:
    """Those of a driver's processes that are of a kind."""
    found = []
    with suppress(psutil.NoSuchProcess):
        if kind == DRIVER:
            return [psutil.Process(driver)]
        for process in psutil.Process(driver).children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if _matches(" ".join(process.cmdline()), VICTIMS[kind].parts):
                    found.append(process)
    return found


def _matches(line: str, parts: Iterable[str]) -> bool:
    return all(part in line for part in parts)
