"""A spy on `os.fsync`: what a step leaves must have reached the disk before the record that says it is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import FAILURE, LOCK, RECORD, Store

Contents = tuple[int, int, int]
"""Device, inode and time of the last change: which contents of which file."""


def contents_of(status: os.stat_result) -> Contents:
    """What identifies the contents of a file."""
    return status.st_dev, status.st_ino, status.st_mtime_ns


def unsynced(out: Path, started: float, synced: set[Contents]) -> list[str]:
    """The files of an artifact that were written since a time, and since then not synced."""
    files = [(path, path.stat()) for path in out.rglob("*") if path.is_file() and path.name not in (LOCK, FAILURE)]
    written = [(path, status) for path, status in files if status.st_mtime >= started]
    return sorted(str(path.relative_to(out)) for path, status in written if contents_of(status) not in synced)


@contextmanager
def spied_on() -> Iterator[set[str]]:
    """Steps of ours that this process runs fail where they leave files that it has not synced; those that did not."""
    synced, seen = set[Contents](), set[str]()
    sync, write = os.fsync, Store._write

    def noted(handle: int) -> None:
        sync(handle)
        synced.add(contents_of(os.fstat(handle)))

    def checked(store: Store, node: Step, record: dict[str, Any]) -> None:
        cluster, out = record["cluster"] or {}, store.path(node)
        if cluster.get("mode") == "inline" and not node.code and not (out / RECORD).exists():
            files = unsynced(out, record["started"], synced)
            assert not files, f"{node.label}: {node.function.__name__} has not synced {', '.join(files)}"
            seen.add(node.function.__name__)
        write(store, node, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", noted)
        patch.setattr(Store, "_write", checked)
        yield seen
