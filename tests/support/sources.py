"""What tests of the readers of sources share: files to read, and what was read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from sparring.components.sources.base import Source, declared


def write(path: Path, *lines: str) -> Path:
    """Write a text file, or a compressed one by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def beir(folder: Path, *, gz: str = "") -> Path:
    """A BEIR folder with three documents, three queries and two splits."""
    rows = [{"_id": "d1", "title": "One", "text": "first"}, {"_id": "d2", "text": "second\u2028line"}]
    write(folder / f"corpus.jsonl{gz}", *map(json.dumps, rows), json.dumps({"_id": 3, "title": "Three", "text": ""}))
    queries = [
        {"_id": "q1", "text": "one?", "metadata": {"answers": ["1", "I"]}},
        {"_id": "q2", "text": "two?"},
        {"_id": "q3", "text": "?"},
    ]
    write(folder / f"queries.jsonl{gz}", *map(json.dumps, queries))
    write(folder / "qrels" / f"train.tsv{gz}", "query-id\tcorpus-id\tscore", "q1\td1\t1")
    write(folder / "qrels" / f"test.tsv{gz}", "query-id\tcorpus-id\tscore", "q2\td2\t2", "q2\t3\t0")
    return folder


def source(**keys: Any) -> Source:
    """A declared source."""
    source: Source = declared(keys)
    return source


def without_place(records: Any) -> list[tuple[Any, ...]]:
    """Records as plain tuples."""
    return [tuple(record)[:-1] for record in records]
