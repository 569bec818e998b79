"""Rows of a table in whatever file it comes: JSON lines, a JSON array, Parquet, a folder of Hugging Face datasets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components.config import UserError
from components.sources.parquet import opened, plain_rows
from components.sources.reading import Item, plain_or_gz, read_array, read_lines, read_objects
from components.sources.records import Bad


def matching(folder: Path, pattern: str) -> list[Path]:
    """The tables inside a folder that a name or pattern means, such as `train-*.parquet`; a name for which there is
    none stands for itself."""
    return sorted(folder.glob(pattern)) or [plain_or_gz(folder / pattern)]


def files_of(table: Path) -> list[Path]:
    """The files of a table: itself, or what is in its folder."""
    return sorted(path for path in table.rglob("*") if path.is_file()) if table.is_dir() else [table]


def read_rows(table: Path) -> Iterator[Item | Bad]:
    """The rows of a table as dictionaries in the order of its columns."""
    if table.is_dir():
        yield from _saved(table)
    elif table.suffix == ".parquet":
        with opened(table) as file:
            yield from (Item(*row) for row in plain_rows(file, table))
    else:
        first = next((line.text for line in read_lines(table) if not isinstance(line, Bad)), "")
        yield from read_array(table) if first.lstrip().startswith("[") else read_objects(table)


def _saved(folder: Path) -> Iterator[Item]:
    """The rows of a dataset that `save_to_disk` wrote."""
    try:
        import datasets  # takes seconds, and a plan must not wait for it
    except ModuleNotFoundError:
        raise UserError(f"{folder}: a folder is read by the package `datasets`, which is not installed") from None
    try:
        table: Any = datasets.load_from_disk(str(folder))
    except (FileNotFoundError, datasets.exceptions.DatasetsError, ValueError) as error:
        raise UserError(f"{folder}: {str(error).splitlines()[0]}") from None
    if isinstance(table, datasets.DatasetDict):
        raise UserError(f"{folder}: holds several tables; accepted: the folder of one, such as {min(table)}")
    for number, row in enumerate(table, 1):
        yield Item(dict(row), f"{folder}: row {number}")
