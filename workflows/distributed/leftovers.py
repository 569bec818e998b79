"""Processes that a run has started on this machine, and that outlived it.

A run marks its environment, which all that it starts inherits: Ray's processes, their workers, Java. Where the run is
killed they end by themselves, within seconds; one that hangs does not.
"""

import os
from contextlib import suppress

import psutil

DRIVER = "SPARRING_DRIVER"
"""The environment variable with the process id of the driver that has started a process."""


def mark() -> None:
    """Mark what this process starts from now on as that of a run whose driver it is."""
    os.environ[DRIVER] = str(os.getpid())


def leftovers() -> dict[int, list[psutil.Process]]:
    """Processes whose driver is gone, by the driver's process id. Those of other users cannot be seen."""
    found: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, ValueError):
            driver = int(process.environ().get(DRIVER, ""))
            if process.status() != psutil.STATUS_ZOMBIE and not _drives(driver, process):
                found.setdefault(driver, []).append(process)
    return found


def driver_of(process: psutil.Process) -> int | None:
    """The driver that has itself started a process; None for any other process."""
    with suppress(psutil.Error, ValueError):
        driver = int(process.environ().get(DRIVER, ""))
        return driver if process.ppid() == driver else None
    return None


def _drives(driver: int, process: psutil.Process) -> bool:
    """Whether a driver of that id still lives; a younger process has the id of one that is gone."""
    try:
        parent = psutil.Process(driver)
        return bool(parent.status() != psutil.STATUS_ZOMBIE and parent.create_time() <= process.create_time())
    except psutil.NoSuchProcess:
        return False
