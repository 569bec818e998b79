"""An address on loopback that scores and embeds, fails as it is told, and counts what it has answered."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

KEY = "sk-right"
TOKENS = 7
"""Number of tokens that an answer says it has counted."""


def score(query: str, document: str) -> float:
    """The score of a pair: a number that its texts decide."""
    return int(hashlib.sha256(f"{query}|{document}".encode()).hexdigest()[:6], 16) / 16**6


def vector(text: str) -> list[float]:
    """The vector of a text."""
    return [byte - 127.5 for byte in hashlib.sha256(text.encode()).digest()[:8]]


class Endpoint(ThreadingHTTPServer):
    """An address that remembers its requests and its answers."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lock, self.calls = threading.Lock(), 0
        self.statuses = Counter[int]()
        self.answered = Counter[tuple[str, str]]()
        """Number of times that each pair was scored; of embedded texts the query is empty."""
        self.bodies: list[dict[str, Any]] = []
        self.fails: Callable[[int], int | None] = lambda call: None
        """The status of a call by its number, None for an answer."""
        self.headers: dict[str, str] = {"Retry-After": "0"}
        """Headers of a failure."""
        self.answers_until: int | None = None
        """Number of answers after which all calls wait without an answer."""
        self.write: Callable[[list[int]], str] = lambda order: " > ".join(f"[{number}]" for number in order)
        """Writes an order of documents, whose numbers begin with 1, as a language model would."""
        self.spoil: Callable[[Any], Any] = lambda answer: answer
        """Changes an answer before it is sent."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def asked_twice(self) -> list[tuple[str, str]]:
        """Pairs and texts that were answered more than once."""
        return [pair for pair, times in self.answered.items() if times > 1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def _pairs(body: dict[str, Any]) -> list[tuple[str, str]]:
    """The pairs or texts of a request. Of a conversation it is the whole."""
    if "messages" in body:
        return [("conversation", str(body["messages"]))]
    return (
        [(body["query"], text) for text in body["documents"]] if "query" in body else [("", t) for t in body["input"]]
    )


def window(body: dict[str, Any]) -> tuple[str, list[str]]:
    """The query and the documents of a conversation."""
    contents = [message["content"] for message in body["messages"]]
    query = contents[-1].removeprefix("Search Query: ").partition(". \n")[0]
    return query, [text.partition("] ")[2] for text in contents[3:-1:2]]


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.calls += 1
            server.bodies.append(body)
            status = 401 if self.headers["Authorization"] != f"Bearer {KEY}" else server.fails(server.calls)
            held = server.answers_until is not None and server.statuses[200] >= server.answers_until
            if not held:
                server.statuses[status or 200] += 1
            if status is None and not held:
                server.answered.update(_pairs(body))
        if held:
            threading.Event().wait()
        if status is not None:
            self._send(status, {"error": f"no, {self.headers['Authorization']}"}, server.headers)
        elif "query" in body:
            results = [
                {"index": index, "relevance_score": score(body["query"], text)}
                for index, text in enumerate(body["documents"])
            ]
            results.sort(key=lambda entry: -float(entry["relevance_score"]))
            self._send(200, server.spoil({"results": results, "usage": {"total_tokens": TOKENS}}))
        elif "messages" in body:
            query, texts = window(body)
            order = sorted(range(1, len(texts) + 1), key=lambda number: -score(query, texts[number - 1]))
            choices = [{"message": {"role": "assistant", "content": server.write(order)}}]
            self._send(200, server.spoil({"choices": choices, "usage": {"total_tokens": TOKENS}}))
        else:
            data = [{"index": index, "embedding": vector(text)} for index, text in enumerate(body["input"])]
            self._send(200, server.spoil({"data": data[::-1], "usage": {"prompt_tokens": TOKENS}}))

    def _send(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def every_third_fails(call: int) -> int | None:
    """A third of all calls fail, by turns with 429 and 500."""
    return None if call % 3 else 429 if call % 2 else 500


@contextmanager
def serving() -> Iterator[Endpoint]:
    """Serve until the block ends."""
    server = Endpoint()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def unit(text: str) -> np.ndarray:
    """The vector of a text, of length 1."""
    values = np.asarray(vector(text))
    return values / np.linalg.norm(values)
