"""A store on S3 (`s3://bucket/prefix`): each node caches the artifacts that it works with; the records are on S3."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sparring.components.config import Damaged, UserError
from sparring.components.files import nearest
from sparring.workflows.store import cache, leases, s3, transfer
from sparring.workflows.store.dag import Step
from sparring.workflows.store.store import ETAGS, RECORD, Named, Store, among, is_made, read_record


def open_store(root: str | Path) -> Store:
    """Open the store in a directory, at `s3://bucket/prefix`, or at a path of this node's cache of such a prefix."""
    path = s3.local_path(root)
    s3.check_access(path)
    file = next((parent for parent in (path, *path.parents) if os.path.isfile(parent)), None)
    if file is not None:
        raise UserError(
            f"{root}: the store cannot be there, as {file} is a file; accepted: a folder, or s3://BUCKET/PREFIX"
        )
    if s3.is_cached(path):
        cache.limit_bytes()  # a mistake in it is known at once
    if not os.access(place := nearest(path), os.R_OK | os.X_OK):
        raise UserError(
            f"{root}: the store cannot be there, as {place} may not be read; accepted: another place (--store PLACE, "
            "or $SPARRING_STORE)"
        )
    return ObjectStore(path) if s3.is_cached(path) else Store(path)


class ObjectStore(Store):
    """A store on S3. It keeps the promises of a store in a directory, with conditional PUTs instead of file locks."""

    digests = ETAGS

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._records: dict[Path, bytes | None] = {}
        self._leases: dict[str, Any] = {}

    def location(self, node: Named) -> str:
        return s3.url(self.path(node))

    def record(self, node: Named) -> dict[str, Any] | None:
        path = self.path(node) / RECORD
        if path not in self._records:
            self.prefetch_records([node])
        body = self._records[path]
        return None if body is None else read_record(path, body, s3.url(path))

    def prefetch_records(self, nodes: Iterable[Named], *, refresh: bool = False) -> None:
        paths = [self.path(node) / RECORD for node in nodes]
        unknown = [path for path in paths if refresh or self._records.get(path) is None]
        self._records |= dict.fromkeys(unknown) | s3.read_bodies(unknown)

    def fetch(self, nodes: Iterable[Step], *parts: str) -> None:
        s3.in_parallel(lambda node: transfer.download(*(self.path(node) / part for part in parts or ("",))), nodes)

    def fetch_inputs(self, node: Step, inputs: Sequence[Step] | None = None) -> None:
        wanted = [*node.upstream, node] if inputs is None else inputs
        s3.in_parallel(lambda before: transfer.download(self.path(before), leaves=partial(node.leaves, before)), wanted)

    def sizes(self, nodes: Sequence[Named], *parts: str) -> list[int]:
        return s3.in_parallel(lambda node: sum(self._remote_sizes(node, list(parts)).values()), nodes)

    def started(self, nodes: Iterable[Named]) -> set[str]:
        return s3.names(self.root)

    def holders(self, nodes: Iterable[Named]) -> dict[str, str]:
        self._leases = leases.read_leases(self.root)
        return {node.name: self._leases[node.name]["holder"] for node in nodes if node.name in self._leases}

    def progress(self, node: Named) -> dict[str, Any] | None:
        return self._leases.get(node.name, {}).get("progress")

    def keep_config(self, run: str, tree: dict[str, Any]) -> None:
        s3.put_json(self._config(run), tree)

    def kept_config(self, run: str) -> dict[str, Any] | None:
        try:
            return next(iter(s3.read_json([self._config(run)]).values()), None)
        except Damaged:
            return None

    @contextmanager
    def locked(self, node: Step, on_wait: Callable[[str], None]) -> Iterator[Callable[[dict[str, Any]], bool]]:
        out = self.path(node)

        def finish(record: dict[str, Any]) -> bool:
            lease.check()
            transfer.finish(out)
            record = {**record, "digests": self._keep_digests(node)}
            lease.check()
            written = s3.put_json(out / RECORD, record, IfNoneMatch="*") is not None
            self.prefetch_records([node], refresh=True)
            return written

        # The file lock admits one driver of this machine, the lease one of all machines.
        with super().locked(node, on_wait), leases.hold_lease(out, on_wait) as lease:
            yield finish

    def _digests(self, node: Step, on_read: Callable[[int], object]) -> Mapping[str, str]:
        """Return the version (ETag) of each object. Objects are not read: S3 itself checks the bytes that it keeps."""
        return {name: str(details["ETag"]) for name, details in s3.listing(self.path(node)).items() if is_made(name)}

    def _keep_digests(self, node: Step) -> str:
        return str(s3.put_json(self.path(node) / ETAGS, dict(self._digests(node, lambda size: None))))

    def _kept_digests(self, node: Step) -> tuple[str | None, dict[str, str]]:
        try:
            return s3.read_version(self.path(node) / ETAGS) or (None, {})
        except Damaged:
            return "", {}

    def _write(self, node: Named, record: dict[str, Any]) -> None:
        s3.put_json(self.path(node) / RECORD, record)
        self.prefetch_records([node], refresh=True)

    def _delete(self, node: Named, parts: list[str]) -> int:
        super()._delete(node, parts)
        sizes = self._remote_sizes(node, parts)
        s3.delete(self.path(node), sizes)
        return sum(sizes.values())

    def _delete_record(self, node: Named) -> None:
        s3.delete(self.path(node), [RECORD])
        self._records[self.path(node) / RECORD] = None

    def _remote_sizes(self, node: Named, parts: list[str]) -> dict[str, int]:
        """Return sizes of an artifact's files on S3, or of some parts (glob patterns of its entries)."""
        return {
            name: details["size"]
            for name, details in s3.listing(self.path(node)).items()
            if among(name, parts or ["*"])
        }
