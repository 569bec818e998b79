"""A disk that remembers what was synced: at any point of a step the power is cut, and what may be left is laid out.

Points are before and after each fsync, rename, removal and new directory. Writes themselves need none: what was written
to a file and not synced may be there in part, or not at all, whenever the power is cut.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from sparring.workflows.store.progress import PROGRESS
from tests.support.power_cut import PowerCut

Survives = Literal["synced", "named"]
"""What is left of what was not synced. `synced`: nothing, and no rename, removal or new name whose directory was not.
`named`: all names are as they were last, as journals of some filesystems keep them; of what was written to a file since
its last sync, the first half."""

CALLS = ("fsync", "replace", "rename", "unlink", "mkdir", "rmdir")


class _Entry(NamedTuple):
    inode: int
    folder: bool


class Disk:
    """What has reached the disk below a directory; the files that are there at the beginning have."""

    def __init__(self, root: Path) -> None:
        self.points = 0
        self._root, self._held = root, list[int]()
        self._contents: dict[int, bytes] = {}
        self._entries: dict[int, dict[str, _Entry]] = {}
        for path in [root, *root.rglob("*")]:
            self._sync(path)

    def close(self) -> None:
        """Let go of the files."""
        for handle in self._held:
            os.close(handle)

    def below(self, path: Path) -> bool:
        """Whether a path is on this disk."""
        return path.is_relative_to(self._root)

    def sync(self, handle: int) -> None:
        """Note that a file, or the names in a directory, have reached the disk."""
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if self.below(path):
            self._sync(path)

    def _sync(self, path: Path) -> None:
        status = path.lstat()
        if path.is_symlink():
            return
        if status.st_ino not in self._contents.keys() | self._entries.keys():
            self._held.append(os.open(path, os.O_RDONLY))  # no other file gets its inode
        if path.is_dir():
            names = {entry.name: _Entry(entry.lstat().st_ino, entry.is_dir()) for entry in path.iterdir()}
            self._entries[status.st_ino] = names
        else:
            self._contents[status.st_ino] = path.read_bytes()

    def lay_out(self, to: Path, survives: Survives) -> None:
        """Write what is left after a power cut now."""
        if survives == "synced":
            self._from_entries(self._root.stat().st_ino, to)
            return
        for path in [self._root, *sorted(self._root.rglob("*"))]:
            target = to / path.relative_to(self._root)
            if path.is_dir():
                target.mkdir()
            else:
                written, synced = path.read_bytes(), self._contents.get(path.stat().st_ino, b"")
                kept = len(synced) if written.startswith(synced) else 0
                _write(target, written[: kept + (len(written) - kept) // 2])

    def _from_entries(self, folder: int, to: Path) -> None:
        to.mkdir()
        for name, (inode, is_folder) in self._entries.get(folder, {}).items():
            if is_folder:
                self._from_entries(inode, to / name)
            else:
                _write(to / name, self._contents.get(inode, b""))


def _write(path: Path, contents: bytes) -> None:
    """Write what is on the disk already: `tests.support.synced` wants nothing of a file that is old."""
    path.write_bytes(contents)
    os.utime(path, (1, 1))


@contextmanager
def disk(root: Path, *, cut: int | None = None, survivors: dict[Survives, Path] | None = None) -> Iterator[Disk]:
    """Put a disk in place of a directory. At the point `cut` lay out what may survive at the paths of `survivors`, and
    end the block with an error."""
    recorder = Disk(root)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, _counted(recorder, name, getattr(os, name), cut, survivors or {}))
            yield recorder
    finally:
        recorder.close()


def _counted(found: Disk, name: str, real: Any, cut: int | None, survivors: dict[Survives, Path]) -> Any:
    def point() -> None:
        found.points += 1
        if found.points == cut:
            for survives, to in survivors.items():
                found.lay_out(to, survives)
            raise PowerCut

    def concerns(argument: Any, folder: int | None) -> bool:
        if name == "fsync":
            path = Path(os.readlink(f"/proc/self/fd/{argument}"))
        else:
            path = Path(os.path.abspath(argument) if folder is None else os.readlink(f"/proc/self/fd/{folder}"))
        # How often progress is written depends on the time that passes, and points must be the same every time.
        return found.below(path) and path.name.lstrip(".") != PROGRESS

    def call(argument: Any, *rest: Any, **named: Any) -> Any:
        if not concerns(argument, named.get("dir_fd")):
            return real(argument, *rest, **named)
        point()
        result = real(argument, *rest, **named)
        if name == "fsync":
            found.sync(argument)
        point()
        return result

    return call


def put_back(survivor: Path, to: Path) -> None:
    """Lay what is left in the place of a directory."""
    shutil.rmtree(to, ignore_errors=True)
    survivor.rename(to)
