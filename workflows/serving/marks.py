"""Marks of right and wrong documents, in an append-only file, and the judgements made of them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from sparring.components.config import UserError
from sparring.components.yaml_files import read_text
from sparring.workflows.serving.questions import Mark

FILE = "marks.jsonl"
"""Name of the file, in the folder of a run or of an exported system. Each line is a mark. The last mark of a query and
document holds. White space in the query does not count."""


class Marks:
    """The marks of a file. Several services may add to one file. Each shows its own marks and those that the file had
    when the service started."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._marks: dict[tuple[str, str], Mark] = {}
        for mark in read(path) if path.exists() else ():
            self._hold(mark)

    def all(self) -> list[Mark]:
        """List the marks that hold, oldest first."""
        return list(self._marks.values())

    def add(self, mark: Mark) -> None:
        """Add a mark. It is on the disk afterwards."""
        line = mark.model_dump_json()[:-1] + f',"at":"{datetime.now(UTC).isoformat(timespec="seconds")}"}}\n'
        with self._lock, self._path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _drop_torn_line(file)
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
            self._hold(mark)

    def _hold(self, mark: Mark) -> None:
        key = (same(mark.query), mark.doc_id)
        self._marks.pop(key, None)
        if mark.relevant is not None:
            self._marks[key] = mark


def qrels(marks: Iterable[Mark]) -> str:
    """Write marks as TREC qrels: `query 0 document relevance`, with relevance 1 or 0. UserError for an id with white
    space, which qrels cannot hold."""
    return "".join(f"{query_id(mark.query)} 0 {_word(mark.doc_id)} {int(bool(mark.relevant))}\n" for mark in marks)


def queries(marks: Iterable[Mark]) -> str:
    """Write the ids and texts of marked queries, a query per line, separated by a tab."""
    texts = dict.fromkeys(same(mark.query) for mark in marks)
    return "".join(f"{query_id(text)}\t{text}\n" for text in texts)


def query_id(text: str) -> str:
    """Return a query's id in judgements. Equal texts have equal ids everywhere. White space does not count.

    >>> query_id("rolling  mean") == query_id("rolling mean ")
    True
    """
    return "marked-" + hashlib.sha256(same(text).encode()).hexdigest()[:12]


def same(query: str) -> str:
    """Return a query's text with single spaces between its words."""
    return " ".join(query.split())


def _drop_torn_line(file: IO[bytes]) -> None:
    """Cut off an incomplete last line, so that the next mark starts a new line."""
    file.seek(0)
    content = file.read()
    if not content.endswith(b"\n"):
        file.truncate(content.rfind(b"\n") + 1)


def _word(doc_id: str) -> str:
    if len(doc_id.split()) != 1:
        raise UserError(
            f"the id {doc_id!r} contains white space, which TREC's files cannot hold; "
            "`marks` writes a collection that can"
        )
    return doc_id


def read(path: Path) -> Iterable[Mark]:
    """Read the marks of a file. UserError names a line that is no mark.

    A last line without a line end is left out. It was being written when the machine stopped, and its mark was never
    confirmed.
    """
    lines = read_text(path).split("\n")[:-1]
    for number, line in enumerate(lines, 1):
        try:
            tree = json.loads(line)
            tree.pop("at", None)
            yield Mark.model_validate(tree)
        except (ValueError, AttributeError, TypeError, RecursionError, ValidationError):
            raise UserError(
                f'{path}:{number}: not a mark; accepted: {{"query": ..., "doc_id": ..., '
                '"relevant": true | false | null}'
            ) from None
