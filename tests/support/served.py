"""A service in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support.tiny import ROOT, Place


class Served(NamedTuple):
    """A running service."""

    url: str
    process: subprocess.Popen[str]
    output: list[str]
    """What it has printed before it was ready."""

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as answer:
            return json.load(answer)

    def text(self, path: str) -> str:
        """Return the answer of a path as text."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    def post(self, path: str, tree: Any) -> Any:
        """Send JSON to a path, and return its answer."""
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(tree).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def ask(self, query: str, k: int, system: str | None = None) -> list[tuple[str, float]]:
        """The documents and their scores."""
        (result,) = self.post("/search", {"queries": [query], "k": k, "system": system})["results"]
        return [(document["doc_id"], document["score"]) for document in result["documents"]]

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str]:
        """Its exit status, and what else it said."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=120)
        return self.process.returncode, rest


@contextmanager
def served(place: Place, *words: str, warnings: str = "error") -> Iterator[Served]:
    """A service of a place's run, on a free port, with what Python does with warnings."""
    command = [sys.executable, "-W", warnings, "-m", "workflows", *place.words("serve", "--port", "0", *words)]
    environment = {name: value for name, value in os.environ.items() if name != "SPARRING_TOKEN"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        output: list[str] = []
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            if match := re.fullmatch(r"Ready: (http://\S+)\n", line):
                yield Served(match.group(1), process, output)
                return
        raise AssertionError("".join(output))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
