"""The queue between the driver and its training workers: one task at a time, which every worker takes."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from sparring.components import timing


class Failure(NamedTuple):
    """Reason why a worker abandoned a task."""

    message: str
    user_error: bool
    """The reason is a mistake of the user's."""
    traceback: str


class TaskQueue:
    """Ray actor through which the driver gives tasks and gets results.

    The driver gives a task. Each worker takes it, works on it together with the other workers, and reports that it is
    done. The result is that of the first worker (rank 0).
    """

    def __init__(self, idle_seconds: float | None = None) -> None:
        """Start without a task. If `idle_seconds` pass without one, the workers end. If None, they stay."""
        self._workers, self._idle_seconds = 1, idle_seconds
        self._claimed = True
        self._changed = asyncio.Condition()
        self._number, self._open, self._closed = 0, False, False
        self._task: dict[str, Any] = {}
        self._result: Any = None
        self._time: list[timing.Interval] = []
        self._starts = 0
        self._failure: Failure | None = None
        self._done: set[int] = set()

    async def give(self, task: dict[str, Any]) -> tuple[Any, list[timing.Interval], int, Failure | None]:
        """Give the workers a task, and wait until all have done it or one has abandoned it.

        Return the result, how the workers spent their time, how often the task was started, and why it was abandoned.
        """
        async with self._changed:
            self._number, self._task, self._open, self._starts = self._number + 1, task, True, 0
            self._done.clear()
            self._time, self._failure = [], None
            self._changed.notify_all()
            await self._changed.wait_for(lambda: not self._open)
            return self._result, self._time, self._starts, self._failure

    async def take(self, last: int, *, rank: int, workers: int) -> tuple[int, dict[str, Any]] | None:
        """Wait for a task with a number above `last`. Return its number and the task, or None after `close`. If it was
        started before, the task also has its number of `restarts`.

        `workers` is the number of workers of the group. It may differ after each start.
        """
        async with self._changed:
            while not self._closed and not (self._open and self._number > last):
                try:
                    await asyncio.wait_for(self._changed.wait(), self._idle_seconds)
                except TimeoutError:
                    self._closed = not self._claimed and not self._open
            if self._closed:
                self._changed.notify_all()
                return None
            self._starts += rank == 0
            self._workers = workers
            again = {"restarts": self._starts - 1} if self._starts > 1 else {}
            return self._number, {**self._task, **again}

    async def done(self, number: int, result: Any, time: list[timing.Interval], *, rank: int) -> None:
        """Report that the worker with this rank has done the task with this number."""
        async with self._changed:
            if number != self._number:
                return  # the driver no longer waits for that task
            self._done.add(rank)
            self._time += time
            if rank == 0:
                self._result = result
            self._open = len(self._done) < self._workers
            self._changed.notify_all()

    async def give_up(self, number: int, failure: Failure) -> None:
        """Report that a worker met an error in the task with this number that it would meet every time."""
        async with self._changed:
            if number == self._number and self._open:
                self._failure, self._open = failure, False
                self._changed.notify_all()

    async def claim(self) -> bool:
        """Promise a task, for which the workers stay however long it takes to come. Return False if they have ended."""
        self._claimed = not self._closed
        return self._claimed

    async def release(self) -> None:
        """Take back the promise of a task."""
        self._claimed = False

    async def close(self) -> None:
        """Tell the workers that there will be no more tasks."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()
