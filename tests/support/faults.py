"""A proxy before an S3 server that does to requests what networks and busy servers do to them."""

from __future__ import annotations

import http.client
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

LATE = 1.5
"""Seconds after which a request that its sender has given up comes through at the most."""
FAULTS = ("busy", "broken", "lost", "cut", "slow", "twice", "late")
"""`busy` and `broken` are refused with status 503 and 500; of `lost` the answer never comes, and of `cut` its second
half; `slow` takes a moment; `twice` comes through twice; `late` is given up by its sender, who sends it again, and
comes through after what was sent later."""
REFUSED = b"<Error><Code>%s</Code><Message>a fault</Message></Error>"


class Answer(NamedTuple):
    """What the server said."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Passed(NamedTuple):
    """A request that came through."""

    sender: str
    """`AWS_SDK_UA_APP_ID` of the process that sent it."""
    method: str
    path: str
    part: bool
    """True if the request asked for a part of an object."""
    size: int
    """Bytes of its body and of the answer's."""


class Proxy:
    """Passes requests on, and notes them; a share of them meets a fault, drawn by a seed."""

    def __init__(self, server: str, *, seed: int = 0, share: float = 0.0) -> None:
        self.share, self.met, self.passed = share, Counter[str](), list[Passed]()
        self._to, self._random, self._lock = urlsplit(server).netloc, random.Random(seed), threading.Lock()
        self._late: list[threading.Timer] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator[Proxy]:
        """Serve until the block ends, and all requests have come through."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        try:
            yield self
        finally:
            self.settle()
            self._server.shutdown()
            self._server.server_close()

    def settle(self) -> None:
        """Wait until what is late has come through."""
        for timer in self._late:
            timer.join()

    def _fault(self) -> tuple[str | None, float]:
        with self._lock:
            if self._random.random() >= self.share:
                return None, 0.0
            fault, moment = self._random.choice(FAULTS), self._random.random()
            self.met[fault] += 1
            return fault, moment

    def _pass_on(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self._to, timeout=60)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            answer = Answer(response.status, response.getheaders(), response.read())
            agent = re.search(r"\bapp/(\S+)", headers.get("User-Agent", ""))
            sender, name = agent[1] if agent else "", unquote(urlsplit(path).path)
            self.passed.append(Passed(sender, method, name, "Range" in headers, len(body) + len(answer.body)))
            return answer
        finally:
            connection.close()

    def _meet(self, request: tuple[Any, ...]) -> tuple[Answer | None, bool]:
        """The answer, None where none comes, and whether only half of it does."""
        fault, moment = self._fault()
        if fault in ("busy", "broken"):
            status, code = (503, b"SlowDown") if fault == "busy" else (500, b"InternalError")
            return Answer(status, [("Content-Type", "application/xml")], REFUSED % code), False
        if fault == "late":
            timer = threading.Timer(LATE * moment, self._pass_on, request)
            self._late.append(timer)
            timer.start()
            return None, False
        if fault == "slow":
            time.sleep(moment / 2)
        answer = self._pass_on(*request)
        if fault == "twice":
            answer = self._pass_on(*request)
        return (None if fault == "lost" else answer), fault == "cut"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                skipped = {"connection", "expect", "content-length"}
                headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
                answer, half = proxy._meet((self.command, self.path, headers, body))
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response_only(answer.status)
                size = None
                for name, value in answer.headers:
                    if name.lower() == "content-length":
                        size = value  # of an object that HEAD asks about
                    elif name.lower() not in ("connection", "transfer-encoding"):
                        self.send_header(name, value)
                no_body = self.command == "HEAD" or answer.status == 204
                if answer.status != 204:
                    self.send_header("Content-Length", size if no_body and size else str(len(answer.body)))
                self.end_headers()
                if not no_body:
                    self.wfile.write(answer.body[: len(answer.body) // 2] if half else answer.body)
                if half:
                    self.close_connection = True

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_: Any) -> None:
                """Nothing."""

            def handle(self) -> None:
                with suppress(ConnectionError):  # a client that was killed
                    super().handle()

        return Handler
