"""An ASGI application asked without a network, and systems that need no models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from sparring.components.systems.config import VERSION, SystemConfig
from sparring.components.systems.documents import InMemory
from sparring.components.systems.searching import Search
from sparring.components.systems.system import LoadedSystem
from sparring.workflows.serving.access import Application

COUNT = 30
DENSE = {"kind": "dense", "k": 12, "query_tokens": 8}
LEXICAL = {"kind": "lexical", "analysis": {}, "k": 8}


class Said(NamedTuple):
    """What the application has answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def request(
    application: Application,
    method: str,
    path: str,
    *,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
    said_length: bool = True,
    disconnect: asyncio.Event | None = None,
    whole: bool = True,
) -> Said:
    """One request; with `said_length` its head says how long its body is. The client hangs up at `disconnect`, and
    where its body is not `whole` says that there is more of it."""
    where, _, query = path.partition("?")
    length = {"content-length": str(len(body))} if said_length else {}
    named = {"host": "localhost:8000", "content-type": "application/json", **length, **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": where,
        "raw_path": where.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    parts = [body[start : start + 65_536] for start in range(0, len(body), 65_536)] or [b""]
    coming = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    coming[-1]["more_body"] = not whole
    sent: list[Any] = []

    async def receive() -> Any:
        if not coming:
            await (disconnect or asyncio.Event()).wait()
        return coming.pop(0) if coming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await application(scope, receive, send)
    fields = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Said(sent[0]["status"], fields, b"".join(message.get("body", b"") for message in sent[1:]))


def get(application: Application, path: str, **headers: str) -> Said:
    return asyncio.run(request(application, "GET", path, headers=headers))


def post(application: Application, path: str, tree: Any, **headers: str) -> Said:
    return asyncio.run(request(application, "POST", path, body=json.dumps(tree).encode(), headers=headers))


def documents() -> InMemory:
    """Documents that say their ids."""
    ids = [f"d{number:02d}" for number in range(COUNT)]
    return InMemory(pa.table({"doc_id": ids, "title": [f"title of {name}" for name in ids], "text": ids}))


class Lists:
    """A first stage that lists documents from the place on that is the query's length."""

    def __init__(self, part: str) -> None:
        """`part` is the name of the search in `Seconds`."""
        self._part = part
        self.batches: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> Sequence[str]:
        self.batches.append(list(texts))
        return texts

    def begin(self, name: str, search: Search, k: int) -> Callable[[], None]:
        def finish() -> None:
            with search.seconds.of("encode"):
                sizes = map(len, self.encode(search.texts))
            with search.seconds.of(self._part):
                ranks = range(k + 1)
                lists = [[(f"d{(size + rank) % COUNT:02d}", 1 - rank / 64) for rank in ranks] for size in sizes]
                pairs = zip(lists, search.without, strict=True)
                search.add(name, [[hit for hit in hits if hit[0] != excluded][:k] for hits, excluded in pairs])

        return finish


def system(name: str, reads: Any = None, **stages: Any) -> tuple[LoadedSystem, Lists]:
    """A system of such lists, and the retriever's. `reads` answers for a reader."""
    tree = {"version": VERSION, "name": name, "documents": COUNT, "stages": stages}
    lexical, dense = Lists("bm25"), Lists("search")
    parts = {"lexical": lexical, "dense": dense, "reader": reads}
    return LoadedSystem(SystemConfig.model_validate(tree), documents(), parts), dense
