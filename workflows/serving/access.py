"""Access control of the service: tokens, hosts and limits of requests."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import time
import urllib.parse
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from sparring.workflows.serving.metrics import Metrics
from sparring.workflows.serving.model_requests import BYTES, ErrorDetails, ErrorResponse
from sparring.workflows.serving.questions import BODY_BYTES

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

OPEN = ("/", "/health")
"""Paths that need no token: the page has no data in it, and asks for the token."""
STANDARD = ("/v1/", "/v2/")
"""Beginnings of the paths that follow the forms of OpenAI, Jina and Cohere."""
CODES = {400: "invalid_request", 401: "invalid_api_key", 404: "not_found", 413: "request_too_large"}
"""OpenAI's codes of errors that have no code of their own, by status."""
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        b"connect-src 'self'; img-src data:; frame-ancestors 'none'; form-action 'none'; "
        b"base-uri 'none'",
    ),
]

GONE = 499
"""The status, in the metrics, of a client that hangs up before its answer begins: no error of the service's."""
LENGTH = re.compile("[0-9]{1,20}")
"""A length as a head may say it."""


class Gate:
    """Checks a request before the application sees it, and counts it afterwards."""

    def __init__(
        self, application: Application, *, token: str | None, loopback: bool, paths: frozenset[str], metrics: Metrics
    ) -> None:
        """With `loopback`, only answer requests for names of this machine. A page of another site, whose name points
        to this machine, gets nothing. `paths` are the paths of the service."""
        self._application, self._metrics = application, metrics
        self._token, self._loopback, self._paths = token, loopback, paths

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        began, status, limited, hung_up = time.perf_counter(), 500, _limited(receive, _limit(scope["path"])), False

        async def receiving() -> Message:
            nonlocal hung_up
            message = await limited()
            hung_up = hung_up or message["type"] == "http.disconnect"
            return message

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        try:
            refused = self._refused(scope, Headers(scope=scope))
            if refused is None:
                await self._application(scope, receiving, sending)
            else:
                await refused(scope, receive, sending)
        except asyncio.CancelledError:  # so Ray Serve tells it
            hung_up = True
            raise
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.answered(path, GONE if hung_up else status, time.perf_counter() - began)

    def _refused(self, scope: Message, headers: Headers) -> JSONResponse | None:
        path = scope["path"]
        if self._loopback and not _asks_loopback(headers.get("host", "")):
            detail = "this service answers to localhost and this machine's own loopback addresses alone"
            return problem(path, 403, detail)
        if self._token is not None and path not in OPEN and not self._knows(headers):
            wrong = "This token is not accepted. Use the token that the service was started with."
            missing = "A token is needed. Send it in the header `Authorization: Bearer TOKEN`."
            refused = problem(path, 401, wrong if "authorization" in headers else missing)
            refused.headers["www-authenticate"] = "Bearer"
            return refused
        length, limit = headers.get("content-length", "0"), _limit(path)
        return problem(path, 413, _too_large(limit)) if not LENGTH.fullmatch(length) or int(length) > limit else None

    def _knows(self, headers: Headers) -> bool:
        assert self._token is not None
        kind, _, token = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token.encode())


def is_loopback(host: str) -> bool:
    """Tell whether an address, or `localhost`, belongs to this machine. Another site can point its name to this
    machine, but not a number."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _asks_loopback(host: str) -> bool:
    """Tell the same of a request's `Host`, which may have a port."""
    try:
        return is_loopback(urllib.parse.urlsplit(f"//{host}").hostname or "")
    except ValueError:  # half of an IPv6 address
        return False


def _limit(path: str) -> int:
    """Return the maximum size of a path's requests, in bytes."""
    return BYTES if path.startswith(STANDARD) else BODY_BYTES


def _too_large(limit: int) -> str:
    return f"the request is too large; accepted: {limit:,} bytes"


def _limited(receive: Receive, limit: int) -> Receive:
    """Receive the body until it is too large. Its stated length may be missing or wrong."""
    size = 0

    async def receiving() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise HTTPException(413, _too_large(limit))  # FastAPI, which is reading the body, answers with it
        return message

    return receiving


def problem(
    path: str, status: int, detail: str, *, key: str | None = None, code: str | None = None, headers: Any = None
) -> JSONResponse:
    """Answer a failed request of a path. Paths of `STANDARD` answer in OpenAI's form, which calls a mistake in a
    request status 400. `key` is the wrong key of the request."""
    if not path.startswith(STANDARD):
        return JSONResponse({"detail": detail}, status, headers=headers)
    status = 400 if status == 422 else status
    kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    details = ErrorDetails(message=detail, type=kind, param=key or None, code=code or CODES.get(status))
    return JSONResponse(ErrorResponse(error=details).model_dump(), status, headers=headers)
