"""A store on an object store (`s3://bucket/prefix`): what is here is a copy, and the records are only there."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workflows import mirror
from workflows.dag import Step
from workflows.store import RECORD, Store


def opened(root: str | Path) -> Store:
    """The store at a directory, at `s3://bucket/prefix`, or of which a directory is this node's copy."""
    place = mirror.opened(root)
    return Store(place) if mirror.remote(place) is None else ObjectStore(place)


class ObjectStore(Store):
    """The same promises as a store of files, kept by the object store's conditional PUT."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._records: dict[Path, dict[str, Any] | None] = {}
        self._leases: dict[str, Any] = {}

    def where(self, node: Step) -> str:
        return f"s3://{mirror.remote(self.path(node))}"

    def record(self, node: Step) -> dict[str, Any] | None:
        path = self.path(node) / RECORD
        if path not in self._records:
            self.look([node])
        return self._records[path]

    def look(self, nodes: Iterable[Step], *, again: bool = False) -> None:
        paths = [self.path(node) / RECORD for node in nodes]
        asked = [path for path in paths if again or self._records.get(path) is None]
        self._records |= dict.fromkeys(asked) | mirror.documents(asked)

    def bring(self, nodes: Iterable[Step], *parts: str) -> None:
        with ThreadPoolExecutor(mirror.AT_ONCE) as pool:
            list(pool.map(lambda node: mirror.bring(*(self.path(node) / part for part in parts or ("",))), nodes))

    def sizes(self, nodes: list[Step], *parts: str) -> list[int]:
        with ThreadPoolExecutor(mirror.AT_ONCE) as pool:
            return [sum(found.values()) for found in pool.map(lambda node: self._matching(node, list(parts)), nodes)]

    def begun(self, nodes: Iterable[Step]) -> set[str]:
        return mirror.names(self.root)

    def held(self, nodes: Iterable[Step]) -> dict[str, str]:
        self._leases = mirror.leases(self.root)
        return {node.name: self._leases[node.name]["holder"] for node in nodes if node.name in self._leases}

    def progress(self, node: Step) -> dict[str, Any] | None:
        return self._leases.get(node.name, {}).get("progress")

    @contextmanager
    def alone(self, node: Step, on_wait: Callable[[str], None]) -> Iterator[Callable[[dict[str, Any]], bool]]:
        out = self.path(node)

        def finish(record: dict[str, Any]) -> bool:
            lease.check()
            mirror.sync(out, delete=True)
            lease.check()
            ours = mirror.write(out / RECORD, record, IfNoneMatch="*") is not None
            self.look([node], again=True)
            return ours

        # Of this machine's drivers one, and of those one among all machines'.
        with super().alone(node, on_wait), mirror.leased(out, on_wait) as lease:
            yield finish

    def _write(self, node: Step, record: dict[str, Any]) -> None:
        mirror.write(self.path(node) / RECORD, record)
        self._records[self.path(node) / RECORD] = record

    def _remove(self, node: Step, parts: list[str]) -> int:
        super()._remove(node, parts)
        there = self._matching(node, parts)
        mirror.remove(self.path(node), list(there))
        return sum(there.values())

    def _forget(self, node: Step) -> None:
        mirror.remove(self.path(node), [RECORD])
        self._records[self.path(node) / RECORD] = None

    def _matching(self, node: Step, parts: list[str]) -> dict[str, int]:
        """Sizes of an artifact's files on the object store, or of those of some parts."""
        return mirror.matching(mirror.listing(self.path(node)), parts or ["*"])
