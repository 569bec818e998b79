"""A model hub on loopback: repositories of small files, as far as `push` asks for them; and a hub's cache."""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

TOKEN = "hf_right"


def put_in_cache(cache: Path, name: str, model: Path) -> None:
    """Copy a model's files to where huggingface_hub would have downloaded them to."""
    kept, commit = cache / f"models--{name.replace('/', '--')}", "0" * 40
    shutil.copytree(model, kept / "snapshots" / commit)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(commit)


def look_in_cache_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have huggingface_hub read this cache, and ask nobody."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


class Hub(ThreadingHTTPServer):
    """What it holds: the files of each branch, by repository."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has closed its connection is no mistake, and nothing to print beside what is tested."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.private: set[str] = set()
        self.closed_to: set[str] = set()
        """Owners that the token may not write for."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        match = re.fullmatch(r"/api/models/([^/]+/[^/?]+)(?:/tree/([^/?]+))?(\?.*)?", self.path)
        assert match, self.path
        name, branch = match[1], match[2] or "main"
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, {"error": "Invalid credentials"})
        elif name not in self.server.repositories:
            self._answer(404, {"error": "no such repository"}, code="RepoNotFound")
        elif match[2] is None:
            self._answer(200, {"id": name})
        elif branch not in self.server.repositories[name]:
            self._answer(404, {"error": "no such revision"}, code="RevisionNotFound")
        else:
            files = self.server.repositories[name][branch]
            self._answer(
                200, [{"type": "file", "path": path, "size": len(raw), "oid": "0"} for path, raw in files.items()]
            )

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            request = json.loads(raw)
            owner, name = request["organization"], f"{request['organization']}/{request['name']}"
            if owner in self.server.closed_to:
                self._answer(403, {"error": "You don't have the rights"})
                return
            if request.get("visibility") == "private":
                self.server.private.add(name)
            self.server.repositories.setdefault(name, {"main": {".gitattributes": b""}})
            self._answer(200, {"url": f"{self.server.url}/{name}"})
        elif self.path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit|branch)/([^/?]+)(\?.*)?", self.path):
            self._of_branch(match[1], match[2], match[3], raw)
        else:
            raise AssertionError(self.path)

    def _of_branch(self, name: str, action: str, branch: str, raw: bytes) -> None:
        branches = self.server.repositories[name]
        if action == "branch":
            branches.setdefault(branch, dict(branches["main"]))
            self._answer(200, {})
        elif action == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for file in json.loads(raw)["files"]
            ]
            self._answer(200, {"files": files})
        else:
            for line in raw.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    branches[branch][entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
                elif entry["key"] == "deletedFile":
                    del branches[branch][entry["value"]["path"]]
            self._answer(
                200, {"success": True, "commitOid": "a" * 40, "commitUrl": f"{self.server.url}/{name}/commit/aaa"}
            )

    def _answer(self, status: int, value: Any, *, code: str = "") -> None:
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if code:
            self.send_header("X-Error-Code", code)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def hub() -> Iterator[Hub]:
    """One that runs while the block does."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
