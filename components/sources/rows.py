"""Rows of a table in whatever file it comes: JSON lines, a JSON array, Parquet, a folder of Hugging Face datasets."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparring.components.config import UserError
from sparring.components.sources.parquet import opened, plain_rows
from sparring.components.sources.reading import Item, fitting, read_array, read_lines, read_objects, readable, regular
from sparring.components.sources.records import Bad

MARKS = ("state.json", "dataset_dict.json")
"""Files that `save_to_disk` writes."""
SAVED = "a dataset of `save_to_disk`"
BATCH = 1_000
"""Rows of a dataset that are read at once."""


def files_of(table: Path) -> list[Path]:
    """The files of a table: itself, or what is in its folder."""
    return [path for path in fitting(table, "**/*") if path.is_file()] if table.is_dir() else [table]


def read_rows(table: Path) -> Iterator[Item | Bad]:
    """The rows of a table as dictionaries in the order of its columns. UserError for a CSV table, which has texts alone
    and no lists."""
    if table.is_dir():
        yield from _saved(table)
    elif table.name.lower().removesuffix(".gz").endswith((".csv", ".tsv")):
        raise UserError(f"{table}: accepted: JSON lines or a JSON array, plain or .gz, or Parquet")
    elif table.suffix.lower() == ".parquet":
        with opened(table) as file:
            yield from (Item(*row) for row in plain_rows(file, table))
    else:
        first = next((line.text for line in read_lines(table) if not isinstance(line, Bad)), "")
        yield from read_array(table) if first.lstrip().startswith("[") else read_objects(table)


def _saved(folder: Path) -> Iterator[Item]:
    """The rows of a dataset that `save_to_disk` wrote."""
    table = load(folder)
    if isinstance(table, dict):
        raise UserError(f"{folder}: holds several tables; accepted: the folder of one, such as {min(table)}")
    number = 0
    for batch in batches(table, folder):
        for row in zip(*batch.values(), strict=True):
            number += 1
            yield Item(dict(zip(batch, row, strict=True)), f"{folder}: row {number}")


def batches(table: Any, place: object) -> Iterator[dict[str, list[Any]]]:
    """The columns of a dataset, 1,000 rows at a time. UserError where they are damaged: each batch is checked before it
    is read, since Arrow does not look whether the offsets in a mapped file point into it, and the process would end."""
    raw = table.with_format("arrow")
    with readable(place, SAVED):
        for start in range(0, len(table), BATCH):
            rows = slice(start, start + BATCH)
            raw[rows].validate(full=True)
            yield table[rows]


def load(folder: Path) -> Any:
    """What `save_to_disk` wrote to a folder, memory-mapped: a dataset, or several by split."""
    try:
        import datasets  # takes seconds, and a plan must not wait for it
    except ModuleNotFoundError:
        raise UserError(f"{folder}: a folder is read by the package `datasets`, which is not installed") from None
    if os.path.isdir(folder) and not any(os.path.isfile(folder / name) for name in MARKS):
        raise UserError(
            f"{folder}: a folder that is not {SAVED}; accepted: that, or a pattern of files, such as "
            f"{folder.name}/*.jsonl"
        )
    for path in fitting(folder, "**/*"):
        if not path.is_dir():
            regular(path)  # a pipe would be waited for without end
    with readable(folder, SAVED):
        return datasets.load_from_disk(str(folder))
