"""The tables of a folder and their roles, by the names of files and columns."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from sparring.components.config import UserError, listing
from sparring.components.data.tables import DEV
from sparring.components.sources.reading import is_part, matching
from sparring.components.sources.table_files import KINDS, columns_of, kind_of, trec_kind

NAMES = {
    "doc_id": "doc_id docid document_id passage_id corpus_id article_id pid docno did",
    "query_id": "query_id qid queryid question_id",
    "id": "id _id",
    "question": "question query anchor search prompt ask asked said claim wording words request utterance",
    "text": "text body content contents passage document answer context positive abstract response description notes",
    "title": "title headline heading name subject",
    "relevance": "relevance relevant is_relevant rel label grade judgment judgement gain correct is_correct score"
    " useful usefulness helpful rating",
    "split": "split",
    "time": "ts date time timestamp datetime when day created updated created_at updated_at clicked_at",
}
"""Names of columns by kind, the most likely first. Case is ignored, and `-` and spaces count as `_`."""
ROLES = {
    "qrels": "qrel|judg|relevan",
    "queries": "quer|question|topic|asked",
    "documents": "corpus|doc|passage|text|collection|article|page|answer|content",
}
"""Patterns in the names of tables, by role."""
SPLITS = {"train": "train", "dev": DEV, "validation": DEV, "valid": DEV, "val": DEV, "test": "test"}
"""Splits by the words in file names that stand for them."""


class Table(NamedTuple):
    """A file with its columns, or several files with the same columns."""

    name: str
    columns: list[str]
    files: str | list[str] | dict[str, str]
    """Files, in the form in which a source declares them."""

    @property
    def is_text(self) -> bool:
        """True if each line is a text, without columns."""
        return kind_of(self.name) == ".txt" and self.columns == ["text"]

    def all_named(self, *kinds: str) -> list[str]:
        """Return the columns that may be of these kinds, the most likely first."""
        plain = {re.sub(r"[- ]", "_", column.strip().lower()): column for column in self.columns}
        return [plain[name] for kind in kinds for name in NAMES[kind].split() if name in plain]

    def named(self, *kinds: str) -> str | None:
        """Return the most likely column of these kinds. Return None if there is none."""
        return next(iter(self.all_named(*kinds)), None)

    def names(self, **wanted: tuple[str, ...]) -> dict[str, str]:
        """Return the file's names of columns, by our names, where they differ."""
        columns = {column: self.named(*kinds) for column, kinds in wanted.items()}
        return {column: name for column, name in columns.items() if name is not None and name != column}

    @property
    def role(self) -> str | None:
        """Role of the table, by its columns, or else by its name. If None, it is unknown."""
        stem = self.name.lower()
        judges = self.named("relevance") and self.named("query_id", "question") and self.named("doc_id", "text")
        if judges and re.search(ROLES["qrels"], stem):  # here columns such as `query` and `document` contain ids
            return "qrels"
        if self.named("question") and self.named("text"):
            return "pairs"
        if self.named("query_id") and self.named("doc_id") and not self.named("question", "text"):
            return "qrels"
        if self.named("question"):
            return "queries"
        if self.named("text") is None:
            return None
        if self.named("query_id") and not self.named("doc_id"):
            return "queries"
        by_name = (role for role in ("queries", "documents") if re.search(ROLES[role], stem))
        return next(by_name, "documents")

    @property
    def tells_splits(self) -> bool:
        """True if files or rows name their splits."""
        return isinstance(self.files, dict) or self.named("split") is not None


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder. Names of folders end with `/`."""
    inside = (path for path in folder.iterdir() if not path.name.startswith("."))
    return sorted(path.name + ("/" if path.is_dir() else "") for path in inside)


def contents(folder: Path, names: Iterable[str]) -> tuple[list[Table], dict[str, str]]:
    """Return the tables among some names in a folder, and the reason for each name that is not a table.

    A folder of files of the same kind with the same columns is a single table.
    """
    tables, unread = list[Table](), dict[str, str]()
    for name in names:
        path = folder / name
        try:
            table = _parts(path) if name.endswith("/") else _table(path)
        except UserError as error:
            table = str(error).removeprefix(f"{path}: ")
        if isinstance(table, Table):
            tables.append(table)
        else:
            unread[name] = table
    return tables, unread


def _table(path: Path) -> Table | str:
    """Return a file as a table, or the reason why it is not one."""
    trec = trec_kind(path)
    if trec == "a ranking":
        return "a ranking of TREC's; `evaluate.other_rankings` of a config takes it"
    if kind_of(path.name) not in KINDS and trec is None:
        return f"no table ({kind_of(path.name) or 'no suffix'})"
    columns = columns_of(path)
    return Table(path.name, columns, path.name) if columns else "no columns"


def _parts(folder: Path) -> Table | str:
    """Return a folder of parts as a table, or the reason why it is not one."""
    parts = [path for path in sorted(folder.iterdir()) if is_part(path.name)]
    suffixes = {"".join(part.suffixes[-2:] if part.name.endswith(".gz") else part.suffixes[-1:]) for part in parts}
    if len(suffixes) != 1 or not all(part.is_file() for part in parts) or kind_of(parts[0].name) not in KINDS:
        return "a folder that is not one table in parts"
    columns = [columns_of(part) for part in parts]
    if any(set(part) != set(columns[0]) for part in columns):
        return "a folder of tables of different columns"
    name = f"{folder.name}/*{suffixes.pop()}"
    return Table(name, columns[0], name)


def merged(folder: Path, tables: list[Table]) -> list[Table]:
    """Merge tables with the same role and columns. All except documents need file names that tell their splits."""
    groups: dict[tuple[str | None, ...], list[Table]] = {}
    for table in tables:
        key = (table.name,) if table.is_text else (table.role, *sorted(table.columns))
        groups.setdefault(key, []).append(table)
    return [table for group in groups.values() for table in _merged(folder, group)]


def _merged(folder: Path, tables: list[Table]) -> list[Table]:
    names = [table.name for table in tables]
    if tables[0].is_text or (tables[0].role == "documents" and len(tables) == 1):
        return tables
    files = names if tables[0].role == "documents" else by_split(folder, names)
    return tables if files is None else [tables[0]._replace(name=listing(names), files=files)]


def split_of(name: str) -> str | None:
    """Return our name of the split that a file name contains. Return None if it contains none."""
    words = re.split(r"[-_./]", name.lower())
    return next((split for word, split in SPLITS.items() if word in words), None)


def by_split(folder: Path, patterns: Sequence[str]) -> dict[str, str] | None:
    """Return the file of each split, or the pattern of its parts, if file names contain splits.

    A name without a split counts as `train`. Return None if no name contains a split, or if a split has several tables.
    Raise UserError if a single pattern has several files of a split that do not form parts.
    """
    files: dict[str, set[str]] = {}
    any_split = False
    for pattern in patterns:
        names = [path.relative_to(folder).as_posix() for path in matching(folder, pattern)]
        splits = [split_of(name) for name in names]
        any_split |= any(splits)
        parts = [pattern] * len(names) if len(set(splits)) == 1 else _patterns(names)
        for split, part in zip(splits, parts, strict=True):
            files.setdefault(split or "train", set()).add(part)
    twice = next((split for split, parts in files.items() if len(parts) > 1), None)
    if any_split and twice is not None and len(patterns) == 1:
        raise UserError(
            f"{folder / patterns[0]}: {listing(sorted(files[twice]))} all belong to the split {twice}. Use a file per "
            "split, or parts whose names differ only in numbers."
        )
    if twice is not None or not any_split:
        return None
    return {split: files[split].pop() for split in ("train", DEV, "test") if split in files}


def _patterns(names: list[str]) -> list[str]:
    """Return, for each file, its name, or the pattern of the files whose names differ from it only in numbers."""
    alike = [re.sub(r"\d+(?=[^/]*$)", "*", name) for name in names]
    return [name if alike.count(form) == 1 else form for name, form in zip(names, alike, strict=True)]
