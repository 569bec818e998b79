"""Training ahead of its device or seldom: batches, reads of losses, checkpoints, and the number of workers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from sparring.components.objectives.retriever import Retriever
from sparring.components.training import efficiency, loop
from tests.support import toy
from tests.support.trainings import lines

READS = {"item", "tolist", "__float__", "__int__", "__bool__", "__index__", "cpu", "numpy", "nonzero"}
"""Methods of a tensor that wait for its device."""


class Reads(TorchFunctionMode):
    """Notes the reads of floating-point tensors: losses, scores, gradients. Sizes and keys are read on the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name in READS and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
            self.names.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["retriever", "ranker"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_an_update_reads_nothing_from_the_device(
    run: Any, monkeypatch: pytest.MonkeyPatch, kind: str, accumulate: int
) -> None:
    """A read would wait for all work of the device, which then waits for its next work."""
    real, reads = loop._update, Reads()

    def watched(*arguments: Any, **named: Any) -> Any:
        with reads:
            return real(*arguments, **named)

    monkeypatch.setattr(loop, "_update", watched)
    run("a", kind=kind, updates=3, batch=8, accumulate=accumulate)
    assert reads.names == []
    with reads:
        torch.ones(1).item()
    assert reads.names == ["item"]  # so that the test would see one


def test_batches_are_prepared_ahead_by_a_thread(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but those of the check and the first, in order; the training is the same without the thread."""
    real, threads = Retriever.collate, list[str]()

    def noted(self: Retriever, visits: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(self, visits)

    monkeypatch.setattr(Retriever, "collate", noted)
    run("a", updates=4, batch=8, accumulate=2, log_every=1)
    assert [name.startswith("batches") for name in threads[-8:]] == [False] + 7 * [True]
    monkeypatch.setattr(
        "sparring.components.training.prepared.Batches._prepared", lambda b, *arguments: b._prepare(*arguments)
    )
    run("b", updates=4, batch=8, accumulate=2, log_every=1)
    assert lines(tmp_path / "a") == lines(tmp_path / "b")


def test_an_error_in_the_thread_ends_the_training(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Retriever.collate

    def broken(self: Retriever, visits: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("the text cannot be read")
        return real(self, visits)

    monkeypatch.setattr(Retriever, "collate", broken)
    with pytest.raises(ValueError, match="the text cannot be read"):
        run("a", updates=4)


class Clock:
    """A clock that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(loop.time, "monotonic", lambda: self.now)


def saved(clock: Clock, seconds: float, updates: int, length: Callable[[int], float]) -> list[int]:
    """The updates after which a checkpoint is written, if an update takes `length` of its number."""
    saving = loop._Saving(seconds)
    order = []
    for update in range(1, updates + 1):
        clock.now += length(update)
        if saving.is_due(update):
            order.append(update)
            saving.done()
    return order


def test_checkpoints_come_when_their_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert saved(clock, 10.0, 35, lambda update: 1.0) == [11, 22, 33]
    assert saved(clock, -1.0, 3, lambda update: 1.0) == [1, 2, 3]
    assert saved(clock, 0.0, 3, lambda update: 1.0) == [1, 2, 3]


def test_the_first_worker_is_asked_seldom_while_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is an exchange among all workers."""
    numbers = []
    monkeypatch.setattr(loop, "of_first", lambda number: numbers.append(number) or number)
    clock = Clock(monkeypatch)
    assert saved(clock, 60.0, 900, lambda update: 0.125) == [481]
    assert len(numbers) < 40


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({8: 1.0, 4: 1.2, 2: 2.0, 1: 4.0}, 8),
        ({8: 1.0, 4: 1.05, 2: 2.0, 1: 4.0}, 4),
        ({8: 3.0, 4: 2.0, 2: 1.5, 1: 1.0}, 1),
        ({8: 1.0, 4: 3.0, 2: 4.0, 1: 4.0}, 8),
    ],
)
def test_more_workers_are_used_if_they_are_faster(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float], expected: int
) -> None:
    monkeypatch.setattr(efficiency, "workers", lambda: 8)
    monkeypatch.setattr(efficiency, "_seconds", lambda objective, config, count, **_: seconds[count])
    objective: Any = None
    config = toy.train_config(batch=16)
    assert efficiency.efficient_workers(objective, config, seed=1, device=torch.device("cpu")) == expected


def test_there_are_no_more_workers_than_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    monkeypatch.setattr(efficiency, "workers", lambda: 8)
    monkeypatch.setattr(efficiency, "_seconds", lambda _, __, count, **___: counts.append(count) or 1 / count)
    objective: Any = None
    config = toy.train_config(batch=6, accumulate=2)
    assert efficiency.efficient_workers(objective, config, seed=1, device=torch.device("cpu")) == 3
    assert counts == [3, 1]
