"""The store: the artifacts of steps, their records, and the locks of the drivers that write them.

An artifact is finished when its record is there; the record is written last.
"""

import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Protocol

from sparring.components.config import Damaged, UserError
from sparring.components.digests import digest
from sparring.components.files import parsed, replacing, write_json
from sparring.workflows.store.dag import Step
from sparring.workflows.store.progress import PROGRESS, read_progress

RECORD = "artifact.json"
WRITTEN = {"label", "function", "inputs", "seconds", "summary", "dropped"}
"""Keys that every record has, among others."""
FAILURE = "failure.txt"
LOCK = "lock"
DIGESTS, ETAGS = "SHA256SUMS", "etags.json"
"""Files with the digests of an artifact's files, as `sha256sum --check` takes them, and with the versions of its
objects on S3."""
NAME = re.compile(r"\w+-[0-9a-f]{12}")
"""Pattern of the names of artifacts' directories."""
UNREADABLE = "cannot be read"
NOT_MADE = {RECORD, FAILURE, LOCK, PROGRESS, DIGESTS, ETAGS, "ray"}
"""Entries of an artifact's directory that its step has not made."""


def is_made(name: str) -> bool:
    """Check whether a step made a file of its artifact: hidden files do not count, nor those that the driver writes."""
    parts = Path(name).parts
    return parts[0] not in NOT_MADE and not any(part.startswith(".") for part in parts)


def among(name: str, parts: Iterable[str]) -> bool:
    """Check whether a file belongs to some parts of an artifact: glob patterns of its entries."""
    return any(fnmatch(Path(name).parts[0], part) for part in parts)


def read_record(path: Path, body: bytes, place: str) -> dict[str, Any]:
    """Read the record in a file. Raise Damaged if it is no record. `place` names the file for people."""
    record: dict[str, Any] = parsed(body, path, place)
    if not isinstance(record, dict) or not record.keys() >= WRITTEN:
        raise Damaged(f"{place}: no record of a step", path)
    return record


class Named(Protocol):
    """Anything with a place in the store: a step, or an artifact of which only the name is known."""

    @property
    def name(self) -> str:
        """Return the directory's name."""


@dataclass(frozen=True)
class Artifact:
    """An artifact of which only the name and the label are known, not the step."""

    name: str
    label: str
    """Name for people."""


class Store:
    """A store in a directory: `root/<function>-<12 hex>/` for each artifact, with its record."""

    digests = DIGESTS
    """Name of the file with the digests of an artifact's other files."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()

    def path(self, node: Named) -> Path:
        """Return the artifact's directory on this node, whether it exists or not."""
        return self.root / node.name

    def location(self, node: Named) -> str:
        """Return the place of the artifact for people: a path or an S3 URL."""
        return str(self.path(node))

    def record(self, node: Named) -> dict[str, Any] | None:
        """Return the finished artifact's record, or None."""
        path = self.path(node) / RECORD
        try:
            return read_record(path, path.read_bytes(), str(path))
        except FileNotFoundError:
            return None

    def is_done(self, node: Step) -> bool:
        """Check whether the artifact is finished, even if parts of it have been dropped since."""
        return self.record(node) is not None

    def is_complete(self, node: Step) -> bool:
        """Check whether the artifact is finished and complete, so that other steps can read it."""
        record = self.record(node)
        return record is not None and not record["dropped"]

    def prefetch_records(self, nodes: Iterable[Named], *, refresh: bool = False) -> None:
        """Read the records that are not known yet, all at once. `refresh` reads known records again.

        There is nothing to do here, because a store in a directory reads a record whenever it is asked for.
        """

    def fetch(self, nodes: Iterable[Step], *parts: str) -> None:
        """Make files of artifacts readable on this node: the named parts, or all. There is nothing to do in a
        directory."""

    def fetch_inputs(self, node: Step, inputs: Sequence[Step] | None = None) -> None:
        """Make what a step's own process reads readable on this node: of some inputs or of all, and of what earlier
        attempts have left. There is nothing to do in a directory."""

    def sizes(self, nodes: Sequence[Named], *parts: str) -> list[int]:
        """Return the bytes of each artifact, or of its parts (glob patterns)."""
        return [sum(map(_size, self._files(node, parts or ["*"]))) for node in nodes]

    def started(self, nodes: Iterable[Named]) -> set[str]:
        """Return the names of the artifacts that have files, finished or not."""

        def has_files(path: Path) -> bool:
            return path.is_dir() and any(file.name not in (LOCK, FAILURE) for file in path.iterdir())

        return {node.name for node in nodes if has_files(self.path(node))}

    def holders(self, nodes: Iterable[Named]) -> dict[str, str]:
        """Return the drivers that are writing artifacts now, by the artifact's name."""
        return {node.name: holder for node in nodes if (holder := self._holder(node))}

    def progress(self, node: Named) -> dict[str, Any] | None:
        """Return the progress of a step that a driver is running, as of the last call of `holders`."""
        return read_progress(self.path(node))

    def keep_config(self, run: str, tree: dict[str, Any]) -> None:
        """Keep a run's resolved config, for machines that have neither its folder nor its data."""
        path = self._config(run)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, tree)

    def kept_config(self, run: str) -> dict[str, Any] | None:
        """Return the resolved config of the last run of a name, or None if none is kept."""
        try:
            kept: dict[str, Any] = json.loads(self._config(run).read_text())
        except (FileNotFoundError, ValueError):  # a damaged config counts as missing: its values can be computed again
            return None
        return kept

    def _config(self, run: str) -> Path:
        return self.root / ".configs" / f"{run}.json"

    def drop(self, node: Named, parts: list[str]) -> int:
        """Delete parts (glob patterns) of a finished artifact, after noting them in its record. Return the bytes freed,
        or 0 if another command has removed the artifact meanwhile."""
        if (record := self.record(node)) is None:
            return 0
        self._write(node, {**record, "dropped": sorted({*record["dropped"], *parts})})
        return self._delete(node, parts)

    def artifact(self, name: str) -> Artifact:
        """Return the artifact of a name, labelled like its step if it is finished. UserError for an invalid name."""
        if not NAME.fullmatch(name):
            raise UserError(f"{name!r}: not the name of an artifact; accepted: a name such as train-0123456789ab")
        named = Artifact(name, name)
        with suppress(Damaged):
            named = Artifact(name, (self.record(named) or {}).get("label", name))
        return named

    @contextmanager
    def locked(self, node: Step, on_wait: Callable[[str], None]) -> Iterator[Callable[[dict[str, Any]], bool]]:
        """Lock an artifact for this driver. While another driver holds it, tell `on_wait` the holder's name and wait.

        Yield the function that writes the record. It returns False if another driver has written one.
        """
        out = self.path(node)
        out.mkdir(parents=True, exist_ok=True)

        def finish(record: dict[str, Any]) -> bool:
            self._write(node, {**record, "digests": self._keep_digests(node)})
            return True

        with _file_lock(out / LOCK, on_wait):
            yield finish

    def reset(self, node: Step) -> None:
        """Delete the record of an artifact that lacks dropped parts, so that it can be made again.

        A driver may have been killed while it dropped them, so the rest of those parts is deleted first.
        """
        record = self.record(node)
        if record is not None:
            self.drop(node, record["dropped"])
            self._delete_record(node)

    def remove(self, node: Named) -> int:
        """Delete an artifact, its record first. Return the bytes freed."""
        self._delete_record(node)
        freed = self._delete(node, ["*"])
        shutil.rmtree(self.path(node), ignore_errors=True)
        return freed

    def changes(self, node: Step, on_read: Callable[[int], object] = lambda size: None) -> dict[str, str] | None:
        """Return the files of a finished artifact that differ from what its step left, and how, in words.

        Return None if no digests were kept when the artifact was finished. `on_read` is called with the number of bytes
        read.
        """
        try:
            record = self.record(node)
        except Damaged:
            return {RECORD: "has changed"}
        if record is None or "digests" not in record:
            return None
        of_them, kept = self._kept_digests(node)
        if of_them != record["digests"]:
            return {self.digests: "is not there" if of_them is None else "has changed"}
        kept = {name: code for name, code in kept.items() if not among(name, record["dropped"])}
        now = self._digests(node, on_read)
        changed = {
            name: code for name, code in now.items() if code != kept.get(name, code) or code.startswith(UNREADABLE)
        }
        return {
            **dict.fromkeys(sorted(kept.keys() - now), "is not there"),
            **{name: code if code.startswith(UNREADABLE) else "has changed" for name, code in sorted(changed.items())},
            **dict.fromkeys(sorted(now.keys() - kept), "was not there"),
        }

    def _digests(self, node: Step, on_read: Callable[[int], object]) -> Mapping[str, str]:
        """Return a digest of each file that a step has made, or why it cannot be read."""

        def read(file: Path) -> str:
            try:
                return digest(file)
            except OSError as error:
                return f"{UNREADABLE}: {error.strerror}"
            finally:
                on_read(file.stat().st_size)

        files = {str(file.relative_to(self.path(node))): file for file in self._files(node, ["*"])}
        files = {name: file for name, file in files.items() if is_made(name)}
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return dict(zip(files, pool.map(read, files.values()), strict=True))

    def _keep_digests(self, node: Step) -> str:
        """Write the digests of all files, and return the digest of the list."""
        path = self.path(node) / DIGESTS
        with replacing(path) as temporary:
            digests = self._digests(node, lambda size: None)
            temporary.write_text("".join(f"{code}  {name}\n" for name, code in sorted(digests.items())))
        return digest(path)

    def _kept_digests(self, node: Step) -> tuple[str | None, dict[str, str]]:
        """Read the list that `_keep_digests` wrote: the list's digest, None if it is lost, and the files' digests."""
        path = self.path(node) / DIGESTS
        if not path.is_file():
            return None, {}
        lines = path.read_text(errors="replace").splitlines()
        return digest(path), {name: code for code, _, name in (line.partition("  ") for line in lines)}

    def _write(self, node: Named, record: dict[str, Any]) -> None:
        write_json(self.path(node) / RECORD, record)

    def _delete_record(self, node: Named) -> None:
        (self.path(node) / RECORD).unlink(missing_ok=True)

    def _delete(self, node: Named, parts: list[str]) -> int:
        """Delete the files of some parts. Return their bytes."""
        freed = 0
        for file in self._files(node, parts):
            freed += _size(file)
            file.unlink(missing_ok=True)
        return freed

    def _files(self, node: Named, parts: Sequence[str]) -> list[Path]:
        """Return the files of some parts of an artifact on this node."""
        matches = [path for part in parts for path in sorted(self.path(node).glob(part))]
        inside = [[path] if path.is_file() else sorted(path.rglob("*")) for path in matches]
        return list(dict.fromkeys(file for files in inside for file in files if file.is_file()))

    def _holder(self, node: Named) -> str:
        """Return the driver on this machine that is writing the artifact now. Empty if there is none."""
        try:
            with (self.path(node) / LOCK).open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return file.read().strip() or "another driver"
        except OSError:  # no driver has started it, or the filesystem has no locks
            pass
        return ""


def _size(file: Path) -> int:
    """Return a file's size in bytes, or 0 if another command has removed it meanwhile."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def driver_name() -> str:
    """Return the name by which other drivers know this driver."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextmanager
def _file_lock(path: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock file. The kernel releases it when the driver dies, however it dies."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            on_wait(file.read().strip() or "another driver")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise UserError(
                f"{path}: this filesystem has no locks ({error.strerror}); accepted: a store on a filesystem with locks"
            ) from None
        file.seek(0)
        file.truncate()
        file.write(driver_name())
        file.flush()
        yield
