"""The file in a run's or system's folder by which `search` finds a running service, and requests to the service."""

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
from sparring.components.systems.reading import ReaderAnswer
from sparring.components.systems.system import Answered, Hit
from sparring.workflows.experiments.loading import Experiment

FILE = "service.json"
TOKEN = "SPARRING_TOKEN"
"""Environment variable that holds the token."""
WAIT_SECONDS = 1.0
"""Seconds to wait for the health of a service on this machine."""
ANSWER_SECONDS = 60.0


@contextmanager
def announced(
    folder: Path, url: str, identity: str, systems: Sequence[str], limits: Mapping[str, int]
) -> Iterator[bool]:
    """Write the service's file while this block runs, and yield whether it was written. The file of another live
    service stays if that service answers for the same systems. Otherwise it is put back at the end, unless somebody has
    written the file since."""
    note = {"url": url, "pid": os.getpid(), "identity": identity, "systems": list(systems), "limits": dict(limits)}
    path = folder / FILE
    earlier = _read(path)
    earlier = earlier if earlier is not None and _answers(earlier, identity) else None
    if earlier is not None and all(name in earlier["systems"] for name in systems):
        yield False
        return
    try:
        write_json(path, note)
    except OSError:  # a folder that may only be read
        yield False
        return
    try:
        yield True
    finally:
        if _read(path) == note:
            if earlier is not None and _answers(earlier, identity):
                write_json(path, earlier)
            else:
                path.unlink(missing_ok=True)


def ask(
    folder: Path, identity: str, system: str, query: str | None, k: int, doc_id: str | None = None
) -> Answered | None:
    """Ask a running service of a folder. None if no service of the same identity answers for the system: the caller
    then opens the models itself."""
    note = _read(folder / FILE)
    if note is None or system not in note["systems"]:
        return None
    try:
        most = note["limits"]["query_characters"]
        if k > note["limits"]["k"] or (query is not None and not 0 < len(query.strip()) <= most):
            return None
        if not _answers(note, identity):
            return None
        question = {"k": k, "system": system, **({"ids": [doc_id]} if query is None else {"queries": [query]})}
        result = _request(f"{note['url']}/search", question, ANSWER_SECONDS)["results"][0]
        answer = result.get("answer")
        hits = [Hit(**document) for document in result["documents"]]
        return Answered(None if answer is None else ReaderAnswer(**answer), hits)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def answers(url: str, identity: str, seconds: float) -> bool:
    """Tell whether a service of an identity answers at a URL within so many seconds."""
    try:
        return _request(f"{url}/health", None, seconds).get("identity") == identity
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def _answers(note: Mapping[str, Any], identity: str) -> bool:
    """Tell whether a note's service answers. By now another program may have its process number and its port."""
    return note["identity"] == identity and _is_here(note) and answers(note["url"], identity, WAIT_SECONDS)


def _request(url: str, question: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
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
        complete = {"url", "pid", "identity", "systems", "limits"} <= tree.keys() and isinstance(tree["systems"], list)
        return tree if complete else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _is_here(note: Mapping[str, Any]) -> bool:
    """Tell whether a note's process runs on this machine, at one of its addresses. Whoever may write to the folder
    could name another machine, which would get the question and the token."""
    try:
        host = str(urllib.parse.urlsplit(note["url"]).hostname)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.bind((host, 0))  # which only an address of this machine can be
    except (OSError, ValueError, AttributeError):
        return False
    return _lives(note["pid"])


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError, TypeError):
        pass  # another user's
    return True


def identity(experiment: Experiment, store: str) -> str:
    """Identify a run by its steps and the store that holds them."""
    where = store if "://" in store else str(Path(store).resolve())
    fingerprints = [node.fingerprint for node in experiment.wanted]
    return hashlib.sha256("\n".join([where, *fingerprints]).encode()).hexdigest()[:16]


def identity_of_folder(folder: Path) -> str:
    """Identify a system's folder by its place and its description."""
    text = (folder / SYSTEM).read_bytes()
    return hashlib.sha256(str(folder.resolve()).encode() + b"\n" + text).hexdigest()[:16]
