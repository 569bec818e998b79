"""What steps that run at once share: one runs in the driver at a time, and each reserves all it needs or waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from sparring.components import timing
from sparring.workflows.distributed import resources
from sparring.workflows.distributed.resources import Resources, driver_lock, keep_warm, reserve

TOTAL = Resources(cpus=4, gpus=1)


@pytest.fixture(autouse=True)
def nothing_stays_reserved() -> Iterator[None]:
    yield
    assert resources._reserved == []
    assert resources._waiting == []
    assert not resources._driver.locked()
    resources.forget_warm()


class Request(threading.Thread):
    """A thread that reserves processors, and holds them until `finish`."""

    def __init__(self, needs: Resources) -> None:
        super().__init__(daemon=True)
        self._needs, self._end = needs, threading.Event()
        self.granted = threading.Event()
        self.noted: list[timing.Interval] = []
        before = sum(state())
        self.start()
        while sum(state()) == before:  # until the request is granted or waits
            time.sleep(0.01)

    def run(self) -> None:
        with reserve(self._needs, TOTAL):
            self.granted.set()
            self._end.wait()
        self.noted = timing.drain()

    def finish(self) -> None:
        self.granted.wait()
        self._end.set()
        self.join()


def state() -> tuple[int, int]:
    """How many requests are granted, and how many wait."""
    with resources._changed:
        return len(resources._reserved), len(resources._waiting)


def test_requests_that_fit_together_are_granted_at_once() -> None:
    requests = [Request(Resources(cpus=2)), Request(Resources(cpus=2)), Request(Resources(gpus=1))]
    assert state() == (3, 0)
    for request in requests:
        request.finish()


def test_twenty_parts_of_a_gpu_fit_in_it() -> None:
    parts = Resources()
    for _ in range(20):
        parts = parts.plus(Resources(gpus=0.05))
    assert parts.gpus > 1.0
    assert parts.fits_in(TOTAL)
    assert not parts.plus(Resources(gpus=0.05)).fits_in(TOTAL)


@pytest.mark.parametrize("needs", [Resources(cpus=3), Resources(gpus=1), Resources(cpus=9)])
def test_a_request_that_does_not_fit_waits(needs: Resources) -> None:
    """One for more than the total waits until everything is free, not for ever."""
    first, second = Request(Resources(cpus=2, gpus=1)), Request(needs)
    assert state() == (1, 1)
    assert not second.granted.is_set()
    first.finish()
    second.finish()


def test_requests_are_granted_in_order() -> None:
    """A small request does not overtake a large one, which could otherwise wait for ever."""
    first, large, small = Request(Resources(cpus=3)), Request(Resources(cpus=4)), Request(Resources(cpus=1))
    assert state() == (1, 2)
    first.finish()
    large.granted.wait()
    assert state() == (1, 1)
    assert not small.granted.is_set()
    large.finish()
    small.finish()


def test_an_error_releases_the_lock_and_the_processors() -> None:
    with pytest.raises(ValueError, match="no"), driver_lock(), reserve(TOTAL, TOTAL):
        raise ValueError("no")


def test_one_step_runs_in_the_driver_while_others_hold_processors() -> None:
    """No two steps have the driver's lock at once, and a step that holds processors has released it."""
    inside, most, meeting = 0, 0, threading.Barrier(2)

    def step() -> None:
        nonlocal inside, most
        with driver_lock():
            for _ in range(2):
                inside, most = inside + 1, max(most, inside + 1)
                time.sleep(0.02)
                inside -= 1
                with reserve(Resources(cpus=1), TOTAL):
                    meeting.wait()  # passes only when both hold processors at once

    steps = [threading.Thread(target=step, daemon=True) for _ in range(2)]
    for thread in steps:
        thread.start()
    for thread in steps:
        thread.join()
    assert most == 1


def test_waiting_for_processors_counts_as_waiting() -> None:
    first, second = Request(TOTAL), Request(TOTAL)
    time.sleep(0.1)
    first.finish()
    second.finish()
    assert timing.seconds_by_kind(second.noted)["waiting"] > 0.05


# What is kept warm


def warm(name: str, holds: Resources, ended: list[str], kind: str = "gpu") -> None:
    keep_warm(kind, name, holds, lambda: ended.append(name))


def test_the_next_request_of_a_kind_gets_what_is_warm() -> None:
    ended: list[str] = []
    for name in ("first", "second", "third"):
        warm(name, Resources(gpus=0.25), ended)
    with reserve(Resources(gpus=0.5), TOTAL, kind="gpu", most=2) as things:
        assert things == ["first", "second"]
    with reserve(Resources(gpus=0.5), TOTAL, kind="gpu", most=2) as things:
        assert things == ["third"]
    with reserve(Resources(gpus=0.5), TOTAL, kind="gpu", most=2) as things:
        assert things == []
    assert ended == []


def test_what_is_warm_ends_when_another_kind_needs_its_processors() -> None:
    """The oldest first, and no more than is needed."""
    ended: list[str] = []
    for name in ("first", "second", "third", "fourth"):
        warm(name, Resources(gpus=0.25), ended)
    warm("holds nothing", Resources(), ended)
    with reserve(Resources(cpus=4), TOTAL, kind="training") as things:
        assert (things, ended) == ([], [])
    with reserve(Resources(gpus=0.5), TOTAL, kind="training") as things:
        assert (things, ended) == ([], ["first", "second"])
    with reserve(TOTAL, TOTAL) as things:
        assert (things, ended) == ([], ["first", "second", "third", "fourth"])
    with reserve(Resources(), TOTAL, kind="gpu", most=9) as things:
        assert things == ["holds nothing"]
