"""Ways to die: what processes of a run do to themselves, at a chosen moment and without a word."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from sparring.components.scores import Scores
from sparring.workflows.steps.encode import Encoder
from tests.support.tiny import ROOT, Place

LOG = "SPARRING_KILLING_LOG"
ARMED = """
import sys
from tests.support import killing
killing.arm(sys.argv[1], int(sys.argv[2]))
from sparring.workflows.command_line import main
sys.exit(main(sys.argv[3:]))
"""


def die() -> NoReturn:
    """End this process as a machine that fails would: nothing is closed, nothing is said."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def arm(kind: str, number: int) -> None:
    """Make this process die at the numbered moment of a kind, or live where the kind is `never`."""
    from sparring.components import files
    from sparring.components.training import checkpoints
    from sparring.workflows.distributed import cluster, shard_worker
    from sparring.workflows.running import executor
    from sparring.workflows.steps import encode
    from sparring.workflows.store import leases

    read = cluster.read_cluster
    cluster.read_cluster = lambda path: read(path).model_copy(update={"save_seconds": 0.0})
    leases.EXPIRE_SECONDS = float(os.environ.get("SPARRING_TEST_STALE", leases.EXPIRE_SECONDS))
    countdown = number

    def counted(function: Any, *, after: bool) -> Any:
        def counting(*arguments: Any, **named: Any) -> Any:
            nonlocal countdown
            countdown -= 1
            if countdown == 0 and not after:
                die()
            result = function(*arguments, **named)
            if countdown == 0:
                die()
            return result

        return counting

    if kind == "write":  # a file is whole under another name, or has just taken its own
        files._sync = counted(files._sync, after=False)
    elif kind == "shard":
        shard_worker.Filler.fill = counted(shard_worker.Filler.fill, after=True)  # type: ignore[method-assign]
    elif kind == "checkpoint":
        checkpoints.save = counted(checkpoints.save, after=True)
    elif kind == "record":
        executor._record = counted(executor._record, after=False)
    elif kind == "encoder":
        encode.Encoder = DyingEncoder  # type: ignore[misc]
    elif kind == "slowly":
        encode.Encoder = LoggingEncoder  # type: ignore[misc]
    else:
        assert kind == "never"


def command(place: Place, kind: str, number: int = 0, *words: str) -> list[str]:
    """`run` as a process of its own that dies at a moment."""
    return [sys.executable, "-c", ARMED, kind, str(number), *place.words("run", *words)]


def run(place: Place, kind: str, number: int = 0, *words: str) -> int:
    """Run and die; the exit status."""
    done = subprocess.run(command(place, kind, number, *words), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def loss(scores: Scores, *, marker: str = "", stall: bool = False) -> Any:
    """Cross entropy, in whose third update the process dies, or waits to be killed; unless the marker is there."""
    from sparring.components.losses.listwise import cross_entropy

    global updates
    updates += 1
    if updates == 3 + SELF_CHECK and not Path(marker).exists():
        Path(marker).touch()
        while stall:
            time.sleep(0.05)
        die()
    return cross_entropy(scores)


updates = 0
SELF_CHECK = 2
"""How often the losses are computed before the first update: as it will be done, and plainly."""


class DyingEncoder(Encoder):
    """An encoder that dies at its second shard, in the first process that comes so far."""

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        store = path.parent.parent
        if (store / "first").exists() and not (store / "died").exists():
            (store / "died").touch()
            path.write_text("half")
            die()
        (store / "first").touch()
        return super().__call__(task, path)


SECONDS = 0.4
"""What an update or a shard takes at least, where it is `slowly` that a run goes."""


def slow(scores: Scores) -> Any:
    """Cross entropy that takes its time, and notes which update it is for: no two have the same scores."""
    from sparring.components.losses.listwise import cross_entropy

    # What a training checks before its first update asks for the loss too, and is no update.
    if not any(Path(frame.filename).name == "self_check.py" for frame in traceback.extract_stack()):
        time.sleep(SECONDS)
        note(f"update {hashlib.sha256(scores.student.detach().numpy().tobytes()).hexdigest()}")
    return cross_entropy(scores)


class LoggingEncoder(Encoder):
    """An encoder that takes its time, and notes its shards."""

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:
        time.sleep(SECONDS)
        note(f"shard {path.parent.name} {task['side']} {task['start']}")
        return super().__call__(task, path)


def note(line: str) -> None:
    """Add a line to the log that the driver's environment names."""
    with Path(os.environ[LOG]).open("a") as file:
        file.write(f"{line}\n")
