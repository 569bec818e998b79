"""Where time goes: one kind of work at a time in a thread, the most useful kind over all processes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.components import timing
from sparring.components.timing import KINDS, Interval, condensed, covered, seconds_by_kind, timed


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    timing.drain()
    yield
    timing.drain()


def test_an_inner_block_interrupts_the_outer_one() -> None:
    with timed("waiting"):
        time.sleep(0.01)
        with timed("compute"):
            time.sleep(0.02)
        time.sleep(0.01)
    recorded = timing.drain()
    assert [interval.kind for interval in recorded] == ["waiting", "compute", "waiting"]
    assert [a.ended <= b.began for a, b in itertools.pairwise(recorded)] == [True, True]
    assert recorded[1].ended - recorded[1].began >= 0.02
    assert timing.drain() == []


def test_an_error_ends_the_blocks_it_leaves() -> None:
    def fails() -> None:
        with timed("compute"), timed("files"):
            time.sleep(0.001)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    with timed("start"):
        time.sleep(0.001)
    assert [item.kind for item in timing.drain() if item.ended - item.began >= 0.001] == ["files", "start"]
    assert not timing._thread.stack


def test_each_thread_has_its_own_time() -> None:
    intervals: list[Interval] = []

    def works() -> None:
        with timed("compute"):
            time.sleep(0.01)
        intervals.extend(timing.drain())

    with timed("waiting"):
        thread = threading.Thread(target=works)
        thread.start()
        thread.join()
    assert [interval.kind for interval in intervals] == ["compute"]
    assert [interval.kind for interval in timing.drain()] == ["waiting"]


def test_a_moment_counts_once_for_the_most_useful_kind() -> None:
    seconds = seconds_by_kind(
        [
            Interval("waiting", 0, 10),
            Interval("start", 0, 3),
            Interval("compute", 2, 5),
            Interval("compute", 4, 6),
            Interval("files", 5, 7),
        ]
    )
    assert seconds == {"compute": 4, "files": 1, "start": 2, "waiting": 3}
    assert seconds_by_kind([]) == dict.fromkeys(KINDS, 0)


INTERVALS = st.lists(
    st.builds(
        lambda kind, began, length: Interval(kind, began, began + length),
        st.sampled_from(KINDS),
        st.integers(0, 50),
        st.integers(0, 20),
    ),
    max_size=12,
)


@given(INTERVALS)
def test_the_kinds_add_up_to_what_is_covered(intervals: list[Interval]) -> None:
    covered = {moment for _, began, ended, _ in intervals for moment in range(int(began), int(ended))}
    assert sum(seconds_by_kind(intervals).values()) == len(covered)


@given(INTERVALS)
def test_condensed_intervals_lose_no_time(intervals: list[Interval]) -> None:
    """Nor gain any where processes of a node compute at once. None ends after the last one did."""
    merged = condensed(intervals)
    assert seconds_by_kind(merged) == seconds_by_kind(intervals)
    assert all(a.ended <= b.began for a, b in itertools.pairwise(merged))
    assert max((item.ended for item in merged), default=0) <= max((interval.ended for interval in intervals), default=0)


def test_a_pause_between_attempts_stays() -> None:
    """Else the time of the first attempt would be laid over that of the second."""
    attempts = [
        Interval("files", 0, 2),
        Interval("compute", 2, 4),
        Interval("files", 4, 5),
        Interval("compute", 100, 103),
    ]
    merged = condensed(attempts)
    assert merged == [Interval("compute", 0, 2), Interval("files", 2, 5), Interval("compute", 100, 103)]
    assert condensed(merged) == merged
    assert covered(merged) == covered(attempts) == 8


def test_the_time_so_far_counts_the_block_that_is_open() -> None:
    timing.record([Interval("files", 0, 2)])
    with timed("compute"):
        time.sleep(0.01)
        first = seconds_by_kind(timing.so_far())
        time.sleep(0.01)
        assert seconds_by_kind(timing.so_far())["compute"] > first["compute"] >= 0.01
    assert first["files"] == 2
    assert [interval.kind for interval in timing.drain()] == ["files", "compute"]


def test_the_times_of_many_workers_are_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four compute at once on a node for 25 seconds."""
    monkeypatch.setattr(timing, "MAX_INTERVALS", 10)
    for moment in range(100):
        timing.record([Interval("compute", moment // 4, moment // 4 + 1)])
    assert seconds_by_kind(timing.drain())["compute"] == 25


def test_a_long_training_keeps_few_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "MAX_INTERVALS", 10)
    for moment in range(100):
        timing.record([Interval("compute", moment, moment + 0.5), Interval("files", moment + 0.5, moment + 1)])
    recorded = timing.drain()
    assert len(recorded) <= 12
    assert seconds_by_kind(recorded)["compute"] == seconds_by_kind(recorded)["files"] == 50
