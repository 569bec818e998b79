"""Times that the attempts of a step have spent on the work that they kept, so that its record counts them all.

A killed step leaves finished shards or a checkpoint, which the next attempt takes up. When such work is kept, the times
so far are written next to it. Times of work that is lost with an attempt are not written, since that work is done and
counted again.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sparring.components import timing
from sparring.components.files import read_json, write_json
from sparring.workflows.store import transfer

ATTEMPTS = "attempts.json"
KEEP_SECONDS = 5.0
"""Seconds between two writes of a map's times."""

Counts = Mapping[str, float]


def keep(out: Path, **counts: Counts) -> None:
    """Write this thread's times so far, including those of earlier attempts, and the workers' counts, by map."""
    intervals, before = timing.so_far(), _read(out)["counts"]
    write_json(out / ATTEMPTS, {"time": intervals, "counts": {**before, **counts}})
    transfer.upload(out / ATTEMPTS)


@contextmanager
def keeping(out: Path, name: str, counts: Counts) -> Iterator[Callable[[], None]]:
    """Keep the times and counts of a map while its shards are done, and when an error ends it.

    Yield the function to call after each shard.
    """
    kept, fresh = time.monotonic(), False

    def after_a_shard() -> None:
        nonlocal kept, fresh
        fresh = True
        if time.monotonic() - kept > KEEP_SECONDS:
            keep(out, **{name: counts})
            kept = time.monotonic()

    try:
        yield after_a_shard
    except BaseException:
        if fresh:
            with suppress(Exception):  # a full disk must not hide why the map ended
                keep(out, **{name: counts})
        raise


def resume(out: Path) -> None:
    """Add the times of earlier attempts to those of this thread."""
    timing.record(timing.Interval(*interval) for interval in _read(out)["time"])


def counts(out: Path, name: str) -> Counts:
    """Return the counts of a map's workers in earlier attempts."""
    counted: Counts = _read(out)["counts"].get(name, {})
    return counted


def _read(out: Path) -> dict[str, Any]:
    path = out / ATTEMPTS
    attempts: dict[str, Any] = read_json(path) if path.exists() else {"time": [], "counts": {}}
    return attempts
