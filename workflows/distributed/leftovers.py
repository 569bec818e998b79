"""Processes that a run has started on this machine, and that outlived it.

A run marks its environment, which all its processes inherit: Ray's, their workers, and Java. If the run is killed they
end by themselves within seconds, unless they hang.
"""

import os
from contextlib import suppress

import psutil

DRIVER = "SPARRING_DRIVER"
"""Environment variable with the process id of the driver that has started a process."""


def mark() -> None:
    """Mark the processes that this process starts from now on, as their driver."""
    os.environ[DRIVER] = str(os.getpid())


def leftovers() -> dict[int, list[psutil.Process]]:
    """Return the processes whose driver is gone, by the driver's process id. Other users' processes cannot be seen."""
    orphans: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, ValueError):
            driver = int(process.environ().get(DRIVER, ""))
            if process.status() != psutil.STATUS_ZOMBIE and not _drives(driver, process):
                orphans.setdefault(driver, []).append(process)
    return orphans


def driver_of(process: psutil.Process) -> int | None:
    """Return the driver that started a process itself. Return None for any other process."""
    with suppress(psutil.Error, ValueError):
        driver = int(process.environ().get(DRIVER, ""))
        return driver if process.ppid() == driver else None
    return None


def _drives(driver: int, process: psutil.Process) -> bool:
    """Check whether a driver of that id still lives. A driver that is younger than the process only has the same id."""
    try:
        parent = psutil.Process(driver)
        return bool(parent.status() != psutil.STATUS_ZOMBIE and parent.create_time() <= process.create_time())
    except psutil.NoSuchProcess:
        return False
