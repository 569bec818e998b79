"""What can be told of a file before it is read: its columns, its beginning, and the split that its name tells of."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparring.components.config import UserError, listing
from sparring.components.data.tables import DEV
from sparring.components.sources.parquet import opened
from sparring.components.sources.reading import (
    Item,
    Line,
    first_keys,
    first_objects,
    matching,
    of_trec,
    read_array,
    read_csv,
    read_lines,
    read_objects,
)
from sparring.components.sources.tables import TREC, kind_of

Keys = dict[str, Any]
"""Of a source's declaration."""


def names_in(folder: Path) -> list[str]:
    """What a folder has; the names of folders in it end with `/`."""
    inside = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return sorted(path.name + ("/" if path.is_dir() else "") for path in inside)


def head(path: Path) -> str:
    """The first line of a file that is text; empty where there is none."""
    return next((line.text for line in read_lines(path) if isinstance(line, Line)), "")


def first_object(path: Path) -> Keys | None:
    """The first object of a JSON array."""
    try:
        first = next(read_array(path), None)
    except UserError:
        return None
    return first.value if isinstance(first, Item) else None


HEADLESS = "data, and no header that names the columns"


def headless(path: Path, line: str) -> UserError:
    """The error for a table whose first line is data, which would be read as the names of columns."""
    return UserError(
        f"{path}:1: {HEADLESS}: {' '.join(line.split())!r:.60}; accepted: a header in each table, such as "
        "query_id, iteration, doc_id, relevance for qrels; or the names of MS MARCO's files, which have "
        "none: collection.tsv, queries.train.tsv, qrels.train.tsv"
    )


def columns_of(path: Path) -> list[str]:
    """The names of a file's columns."""
    kind = kind_of(path.name)
    if kind != ".csv" and of_trec(path) == "judgements":
        return TREC
    if kind == ".txt":
        return ["text"]
    if kind == ".parquet":
        with opened(path) as file:
            return list(file.schema_arrow.names)
    if kind == ".jsonl":
        first = next(read_objects(path), None)
        if not isinstance(first, Item):
            raise UserError(str(first) if first else "empty")
        return first_keys(path)
    if kind == ".csv":
        row = next(read_csv(path), None)
        return [] if row is None else [cell.strip() for cell in row.cells]
    return head(path).split("\t")


def lists_in(path: Path) -> frozenset[str]:
    """The names of a file's columns that hold lists."""
    kind = kind_of(path.name)
    if kind == ".parquet":
        with opened(path) as file:
            return frozenset(
                one.name for one in file.schema_arrow if isinstance(one.type, pa.ListType | pa.LargeListType)
            )
    objects = first_objects(path) if kind == ".jsonl" else ()
    return frozenset(key for one in objects for key, value in one.items() if isinstance(value, list))


def split_told(name: str) -> str | None:
    """The split that a file's name tells of, as we call it."""
    parts = re.split(r"[-_./]", name.lower())
    names = {"train": "train", "dev": DEV, "test": "test", "validation": DEV, "valid": DEV, "val": DEV}
    return next((split for word, split in names.items() if word in parts), None)


def by_split(folder: Path, patterns: Sequence[str]) -> dict[str, str] | None:
    """The file of each split, or the pattern of its parts, where files' names tell splits; a name that tells none is of
    `train`. None where no name tells one, or where two tables are of one split."""
    found: dict[str, set[str]] = {}
    told = False
    for pattern in patterns:
        names = [path.relative_to(folder).as_posix() for path in matching(folder, pattern)]
        splits = [split_told(name) for name in names]
        told |= any(splits)
        parts = [pattern] * len(names) if len(set(splits)) == 1 else _parts(names)
        for split, part in zip(splits, parts, strict=True):
            found.setdefault(split or "train", set()).add(part)
    several = next((split for split, files in found.items() if len(files) > 1), None)
    if told and several is not None and len(patterns) == 1:
        raise UserError(
            f"{folder / patterns[0]}: {listing(sorted(found[several]))} are of the split {several}; "
            "accepted: a file a split, or parts whose names differ in numbers alone"
        )
    if several is not None or not told:
        return None
    return {split: found[split].pop() for split in ("train", DEV, "test") if split in found}


def _parts(names: list[str]) -> list[str]:
    """For each file its name; where others differ from it in numbers alone, as parts do, the pattern of all these."""
    alike = [re.sub(r"\d+(?=[^/]*$)", "*", name) for name in names]
    return [name if alike.count(form) == 1 else form for name, form in zip(names, alike, strict=True)]
