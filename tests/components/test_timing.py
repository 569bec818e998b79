"""Where time goes: one thing at a time in a process, the most useful over all of them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components import clock
from components.clock import KINDS, Interval, at, end_to_end, spent


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    clock.drain()
    yield
    clock.drain()


def test_what_is_inside_interrupts_what_is_around_it() -> None:
    with at("waiting"):
        time.sleep(0.01)
        with at("compute"):
            time.sleep(0.02)
        time.sleep(0.01)
    noted = clock.drain()
    assert [interval.kind for interval in noted] == ["waiting", "compute", "waiting"]
    assert [a.ended <= b.began for a, b in itertools.pairwise(noted)] == [True, True]
    assert noted[1].ended - noted[1].began >= 0.02
    assert clock.drain() == []


def test_an_error_ends_what_it_passes_through() -> None:
    def fails() -> None:
        with at("compute"), at("files"):
            time.sleep(0.001)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    with at("start"):
        time.sleep(0.001)
    assert [one.kind for one in clock.drain() if one.ended - one.began >= 0.001] == ["files", "start"]
    assert not clock._here.stack


def test_threads_are_at_things_of_their_own() -> None:
    told: list[Interval] = []

    def works() -> None:
        with at("compute"):
            time.sleep(0.01)
        told.extend(clock.drain())

    with at("waiting"):
        thread = threading.Thread(target=works)
        thread.start()
        thread.join()
    assert [interval.kind for interval in told] == ["compute"]
    assert [interval.kind for interval in clock.drain()] == ["waiting"]


def test_a_moment_counts_once_for_the_most_useful() -> None:
    found = spent([
        Interval("waiting", 0, 10), Interval("start", 0, 3), Interval("compute", 2, 5), Interval("compute", 4, 6),
        Interval("files", 5, 7),
    ])  # fmt: skip
    assert found == {"compute": 4, "files": 1, "start": 2, "waiting": 3}
    assert spent([]) == dict.fromkeys(KINDS, 0)


INTERVALS = st.lists(
    st.builds(lambda kind, began, length: Interval(kind, began, began + length),
              st.sampled_from(KINDS), st.integers(0, 50), st.integers(0, 20)), max_size=12)  # fmt: skip


@given(INTERVALS)
def test_the_kinds_add_up_to_what_is_covered(intervals: list[Interval]) -> None:
    covered = {moment for _, began, ended, _ in intervals for moment in range(int(began), int(ended))}
    assert sum(spent(intervals).values()) == len(covered)


@given(INTERVALS)
def test_laid_end_to_end_nothing_is_lost(intervals: list[Interval]) -> None:
    laid = end_to_end(intervals)
    for kind in KINDS:
        wanted = sum(ended - began for other, began, ended, _ in intervals if other == kind)
        assert sum(ended - began for other, began, ended, _ in laid if other == kind) == wanted
    assert all(a.ended == b.began for a, b in itertools.pairwise(laid))


def test_a_long_training_notes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "MOST", 10)
    for moment in range(100):
        clock.add([Interval("compute", moment, moment + 0.5), Interval("files", moment + 0.5, moment + 1)])
    noted = clock.drain()
    assert len(noted) <= 12
    assert spent(noted)["compute"] == spent(noted)["files"] == 50
