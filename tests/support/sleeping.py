"""A worker that only waits, as a driver sees one on a GPU. Its processes import little, so that many of them start."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


class Sleeper:
    """Takes so many seconds for each shard."""

    def __init__(self, *, threads: int, seconds: float) -> None:
        self._seconds = seconds

    def __call__(self, task: dict[str, Any], path: Path) -> None:
        time.sleep(self._seconds)
        path.touch()
