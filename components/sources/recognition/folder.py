"""The tables of a folder, and what each is of."""

import re
from collections.abc import Iterator
from pathlib import Path

from sparring.components.config import UserError, listing
from sparring.components.sources.reading import is_part, of_trec
from sparring.components.sources.recognition.files import Keys, by_split, columns_of, lists_in, names_in
from sparring.components.sources.recognition.layouts import LAYOUTS, given_by
from sparring.components.sources.recognition.links import Table
from sparring.components.sources.tables import KINDS, kind_of

ROLES = {
    "qrels": "qrel|judg|relevan",
    "queries": "quer|question|topic|asked",
    "documents": "corpus|doc|passage|text|collection|article|page|answer|content",
}
"""What tables are called."""


def contents_of(folder: Path, names: list[str]) -> Iterator[tuple[str, Table | str]]:
    """Each file with its columns, or with what it is; a folder of Parquet or other parts is one table."""
    for name in names:
        path = folder / name
        if name.endswith("/"):
            yield name, _parts(path)
        elif (found := of_trec(path)) == "a ranking":
            yield name, "a ranking of TREC's; `evaluate.other_rankings` of a config takes it"
        elif kind_of(name) not in KINDS and found is None:
            yield name, f"no table ({kind_of(name) or 'no suffix'})"
        else:
            try:
                yield name, Table(name, columns_of(path), lists_in(path))
            except UserError as error:
                yield name, str(error)


def _parts(folder: Path) -> Table | str:
    """A folder whose files have one kind and the same columns, as one table; else what it is."""
    if any(layout(folder, names_in(folder)) for layout in LAYOUTS):
        return f"a collection of its own; accepted: {folder}"
    parts = [path for path in sorted(folder.iterdir()) if is_part(path.name)]
    if not all(part.is_file() for part in parts):
        return "a folder with folders in it"
    suffixes = {"".join(part.suffixes[-2:] if part.name.endswith(".gz") else part.suffixes[-1:]) for part in parts}
    if len(suffixes) != 1:
        return f"a folder of several kinds of files: {listing(sorted(suffixes))}" if parts else "an empty folder"
    if kind_of(parts[0].name) not in KINDS:
        return f"a folder of files that are no tables ({suffixes.pop() or 'no suffix'})"
    try:
        columns, lists = [columns_of(part) for part in parts], lists_in(parts[0])
    except UserError as error:
        return f"a folder; {error}"
    same = all(set(one) == set(columns[0]) for one in columns)
    return (
        Table(f"{folder.name}/*{suffixes.pop()}", columns[0], lists)
        if same
        else "a folder of tables of different columns"
    )


def left_out(place: Path, used: set[Path]) -> dict[str, list[str]]:
    """What in a folder is no table, by why; files that are used, or hold what is, are left aside."""
    found: dict[str, list[str]] = {}
    if place.is_dir():
        kept = {path.relative_to(place).parts[0] for path in used if path.is_relative_to(place)}
        for name, one in contents_of(place, [name for name in names_in(place) if name.rstrip("/") not in kept]):
            if isinstance(one, str):
                found.setdefault(one.removeprefix(f"{place / name}:").lstrip(), []).append(name)
    return found


def together(folder: Path, tables: list[Table]) -> list[Table]:
    """The tables, where those of one kind with the same columns are one: documents always, others if their files' names
    tell different splits, or, of one of them, none: that is `train`."""
    alike: dict[tuple[str | None, ...], list[Table]] = {}
    for table in tables:
        alone = table.is_text
        alike.setdefault((table.name,) if alone else (role_of(table), *sorted(table.columns)), []).append(table)
    return [table for group in alike.values() for table in _one_of(folder, group)]


def _one_of(folder: Path, tables: list[Table]) -> list[Table]:
    """Tables of one kind as one, if they can be; one whose name tells a split knows it."""
    names = [table.name for table in tables]
    if role_of(tables[0]) == "documents":
        return tables if len(tables) == 1 else [tables[0]._replace(name=listing(names), several=names)]
    splits = None if tables[0].is_text else by_split(folder, names)
    return tables if splits is None else [tables[0]._replace(name=listing(names), several=splits)]


def role_of(table: Table) -> str | None:
    """What a table is of, by its columns, and where these do not say, by its name."""
    stem = table.name.lower()
    judges = table.named("relevance") and table.named("query_id", "question") and table.named("doc_id", "text")
    if judges and re.search(ROLES["qrels"], stem):  # columns such as `query` and `document` hold ids there
        return "qrels"
    if table.named("question") and table.named("text"):
        return "pairs"
    if table.named("query_id") and table.named("doc_id") and not table.named("question", "text"):
        return "qrels"
    if table.named("question"):
        return "queries"
    if table.named("text") is None:
        return None
    if table.named("query_id") and not table.named("doc_id"):
        return "queries"
    return next((role for role, pattern in ROLES.items() if role != "qrels" and re.search(pattern, stem)), "documents")


def tables_of(place: Path, keys: Keys) -> list[Table]:
    """The tables of a folder; none where its declaration is not of tables."""
    if keys["format"] not in ("tables", "parquet"):
        return []
    folder, names = (place, names_in(place)) if place.is_dir() else (place.parent, [place.name])
    return together(folder, [one for _, one in contents_of(folder, names) if isinstance(one, Table)])


def about(table: Table) -> str:
    """A table for people."""
    columns = f"columns {listing(table.columns)}" if not table.is_text else "lines of text"
    role = role_of(table)
    if given := given_by(table):
        return f"{columns}: a collection of its own, `format: {given}`"
    return f"{columns}" + (f": {role}" if role else ": none that is known")
