"""Documents to send to a database, programs that search there, and a server that answers like OpenSearch."""

from __future__ import annotations

import json
import re
import runpy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.components.retrieval.kinds.lexical import LexicalStage
from sparring.components.systems import database
from sparring.components.systems.database import Address, Batch, Layout, Sent, Source

LEXICAL = LexicalStage.model_validate({"analysis": {}, "k": 100, "k1": 1.2, "b": 0.75})
WIDTH = 8


class Stopped(Exception):
    """The end of a source that is read by a process which is killed."""


class Listed(Source):
    """Documents in memory, by id: title, text and vector. Reading stops with an error after `last` batches."""

    def __init__(self, rows: dict[str, tuple[str, str, npt.NDArray[np.float32]]], last: int | None = None) -> None:
        self.rows, self.last = rows, last
        self.documents, self.widths = len(rows), {"dense": WIDTH}

    def batches(self, rows: int) -> Iterator[Batch]:
        ids = list(self.rows)
        for number, start in enumerate(range(0, len(ids), rows)):
            if number == self.last:
                raise Stopped
            part = ids[start : start + rows]
            titles, texts, vectors = zip(*(self.rows[id] for id in part), strict=True)
            yield Batch(part, list(titles), list(texts), {"dense": np.stack(vectors)})

    def ids(self) -> Iterator[list[str]]:
        yield list(self.rows)


def documents(count: int = 40, seed: int = 0) -> dict[str, tuple[str, str, npt.NDArray[np.float32]]]:
    """Rows of a source. Vectors have different lengths, and one word of each text is the document's own."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, WIDTH)).astype(np.float32)
    return {
        f"d'{number}": (f"Title {number}", f'common words "{number}" word{number}', vector)
        for number, vector in enumerate(vectors)
    }


def nearest(source: Listed, vector: npt.NDArray[np.float32], k: int) -> list[tuple[str, float]]:
    """The documents with the largest inner products."""
    scores = {id: float(vector @ row[2]) for id, row in source.rows.items()}
    return sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[:k]


class Place:
    """A database with a table, and the functions of its program."""

    def __init__(self, url: str, folder: Path, *, rows: int = 7, lexical: LexicalStage | None = LEXICAL) -> None:
        self.address, self.folder = Address.of(url), folder
        self.kind = type("Small", (database.find(self.address.name),), {"rows": rows})
        self.layout = Layout("documents", {"dense": WIDTH}, lexical)

    def send(self, source: Source) -> Sent:
        """Send documents by a connection of their own."""
        with self.kind(self.address, self.layout) as connection:
            return database.send(connection, source)

    @contextmanager
    def searching(self) -> Iterator[tuple[Callable[..., list], Callable[..., list]]]:
        """The functions `nearest` and `words` of the program."""
        file = self.folder / "functions.py"
        text = "import json\nimport os\n" + self.kind.named(self.kind.program + self.kind.program_words, self.layout)
        file.write_text(text)
        functions = runpy.run_path(str(file), {"url": self.address.url})
        try:
            yield functions["nearest"], functions["words"]
        finally:
            for name in {"database"} & functions.keys():
                functions[name].close()


class SearchServer(ThreadingHTTPServer):
    """A server that answers the requests that are sent to OpenSearch and Elasticsearch, from documents in memory."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.indexes = dict[str, dict[str, Any]]()
        self.rows = dict[str, dict[str, dict[str, Any]]]()
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and authorization of each request."""
        self.refusing = 0
        """Number of documents of the next bulk requests that are refused."""

    @property
    def host(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.server_address[1]}"


@contextmanager
def search_server() -> Iterator[SearchServer]:
    """Start a server, and stop it."""
    with SearchServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Answering(BaseHTTPRequestHandler):
    server: SearchServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None: ...

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, options = self.path.partition("?")
        self.server.requests.append((self.command, self.path, self.headers.get("Authorization")))
        _, index, *rest = path.split("/")
        status, tree = self._respond(index, rest, options, body)
        data = json.dumps(tree).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST = _answer

    def _respond(self, index: str, rest: list[str], options: str, body: bytes) -> tuple[int, Any]:
        indexes, rows = self.server.indexes, self.server.rows
        if self.command == "PUT" and not rest:
            indexes[index], rows[index] = json.loads(body), {}
            return 200, {"acknowledged": True}
        if index not in indexes:
            return 404, {"error": {"type": "index_not_found_exception", "reason": f"no such index [{index}]"}}
        if rest == ["_mapping"]:
            return 200, {index: {"mappings": indexes[index]["mappings"]}}
        if rest == ["_refresh"]:
            return 200, {}
        if rest == ["_count"]:
            return 200, {"count": len(rows[index])}
        if rest == ["_mget"]:
            assert options == "_source=digest"
            hits = [(id, rows[index].get(id)) for id in json.loads(body)["ids"]]
            return 200, {
                "docs": [
                    {"_id": id, "found": row is not None, **({} if row is None else {"_source": row})}
                    for id, row in hits
                ]
            }
        if rest == ["_bulk"]:
            return 200, {"items": self._bulk(rows[index], [json.loads(line) for line in body.splitlines()])}
        assert rest == ["_search"]
        return 200, {"hits": {"hits": self._hits(rows[index], json.loads(body))}}

    def _bulk(self, rows: dict[str, dict[str, Any]], lines: list[Any]) -> list[Any]:
        items = list[Any]()
        waiting = iter(lines)
        for line in waiting:
            ((action, fields),) = line.items()
            if action == "delete":
                items.append({"delete": {"status": 200 if rows.pop(fields["_id"], None) else 404}})
                continue
            row = next(waiting)
            if self.server.refusing:
                self.server.refusing -= 1
                items.append({"index": {"status": 429, "error": {"reason": "too many requests"}}})
                continue
            rows[fields["_id"]] = row
            items.append({"index": {"status": 201}})
        return items

    def _hits(self, rows: dict[str, dict[str, Any]], body: dict[str, Any]) -> list[Any]:
        size = body["size"]
        if "sort" in body:
            after = body.get("search_after", [""])[0]
            return [{"_id": id, "sort": [id]} for id in sorted(rows) if id > after][:size]
        query = body["query"]
        if "match" in query:
            words = set(re.findall(r"\w+", query["match"]["contents"].lower()))
            scores = {
                id: float(len(words & set(re.findall(r"\w+", f"{row['title']} {row['text']}".lower()))))
                for id, row in rows.items()
            }
            scores = {id: score for id, score in scores.items() if score}
        else:
            script = query["script_score"]["script"]
            parameters = script["params"]
            name = parameters.get("field") or parameters["column"]
            vector = np.array(parameters.get("query_value") or parameters["vector"])
            products = {id: float(vector @ np.array(row[name])) for id, row in rows.items()}
            scores = {id: 1 + value if value >= 0 else 1 / (1 - value) for id, value in products.items()}
        best = sorted(scores, key=lambda id: -scores[id])[:size]
        return [{"_id": id, "_score": scores[id], "_source": rows[id]} for id in best]
