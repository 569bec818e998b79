"""Recognition of the collection in a folder, and of its format, by the names of files and columns.

Only this package guesses. The result is a complete declaration of a source, which is checked like any other. Values are
read only to find columns of ids with unusual names.
"""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from sparring.components.config import UserError, listing
from sparring.components.data.tables import as_relevance
from sparring.components.sources.forms import in_form
from sparring.components.sources.reading import Item, matching, read_lines
from sparring.components.sources.recognition.layouts import LAYOUTS, Keys, training_data, training_format
from sparring.components.sources.recognition.table import Table, contents, merged, names_in
from sparring.components.sources.table_files import KINDS, kind_of, read_table
from sparring.components.sources.tables import patterns

ACCEPTED = [
    "BEIR: corpus.jsonl, queries.jsonl, qrels/SPLIT.tsv",
    "MS MARCO: collection.tsv, queries.SPLIT.tsv, qrels.SPLIT.tsv",
    "DPR: a .tsv file with the columns id, text, title, and .json files of questions with positive_ctxs",
    "tables (.csv, .tsv, .jsonl, .parquet), with a header: one of documents with a column text, and perhaps one of "
    "queries and one of qrels with the columns query_id, doc_id and perhaps relevance; for other names `columns` in "
    "the config, as in docs/pages/guides/own-collection.md of Sparring",
    "one table of pairs, with a column question and a column text (or answer, passage, ...), or one a split, such as "
    "faq.csv and test.csv; for other names `paired: true` and `columns`, as in that guide",
    "training data of Tevatron, FlagEmbedding or sentence-transformers (with negatives): .jsonl or .parquet files, "
    "whose names tell their splits, such as train.jsonl, and the corpus that Tevatron's may name",
    "two .txt files of as many lines, such as questions.txt and texts.txt; or one, of texts alone",
]
"""Contents of folders that are recognised."""
UNKNOWN = "none that is known"
LOOKED_AT = 100
"""Number of values of a column that are looked up in other tables."""
DOCUMENT = {"doc_id": ("doc_id", "id"), "title": ("title",), "text": ("text",)}
QUERY = {"query_id": ("query_id", "id"), "text": ("question", "text")}


class Recognised(NamedTuple):
    """A collection in a folder."""

    keys: Keys
    """Declaration of the source."""
    remarks: list[str]
    """Remarks on the columns of ids and relevances, and on columns that are not read."""
    unread: dict[str, str]
    """Descriptions of the folder's tables and files that are not read, by name."""


def recognise(place: Path) -> Recognised:
    """Recognise the collection in a folder, or in a file.

    If there is none, raise UserError, which lists the contents of the folder and the accepted forms.
    """
    if not place.exists():
        raise UserError(f"{place}: there is no such folder or file")
    folder, names = (place, names_in(place)) if place.is_dir() else (place.parent, [place.name])
    for layout in LAYOUTS if place.is_dir() else ():
        if (keys := layout(folder, names)) is not None:
            return Recognised(keys, [], {})
    files, unread = contents(folder, names)
    for name in unread:
        if name.endswith("/") and any(layout(folder / name, names_in(folder / name)) for layout in LAYOUTS):
            unread[name] = f"a separate collection; to read it, name {folder / name}"
    if (keys := training_data(folder, files)) is not None:
        return Recognised(keys, [], unread)
    tables = merged(folder, files)
    rest = [table for table in tables if training_format(table) is None]
    if {"documents", "queries", "qrels"} <= {table.role for table in rest}:
        tables = rest  # training data next to a complete collection
    collection = _pairs(folder, tables) or _three_tables(folder, tables) or _texts(folder, tables)
    broken = next((name for name in unread if kind_of(name) in KINDS), None)
    whole = collection is not None and (collection.keys.get("qrels") or collection.keys.get("paired"))
    if broken and not whole and (collection or not tables):
        reason = unread[broken] if unread[broken].startswith(str(folder)) else f"{folder / broken}: {unread[broken]}"
        raise UserError(f"{reason.rstrip('.')}. Fix the file, or move it away.")
    if collection is None:
        columns = {table.name: f"columns {listing(table.columns)}: {table.role or UNKNOWN}" for table in tables}
        lines = [f"  {name}: {text}" for name, text in sorted({**columns, **unread}.items())] or ["  nothing"]
        more = [f"  and {len(lines) - 20} more"] if len(lines) > 20 else []
        accepted = (f"  {line}" for line in ACCEPTED)
        first = f"{place}: no collection was recognised; what is there:"
        raise UserError(first, *lines[:20], *more, "accepted:", *accepted)
    unused = {table.name: f"columns {listing(table.columns)}" for table in tables if table not in collection.used}
    return Recognised(collection.keys, _remarks(collection), {**unused, **unread})


class _Collection(NamedTuple):
    """A declaration of tables, and the tables of each role."""

    keys: Keys
    documents: Table
    queries: Table | None = None
    qrels: Table | None = None
    more: tuple[Table, ...] = ()
    """Tables of additional documents, which no query of a list of pairs names."""

    @property
    def used(self) -> list[Table]:
        """The tables that are read."""
        tables = (self.documents, self.queries, self.qrels, *self.more)
        return [table for number, table in enumerate(tables) if table is not None and table not in tables[:number]]


def _only(tables: list[Table], role: str) -> Table | None:
    """Return the only table of a role. Raise UserError if there are several, and say how to declare them."""
    tables = [table for table in tables if table.role == role]
    if len(tables) > 1:
        key = "queries" if role == "pairs" else role
        files = "[FILE, FILE]" if role == "documents" else "{train: FILE, test: FILE}"
        raise UserError(
            f"There are several tables of {role}: {listing(table.name for table in tables)}. Keep one, name them by "
            f"their splits, such as train.csv and test.csv, or write `{key}: {files}` in a config. Move away tables of "
            "other kinds, such as the results of a search engine, which belong in `evaluate.other_rankings`."
        )
    return tables[0] if tables else None


def _three_tables(folder: Path, tables: list[Table]) -> _Collection | None:
    """Recognise documents, with queries and qrels if there are any."""
    tables = [table for table in tables if not table.is_text]
    documents, qrels = _only(tables, "documents"), _only(tables, "qrels")
    if documents is None:
        return None
    asking = [table for table in tables if table.role == "queries"]
    if len(asking) > 1 and qrels is None:  # for example results of a search engine, which name no documents
        asking = [table for table in asking if _link(folder, table, documents, "doc_id")] or asking
    queries = _only(asking, "queries")
    columns: dict[str, dict[str, str | None]] = {"documents": {}, "queries": {}, "qrels": {}}
    graded = True
    if queries is None:
        qrels = None
    else:
        for table in [qrels] if qrels else [table for table in tables if table.role is None]:
            query_ids = _link(folder, table, queries, "query_id")
            judged = _link(folder, table, documents, "doc_id", without=query_ids)
            if query_ids and judged and table.role is None:
                qrels = table
            if table is qrels:
                columns["documents"] |= {"doc_id": judged[1]} if judged else {}
                columns["queries"] |= {"query_id": query_ids[1]} if query_ids else {}
                columns["qrels"] |= qrels.names(**REFERENCES)
                columns["qrels"] |= {"query_id": query_ids[0]} if query_ids else {}
                columns["qrels"] |= {"doc_id": judged[0]} if judged else {}
                break
        if qrels is None and (judged := _link(folder, queries, documents, "doc_id")):
            qrels = queries
            columns["documents"]["doc_id"], columns["qrels"]["doc_id"] = judged[1], judged[0]
        if qrels is not None:
            relevance = _relevance(folder, qrels)
            columns["qrels"] |= {"relevance": relevance} if relevance else {}
            graded = relevance is not None
    columns["documents"] = {**documents.names(**DOCUMENT), **columns["documents"]}
    columns["queries"] = {**(queries.names(**QUERY) if queries else {}), **columns["queries"]}
    keys: Keys = {"format": "tables", "path": str(folder), "documents": documents.files}
    keys |= {"queries": queries.files if queries else None, "qrels": qrels.files if qrels else None}
    keys |= _named(columns) | ({} if graded else {"graded": False})
    if queries and qrels and not (queries.tells_splits or qrels.tells_splits):
        keys["split"] = "train"
    return _Collection(keys, documents, queries, qrels)


def _named(columns: dict[str, dict[str, str | None]]) -> Keys:
    """Return the key `columns`, with the columns whose names in the files differ from ours."""
    names = {role: {key: name for key, name in columns.items() if key != name} for role, columns in columns.items()}
    return {"columns": {role: columns for role, columns in names.items() if columns}} if any(names.values()) else {}


REFERENCES = {"query_id": ("query_id", "question"), "doc_id": ("doc_id", "text")}


def _link(
    folder: Path, table: Table, to: Table, kind: str, without: tuple[str, str] | None = None
) -> tuple[str, str] | None:
    """Return the column of `table` that refers to rows of the table `to`, and the column of ids in `to`.

    Columns are matched by usual names, by equal names, or by values. Texts, titles and times are never ids, even if
    they match. Return None if there is no match.
    """
    ids, reference = to.named(kind, "id"), table.named(*REFERENCES[kind] if table.role == "qrels" else (kind,))
    if reference and ids:
        return reference, ids
    no_ids = ["text", "title", "question", "time", "relevance", "split"]
    excluded = table.all_named(*no_ids, *(["query_id", "id"] if table.role == "queries" else []))
    candidates = [reference] if reference else [name for name in table.columns if name not in excluded]
    candidates = [name for name in candidates if not without or name != without[0]]
    holders = [ids] if ids else [name for name in to.columns if name not in to.all_named(*no_ids)]
    equal = next((name for name in candidates if name in holders), None)
    if equal and table.role != "queries":  # a shared column of queries and documents may be the row number
        return equal, equal
    values = {name: set[str]() for name in candidates}
    for row in islice(_rows(folder, table), LOOKED_AT):
        for name in candidates:
            values[name].add(_value(row.get(name)))
    values = {name: cells - {"", "None"} for name, cells in values.items()}
    counts = {(name, holder): Counter[str]() for name in candidates for holder in holders if _may_be_ids(values[name])}
    for row in _rows(folder, to) if counts else ():
        for (name, holder), count in counts.items():
            if (value := _value(row.get(holder))) in values[name]:
                count[value] += 1
    links = (
        link
        for link, count in counts.items()
        if 2 * len(count) > len(values[link[0]]) and count.total() < 1.1 * len(count)
    )
    return next(links, None)


def _may_be_ids(values: set[str]) -> bool:
    """Return True if values may be ids that link tables. Plain numbers occur in many tables by chance."""
    return bool(values) and all(re.fullmatch(r"\S*[^\W\d_]\S*", value) for value in values)


def _value(cell: Any) -> str:
    """Normalise a cell for comparison. Unicode forms do not matter, because `data.ids` can unify them."""
    return in_form("NFC", str(cell).strip())


def _rows(folder: Path, table: Table) -> Iterator[dict[str, Any]]:
    """Yield a table's rows."""
    for path in (path for pattern, _ in patterns(table.files) for path in matching(folder, pattern)):
        yield from (row.value for row in read_table(path) if isinstance(row, Item))


def _relevance(folder: Path, table: Table) -> str | None:
    """Return the most likely column of relevances. Columns of words, such as topic labels, do not qualify."""
    for column in table.all_named("relevance"):
        cells = [as_relevance(row.get(column)) for row in islice(_rows(folder, table), LOOKED_AT)]
        if 2 * sum(cell is not None for cell in cells) > len(cells):
            return column
    return None


def _pairs(folder: Path, tables: list[Table]) -> _Collection | None:
    """Recognise a table of questions with their texts, or two text files whose lines correspond."""
    pairs = _only(tables, "pairs")
    if pairs is not None:
        texts = pairs.names(doc_id=("doc_id",), title=("title",), text=("text",))
        columns: dict[str, dict[str, str | None]] = {
            "documents": {**texts},
            "queries": {**pairs.names(query_id=("query_id",), text=("question",))},
        }
        relevance = _relevance(folder, pairs)
        if relevance or "relevance" in pairs.columns:
            columns["queries"]["relevance"] = relevance
        more = tuple(
            table
            for table in tables
            if table.role == "documents"
            and table.names(doc_id=("doc_id",), title=("title",), text=("text",)) == texts
            and table.named("doc_id") == pairs.named("doc_id")
        )
        files = [pattern for table in (pairs, *more) for pattern, _ in patterns(table.files)]
        keys: Keys = {"format": "tables", "path": str(folder), "documents": files if len(files) > 1 else files[0]}
        keys |= {"queries": pairs.files, "paired": True, **_named(columns)}
        return _Collection(keys | ({} if pairs.tells_splits else {"split": "train"}), pairs, pairs, None, more)
    texts_alone = [table for table in tables if table.is_text]
    if len(texts_alone) != 2 or len(tables) != 2:
        return None
    queries, documents = _only(texts_alone, "queries"), _only(texts_alone, "documents")
    if queries is None or documents is None:
        return None
    lines = [sum(1 for _ in read_lines(folder / table.name, blank=True)) for table in (queries, documents)]
    keys = {"format": "tables", "path": str(folder), "documents": documents.name, "queries": queries.name}
    keys |= {"paired": True} if lines[0] == lines[1] else {}
    return _Collection({**keys, "split": "train"}, documents, queries)


def _texts(folder: Path, tables: list[Table]) -> _Collection | None:
    """Recognise a text file in which every line is a document."""
    if len(tables) == 1 and tables[0].is_text:
        return _Collection({"format": "lines", "path": str(folder / tables[0].name)}, tables[0])
    return None


def _remarks(collection: _Collection) -> list[str]:
    """Describe the columns of ids and relevances, the columns that are not read, and the rows that are numbered."""
    keys, lines = collection.keys, list[str]()
    columns = keys.get("columns", {})
    roles = (("documents", collection.documents), ("queries", collection.queries), ("qrels", collection.qrels))
    read = {"doc_id", "title", "text", "query_id", "answers", "split", "relevance", "iteration"}
    read |= {name for names in columns.values() for name in names.values()}
    for role, table in roles:
        if table is None or table.is_text:
            continue
        for id_column in ("doc_id", "query_id"):
            if name := columns.get(role, {}).get(id_column):
                lines.append(f"{table.name}: {name} has the {id_column} of {role}")
        number = "doc_id" if role == "documents" else "query_id"
        if role != "qrels" and not columns.get(role, {}).get(number) and number not in table.columns:
            hint = f"`columns: {{{role}: {{{number}: THEIRS}}}}`"
            lines.append(f"{table.name}: no column of ids is known, so {role} are numbered by row; to name one: {hint}")
    role, judging = ("queries", collection.queries) if keys.get("paired") else ("qrels", collection.qrels)
    for table in collection.used:
        rest = [] if table.is_text else [column for column in table.columns if column not in read]
        lines += [f"{table.name}: not read: {listing(rest)}"] if rest else []
        if table is judging and (name := columns.get(role, {}).get("relevance")):
            lines.append(f"{table.name}: {name} is read as how relevant a document is, 0 for not at all")
        elif table is judging and rest:
            lines.append(
                f"  if an unread column holds relevance grades, set `columns: {{{role}: {{relevance: COLUMN}}}}` and "
                "delete `graded: false`; give words a number with `grades: {WORD: 1}`"
            )
    return lines
