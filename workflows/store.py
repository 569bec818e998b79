"""The store: where artifacts lie, what of a graph is finished, and filling what is not.

Resume is "run again": an artifact is finished when its record is there, and the record is written last.
"""

import fcntl
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from components import clock
from components.config import Config, UserError
from components.digests import sha256
from components.files import sweep, write_json
from workflows.dag import Step, canonical, graph
from workflows.progress import NAME as PROGRESS
from workflows.progress import read as read_progress

RECORD = "artifact.json"
FAILURE = "failure.txt"

State = Literal["done", "partial", "to do", "not needed"]


class StepFailed(Exception):
    """A step failed for a reason that is not the user's: its label, and where the whole story is."""


class Store:
    """Where artifacts lie: `root/<function>-<12 hex>/`, each with its record."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).absolute()

    def path(self, node: Step) -> Path:
        """The artifact's directory, whether or not it is there."""
        return self.root / node.name

    def where(self, node: Step) -> str:
        """The artifact's place, for people."""
        return str(self.path(node))

    def record(self, node: Step) -> dict[str, Any] | None:
        """The finished artifact's record, or None."""
        try:
            return json.loads((self.path(node) / RECORD).read_text())
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
        """Ask, all at once, for the records that were not there, or `again` for those that were too. Files are looked
        at when they are asked for."""

    def bring(self, nodes: Iterable[Step], *parts: str) -> None:
        """Have some files of artifacts here to be read; all of them where none is named. Files are here."""

    def sizes(self, nodes: list[Step], *parts: str) -> list[int]:
        """Bytes of artifacts, or of parts of them (glob patterns)."""
        return [sum(file.stat().st_size for file in self._files(node, parts or ["*"])) for node in nodes]

    def begun(self, nodes: Iterable[Step]) -> set[str]:
        """Names of those of which something is there."""

        def some(path: Path) -> bool:
            return path.is_dir() and any(file.name not in ("lock", FAILURE) for file in path.iterdir())

        return {node.name for node in nodes if some(self.path(node))}

    def held(self, nodes: Iterable[Step]) -> dict[str, str]:
        """Of these, the artifacts that drivers are filling now, and who each is."""
        return {node.name: holder for node in nodes if (holder := self._holder(node))}

    def progress(self, node: Step) -> dict[str, Any] | None:
        """How far a step is that some driver is at, as `held` found it."""
        return read_progress(self.path(node))

    def drop(self, node: Step, parts: list[str]) -> int:
        """Drop parts (glob patterns) of a finished artifact, saying so in its record first; bytes freed."""
        record = self.record(node)
        assert record is not None, node.name
        self._write(node, {**record, "dropped": sorted({*record["dropped"], *parts})})
        return self._remove(node, parts)

    @contextmanager
    def alone(self, node: Step, on_wait: Callable[[str], None]) -> Iterator[Callable[[dict[str, Any]], bool]]:
        """Hold an artifact for this driver alone; what finishes it with its record, False where another driver has."""
        out = self.path(node)
        out.mkdir(parents=True, exist_ok=True)

        def finish(record: dict[str, Any]) -> bool:
            self._write(node, record)
            return True

        with _locked(out / "lock", on_wait):
            yield finish

    def begin_again(self, node: Step) -> None:
        """Drop what is left of an artifact of which parts were dropped (all of them or, by a driver that was killed,
        some), and its record."""
        record = self.record(node)
        if record is not None:
            self.drop(node, record["dropped"])
            self._forget(node)

    def _write(self, node: Step, record: dict[str, Any]) -> None:
        write_json(self.path(node) / RECORD, record)

    def _forget(self, node: Step) -> None:
        (self.path(node) / RECORD).unlink()

    def _remove(self, node: Step, parts: list[str]) -> int:
        """Remove the files of some parts that are here; their bytes."""
        freed = 0
        for file in self._files(node, parts):
            freed += file.stat().st_size
            file.unlink()
        return freed

    def _files(self, node: Step, parts: Sequence[str]) -> list[Path]:
        """The files of some parts of an artifact that are here."""
        found = [place for part in parts for place in sorted(self.path(node).glob(part))]
        inside = [[place] if place.is_file() else sorted(place.rglob("*")) for place in found]
        return list(dict.fromkeys(file for files in inside for file in files if file.is_file()))

    def _holder(self, node: Step) -> str:
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
    ahead = todo(wanted, store)
    waiting, begun = {node.fingerprint for node in ahead}, store.begun(ahead)

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
            store.bring([node, *node.upstream])
            files = {name: sha256(path) for name, path in _files(node).items() if path.is_file()}
            with clock.at("compute"):
                summary = node.function(out, cluster, **_places(node.inputs, store))
            (out / FAILURE).unlink(missing_ok=True)
            (out / PROGRESS).unlink(missing_ok=True)
            sweep(out)  # of workers that died while the step went on
            return finish(_record(node, summary or {}, files, started, cluster))
        except UserError as error:
            raise UserError(f"{node.label}: {error}") from None
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


def unchanged(nodes: Iterable[Step], store: Store) -> None:
    """UserError where a file that a finished step has read holds something else now, or is new among those it reads.

    What a step stands for is what its config declares, not what a file holds; so a changed file would go unseen. One
    that is gone is no change.
    """
    for node in nodes:
        files = _files(node)
        record = store.record(node) if files else None
        if record is None:
            continue
        for name, path in files.items():
            then, now = record["files"].get(name), sha256(path) if path.is_file() else None
            if now not in (then, None):
                raise UserError(
                    f"{path}: changed since the step {node.label!r} read it (sha256 {now}, then "
                    f"{then or 'not there'}); restore it, or declare the new one as another input: data by its "
                    "`sha256`, a model by another `revision`, anything by another path"
                )


def _files(node: Step) -> dict[str, Path]:
    """Files outside the store that a step reads, by name."""
    found: dict[str, Path] = {}
    for value in node.inputs.values():
        found |= value.files() if isinstance(value, Config) else {}
    return found


def _record(node: Step, summary: dict[str, Any], files: dict[str, str], started: float, cluster: Any) -> dict[str, Any]:
    noted = clock.drain()
    return {
        "function": f"{node.function.__module__}.{node.function.__qualname__}",
        "version": getattr(node.function, "version", 1),
        "fingerprint": node.fingerprint,
        "label": node.label,
        "inputs": canonical(node.inputs),
        "upstream": [before.name for before in node.upstream],
        "summary": summary,
        "files": files,
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
