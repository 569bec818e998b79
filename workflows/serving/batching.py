"""The queue of a service's models. Requests that arrive while a batch is computed form the next batch."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from sparring.components.config import UserError

TOGETHER = 32
"""Maximum number of requests in a batch."""
TEXTS = 64
"""Number of texts after which a batch takes no further request."""
WAITING = 1_024
"""Maximum number of requests that wait for a batch."""


class Busy(UserError):
    """Too many requests wait already."""


class Arrival(NamedTuple):
    """A request and its time of arrival."""

    question: Any
    time: float


Compute = Callable[[Sequence[Arrival]], Sequence[Any]]
"""Function that computes the answers to requests of one type, in order."""


class Waiting(NamedTuple):
    """A request whose answer somebody waits for."""

    arrival: Arrival
    compute: Compute
    texts: int
    """Number of texts that a model reads, 0 if there are few."""
    answer: asyncio.Future[Any]


class Batches:
    """Computes the answers to requests, a batch at a time. No request waits for more to arrive. (Ray Serve's own
    batches wait for a time that must be chosen, and exist in its deployments alone.)"""

    def __init__(self) -> None:
        # Models take all threads that they were given: one batch at a time, away from the loop that reads requests.
        self._worker = ThreadPoolExecutor(1, "models")
        self._waiting = deque[Waiting]()
        self._at_work: asyncio.Task[None] | None = None

    async def answer(self, compute: Compute, question: Any, *, texts: int = 0) -> Any:
        """Return the answer to a request, computed with others for the same function. Busy if too many wait."""
        if len(self._waiting) >= WAITING:
            raise Busy(f"{WAITING:,} requests are waiting already. Try again in a moment.", code="rate_limit_exceeded")
        loop = asyncio.get_running_loop()
        waiting = Waiting(Arrival(question, time.perf_counter()), compute, texts, loop.create_future())
        self._waiting.append(waiting)
        if self._at_work is None or self._at_work.done():
            self._at_work = loop.create_task(self._work())
        return await waiting.answer

    async def _work(self) -> None:
        """Answer until no request waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            alike: dict[Compute, list[Waiting]] = {}
            for waiting in self._batch():
                alike.setdefault(waiting.compute, []).append(waiting)
            for compute, batch in alike.items():
                try:
                    arrivals = [waiting.arrival for waiting in batch]
                    answers = await loop.run_in_executor(self._worker, compute, arrivals)
                    for waiting, answer in zip(batch, answers, strict=True):
                        if not waiting.answer.done():
                            waiting.answer.set_result(answer)
                except Exception as error:
                    for waiting in batch:
                        if not waiting.answer.done():
                            waiting.answer.set_exception(error)

    def _batch(self) -> list[Waiting]:
        """Take the requests of the next batch from the queue, without those whose client has hung up."""
        batch: list[Waiting] = []
        while self._waiting and len(batch) < TOGETHER and sum(waiting.texts for waiting in batch) < TEXTS:
            waiting = self._waiting.popleft()
            if not waiting.answer.done():
                batch.append(waiting)
        return batch
