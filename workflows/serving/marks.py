"""Marks of right and wrong documents: an append-only file, judgements made of it, and collections with these."""

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
"""Beside `config.yaml` of a run, or `system.json` of a system: a mark a line. The last of a query and document holds;
white space in the query does not count."""


class Marks:
    """The marks of a file. Several services may add to one file; each shows those that were there when it started and
    its own."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._marks: dict[tuple[str, str], Mark] = {}
        for mark in read(path) if path.exists() else ():
            self._hold(mark)

    def all(self) -> list[Mark]:
        """Those that hold, in the order in which they were made."""
        return list(self._marks.values())

    def add(self, mark: Mark) -> None:
        """Add a mark, which is on the disk afterwards."""
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

    def qrels(self) -> str:
        """TREC's qrels: `query 0 document relevance`, the relevance 1 or 0. UserError for an id that they cannot
        hold."""
        return "".join(
            f"{query_id(mark.query)} 0 {_word(mark.doc_id)} {int(bool(mark.relevant))}\n" for mark in self.all()
        )

    def queries(self) -> str:
        """The queries' ids and texts, a line each, between them a tab."""
        texts = dict.fromkeys(same(mark.query) for mark in self.all())
        return "".join(f"{query_id(text)}\t{text}\n" for text in texts)


def query_id(text: str) -> str:
    """A query's id in judgements: the same text has the same one everywhere; white space does not count.

    >>> query_id("rolling  mean") == query_id("rolling mean ")
    True
    """
    return "marked-" + hashlib.sha256(same(text).encode()).hexdigest()[:12]


def same(query: str) -> str:
    """A query's text without the white space that does not count."""
    return " ".join(query.split())


def _drop_torn_line(file: IO[bytes]) -> None:
    """Cut off what follows the last end of a line, so that the next mark begins a line of its own."""
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
    """The marks of a file; UserError names a line that is none. A last line without an end was being written when the
    machine stopped: its mark was never confirmed, and is left out."""
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
