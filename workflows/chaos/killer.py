"""A run in a folder of its own, whose command is started again and again, and killed at random moments meanwhile."""

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
from typing import NamedTuple

import numpy as np
import psutil

from sparring.components.rng import keyed_rng
from sparring.workflows import ROOT
from sparring.workflows.chaos import victims
from sparring.workflows.distributed.session import socket_folder
from sparring.workflows.distributed.shards import MAX_DEATHS
from sparring.workflows.store.progress import read_progress
from sparring.workflows.store.store import LOCK, RECORD

PATIENCE = 60.0
"""Seconds to wait for a process of a kind, before another kind has its turn."""
PER_RUN, WHILE = 6, 3
"""The artifacts of a run are finished in so many waits, or more; and a wait is as long again as so many artifacts take
in the mean, at most."""
HANGS = 300.0
"""Seconds after which a run that takes ten times as long as the undisturbed one is said to hang."""
FORK_SOCKET = "pymp-12345678/listener-12345678"
"""The path of the fork server's socket inside the folder for temporary files."""
PRELOADED = [
    "sparring.workflows.command_line",
    "sparring.components.training.loop",
    "sparring.components.models.pretrained",
    "tensorboardX",
]


class Broken(Exception):
    """A run did what it must not do, in words."""


@dataclass(frozen=True)
class Run:
    """A folder with the store and the runs of one experiment, on a cluster profile."""

    folder: Path
    config: Path
    profile: Path

    @property
    def store(self) -> Path:
        """Where its artifacts lie."""
        return self.folder / "store"

    @property
    def log(self) -> Path:
        """What its command printed, at every start."""
        return self.folder / "log"

    def finished(self) -> int:
        """How many artifacts are finished."""
        return len(list(self.store.glob(f"*/{RECORD}")))

    def start(self) -> BaseProcess:
        """Start the command `run`, which begins or resumes it, in a process of its own.

        The process is forked from one that has imported what a run needs: so a thousand starts take minutes.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        words = ["--store", str(self.store), "--runs", str(self.folder / "runs")]
        words += ["run", str(self.config), "--cluster", str(self.profile), "--no-estimate"]
        # Of what killed processes leave: it is freed, and there is nothing to say about it.
        os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
        tempfile.tempdir = str(socket_folder(tempfile.gettempdir(), FORK_SOCKET))
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        process = context.Process(target=_command, args=(words, self.log))
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the server inherits: it ends with this process
        try:
            process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        return process


def _command(words: list[str], log: Path) -> None:
    """`python -m sparring ...`, as a user types it."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    sys.argv[1:] = words
    runpy.run_module("sparring", run_name="__main__", alter_sys=True)


class Kill(NamedTuple):
    """What was killed, and when."""

    kind: str
    step: str
    """The function of the step that was under way; empty between steps."""
    seconds: float
    """Since the command was started."""
    updates: int
    """Of a training that must be done again: those since its last checkpoint."""


class Killer:
    """Chooses what is killed next, and when: keyed by a seed and the number of the choice."""

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
    ) -> None:
        """`artifacts` and `seconds` are those of the undisturbed run."""
        self.left, self._choices = count, 0
        self._kinds, self._seed, self._artifacts, self._seconds = kinds, seed, artifacts, seconds
        self._on_kill, self._survived = on_kill, min(retries, MAX_DEATHS)

    def finish(self, run: Run, limit: float) -> int:
        """Start a run's command until it ends well, while there are kills left under fire; how often it was started.

        Broken where it fails and nothing that was killed explains it, or where it does not end within `limit` seconds.
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
                what = ", ".join(kill.kind for kill in kills) or "nothing"
                raise Broken(f"the command ended with status {process.exitcode} when {what} was killed: {run.log}")

    def _fire_at(self, process: BaseProcess, run: Run, limit: float) -> list[Kill]:
        """Kill some of a driver's processes while it runs, and wait for its end."""
        began, kills = time.monotonic(), list[Kill]()
        while self.left and process.exitcode is None:
            self._choices += 1
            rng = keyed_rng("chaos", self._seed, self._choices)
            weights = [victims.VICTIMS[kind].weight for kind in self._kinds]
            kind = str(rng.choice(self._kinds, p=[weight / sum(weights) for weight in weights]))
            self._wait(process, run, rng)
            given_up = time.monotonic() + PATIENCE
            while process.exitcode is None and time.monotonic() < given_up:
                if victims.find(process.pid or 0, kind):
                    process.join(rng.uniform(0, victims.VICTIMS[kind].within))
                    there = victims.find(process.pid or 0, kind)
                    if there and _kill(there[rng.integers(len(there))]) and not _was_over(kind, process):
                        kills.append(Kill(kind, *_under_way(run.store, time.monotonic() - began)))
                        self.left -= 1
                        self._on_kill(kills[-1])
                        break
                process.join(0.02)
        process.join(max(1.0, limit - (time.monotonic() - began)))
        if process.exitcode is None:
            raise Broken(f"the command has not ended after {limit:.0f} s: {run.log}")
        return kills

    def _wait(self, process: BaseProcess, run: Run, rng: np.random.Generator) -> None:
        """Wait for some more artifacts to be finished, and then for a while: a step of hours would otherwise be hit
        always, and one of moments never."""
        wanted = run.finished() + rng.integers(0, max(1, self._artifacts // PER_RUN) + 1)
        while process.exitcode is None and run.finished() < wanted:
            process.join(0.02)
        process.join(rng.uniform(0, WHILE * self._seconds / max(1, self._artifacts)))


def _kill(process: psutil.Process) -> bool:
    """Kill a process; whether it was there."""
    with suppress(psutil.NoSuchProcess):
        process.kill()
        return True
    return False


def _was_over(kind: str, process: BaseProcess) -> bool:
    """Whether a driver that was killed had ended by itself just before."""
    if kind == victims.DRIVER:
        process.join()
        return process.exitcode != -signal.SIGKILL
    return False


def _under_way(store: Path, seconds: float) -> tuple[str, float, int]:
    """The step that was under way, the seconds as they are, and the updates that are lost."""
    locks = [path for path in store.glob(f"*/{LOCK}") if not (path.parent / RECORD).exists()]
    if not locks:
        return "", seconds, 0
    artifact = max(locks, key=lambda path: path.stat().st_mtime).parent
    progress, updates = read_progress(artifact), 0
    if progress is not None and progress["unit"] == "updates":
        saved = [int(path.name.partition("-")[2]) for path in artifact.glob("checkpoints/update-*")]
        updates = max(0, progress["done"] - max(saved, default=0))
    return artifact.name.partition("-")[0], seconds, updates
