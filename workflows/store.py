"""The store: where artifacts lie, what of a graph is finished, and filling what is not.

Resume is "run again": an artifact is finished when its record is there, and the record is written last. Where the store
is on an object store, what is here is a copy, and the records are only there (`mirror`).
"""

import fcntl
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from components import clock
from components.config import UserError
from components.files import sweep, write_json
from workflows import mirror
from workflows.dag import Step, canonical, graph
from workflows.progress import NAME as PROGRESS
from workflows.progress import read as read_progress

RECORD = "artifact.json"
FAILURE = "failure.txt"

State = Literal["done", "partial", "to do", "not needed"]


class StepFailed(Exception):
    """A step failed for a reason that is not the user's: its label, and where the whole story is."""


class Store:
    """Where artifacts lie: `root/<function>-<12 hex>/`, each with its record.

    `s3://bucket/prefix` is a store on an object store, and `root` this node's copy of it.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = mirror.opened(root)
        self.remote = mirror.remote(self.root) is not None
        self._records: dict[Path, dict[str, Any] | None] = {}
        self._leases: dict[str, Any] = {}

    def path(self, node: Step) -> Path:
        """The artifact's directory, whether or not it is there."""
        return self.root / node.name

    def where(self, node: Step) -> str:
        """The artifact's place, for people."""
        return f"s3://{mirror.remote(self.path(node))}" if self.remote else str(self.path(node))

    def record(self, node: Step) -> dict[str, Any] | None:
        """The finished artifact's record, or None."""
        path = self.path(node) / RECORD
        if self.remote:
            if path not in self._records:
                self.look([node])
            return self._records[path]
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None

    def done(self, node: Step) -> bool:
        """Whether the artifact is finished, even if parts of it were dropped since."""
        return self.record(node) is not None

    def whole(self, node: Step) -> bool:
        """Whether the artifact is finished and nothing of it was dropped, so that a step can stand on it."""
        record = self.record(node)
        return record is not None and not record["dropped"]

    def look(self, nodes: Iterable[Step], *, again: bool = False) -> None:
        """Ask an object store, all at once, for the records that were not there, or `again` for those that were too."""
        paths = [self.path(node) / RECORD for node in nodes] if self.remote else []
        asked = [path for path in paths if again or self._records.get(path) is None]
        self._records |= dict.fromkeys(asked) | mirror.documents(asked)

    def bring(self, nodes: Iterable[Step], *parts: str) -> None:
        """Have some files of finished artifacts here to be read; all of them where none is named."""
        if self.remote:
            with ThreadPoolExecutor(mirror.AT_ONCE) as pool:
                list(pool.map(lambda node: mirror.bring(*(self.path(node) / part for part in parts or ("",))), nodes))

    def sizes(self, nodes: list[Step], *parts: str) -> list[int]:
        """Bytes of artifacts, or of parts of them (glob patterns)."""

        def size(node: Step) -> int:
            folder = self.path(node)
            if self.remote:
                return sum(mirror.matching(mirror.listing(folder), list(parts or ["*"])).values())
            found = [
                f for part in parts or ["*"] for p in folder.glob(part) for f in ([p] if p.is_file() else p.rglob("*"))
            ]
            return sum(file.stat().st_size for file in found if file.is_file())

        with ThreadPoolExecutor(mirror.AT_ONCE) as pool:
            return list(pool.map(size, nodes))

    def begun(self, nodes: Iterable[Step]) -> set[str]:
        """Names of those of which something is there."""
        if self.remote:
            return mirror.names(self.root)

        def some(path: Path) -> bool:
            return path.is_dir() and any(file.name not in ("lock", FAILURE) for file in path.iterdir())

        return {node.name for node in nodes if some(self.path(node))}

    def progress(self, node: Step) -> dict[str, Any] | None:
        """How far a step is that some driver is at."""
        if self.remote:
            return self._leases.get(node.name, {}).get("progress")
        return read_progress(self.path(node))

    def held(self, nodes: Iterable[Step]) -> dict[str, str]:
        """Of these, the artifacts that drivers are filling now, and who each is."""
        if self.remote:
            self._leases = mirror.leases(self.root)
            return {node.name: self._leases[node.name]["holder"] for node in nodes if node.name in self._leases}
        return {node.name: holder for node in nodes if (holder := self.holder(node))}

    def holder(self, node: Step) -> str:
        """Which driver of this machine is filling the artifact now; empty where none is."""
        try:
            with (self.path(node) / "lock").open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return file.read().strip() or "another driver"
        except OSError:  # nobody began it, or there are no locks here
            pass
        return ""

    def drop(self, node: Step, parts: list[str]) -> int:
        """Drop parts (glob patterns) of a finished artifact, saying so in its record first; bytes freed."""
        record = self.record(node)
        assert record is not None, node.name
        record = {**record, "dropped": sorted({*record["dropped"], *parts})}
        freed = 0
        if self.remote:
            path = self.path(node)
            mirror.write(path / RECORD, record)
            self._records[path / RECORD] = record
            there = mirror.matching(mirror.listing(path), parts)
            mirror.remove(path, list(there))
            freed = sum(there.values())
        else:
            write_json(self.path(node) / RECORD, record)
        for pattern in parts:
            for path in sorted(self.path(node).glob(pattern)):
                for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
                    freed += 0 if self.remote else file.stat().st_size
                    file.unlink()
        return freed

    @contextmanager
    def alone(self, node: Step, on_wait: Callable[[str], None]) -> Iterator[Callable[[dict[str, Any]], bool]]:
        """Hold an artifact for this driver alone; what finishes it with its record, False where another driver has."""
        out = self.path(node)
        out.mkdir(parents=True, exist_ok=True)
        with _locked(out / "lock", on_wait):
            if not self.remote:

                def finish(record: dict[str, Any]) -> bool:
                    write_json(out / RECORD, record)
                    return True

                yield finish
                return
            with mirror.leased(out, on_wait) as lease:

                def finish_there(record: dict[str, Any]) -> bool:
                    lease.check()
                    mirror.sync(out, delete=True)
                    lease.check()
                    ours = mirror.write(out / RECORD, record, IfNoneMatch="*") is not None
                    self.look([node], again=True)
                    return ours

                yield finish_there

    def begin_again(self, node: Step) -> None:
        """Drop what is left of an artifact of which parts were dropped (all of them or, by a driver that was killed,
        some), and its record."""
        record = self.record(node)
        if record is None:
            return
        self.drop(node, record["dropped"])
        if self.remote:
            mirror.remove(self.path(node), [RECORD])
            self._records[self.path(node) / RECORD] = None
        else:
            (self.path(node) / RECORD).unlink()


def todo(wanted: Iterable[Step], store: Store, *, whole: bool = False) -> list[Step]:
    """The steps that have to run for the wanted ones, inputs first: nothing that nothing wanted needs.

    A wanted step of which parts were dropped counts as done, unless it is wanted whole.
    """
    ordered: dict[str, Step] = {}
    wanted = list(wanted)
    store.look(graph(wanted))

    def need(node: Step) -> None:
        if node.fingerprint in ordered:
            return
        for before in node.upstream:
            if not store.whole(before):
                need(before)
        ordered[node.fingerprint] = node

    for node in wanted:
        if not (store.whole(node) if whole else store.done(node)):
            need(node)
    return list(ordered.values())


def states(wanted: list[Step], store: Store) -> list[tuple[Step, State]]:
    """Every step of the graph with its state."""
    waiting = {node.fingerprint for node in todo(wanted, store)}
    begun = store.begun(graph(wanted))

    def state(node: Step) -> State:
        if node.fingerprint in waiting:
            return "partial" if node.name in begun else "to do"
        return "done" if store.done(node) else "not needed"

    return [(node, state(node)) for node in graph(wanted)]


def execute(node: Step, store: Store, cluster: Any, *, on_wait: Callable[[str], None]) -> bool:
    """Fill one artifact and write its record last; False if another driver had done it meanwhile."""
    out = store.path(node)
    with store.alone(node, on_wait) as finish:
        store.look([node], again=True)
        if store.whole(node):
            return False
        sweep(out)
        store.begin_again(node)
        started = time.time()
        clock.drain()  # of what a failed step was at
        try:
            mirror.bring(out)
            store.bring(node.upstream)
            with clock.at("compute"):
                summary = node.function(out, cluster, **_places(node.inputs, store))
            (out / FAILURE).unlink(missing_ok=True)
            (out / PROGRESS).unlink(missing_ok=True)
            sweep(out)  # of workers that died while the step went on
            return finish(_record(node, summary or {}, started, cluster))
        except (UserError, KeyboardInterrupt):
            raise
        except Exception as error:
            (out / FAILURE).write_text(traceback.format_exc())
            reason = str(error).strip().splitlines() or [type(error).__name__]
            raise StepFailed(f"step {node.label!r} failed: {reason[-1]} (the whole story: {out / FAILURE})") from error


def _places(value: Any, store: Store) -> Any:
    """Inputs as the step function gets them: upstream steps become their directories."""
    if isinstance(value, Step):
        return store.path(value)
    if isinstance(value, Mapping):
        return {key: _places(item, store) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_places(item, store) for item in value]
    return value


def _record(node: Step, summary: dict[str, Any], started: float, cluster: Any) -> dict[str, Any]:
    noted = clock.drain()
    return {
        "function": f"{node.function.__module__}.{node.function.__qualname__}",
        "version": getattr(node.function, "version", 1),
        "fingerprint": node.fingerprint,
        "label": node.label,
        "inputs": canonical(node.inputs),
        "upstream": [before.name for before in node.upstream],
        "summary": summary,
        "dropped": [],
        "started": started,
        "seconds": time.time() - started,
        "time": clock.spent(noted),
        "host": socket.gethostname(),
        "nodes": clock.at_work(noted),
        "cluster": cluster.model_dump(mode="json") if isinstance(cluster, BaseModel) else None,
        "code": code(),
    }


def code() -> dict[str, Any]:
    """The commit that the code is at, and whether it was changed since; empty outside a checkout.

    Code that was sent to a cluster is no checkout: `$SPARRING_CODE` says there what it was sent from.
    """
    import subprocess  # only when something ran

    if sent := os.environ.get("SPARRING_CODE"):
        return dict(json.loads(sent))

    def git(*words: str) -> str | None:
        root = Path(__file__).parent
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        commit = git("rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(git("status", "--porcelain", "-uno"))} if commit else {}
    except FileNotFoundError:
        return {}


@contextmanager
def _locked(path: Path, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold an artifact for this driver alone. The kernel lets go when the driver dies, however it dies."""
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            on_wait(file.read().strip() or "another driver")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            raise UserError(f"{path}: this filesystem has no locks ({error.strerror}); use a store that has") from None
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield
