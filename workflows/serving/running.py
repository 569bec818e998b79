"""The file by which `search` finds a running service, and asking it. It lies in the run's folder, or the system's."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sparring.components.files import write_json
from sparring.components.systems.config import SYSTEM
from sparring.components.systems.system import Hit
from sparring.workflows.experiments.loading import Experiment

FILE = "service.json"
TOKEN = "SPARRING_TOKEN"
"""The environment variable that holds the token."""
WAIT_SECONDS = 1.0
"""For a service on this machine to say that it is there."""
ANSWER_SECONDS = 60.0


@contextmanager
def announced(
    folder: Path, url: str, identity: str, systems: Sequence[str], limits: Mapping[str, int]
) -> Iterator[bool]:
    """While this block runs, the file is there; whether this service is in it. One that another service has written
    stays, where it answers the same or was written since; any other is put back at the end."""
    about = {"url": url, "pid": os.getpid(), "identity": identity, "systems": list(systems), "limits": dict(limits)}
    path = folder / FILE
    other = _read(path)
    other = other if other is not None and _answers(other, identity) else None
    if other is not None and all(name in other["systems"] for name in systems):
        yield False
        return
    try:
        write_json(path, about)
    except OSError:  # a folder that may only be read
        yield False
        return
    try:
        yield True
    finally:
        if _read(path) == about:
            if other is not None and _answers(other, identity):
                write_json(path, other)
            else:
                path.unlink(missing_ok=True)


def asked(
    folder: Path, identity: str, system: str, query: str | None, k: int, doc_id: str | None = None
) -> list[Hit] | None:
    """What a running service of a folder finds by a system; None where there is no service of the same identity that
    has it, or it does not answer: whoever asks then opens the models itself."""
    about = _read(folder / FILE)
    if about is None or system not in about["systems"]:
        return None
    try:
        most = about["limits"]["query_characters"]
        if k > about["limits"]["k"] or (query is not None and not 0 < len(query.strip()) <= most):
            return None
        if not _answers(about, identity):
            return None
        what = {"ids": [doc_id]} if query is None else {"queries": [query]}
        question = {**what, "k": k, "system": system}
        documents = _asked(f"{about['url']}/search", question, ANSWER_SECONDS)["results"][0]["documents"]
        return [Hit(**one) for one in documents]
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def answers(url: str, identity: str, seconds: float) -> bool:
    """Whether a service of an identity answers at a URL within so many seconds."""
    try:
        return _asked(f"{url}/health", None, seconds).get("identity") == identity
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _answers(about: Mapping[str, Any], identity: str) -> bool:
    """Whether a note's service is there, of an identity, and answers: its process may be another's by now, and so may
    its port."""
    return about["identity"] == identity and _is_here(about) and answers(about["url"], identity, WAIT_SECONDS)


def _asked(url: str, question: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    if token := os.environ.get(TOKEN):
        headers["authorization"] = f"Bearer {token}"
    body = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, body, headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy knows no service of this machine
    with direct.open(request, timeout=seconds) as answer:
        tree: dict[str, Any] = json.load(answer)
    return tree


def _read(path: Path) -> dict[str, Any] | None:
    try:
        tree = json.loads(path.read_text())
        known = {"url", "pid", "identity", "systems", "limits"} <= tree.keys() and isinstance(tree["systems"], list)
        return tree if known else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _is_here(about: Mapping[str, Any]) -> bool:
    """Whether a note is of a process of this machine, at one of its own addresses: whoever may write to the folder
    could name another place, which would get the question and the token."""
    try:
        host = str(urllib.parse.urlsplit(about["url"]).hostname)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as own:
            own.bind((host, 0))  # which only an address of this machine can be
    except (OSError, ValueError, AttributeError):
        return False
    return _lives(about["pid"])


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError, TypeError):
        pass  # another user's
    return True


def identity(experiment: Experiment, store: str) -> str:
    """Of a run: its steps, and the store that they lie in."""
    where = store if "://" in store else str(Path(store).resolve())
    made = [node.fingerprint for node in experiment.wanted]
    return hashlib.sha256("\n".join([where, *made]).encode()).hexdigest()[:16]


def identity_of_folder(folder: Path) -> str:
    """Of a system's folder: where it is, and what its description says."""
    text = (folder / SYSTEM).read_bytes()
    return hashlib.sha256(str(folder.resolve()).encode() + b"\n" + text).hexdigest()[:16]
