"""What steps under way at once share: one at a time in the driver, and processors as a whole or not yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from components import clock
from workflows import room
from workflows.room import Room, held, turn

THERE = Room(cpus=4, gpus=1)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert room._held == []
    assert room._waiting == []
    assert not room._turn.locked()


def at_once(*works: Callable[[], None]) -> None:
    """All in threads, each begun when the one before has had its first say."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def holder(said: list[str], name: str, needs: Room) -> Callable[[], None]:
    def work() -> None:
        with held(needs, THERE):
            said.append(f"{name} begins")
            time.sleep(0.15)
            said.append(f"{name} ends")

    return work


def test_what_fits_beside_each_other_is_held_at_once() -> None:
    said: list[str] = []
    at_once(holder(said, "a", Room(cpus=2)), holder(said, "b", Room(cpus=2)), holder(said, "c", Room(gpus=1)))
    assert said[:3] == ["a begins", "b begins", "c begins"]


@pytest.mark.parametrize("needs", [Room(cpus=3), Room(gpus=1), Room(cpus=9)])
def test_what_does_not_fit_waits(needs: Room) -> None:
    """And what is more than all there is waits for all to be free, not for ever."""
    said: list[str] = []
    at_once(holder(said, "a", Room(cpus=2, gpus=1)), holder(said, "b", needs))
    assert said == ["a begins", "a ends", "b begins", "b ends"]


def test_who_came_first_is_served_first() -> None:
    """A small need does not pass by a large one, which would else wait for ever."""
    said: list[str] = []
    at_once(holder(said, "a", Room(cpus=3)), holder(said, "b", Room(cpus=4)), holder(said, "c", Room(cpus=1)))
    assert [word for word in said if "begins" in word] == ["a begins", "b begins", "c begins"]
    assert said.index("b begins") > said.index("a ends")


def test_an_error_gives_back_what_was_held() -> None:
    with pytest.raises(ValueError, match="no"), turn(), held(THERE, THERE):
        raise ValueError("no")


def test_in_the_driver_one_step_works_while_others_hold_processors() -> None:
    """Nobody is in the driver's part beside another, and whoever holds processors lets others in."""
    inside, most, met = 0, 0, threading.Barrier(2)

    def step() -> None:
        nonlocal inside, most
        with turn():
            for _ in range(2):
                inside, most = inside + 1, max(most, inside + 1)
                time.sleep(0.02)
                inside -= 1
                with held(Room(cpus=1), THERE):
                    met.wait(10)  # both are here at once

    at_once(step, step)
    assert most == 1


def test_waiting_is_noted_as_such() -> None:
    told: list[clock.Interval] = []

    def waits() -> None:
        with clock.at("compute"), held(THERE, THERE):
            pass
        told.extend(clock.drain())

    at_once(holder([], "a", THERE), waits)
    assert clock.spent(told)["waiting"] > 0.05
