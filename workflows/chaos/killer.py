"""Start the command of a run until it finishes, and kill its processes at random moments."""

import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from sparring.components.rng import keyed_rng
from sparring.workflows import ROOT
from sparring.workflows.chaos import victims
from sparring.workflows.distributed.ray_map import MAX_DEATHS
from sparring.workflows.distributed.session import socket_folder
from sparring.workflows.store.progress import read_progress
from sparring.workflows.store.store import LOCK, RECORD

PATIENCE = 60.0
"""Seconds to wait for a process of a kind. After that, another kind is chosen."""
PER_RUN, WHILE = 6, 3
"""Minimum number of waits in which a run's artifacts finish, and maximum length of a further wait, in artifacts of mean
duration."""
LOOK_SECONDS, PAUSES = 0.02, 9
"""Minimum seconds between two looks for a process, and the pause as a multiple of the look. On a cluster that was
joined a look is a task on each node, and tasks without a pause would leave no processor to the run."""
HANGS = 300.0
"""Seconds after which a run may count as hanging, if it also takes ten times as long as the undisturbed run."""
FORK_SOCKET = "pymp-12345678/listener-12345678"
"""Path of the fork server's socket inside the folder for temporary files."""
PRELOADED = [
    "sparring.workflows.command_line",
    "sparring.components.training.loop",
    "sparring.components.models.pretrained",
    "tensorboardX",
]


class Broken(Exception):
    """A run failed, hung or gave another result."""


@dataclass(frozen=True)
class Run:
    """A folder with the store and the runs of an experiment, on a cluster profile."""

    folder: Path
    config: Path
    profile: Path

    @property
    def store(self) -> Path:
        """Place of its artifacts."""
        return self.folder / "store"

    @property
    def log(self) -> Path:
        """Output of all starts of its command."""
        return self.folder / "log"

    def finished(self) -> int:
        """Count the finished artifacts."""
        return len(list(self.store.glob(f"*/{RECORD}")))

    def start(self) -> BaseProcess:
        """Start the command `run` in a new process; it begins or resumes the run.

        The process is forked from a server that has imported what a run needs, so that a thousand starts take minutes.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        words = ["--store", str(self.store), "--runs", str(self.folder / "runs")]
        words += ["run", str(self.config), "--cluster", str(self.profile), "--no-estimate"]
        # Python frees what killed processes leave behind, and would warn of it.
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
        tempfile.tempdir = str(socket_folder(tempfile.gettempdir(), FORK_SOCKET))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        process = context.Process(target=_command, args=(words, self.log))
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server inherits this; it ends with this process
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, handler)
        return process


def _command(words: list[str], log: Path) -> None:
    """Run `python -m sparring ...`, as a user types it."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    sys.argv[1:] = words
    runpy.run_module("sparring", run_name="__main__", alter_sys=True)


class Kill(NamedTuple):
    """A killed process, and the moment."""

    kind: str
    step: str
    """Function of the running step; empty between steps."""
    seconds: float
    """Seconds since the start of the command."""
    updates: int
    """Updates that a training must repeat: those since its last checkpoint."""


class Killer:
    """Chooses what to kill next, and when. Choices are keyed by a seed and their number."""

    def __init__(
        self,
        kinds: list[str],
        count: int,
        seed: int,
        on_kill: Callable[[Kill], None],
        *,
        artifacts: int = 0,
        seconds: float = 0.0,
        retries: int = MAX_DEATHS,
        find: Callable[[int, str], list[Any]] = victims.find,
    ) -> None:
        """`count` is the number of kills; `artifacts` and `seconds` describe the undisturbed run. `find` returns the
        processes of a driver's run that are of a kind."""
        self.remaining, self._choices = count, 0
        self._kinds, self._seed, self._artifacts, self._seconds = kinds, seed, artifacts, seconds
        self._on_kill, self._survived, self._find = on_kill, min(retries, MAX_DEATHS), find

    def finish(self, run: Run, limit: float) -> int:
        """Start a run's command until it succeeds, and kill processes as long as kills remain; return the starts.

        Broken if the command fails although no kill explains it, or if it does not end within `limit` seconds.
        """
        starts = 0
        while True:
            process, starts = run.start(), starts + 1
            try:
                kills = self._fire_at(process, run, limit)
            finally:
                process.kill()
                process.join()
            if process.exitcode == 0:
                return starts
            hit = {kill.kind for kill in kills}
            explained = hit & victims.ENDING or len(kills) > self._survived
            if process.exitcode != (-signal.SIGKILL if victims.DRIVER in hit else 1) or not explained:
                targets = ", ".join(kill.kind for kill in kills) or "nothing"
                raise Broken(f"the command ended with status {process.exitcode} when {targets} was killed: {run.log}")

    def _fire_at(self, process: BaseProcess, run: Run, limit: float) -> list[Kill]:
        """Kill some of a driver's processes while it runs, and wait for its end."""
        began, kills = time.monotonic(), list[Kill]()
        while self.remaining and process.exitcode is None:
            self._choices += 1
            rng = keyed_rng("chaos", self._seed, self._choices)
            weights = [victims.VICTIMS[kind].weight for kind in self._kinds]
            kind = str(rng.choice(self._kinds, p=[weight / sum(weights) for weight in weights]))
            self._wait(process, run, rng)
            given_up = time.monotonic() + PATIENCE
            while process.exitcode is None and time.monotonic() < given_up:
                looked = time.monotonic()
                targets = self._find(process.pid or 0, kind)
                pause = max(LOOK_SECONDS, PAUSES * (time.monotonic() - looked))
                if targets:
                    process.join(rng.uniform(0, victims.VICTIMS[kind].within))
                    targets = self._find(process.pid or 0, kind)
                    if targets and _kill(targets[rng.integers(len(targets))]) and not _had_ended(kind, process):
                        kills.append(Kill(kind, *_progress(run.store, time.monotonic() - began)))
                        self.remaining -= 1
                        self._on_kill(kills[-1])
                        break
                process.join(min(pause, max(0.0, given_up - time.monotonic())))
        process.join(max(1.0, limit - (time.monotonic() - began)))
        if process.exitcode is None:
            raise Broken(f"the command has not ended after {limit:.0f} s: {run.log}")
        return kills

    def _wait(self, process: BaseProcess, run: Run, rng: np.random.Generator) -> None:
        """Wait for some artifacts to finish, and then for some time.

        Otherwise kills would always hit the longest steps, and never the short ones.
        """
        wanted = run.finished() + rng.integers(0, max(1, self._artifacts // PER_RUN) + 1)
        while process.exitcode is None and run.finished() < wanted:
            process.join(0.02)
        process.join(rng.uniform(0, WHILE * self._seconds / max(1, self._artifacts)))


def _kill(process: Any) -> bool:
    """Kill a process; return False if it had ended."""
    with suppress(psutil.NoSuchProcess):
        process.kill()
        return True
    return False


def _had_ended(kind: str, process: BaseProcess) -> bool:
    """Tell whether a driver had ended by itself just before it was killed."""
    if kind == victims.DRIVER:
        process.join()
        return process.exitcode != -signal.SIGKILL
    return False


def _progress(store: Path, seconds: float) -> tuple[str, float, int]:
    """Find the running step and the updates that are lost; return them around the seconds."""
    locks = [path for path in store.glob(f"*/{LOCK}") if not (path.parent / RECORD).exists()]
    if not locks:
        return "", seconds, 0
    artifact = max(locks, key=lambda path: path.stat().st_mtime).parent
    progress, updates = read_progress(artifact), 0
    if progress is not None and progress["unit"] == "updates":
        saved = [int(path.name.partition("-")[2]) for path in artifact.glob("checkpoints/update-*")]
        updates = max(0, progress["done"] - max(saved, default=0))
    return artifact.name.partition("-")[0], seconds, updates
