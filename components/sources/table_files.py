"""Readers of tables in files of any kind, row by row.

Kinds are .csv, .tsv, .jsonl, .json, .parquet, .txt with a text per line, TREC's qrels under any name, and folders that
`save_to_disk` of Hugging Face's `datasets` wrote. All files except Parquet may be .gz. Rows are dictionaries by the
file's names of columns, or by ours (`read_columns`).
"""

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sparring.components.config import UserError, listing
from sparring.components.sources.reading import (
    QRELS,
    Item,
    Line,
    exists,
    fitting,
    read_array,
    read_cells,
    read_csv,
    read_lines,
    read_objects,
    readable,
    regular,
)
from sparring.components.sources.records import Bad

KINDS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")
SAVED = "a dataset of `save_to_disk`"
MARKS = ("state.json", "dataset_dict.json")
"""Files that `save_to_disk` writes."""
BATCH = 1_000
"""Number of rows of a dataset that are read at once."""
LOOKED_AT = 1_000
"""Number of first JSON objects whose keys make the columns of a file."""


def kind_of(name: str) -> str:
    """Return the kind of a file by its name, for example `.csv` for `faq.csv.gz`."""
    return Path(name.lower().removesuffix(".gz")).suffix


def files_of(table: Path) -> list[Path]:
    """Return the files of a table: the table itself, or all files of its folder."""
    if not exists(table) or not table.is_dir():
        return [table]
    return [path for path in fitting(table, "**/*") if path.is_file()]


def columns_of(path: Path) -> list[str]:
    """Return the names of a file's columns. For JSON these are the keys of the first objects."""
    kind = kind_of(path.name)
    if kind == ".parquet":
        with opened(path) as file:
            return list(file.schema_arrow.names)
    if kind in (".jsonl", ".json") or path.is_dir():
        rows = [row for row in islice(read_table(path), LOOKED_AT) if isinstance(row, Item)]
        return list(dict.fromkeys(key for row in rows for key in row.value))
    return _header(path)


def read_table(
    path: Path, *, columns: list[str] | None = None, blank: bool = False, kind: str = ""
) -> Iterator[Item | Bad]:
    """Yield the rows of a table as dictionaries in the order of its columns.

    With `columns`, only these columns of Parquet files are read. With `blank`, empty lines of a .txt file are rows too.
    `kind` is the kind of the file. If it is "", the file name decides.
    """
    kind = kind or kind_of(path.name)
    if path.is_dir():
        yield from dataset_rows(load_dataset(path), path)
    elif kind == ".parquet":
        yield from _parquet_rows(path, columns)
    elif kind in (".jsonl", ".json"):
        first = next((line.text for line in read_lines(path) if isinstance(line, Line)), "")
        yield from read_array(path) if first.lstrip().startswith("[") else read_objects(path)
    elif _is_qrels(path, kind):
        yield from read_cells(path, QRELS, str.split)
    elif kind == ".txt":
        for line in read_lines(path, blank=blank):
            yield Item({"text": line.text}, line.place) if isinstance(line, Line) else line
    elif kind == ".tsv":
        header = _header(path, kind)
        lines = read_cells(path, header)
        next(lines, None)
        yield from lines
    elif kind == ".csv":
        rows = read_csv(path)
        header = [cell.strip() for cell in next(rows, ([], ""))[0]]
        for cells, place in rows:
            if len(cells) == len(header):
                yield Item(dict(zip(header, cells, strict=True)), place)
            else:
                yield Bad("wrong columns", place, f"expected {', '.join(header)}, got {len(cells)} columns")
    else:
        raise UserError(
            f"{path}: this is not a table. Use one of {listing(KINDS)}, or TREC's qrels.", code="not-a-table"
        )


def read_columns(
    path: Path, required: list[str], optional: list[str], names: dict[str, str | None], *, blank: bool
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield rows by our names of columns, each with its place.

    Raise UserError for a row that cannot be read, because skipping it would shift the rows that belong together.
    """
    if not (present := columns_of(path)):
        return
    table_names = names_in_table(path, present, required, optional, names)
    for row in read_table(path, columns=[name for name in table_names.values() if name], blank=blank):
        if isinstance(row, Bad):
            raise UserError(str(row), key=row.place, code=row.code)
        yield {column: row.value.get(name) if name else None for column, name in table_names.items()}, row.place


def names_in_table(
    place: object, present: list[str], required: list[str], optional: list[str], names: dict[str, str | None]
) -> dict[str, str | None]:
    """Return the table's name of each of our columns. It is None for an optional column that the table lacks."""
    if unknown := names.keys() - {*required, *optional}:
        accepted = listing([*required, *optional])
        raise UserError(
            f"{place}: columns: unknown column {min(unknown)!r}. Use these names: {accepted}.", code="unknown-column"
        )
    table_names: dict[str, str | None] = {}
    for column in (*required, *optional):
        name = names.get(column, column)
        if name is None and column in required:
            raise UserError(
                f"{place}: columns: {column} is null, but this column is required. Write its name.",
                code="needed-column",
            )
        if name not in (None, *present) and (column in required or column in names):
            raise UserError(
                f"{place}: wrong columns: there is no column {name!r} for {column}. "
                f"The columns are {listing(present)}.",
                code="wrong-columns",
            )
        if name and present.count(name) > 1:
            raise UserError(
                f"{place}: wrong columns: there are several columns {name!r}. Keep only one of them.",
                code="wrong-columns",
            )
        table_names[column] = name if name in present else None
    return table_names


def opened(path: Path) -> pq.ParquetFile:
    """Open a Parquet file."""
    with readable(path, "a Parquet file"):
        return pq.ParquetFile(regular(path))


def _parquet_rows(path: Path, columns: list[str] | None) -> Iterator[Item]:
    number = 0
    with opened(path) as file, readable(path, "a Parquet file"):
        for batch in file.iter_batches(batch_size=4096, columns=columns):
            for row in batch.to_pylist():
                number += 1
                yield Item(row, f"{path}: row {number}")


def _header(path: Path, kind: str = "") -> list[str]:
    """Return the columns of a text file by its first line. An empty file has none."""
    kind = kind or kind_of(path.name)
    if _is_qrels(path, kind):
        return QRELS
    if kind == ".txt":
        return ["text"]
    if kind not in KINDS:
        raise UserError(
            f"{path}: this is not a table. Use one of {listing(KINDS)}, or TREC's qrels.", code="not-a-table"
        )
    if kind == ".csv":
        cells = next(read_csv(path), ([], ""))[0]
    else:
        line = next(read_lines(path), None)
        if isinstance(line, Bad):
            raise UserError(str(line))
        cells = line.text.split("\t") if line else []
    return [cell.strip() for cell in cells]


def _is_qrels(path: Path, kind: str) -> bool:
    return kind != ".csv" and trec_kind(path) == "judgements"


TREC = {"a ranking": r"\S+\s+(\d+|Q0)\s+\S+\s+\d+\s+-?\d\S*\s+\S+", "judgements": r"\S+\s+(\d+|Q0)\s+\S+\s+-?\d+"}
"""Form of the lines in TREC's files."""


def trec_kind(path: Path) -> str | None:
    """Return `judgements` or `a ranking` for a file in TREC's format, by its first lines, and None for other files."""
    try:
        lines = [line.text.strip() if isinstance(line, Line) else "" for line in islice(read_lines(path), 20)]
    except UserError:
        return None
    return next(
        (kind for kind, form in TREC.items() if lines and all(re.fullmatch(form, text) for text in lines)), None
    )


def load_dataset(folder: Path) -> Any:
    """Load a folder of `save_to_disk`, memory-mapped: a dataset, or a dictionary of datasets by split."""
    try:
        import datasets  # takes seconds, and a plan must not wait for it
    except ModuleNotFoundError:
        raise UserError(
            f"{folder}: folders are read by the package `datasets`, which is not installed. Install it."
        ) from None
    if os.path.isdir(folder) and not any(os.path.isfile(folder / name) for name in MARKS):
        pattern = f"{folder.name}/*.jsonl"
        raise UserError(f"{folder}: the folder is not {SAVED}. Use such a folder, or a pattern such as {pattern}.")
    for path in fitting(folder, "**/*"):
        if not path.is_dir():
            regular(path)  # reading a pipe would wait forever
    with readable(folder, SAVED):
        return datasets.load_from_disk(str(folder))


def dataset_rows(table: Any, place: object) -> Iterator[Item]:
    """Yield the rows of a Hugging Face dataset.

    Each batch is validated before it is read. Arrow itself does not check the offsets in a mapped file, and wrong
    offsets would crash the process.
    """
    if isinstance(table, dict):
        raise UserError(f"{place}: the folder has several tables. Name the folder of one, such as {min(table)}.")
    raw, number = table.with_format("arrow"), 0
    with readable(place, SAVED):
        for start in range(0, len(table), BATCH):
            rows = slice(start, start + BATCH)
            raw[rows].validate(full=True)
            batch = table[rows]
            for cells in zip(*batch.values(), strict=True):
                number += 1
                yield Item(dict(zip(batch, cells, strict=True)), f"{place}: row {number}")
