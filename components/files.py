"""Writing files so that a half-written one is never taken for finished."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.clock import at

if TYPE_CHECKING:
    import numpy as np


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary place beside `path` that takes its name when the block ends well, and is removed otherwise.

    The block may write a file or make a directory there. A directory that is already at `path` is left as it is:
    whoever was first wrote the same thing.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    try:
        with at("files"):
            yield temporary
            _sync(temporary)
            try:
                os.replace(temporary, path)
            except OSError:
                if not path.is_dir():
                    raise
                shutil.rmtree(temporary)
            _sync_one(path.parent)  # its entries alone: others write beside us
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)
        raise


def save_array(path: Path, array: np.ndarray) -> None:
    """`numpy.save` at exactly this place: by its name numpy would add .npy to it."""
    import numpy as np

    with at("files"), path.open("wb") as file:
        np.save(file, array)


def write_array(path: Path, array: np.ndarray) -> None:
    """Write a `.npy` file by one atomic rename."""
    with replacing(path) as temporary:
        save_array(temporary, array)


def write_json(path: Path, value: Any) -> None:
    """Write JSON by one atomic rename."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")


def remove(folder: Path, *patterns: str) -> None:
    """Remove what goes by these names or glob patterns, if it is there. A step removes its parts by this, last of all:
    whoever is killed before has them still."""
    for path in [path for pattern in patterns for path in folder.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def sweep(folder: Path) -> None:
    """Remove what killed writers left behind in a folder that no one else writes to now."""
    remove(folder, ".*.????????")


def _sync(path: Path) -> None:
    """Bring a file, or a directory with all that is in it, to the disk."""
    if path.is_dir():
        for child in path.rglob("*"):
            _sync_one(child)
    _sync_one(path)


def _sync_one(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
