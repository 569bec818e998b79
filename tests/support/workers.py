"""Workers of the map over shards, importable by Ray's processes."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import sparring.workflows
from sparring.components import progress
from sparring.components.config import UserError
from sparring.components.scores import Scores
from sparring.workflows.distributed import ray_train, shard_worker
from sparring.workflows.steps.lucene import _Retrieval
from sparring.workflows.steps.search import _Searching


class Noter:
    """Writes what it was told, and a line for each shard it did; dies, fails or waits where it is told to."""

    def __init__(self, *, threads: int, log: str, words: str = "") -> None:
        self._log, self._threads, self._words = Path(log), threads, words
        self.closed = False

    def __call__(self, task: dict[str, Any], path: Path) -> None:

        if task.get("die") and not self._seen("died"):
            path.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        if task.get("fail") and not self._seen("failed"):
            path.write_text("half")
            if task["fail"] == "user":
                raise UserError("shard 2 is not as it should be")
            raise ValueError(f"shard {task['number']}:\nthe text cannot be read")
        path.write_text(json.dumps({**task, "threads": self._threads, "words": self._words}))
        while "until" in task and not Path(task["until"]).exists():
            time.sleep(0.01)
        time.sleep(task.get("seconds", 0))
        with self._log.open("a") as file:
            file.write(f"{task['number']} {os.getpid()} {Path(sparring.workflows.__file__).resolve().parent.parent}\n")

    def _seen(self, event: str) -> bool:
        """Whether this happened before; from now on it did."""
        marker = self._log.with_name(event)
        if marker.exists():
            return True
        marker.touch()
        return False

    def close(self) -> None:
        with self._log.open("a") as file:
            file.write("closed\n")


class Counting(Noter):
    """Says how much it did."""

    def __call__(self, task: dict[str, Any], path: Path) -> dict[str, float]:  # type: ignore[override]
        super().__call__(task, path)
        return {"texts": 10.0}


class Preparing(Noter):
    """Reads a text ahead, and says when it has read it and when it begins to compute."""

    def prepare(self, task: dict[str, Any]) -> dict[str, Any]:
        self._log.with_name(f"read-{task['number']}").touch()
        return {**task, "text": f"text {task['number']}"}

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        self._log.with_name(f"began-{task['number']}").touch()
        super().__call__(task, path)


class Advancing(Noter):
    """Reports the half of a shard before it does it."""

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        shard_worker.UNITS_SECONDS = -1.0
        progress.report(5)
        super().__call__(task, path)


class Awaiting(Noter):
    """Does its first shards, and the others when a process on the node has done one that the file `node` names."""

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        import ray

        node_id, worked = ray.get_runtime_context().get_node_id(), self._log.with_name("worked")
        node = self._log.with_name("node")
        while task["start"] >= 4 and not worked.exists():
            if node.exists() and node.read_text() == node_id:
                worked.touch()
            time.sleep(0.05)
        super().__call__(task, path)


class Folder(Noter):
    """Writes a directory for each shard."""

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        path.mkdir()
        super().__call__(task, path / "file")


class Refusing(Noter):
    """Cannot be made."""

    def __init__(self, *, threads: int, log: str) -> None:
        with Path(log).open("a") as file:
            file.write("began\n")
        raise FileNotFoundError("there is no such model")


class Hungry(Noter):
    """Asks for more memory than its process may have."""

    def __init__(self, *, threads: int, log: str, batch_tokens: int) -> None:
        super().__init__(threads=threads, log=log)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        with self._log.open("a") as file:
            file.write("began\n")
        with little_memory():
            np.ones(2**28)  # 2 GB


@contextmanager
def little_memory() -> Iterator[None]:
    """Let this process have 256 MB more than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**28, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def hungry(scores: Scores, *, log: str = "") -> Any:
    """A loss that asks for more memory than there is."""
    import torch

    with Path(log).open("a") as file:
        file.write("began\n")
    with little_memory():
        return torch.ones(2**28).sum() * scores.student.sum()


def failing(task: dict[str, Any]) -> None:
    """A training worker's task that fails every time, as it is told to."""
    with Path(task["log"]).open("a") as file:
        file.write("began\n")
    raise {
        "model": FileNotFoundError("there is no such model"),
        "gpu": torch_out_of_memory(),
        "mistake": UserError("k: 9; accepted: 8"),
        "neighbour": RuntimeError("Connection closed by peer"),
    }[task["kind"]]


def torch_out_of_memory() -> Exception:
    """What torch raises where a GPU has no more."""
    import torch

    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 1.00 GiB free.")


class Slow(Noter):
    """Takes long enough to be ended by others."""

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        with self._log.open("a") as file:
            file.write("began\n")
        time.sleep(20)
        super().__call__(task, path)


class UnhurriedSearch(_Searching):
    """So slow that one process does not find everything before others begin."""

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        time.sleep(0.5)
        super().__call__(task, path)


class UnhurriedRetrieval(_Retrieval):
    """The same by BM25."""

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        time.sleep(0.5)
        super().__call__(task, path)


class Stillborn:
    """Its process dies whenever one is made."""

    def __init__(self, *, threads: int, log: str) -> None:
        with Path(log).open("a") as file:
            file.write("began\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        raise AssertionError


def fit_without_gpus(*task: Any) -> Exception | None:
    """What holds Ray Train's workers, which talk as those without GPUs do: their own way is not to be had here."""
    from ray.train.torch import TorchConfig

    first, *rest = TorchConfig.__init__.__defaults__
    assert first is None
    TorchConfig.__init__.__defaults__ = ("gloo", *rest)
    return ray_train.fit(*task)


class WhereItRuns:
    """Writes which process did a shard, and the GPUs that Ray gave it."""

    def __init__(self, *, threads: int) -> None:
        time.sleep(0.5)  # so that all of them begin before one has done everything

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        path.write_text(json.dumps(_here()))
        time.sleep(0.2)


def where(task: dict[str, Any]) -> int:
    """The same of a training worker, and its rank; how many they are. It waits until so many trainings meet as the
    task says."""
    from sparring.components.compute.gather import rank, workers

    if "meet" in task:
        place = Path(task["meet"])
        place.mkdir(exist_ok=True)
        (place / str(os.getpid())).touch()
        while len(list(place.iterdir())) < task["of"]:
            time.sleep(0.1)
    (Path(task["out"]) / f"rank-{rank()}").write_text(json.dumps({"rank": rank(), **_here()}))
    return workers()


def _here() -> dict[str, Any]:
    import ray

    return {"process": os.getpid(), "gpus": ray.get_gpu_ids()}


def until_alone(task: dict[str, Any]) -> list[int]:
    """How many workers each start of a training had, as they noted it. It ends when there is one worker."""
    from sparring.components.compute.gather import rank, workers

    log = Path(task["log"])
    if rank() == 0:
        with log.open("a") as file:
            file.write(f"{workers()}\n")
    while workers() > task.get("enough", 1):
        time.sleep(0.1)
    return [int(line) for line in log.read_text().splitlines()]
